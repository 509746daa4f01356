"""One site."""

from flwr.app import Context
from flwr.client import Client
from flwr.clientapp import ClientApp

from twinflower.clients import ContextLedger, numbered
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target

from .methods import CLIP_NORM, DELTA, method
from .task import load_data, make_objective


def client_fn(context: Context) -> Client:
    """Twinflower's client around our module and our rows."""
    run, node = context.run_config, context.node_config
    private = run["epsilon"] > 0
    chosen, objective = method(run["method"], private), make_objective(CLIP_NORM if private else 0.0)
    rows = load_data(node["partition-id"], node["num-partitions"])
    guard = None
    if private:
        bounds, workload = objective.bounds(0.0), chosen.schedule.workload(len(rows.labels))
        asked = [[0]] * run["rounds"]  # in its own plan a site is client 0, and takes part in every round
        plan = Plan.of(chosen.algorithm, bounds, [workload], asked, Target(run["epsilon"], DELTA))
        ledger = ContextLedger(context.state)  # on real nodes a FileLedger, which outlives the run
        guard = plan.guard(0, ledger)
    return chosen.client(
        context, chosen.algorithm, objective, rows, objective.start(),
        node["partition-id"], node["num-partitions"], chosen.schedule, guard=guard,
    ).to_client()  # fmt: skip


app = ClientApp(client_fn, mods=[numbered])
