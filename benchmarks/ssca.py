"""Mini-batch SSCA (Ye 2021) on its own job: a round in the cohort against one by hand, and the server's step.

    python benchmarks/ssca.py [--markdown FILE]

10 clients of 600 rows, the network 784-128-10 (d = 101,632), B = 1, 10, 100. The hand-written loop takes the same
batches client by client and must end at the same point. The server's step is reported without the mean over clients.
Rows are synthetic: speed does not depend on them.
"""

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.special import expit, softmax
from threadpoolctl import threadpool_limits

from twinflower.algorithms.messages import Vector
from twinflower.data.sets import Dataset
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.runtimes.cohort import Cohort
from twinflower.simulation.settings import parse

CLIENTS, ROWS, FEATURES, HIDDEN, CLASSES = 10, 600, 784, 128, 10
A1, A2, ALPHA, TAU = 0.9, 0.9, 0.3, 0.1
BOUNDS = {"ssca": {}, "ssca-constrained": {"constraints": "cost <= 0.5"}}


def job(method: str, batch: int) -> PreparedRun:
    """A set-up run of one method on synthetic rows."""
    keys: dict[str, Any] = {
        "algorithm": method, "objective.name": "swish-network", "hidden-units": HIDDEN, "regulariser.name": "none",
        "clients.count": CLIENTS, "batch-size": batch, "averaging": A1, "step-size": A2,
        "step-decay": ALPHA, "curvature": TAU,
    }  # fmt: skip
    setup = prepare(parse(keys | BOUNDS[method]))
    rng = np.random.default_rng(0)
    features = rng.random((CLIENTS * ROWS, FEATURES)) / 5  # of the size of MNIST's
    labels = rng.integers(CLASSES, size=CLIENTS * ROWS)
    data = Dataset("synthetic", features, labels, features[:10], labels[:10], CLASSES)
    objective = replace(setup.objective, num_features=FEATURES)
    division = replace(
        setup.partition, rows=np.arange(len(labels)), offsets=np.arange(0, len(labels) + 1, ROWS)
    )
    start = objective.start(np.random.default_rng(1))
    algorithm = replace(setup.algorithm, info=setup.algorithm.info._replace(sizes=()))
    return replace(
        setup, dataset=data, partition=division, objective=objective, start=start, algorithm=algorithm
    )


def estimate_by_hand(x: np.ndarray, features: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
    """Gradient and cost of one batch by back-propagation."""
    w1 = x[: HIDDEN * FEATURES].reshape(HIDDEN, FEATURES)
    w2 = x[HIDDEN * FEATURES :].reshape(CLASSES, HIDDEN)
    z = features @ w1.T
    s = expit(z)
    hidden, places = z * s, np.arange(len(labels))
    q = softmax(hidden @ w2.T, axis=1)
    cost = -np.log(q[places, labels]).mean()
    q[places, labels] -= 1
    q /= len(labels)
    g1 = ((q @ w2) * s * (1 + z * (1 - s))).T @ features
    return np.concatenate([g1.ravel(), (q.T @ hidden).ravel()]), cost


def by_hand(setup: PreparedRun, rounds: int) -> np.ndarray:
    """Algorithm 1 or 2; the last point."""
    bound = setup.config.algorithm == "ssca-constrained"
    x, slope, constant, kappa = setup.start, np.zeros(setup.objective.d), 0.0, 0.0
    for t in range(1, rounds + 1):
        rho, gamma = A1 / t**ALPHA, A2 / t ** (ALPHA + 0.05)
        estimates = []
        for i in range(CLIENTS):
            (rows,) = setup.schedule.batches(setup.shards, i, setup.config.seed, t)
            estimates.append(estimate_by_hand(x, rows.features, rows.labels))
        g = np.mean([each[0] for each in estimates], axis=0)
        slope = (1 - rho) * slope + rho * (g - 2 * TAU * x)
        kappa = (1 - rho) * kappa + rho
        if bound:
            f = np.mean([each[1] for each in estimates]) - 0.5
            constant = (1 - rho) * constant + rho * (f + TAU * x @ x - g @ x)
            b, curve = slope @ slope, TAU * kappa
            room = b - 4 * curve * constant
            nu = min(max((np.sqrt(b / room) - 1) / curve, 0.0), 1e5) if room > 0 else 1e5
            lowest = -nu * slope / (2 * (1 + nu * curve))
        else:
            lowest = -slope / (2 * TAU * kappa)
        x = (1 - gamma) * x + gamma * lowest
    return x


def in_cohort(setup: PreparedRun, rounds: int) -> np.ndarray:
    """The same rounds in the cohort runtime."""
    cohort = Cohort([setup])
    (end,) = deque(cohort.rounds(rounds), maxlen=1)
    return cohort.models(end.server)[0]


def duel(method: str, batch: int, rounds: int = 10, turns: int = 5) -> str:
    """One line of the table: best times of both over some turns; they must agree."""
    setup = job(method, batch)
    runners: tuple[Callable[[PreparedRun, int], np.ndarray], ...] = (by_hand, in_cohort)
    best = dict.fromkeys(runners, np.inf)
    for _ in range(turns):
        ends = []
        for runner in runners:
            began = time.perf_counter()
            ends.append(runner(setup, rounds))
            best[runner] = min(best[runner], (time.perf_counter() - began) / rounds)
        np.testing.assert_allclose(*ends, rtol=1e-6, atol=1e-9)
    hand, ours = (1e3 * seconds for seconds in best.values())
    return f"| {method}, B = {batch} | {hand:.1f} | {ours:.1f} | {ours / hand:.2f} |"


def server_step(method: str, rounds: int = 300) -> str:
    """Time of the server's step less that of its mean over the clients' uploads: medians, and best times."""
    algorithm = job(method, 1).algorithm
    d = HIDDEN * (FEATURES + CLASSES)
    rng, clients = np.random.default_rng(0), np.arange(CLIENTS)
    estimates = rng.normal(size=(CLIENTS, d + (method == "ssca-constrained")))
    server = algorithm.init_server(0.1 * rng.normal(size=d), CLIENTS, np.array(0, np.uint64))
    whole, mean = [], []
    for t in range(1, rounds + 1):
        began = time.perf_counter()
        server = algorithm.server_update(server, Vector(estimates), clients, t)
        between = time.perf_counter()
        algorithm.mean(estimates, clients)
        whole.append(1e3 * (between - began))
        mean.append(1e3 * (time.perf_counter() - between))
    whole, mean = whole[rounds // 3 :], mean[rounds // 3 :]  # the allocator has settled
    median, best = (of(whole) - of(mean) for of in (np.median, np.min))
    return f"| {method}, the server's step | {median:.2f} | {best:.2f} |"


def main() -> None:
    """Print, and perhaps store, the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="write the tables to this file")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        lines = [
            "| method, 10 clients, d = 101,632 | by hand, ms per round | cohort, ms per round | time against by hand |",
            "|---|---|---|---|",
            *(duel(method, batch) for method in BOUNDS for batch in (1, 10, 100)),
            "",
            "| beyond the averaging, d = 101,632 | median ms | best ms |",
            "|---|---|---|",
            *map(server_step, BOUNDS),
        ]
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
