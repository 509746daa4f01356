"""What `flwr run` loads on the server: run the strategy, write the run folder, print where it is."""

import logging
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

from strategies.nodes import meet
from twinflower.errors import RunError, TwinflowerError, require

from .checkpoint import Checkpoints
from .config import Config, check, parse_run_config
from .experiment import check_resumable
from .figures import draw_run
from .loop import run_strategy
from .polling import PollingGrid
from .record import results_folder, write_config, write_run
from .setup import prepare

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run; a mistake of the user's ends in one sentence and a run that Flower marks as failed."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        with threadpool_limits(1):
            _run(grid, parse_run_config(context.run_config))
    except TwinflowerError as error:
        print(f"twinflower: {error}", flush=True)
        raise RunError(str(error)) from None  # an exit code alone would count as finished:completed


def _run(grid: Grid, config: Config) -> None:
    check(config)  # before anybody waits for nodes
    if not config.num_clients:
        config = config.with_clients(len(meet(grid, 0, config.node_timeout)))
    setup = prepare(config)
    folder = _folder(config)
    checkpoints = Checkpoints(folder, config.checkpoint_every, setup.config)
    print(setup.report(), flush=True)
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = 0.01  # the in-memory grid of a simulation polls for replies
    runtime = (
        "flower" if hasattr(grid, "state") else "deployment"
    )  # the simulation's grid holds Flower's state
    if runtime == "flower" and config.checkpoint_every:
        require(
            bool(config.state_dir),
            "checkpoint-every needs a state-dir, where simulated clients keep their state",
        )
    write_config(setup.config, folder)
    if runtime == "deployment":
        grid = PollingGrid(grid)
    result = run_strategy(setup, grid, runtime, print_row, checkpoints)
    write_run(result, folder)
    checkpoints.clear()
    draw_run(folder)
    if told := result.privacy():
        print(f"privacy: {told['guarantee']}", flush=True)
    print(f"results: {folder}", flush=True)
    if (met := result.summary()["bounds_met"]) is not None:
        print(
            f"bounds {'met' if met else 'NOT met'} ({result.rows[-1]['excess']:+.3g} from the limit)",
            flush=True,
        )
    if result.failure:
        raise RunError(result.failure)


def _folder(config: Config) -> Path:
    """Where the results go: the folder of the run that is resumed, or a new one."""
    if not config.resume_from:
        return results_folder(config.out, f"{config.algorithm}-{config.dataset}".replace(":", "-"))
    folder = Path(config.resume_from).absolute()
    check_resumable(folder, config)
    return folder


def print_row(row: dict[str, float]) -> None:
    """One line of progress."""
    print(
        f"round {row['round']:>4}  objective {row['objective']:.5g}  "
        f"test accuracy {row['test_accuracy']:.4f}  nonzeros {row['nonzeros']}",
        flush=True,
    )
