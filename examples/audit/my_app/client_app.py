"""A Flower app with LocalDpMod, as in Flower's guide to differential privacy: the app that docs/audit.md audits."""

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod

FEATURES, ROUNDS, STEP_SIZE = 4, 3, 5.0
local_dp = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=8.0, delta=1e-5)
app = ClientApp(mods=[local_dp])


def load_data(partition: int) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, 4) and labels (n,), 0 or 1, of a client."""
    draws = np.random.default_rng(partition)
    features = draws.normal(size=(50, FEATURES))
    return features, (features @ [1.0, -1.0, 2.0, 0.5] > 0).astype(np.int64)


@app.train()
def train(message: Message, context: Context) -> Message:
    """A few steps of logistic regression from the received model, an array (5,) with an intercept."""
    features, labels = load_data(int(context.node_config["partition-id"]))
    inputs = np.column_stack([features, np.ones(len(features))])
    (model,) = message.content["arrays"].to_numpy_ndarrays()
    for _ in range(3):
        predicted = 1 / (1 + np.exp(-np.clip(inputs @ model, -500, 500)))
        model = model - STEP_SIZE * (predicted - labels) @ inputs / len(labels)
    metrics = MetricRecord({"num-examples": len(labels)})
    return Message(RecordDict({"arrays": ArrayRecord([model]), "metrics": metrics}), reply_to=message)
