"""A site: Twinflower's FedAvg client, as functions."""

import numpy as np
from own_client.task import load

from twinflower.algorithms import FedAvg
from twinflower.clients import client_app
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import Logistic
from twinflower.problems.objectives import LinearModel

FEATURES = 30


def rows(context) -> Batch:
    """The rows of this node, with labels 1 and 0."""
    features, labels = load(context.node_config["partition-id"], context.node_config["num-partitions"])
    return Batch(features, (labels > 0).astype(int))


app = client_app(
    FedAvg(step_size=1.0),
    LinearModel(Logistic(), 1, FEATURES),
    rows,
    np.zeros(FEATURES),
    schedule=LocalSchedule(0, max_local_steps=4),
)
