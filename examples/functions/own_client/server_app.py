"""The server: FedPDM's strategy with an l1 term, over functions."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from twinflower import algorithms, strategies
from twinflower.problems.regularisers import L1

from .client_app import record_of
from .task import RHO, SHAPES, STEP, load

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the accuracy on all rows and the number of weights."""
    fedpdm = algorithms.FedPDM(regulariser=L1(0.005), rho=RHO, step_size=STEP)
    start: ArrayRecord = record_of({name: np.zeros(shape) for name, shape in SHAPES.items()})
    nodes = strategies.AppFunctions(grid, fedpdm, start, query=False)
    result = strategies.FedPDM(fedpdm).start(nodes, nodes.flat, int(context.run_config["rounds"]))
    model = {name: array.numpy() for name, array in nodes.named(result.arrays).items()}
    features, labels = load(0, 1)
    accuracy = np.mean(np.sign(features @ model["weights"] + model["bias"]) == labels)
    print(f"accuracy {accuracy:.3f}, {np.count_nonzero(model['weights'])} of 30 weights", flush=True)
    if context.run_config["out"]:
        np.save(str(context.run_config["out"]), np.concatenate([model["weights"], model["bias"]]))
