"""The server: Flower's own FedAvg."""

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the norm of the model."""
    everybody = {"min_train_nodes": 4, "min_available_nodes": 4}
    result = FedAvg(fraction_evaluate=0.0, **everybody).start(
        grid, ArrayRecord([np.zeros(30)]), int(context.run_config["rounds"])
    )
    (x,) = result.arrays.to_numpy_ndarrays()
    print(f"norm {np.linalg.norm(x):.4f}", flush=True)
    if context.run_config["out"]:
        np.save(str(context.run_config["out"]), x)
