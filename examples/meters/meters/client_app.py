"""One water utility."""

import numpy as np
from flwr.app import Context
from flwr.clientapp import ClientApp

from strategies import WALK, method
from twinflower.clients import ContextLedger, numbered
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target

from .data import FEATURES, readings
from .objective import Huber

ROW_NORM = 1.0  # public: `readings` sees to it


def client_fn(context: Context):
    """Twinflower's client around our rows and our objective."""
    run, utility = context.run_config, context.node_config["partition-id"]
    chosen, objective, rows = method(run["method"], run["epsilon"] > 0), Huber(FEATURES), readings(utility)
    guard = None
    if run["epsilon"]:
        bounds, workload = objective.bounds(ROW_NORM), WALK.workload(len(rows.labels))
        asked = [[0]] * run["rounds"]  # in its own plan a site is client 0, and takes part in every round
        plan = Plan.of(chosen.algorithm, bounds, [workload], asked, Target(run["epsilon"], delta=1e-4))
        ledger = ContextLedger(context.state)  # on real nodes a FileLedger, which outlives the run
        guard = plan.guard(0, ledger, row_norm=ROW_NORM)
    return chosen.client(
        context, chosen.algorithm, objective, rows, np.zeros(FEATURES),
        utility, context.node_config["num-partitions"], WALK, guard=guard,
    ).to_client()  # fmt: skip


app = ClientApp(client_fn, mods=[numbered])
