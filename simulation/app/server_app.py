"""What `flwr run` loads on the server: run the strategy, write the run folder, print where it is."""

import logging
import tomllib
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from threadpoolctl import threadpool_limits

from twinflower.errors import RunError, TwinflowerError, require
from twinflower.strategies.nodes import meet

from ..checkpoint import Checkpoints
from ..lock import claimed
from ..record import results_folder, write_config, write_resume, write_run
from ..report.figures import draw_run
from ..runtimes.strategy import run_strategy
from ..settings import Config, check, parse_run_config
from ..settings.experiment import check_resumable
from ..setup import Setup, prepare
from .polling import PollingGrid

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run; a mistake of the user's ends in one sentence and a run that Flower marks as failed."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    try:
        with threadpool_limits(1):
            _run(grid, parse_run_config(context.run_config))
    except TwinflowerError as error:
        cause = _other_app(Path.cwd()) if isinstance(error, RunError) and _simulated(grid) else ""
        text = f"{cause}{error}"
        print(f"twinflower: {text}", flush=True)
        raise RunError(text) from None  # an exit code alone would count as finished:completed


def _simulated(grid: Grid) -> bool:
    """Whether Flower simulates the nodes on this machine: that grid holds Flower's state."""
    return hasattr(grid, "state")


def _other_app(folder: Path) -> str:
    """A likely cause where the local SuperLink was started in another app's folder, from which nodes then import."""
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if "app" not in project["tool"]["flwr"] or project["project"]["name"] == "twinflower":
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return (
        f"Flower's local SuperLink was started in {folder}, the folder of another app, and its nodes import that one's "
        "modules: end that flower-superlink and start this run again, or set FLWR_LOCAL_SUPERLINK_HTTP_API_PORT and "
        "FLWR_LOCAL_CONTROL_API_PORT to free ports. The run ended with: "
    )


def _run(grid: Grid, config: Config) -> None:
    check(config)  # before anybody waits for nodes
    if not config.clients.count:
        config = config.with_clients(len(meet(grid, 0, config.server.node_timeout)))
    setup = prepare(config)
    folder = _folder(config)
    with claimed(folder):
        _train(grid, setup, folder)


def _train(grid: Grid, setup: Setup, folder: Path) -> None:
    """Run the strategy and write the folder."""
    config = setup.config
    checkpoints = Checkpoints(folder, config.output.checkpoint_every, config)
    print(setup.report(), flush=True)
    if hasattr(grid, "pull_interval"):
        grid.pull_interval = 0.01  # the in-memory grid of a simulation polls for replies
    runtime = "flower" if _simulated(grid) else "deployment"
    if runtime == "flower" and config.output.checkpoint_every:
        require(
            bool(config.output.state_dir),
            "output.checkpoint-every needs an output.state-dir, where simulated clients keep their state",
        )
    write_config(config, folder)
    if checkpoints.every:
        resume = write_resume(config, folder)
        print(
            f"to go on if this run is cut off: flwr run . CONNECTION --stream --run-config {resume}",
            flush=True,
        )
    if runtime == "deployment":
        grid = PollingGrid(grid)
    result = run_strategy(setup, grid, runtime, print_row, checkpoints)
    write_run(result, folder)
    (folder / "resume.toml").unlink(missing_ok=True)
    checkpoints.clear()
    draw_run(folder)
    for warning in result.warnings():
        print(warning, flush=True)
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
    if not config.output.resume_from:
        return results_folder(config.output.dir, f"{config.algorithm}-{config.data.name}".replace(":", "-"))
    folder = Path(config.output.resume_from).absolute()
    check_resumable(folder, config)
    return folder


def print_row(row: dict[str, float]) -> None:
    """One line of progress."""
    print(
        f"round {row['round']:>4}  objective {row['objective']:.5g}  "
        f"test accuracy {row['test_accuracy']:.4f}  nonzeros {row['nonzeros']}",
        flush=True,
    )
