"""One table of what a round costs: the same job by hand, in the cohort, in process, and on Flower.

    python benchmarks/rounds.py [--flower] [--rounds 40] [--markdown FILE]

The job is MNIST-sized: d = 7850, 100 clients of 600 rows, 30 sampled, 10 local steps of 10 rows (FedPDM,
row-wise logistic loss with the non-convex penalty, l1). Rows are synthetic: speed does not depend on
them. All variants run interleaved in one process with one BLAS thread, and the table gives ratios of
their best times, so the machine's own speed cancels. By hand means: what one would write in NumPy for
this job alone, once client by client and once with the clients stacked.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

from twinflower.data.sets import Dataset
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.runtimes.cohort import Cohort
from twinflower.simulation.runtimes.computing import reuse_freed_memory
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.simulation.settings import Config, parse

CLIENTS, SAMPLED, ROWS, CLASSES, FEATURES, STEPS, BATCH = 100, 30, 600, 10, 785, 10, 10
RHO, ETA, BETA, L1 = 10.0, 0.04, 0.5, 1e-3


# The other methods, the same local steps of the same job
METHODS = {
    "fedavg": {"algorithm": "fedavg"},
    "fedprox": {"algorithm": "fedprox", "mu": RHO},
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn", "alpha": RHO},
    "isrl-dp": {"algorithm": "isrl-dp"},
}


def settings(method: dict[str, Any]) -> Config:
    """The job's configuration for one method."""
    return parse(
        {"local.max-steps": STEPS},  # dropped for a method that has no such setting
        method | {
            "clients.count": CLIENTS, "clients.per-round": SAMPLED, "batch-size": BATCH, "step-size": ETA,
            "nonconvex": BETA, "regulariser.weight": L1, "objective.name": "rowwise-logistic",
        },
    )  # fmt: skip


def job() -> PreparedRun:
    """The job as a set-up run of FedPDM, on synthetic rows."""
    config = settings({"rho": RHO})
    small = prepare(config)
    rng = np.random.default_rng(0)
    features = rng.random((CLIENTS * ROWS, FEATURES))
    labels = rng.integers(CLASSES, size=CLIENTS * ROWS)
    data = Dataset("synthetic", features, labels, features[:100], labels[:100], CLASSES)
    offsets = np.arange(0, CLIENTS * ROWS + 1, ROWS)
    objective = replace(small.objective, num_features=FEATURES)
    division = replace(small.partition, rows=np.arange(len(labels)), offsets=offsets)
    return replace(small, dataset=data, partition=division, objective=objective, start=np.zeros(objective.d))


class Loop:
    """By hand, client after client."""

    def __init__(self, setup: PreparedRun) -> None:
        self.rng = np.random.default_rng(0)
        self.features = setup.dataset.features.reshape(CLIENTS, ROWS, FEATURES)
        self.labels = setup.dataset.labels.reshape(CLIENTS, ROWS)
        self.x0 = np.zeros(CLASSES * FEATURES)
        self.duals = np.zeros((CLIENTS, CLASSES * FEATURES))

    def round(self) -> None:
        """One round of FedPDM."""
        chosen = self.rng.choice(CLIENTS, SAMPLED, replace=False)
        mean = np.mean([self.client(i) for i in chosen], axis=0)
        self.x0 = np.sign(mean) * np.maximum(np.abs(mean) - L1 / RHO, 0)

    def client(self, i: int) -> np.ndarray:
        """One client's round; returns y."""
        x, dual = self.x0, self.duals[i]
        order = self.rng.permutation(ROWS)
        for step in range(STEPS):
            rows = order[step * BATCH : (step + 1) * BATCH]
            a, labels = self.features[i, rows], self.labels[i, rows]
            hot = labels[:, None] == np.arange(CLASSES)
            slopes = -expit(-(a @ x.reshape(CLASSES, FEATURES).T)) * hot / BATCH
            g = (slopes.T @ a).ravel() + 2 * BETA * x / (1 + x * x) ** 2 - dual + RHO * (x - self.x0)
            x = x - ETA * g
        self.duals[i] = dual + RHO * (self.x0 - x)
        return x - self.duals[i] / RHO


class Batched(Loop):
    """By hand, the sampled clients stacked."""

    def round(self) -> None:
        """One round of FedPDM."""
        chosen = self.rng.choice(CLIENTS, SAMPLED, replace=False)
        order = self.rng.permuted(np.tile(np.arange(ROWS), (SAMPLED, 1)), axis=1)
        x, dual = self.x0, self.duals[chosen]
        for step in range(STEPS):
            rows = order[:, step * BATCH : (step + 1) * BATCH]
            a, labels = self.features[chosen[:, None], rows], self.labels[chosen[:, None], rows]
            hot = labels[..., None] == np.arange(CLASSES)
            matrix = x.reshape(x.shape[:-1] + (CLASSES, FEATURES))
            slopes = -expit(-(a @ matrix.swapaxes(-1, -2))) * hot / BATCH
            g = (slopes.swapaxes(-1, -2) @ a).reshape(SAMPLED, -1)
            g = g + 2 * BETA * x / (1 + x * x) ** 2 - dual + RHO * (x - self.x0)
            x = x - ETA * g
        self.duals[chosen] = dual + RHO * (self.x0 - x)
        mean = (x - self.duals[chosen] / RHO).mean(0)
        self.x0 = np.sign(mean) * np.maximum(np.abs(mean) - L1 / RHO, 0)


def cohort_round(setups: list[PreparedRun]) -> Callable[[], Any]:
    """The next round of a cohort, at every call."""
    rounds = Cohort(setups).rounds(10**9)
    return lambda: next(rounds)


def inprocess_round(setup: PreparedRun) -> Callable[[], Any]:
    """The next round of the real strategy and clients over the in-process grid, at every call."""
    from flwr.app import ConfigRecord

    from twinflower.clients.records import record_of
    from twinflower.strategies.nodes import meet

    grid, strategy, rounds = InProcessGrid(setup), strategy_of(setup), iter(range(1, 10**9))
    strategy.begin(meet(grid, CLIENTS, 60.0), setup.start)
    nothing, start = ConfigRecord(), record_of([setup.start])

    def step() -> None:
        round_ = next(rounds)
        strategy.aggregate_train(
            round_, grid.send_and_receive(strategy.configure_train(round_, start, nothing, grid))
        )

    return step


def race(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Best seconds per round of each variant; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 3):
        for name, step in variants.items():
            began = time.perf_counter()
            step()
            if turn >= 3:
                times[name].append(time.perf_counter() - began)
    return {name: min(seconds) for name, seconds in times.items()}


def speed_table(rounds: int) -> list[str]:
    """Time per round and ratio to the hand-written variant of the same kind."""
    setup = job()
    variants = {
        "by hand, client by client": Loop(setup).round,
        "inprocess": inprocess_round(setup),
        "by hand, stacked": Batched(setup).round,
        "cohort": cohort_round([setup]),
    }
    seconds = race(variants, rounds)
    base = {
        "inprocess": "by hand, client by client",
        "cohort": "by hand, stacked",
    }
    lines = [
        "| variant (FedPDM) | ms per round | client rounds per second | speed against by hand |",
        "|---|---|---|---|",
    ]
    for name, s in seconds.items():
        ratio = f"{seconds[base[name]] / s:.2f}" if name in base else ""
        lines.append(f"| {name} | {1e3 * s:.1f} | {SAMPLED / s:,.0f} | {ratio} |")
    return lines


def methods_table(rounds: int) -> list[str]:
    """Time per round of every method, and its ratio to FedPDM's in the same runtime (isrl-dp: one gradient)."""
    setups = {"fedpdm": job()}  # one copy of the rows
    for name, keys in METHODS.items():
        small = prepare(settings(keys))
        setups[name] = replace(setups["fedpdm"], config=small.config, algorithm=small.algorithm)
    makers = {"cohort": lambda setup: cohort_round([setup]), "inprocess": inprocess_round}
    lines = ["| method | runtime | ms per round | time against FedPDM |", "|---|---|---|---|"]
    for runtime, make in makers.items():
        seconds = race({name: make(setup) for name, setup in setups.items()}, rounds)
        for name, s in seconds.items():
            lines.append(f"| {name} | {runtime} | {1e3 * s:.1f} | {s / seconds['fedpdm']:.2f} |")
    return lines


def flower_line(rounds: int) -> str:
    """Flower's stock engine on the digits job with as many rounds; start-up is reported separately."""
    from twinflower.simulation.results.reading import read_rows
    from twinflower.simulation.runtimes.flower import engine

    config = parse({"clients.count": 10, "rounds": rounds, "evaluation.every": 1, "local.max-steps": STEPS})
    with tempfile.TemporaryDirectory() as out, engine() as flower:
        began = time.perf_counter()
        flower.run(config, Path(out))
        total = time.perf_counter() - began
        rows = read_rows(Path(out))
    per_round = (rows[-1]["seconds"] - rows[1]["seconds"]) / (rounds - 1)
    return (
        f"Flower's engine (digits, 10 clients, all sampled): {1e3 * per_round:.0f} ms per round, "
        f"{total - per_round * rounds:.0f} s of start-up and end."
    )


def peak_memory() -> float:
    """GiB that this process has ever held; getrusage would count the parent's before exec as well."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def registered(count: int, rounds: int = 100, sampled: int = 100) -> dict[str, float]:
    """Rounds of a cohort with `count` registered clients that share a small data set."""
    reuse_freed_memory()
    setup = job()
    offsets = np.arange(count) * 7 % (CLIENTS * ROWS - ROWS)
    config = setup.config.put({"clients.count": count, "clients.per-round": sampled})
    setup = replace(setup, config=config)
    shards = replace(setup.shards, starts=offsets, sizes=np.full(count, ROWS))
    object.__setattr__(setup, "shards", shards)
    step = cohort_round([setup])
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return {"ms": 1e3 * float(np.median(times)), "GiB": peak_memory()}


def registered_table(counts: list[int]) -> list[str]:
    """Time per round and peak memory by the number of registered clients, each in a process of its own."""
    lines = ["| registered clients | ms per round (100 sampled) | peak memory, GiB |", "|---|---|---|"]
    for count in counts:
        code = f"import rounds; r = rounds.registered({count}); print(r['ms'], r['GiB'])"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
        ms, gib = map(float, done.stdout.split())
        lines.append(f"| {count:,} | {ms:.1f} | {gib:.2f} |")
    return lines


def main() -> None:
    """Print, and perhaps store, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flower", action="store_true", help="also Flower's stock engine (about a minute)")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    reuse_freed_memory()  # as our runtimes do
    with threadpool_limits(1):
        lines = speed_table(arguments.rounds)
        lines += ["", *methods_table(arguments.rounds)]
        lines += ["", *registered_table([10**3, 10**4, 10**5, 10**6])]
    if arguments.flower:
        lines += ["", flower_line(30)]
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
