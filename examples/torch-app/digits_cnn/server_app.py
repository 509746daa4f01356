"""The server."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from .methods import DELTA, method
from .task import Net, load_test, make_objective

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and say how many digits are read right."""
    run, objective = context.run_config, make_objective()
    chosen = method(run["method"], run["epsilon"] > 0)
    result = chosen.strategy(chosen.algorithm).start(grid, ArrayRecord([objective.start()]), run["rounds"])
    (x,) = result.arrays.to_numpy_ndarrays()
    if run["epsilon"] > 0:
        print(
            f"privacy: for each site, all its messages together are ({run['epsilon']:g}, {DELTA:g})-DP, under "
            "replacement of one of its images; every site sees to that itself, and refuses further rounds"
        )
    else:
        print("privacy: none, because no noise is added; --run-config epsilon=8.0 makes the run private")
    print(f"{run['method']}: accuracy {objective.score(x, load_test()):.3f}", flush=True)
    if run["out"]:
        torch.save(objective.state_dict(x), run["out"])
        Net().load_state_dict(torch.load(run["out"], weights_only=True))  # what the file is for
