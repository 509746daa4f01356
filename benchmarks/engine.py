"""Flower's engine: how long stock FedAvg and ours take on the MNIST job, from the command to the result.

Both apps run in turn on one SuperLink by `flwr run`; or, with --commands, each as a whole command that starts and stops
a SuperLink of its own, ours by `twinflower run --runtime flower`. `stock/` is the stock app: Flower's FedAvg with a
client by hand in NumPy that does nothing but the arithmetic. Ours also checks every message, evaluates the model five
times on all rows, and writes results, a figure and a report.

The stages come from the SuperLink's log of requests (`flwr list` has whole seconds only), from the times that the stock
app notes, and from our run folder.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled files
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from twinflower.errors import DataError  # noqa: E402
from twinflower.simulation.results.reading import read_rows, read_summary  # noqa: E402
from twinflower.simulation.results.writing import write_config  # noqa: E402
from twinflower.simulation.runtimes.flower import CONNECTION, SUPERLINK, Engine, engine  # noqa: E402
from twinflower.simulation.settings import Config, parse  # noqa: E402
from twinflower.simulation.settings.reader import to_toml  # noqa: E402

JOB = {
    "algorithm": "fedavg", "clients.count": 100, "clients.per-round": 30, "rounds": 40, "batch-size": 10,
    "step-size": 0.1, "objective.name": "softmax", "regulariser.name": "none", "evaluation.every": 10,
    "data.name": "mnist", "data.row-norm": 0.0,
}  # fmt: skip
STEPS = 10
STAGES = (
    "Flower's command: bundle the app, submit the run",
    "Flower: start the process of the run",
    "unpack and import the app, load the server's data",
    "first round: Ray, the nodes' processes and data, nodes reporting",
    "later rounds",
    "write the results, stop Ray",
    "Flower's command ends",
)


class Run(NamedTuple):
    """When a command began and ended, and the times in between at which its stages ended, in seconds."""

    began: float
    ends: tuple[float, ...]
    rounds: int

    @property
    def stages(self) -> list[float]:
        """The seconds of each of the `STAGES`."""
        return [end - begin for begin, end in zip((self.began, *self.ends), self.ends, strict=False)]

    @property
    def whole(self) -> float:
        """The seconds of the whole command."""
        return self.ends[-1] - self.began

    @property
    def training(self) -> float:
        """The seconds from the beginning of the training to the end of its last round."""
        return sum(self.stages[3:5])

    @property
    def later_round(self) -> float:
        """The seconds of a round after the first, on average."""
        return self.stages[4] / (self.rounds - 1)


class Training(NamedTuple):
    """When a training began, and when its first and its last round ended."""

    began: float
    first: float
    last: float


def of_stock(times: Path) -> Training:
    """The training that the stock app has noted."""
    began, *rounds = json.loads(times.read_text())
    return Training(began, rounds[0], rounds[-1])


def of_ours(folder: Path) -> Training:
    """The training in a run folder; metrics.csv is written right after its last evaluation."""
    ended = (folder / "metrics.csv").stat().st_mtime
    began = ended - read_summary(folder)["seconds"]
    first = json.loads((folder / "rounds.jsonl").read_text().splitlines()[0])
    return Training(began, began + read_rows(folder)[0]["seconds"] + first["seconds"], ended)


_LINE = re.compile(
    r"(\S+Z) INFO \[uvicorn\.access\] .*POST \S*/(start-run|pull-task-input|push-task-output) "
)


def requests(log: str) -> dict[str, float]:
    """The times of the last run's requests in the log of a SuperLink."""
    return {found[2]: datetime.fromisoformat(found[1]).timestamp() for found in _LINE.finditer(log)}


def timed(flower: Engine, words: list[str], training: Callable[[], Training], rounds: int) -> Run:
    """Run `flwr` with these words."""
    began = time.time()
    flower.flwr(*words)
    end, log, own = time.time(), requests(flower.place.log(SUPERLINK).read_text()), training()
    ends = (
        log["start-run"], log["pull-task-input"], own.began, own.first, own.last, log["push-task-output"], end,
    )  # fmt: skip
    return Run(began, ends, rounds)


def stock_words(config: Config, times: Path) -> list[str]:
    """The arguments of `flwr` for the stock app."""
    run_config = times.with_suffix(".toml")
    keys = {
        "data": config.data.dir, "clients": config.clients.count, "sampled": config.clients.per_round,
        "rounds": config.rounds, "steps": config.local.max_steps, "batch": config.local.batch_size,
        "step-size": config.method.step_size, "times": str(times),
    }  # fmt: skip
    run_config.write_text(to_toml(keys))
    nodes = f"num-supernodes={config.clients.count} client-resources-num-cpus=1"
    words = ["run", str(HERE / "stock"), CONNECTION, "--stream", "--run-config", str(run_config)]
    return [*words, "--federation-config", nodes]


def stock(flower: Engine, config: Config, folder: Path) -> Run:
    """The stock app by `flwr run`."""
    times = folder / "times.json"
    return timed(flower, stock_words(config, times), lambda: of_stock(times), config.rounds)


def ours(flower: Engine, config: Config, folder: Path) -> Run:
    """Our app by `flwr run`, with everything that it bundles."""
    out = folder / "ours"
    words = flower.words(config, out, HERE.parent)
    return timed(flower, words, lambda: of_ours(out), config.rounds)


APPS = {"stock": stock, "ours": ours}


def race(config: Config, turns: int) -> dict[str, Run]:
    """Both apps in turn on one SuperLink; of each, the run with the shortest whole command.

    Each app runs once before that, for two rounds, so that Python has compiled it.
    """
    runs: dict[str, list[Run]] = {name: [] for name in APPS}
    with engine() as flower:
        for turn in range(turns + 1):
            for name, run in APPS.items():
                with tempfile.TemporaryDirectory() as folder:
                    done = run(flower, config if turn else config.put({"rounds": 2}), Path(folder))
                runs[name] += [done] if turn else []
    return {name: min(found, key=lambda run: run.whole) for name, found in runs.items()}


def table(runs: dict[str, Run]) -> list[str]:
    """Where the time goes, stage by stage, and its sums."""
    stages = {name: [*run.stages, run.whole, run.training, run.later_round] for name, run in runs.items()}
    names = (*STAGES, "**whole command**", "**training**", "**a later round**")
    lines = ["| `flwr run`, seconds | stock | ours | ours against stock |", "|---|---|---|---|"]
    for name, theirs, own in zip(names, stages["stock"], stages["ours"], strict=True):
        lines.append(f"| {name} | {theirs:.2f} | {own:.2f} | {own / theirs:.2f} |")
    return lines


def stock_command(config: Config, folder: Path) -> None:
    """Start a SuperLink, run the stock app, stop the SuperLink."""
    with engine() as flower:
        flower.flwr(*stock_words(config, folder / "times.json"))


def our_command(config: Config, folder: Path) -> None:
    """The same by the command line."""
    write_config(config, folder)
    words = ["run", str(folder / "config.toml"), "--runtime", "flower", "--out", str(folder / "run")]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)}
    command = [sys.executable, "-m", "twinflower", *words]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environment)


COMMANDS = {"SuperLink and stock app": stock_command, "`twinflower run --runtime flower`": our_command}


def commands_table(config: Config, turns: int) -> list[str]:
    """The shortest time of both whole commands, in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(turns):
        for name, run in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                run(config, Path(folder))
                seconds[name].append(time.perf_counter() - began)
    best = {name: min(found) for name, found in seconds.items()}
    first = next(iter(best.values()))
    lines = ["| command with its own SuperLink | seconds | against stock |", "|---|---|---|"]
    return lines + [f"| {name} | {time_:.1f} | {time_ / first:.2f} |" for name, time_ in best.items()]


def main() -> None:
    """Print, and perhaps store, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True, help="folder of the MNIST files")
    parser.add_argument("--rounds", type=int, default=JOB["rounds"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--commands", action="store_true", help="whole commands instead of stages")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    own = {"rounds": arguments.rounds, "data.dir": str(Path(arguments.data_dir).absolute())}
    config = parse({"local.max-steps": STEPS}, JOB, own)
    try:
        config.data.load(deferred=True)  # before any process starts
    except DataError as error:
        parser.error(str(error))
    turns = arguments.turns
    lines = commands_table(config, turns) if arguments.commands else table(race(config, turns))
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
