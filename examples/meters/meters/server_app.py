"""The server, which collects what the water utilities send."""

from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from strategies import method

from .data import FEATURES, tomorrow
from .objective import Huber

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print the error of the forecast for tomorrow's demand."""
    run = context.run_config
    chosen = method(run["method"], run["epsilon"] > 0)
    result = chosen.strategy(chosen.algorithm).start(grid, ArrayRecord([np.zeros(FEATURES)]), run["rounds"])
    (x,) = result.arrays.to_numpy_ndarrays()
    error = -Huber(FEATURES).score(x, tomorrow())
    print(f"{run['method']}: error {error:.3f}, {np.count_nonzero(x)} of {FEATURES} weights", flush=True)
    if run["out"]:
        np.save(Path(run["out"]), x)
