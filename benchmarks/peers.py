"""FedAvg of other libraries against ours and loops by hand: one job, one run.

    python benchmarks/peers.py FOLDER --install     # once: the other libraries, in an environment of their own
    python benchmarks/peers.py FOLDER [--rounds 40] [--turns 3] [--markdown FILE]

The job is that of `yardstick.py`, in single precision because PyTorch's default is single. Its rows are as long as
those of MNIST and its labels follow a linear model, so that the loss shows the training. The loops of the other
libraries, in `peer_loops`, run in processes of their own on the same rows; their loss must fall as far as by hand.
Variants take turns. The first rounds are not timed; the table gives the median round of a variant's best turn.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent / "peer_loops"))

import numpy as np
import yardstick
from job import UNCOUNTED, Job, Tick, timed
from rounds import cohort_round, inprocess_round
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

LOOPS = Path(__file__).resolve().parent / "peer_loops"
PEERS = {
    "torch": "by hand in PyTorch",
    "fedlab": "FedLab",
    "pfl": "pfl-research",
    "flwr": "Flower's FedAvg and engine",
}
BASE = "by hand, client by client"
# How much of the fall of the loss may be missing: in 40 rounds it varies by 0.001 (one s.d.) between seeds, and with 9
# local steps instead of 10 it is 0.04 smaller.
TOLERANCE = 0.02
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def job_of(rounds: int) -> Job:
    """The job, with so many timed rounds."""
    features = (10 * yardstick.rows()[0]).astype(np.float32)
    model = np.random.default_rng(1).standard_normal((yardstick.FEATURES, yardstick.CLASSES))
    labels = (features @ model.astype(np.float32)).argmax(-1)
    sizes = yardstick.CLASSES, yardstick.SAMPLED, yardstick.STEPS, yardstick.BATCH, yardstick.STEP
    return Job(features, labels, *sizes, UNCOUNTED + rounds)


def fall(model: np.ndarray, job: Job) -> float:
    """How far the mean loss on all rows is below log(classes), its value at 0."""
    scores = job.features @ model.T
    own = np.take_along_axis(scores, job.labels[..., None], -1)[..., 0]
    return math.log(job.classes) - float(np.mean(logsumexp(scores, axis=-1) - own))


def ours(job: Job) -> dict[str, Callable[[], Any]]:
    """A round of each variant that runs in this process."""
    setup = yardstick.setup(yardstick.METHODS["fedavg"], job.features, job.labels)
    return {
        BASE: yardstick.by_hand("fedavg", job.features, job.labels).client_by_client,
        "by hand, stacked": yardstick.by_hand("fedavg", job.features, job.labels).stacked,
        "ours, in process": inprocess_round(setup),
        "ours, cohort": cohort_round([setup]),
    }


def timed_here(round_: Callable[[], Any], rounds: int) -> float:
    """Seconds per round in this process."""

    def train(tick: Tick) -> None:
        for _ in range(rounds):
            round_()
            tick()

    return timed(train)[1]


def interpreter(environment: Path) -> Path:
    """Python of the environment."""
    return environment.absolute() / "bin" / "python"


def install(environment: Path) -> int:
    """Create the environment of the other libraries; returns pip's status."""
    venv.create(environment, with_pip=True)
    words = "-m", "pip", "install", "-r", LOOPS / "requirements.txt"
    return subprocess.run([interpreter(environment), *words]).returncode


def installed(environment: Path) -> dict[str, str]:
    """Versions of the libraries in the environment, by name."""
    folders = map(str, environment.glob("lib/python*/site-packages"))
    return {found.name: found.version for found in distributions(path=list(folders))}


def answered(environment: Path, library: str, path: Path) -> tuple[np.ndarray, float]:
    """Model and seconds per round of a library's loop; SystemExit with the end of its output if it fails."""
    answer, loop = path.with_name("answer.npz"), f"{library}_loop"
    variables = os.environ | QUIET | {"FLWR_HOME": str(path.parent)}
    code = f"import job, {loop}; job.answer({loop}.train)"
    done = subprocess.run(
        [interpreter(environment), "-c", code, path, answer], cwd=LOOPS, env=variables, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{loop} failed:\n{done.stdout[-2000:]}")
    with np.load(answer) as found:
        return found["model"], float(found["seconds"])


def timed_there(environment: Path, library: str, path: Path, job: Job, expected: float) -> float:
    """Seconds per round of a library's loop; SystemExit unless its loss falls as far as expected."""
    model, seconds = answered(environment, library, path)
    found = fall(model, job)
    if not abs(found - expected) <= TOLERANCE * expected:
        raise SystemExit(f"{library} did another job: its loss fell by {found:.4f}, not {expected:.4f}.")
    return seconds


def variants(environment: Path, path: Path, job: Job) -> dict[str, Callable[[], float]]:
    """A turn of every variant, by name; path: where the job is stored."""
    by_hand, versions = yardstick.by_hand("fedavg", job.features, job.labels), installed(environment)
    *_, model = (by_hand.client_by_client() for _ in range(job.rounds))
    expected = fall(model, job)
    turns = {name: partial(timed_here, round_, job.rounds) for name, round_ in ours(job).items()}
    for library, name in PEERS.items():
        turn = partial(timed_there, environment, library, path, job, expected)
        turns[f"{name} {versions[library]}"] = turn
    return turns


def race(environment: Path, job: Job, turns: int) -> dict[str, float]:
    """Seconds per round of every variant in its best turn."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.npz"
        np.savez(path, **job._asdict())
        found = variants(environment, path, job)
        seconds = [{name: turn() for name, turn in found.items()} for _ in range(turns)]
    return {name: min(turn[name] for turn in seconds) for name in found}


def table(environment: Path, rounds: int, turns: int) -> list[str]:
    """Client updates per second of every variant, and the ratio to the loop by hand."""
    seconds = race(environment, job_of(rounds), turns)
    lines = ["| FedAvg, single precision | client updates per second | against by hand |", "|---|---|---|"]
    for name, s in seconds.items():
        lines.append(f"| {name} | {yardstick.SAMPLED / s:,.0f} | {seconds[BASE] / s:.2f} |")
    return lines


def main() -> None:
    """Install the other libraries, or print, and perhaps store, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("environment", type=Path, metavar="FOLDER", help="environment of the other libraries")
    parser.add_argument("--install", action="store_true", help="create the environment")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    if arguments.install:
        raise SystemExit(install(arguments.environment))
    if PEERS.keys() - installed(arguments.environment).keys():
        raise SystemExit(f"The other libraries are not in {arguments.environment}: add --install.")
    with threadpool_limits(1):
        lines = table(arguments.environment, arguments.rounds, arguments.turns)
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
