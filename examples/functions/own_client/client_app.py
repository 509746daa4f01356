"""A site: the client side of FedPDM (Li 2024, (8) to (10)) in the idiom of Flower's templates, without Twinflower."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from .task import LOCAL_STEPS, RHO, SHAPES, STEP, gradient, load

app = ClientApp()


def named(record):
    """The arrays of a record, by name."""
    return {name: array.numpy() for name, array in record.items()}


def record_of(arrays):
    """A record with these arrays, by name."""
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


@app.train()
def train(message: Message, context: Context) -> Message:
    """Take steps on the augmented Lagrangian, update the dual, which stays here, and send y = x - dual / rho."""
    x0 = named(message.content["arrays"])
    rows = load(context.node_config["partition-id"], context.node_config["num-partitions"])
    dual = (
        named(context.state["dual"])
        if "dual" in context.state
        else {k: np.zeros(s) for k, s in SHAPES.items()}
    )
    x = x0
    for _ in range(LOCAL_STEPS):
        g = gradient(x, *rows)
        x = {k: x[k] - STEP * (g[k] - dual[k] + RHO * (x[k] - x0[k])) for k in x}
    dual = {k: dual[k] + RHO * (x0[k] - x[k]) for k in x}
    context.state["dual"] = record_of(dual)
    y = record_of({k: x[k] - dual[k] / RHO for k in x})
    metrics = MetricRecord({"num-examples": len(rows[1])})
    return Message(RecordDict({"arrays": y, "metrics": metrics}), reply_to=message)
