"""Methods whose rounds are many and short: the cohort against the same run written by hand in NumPy.

    python benchmarks/small_rounds.py [--markdown FILE]

LDP primal-dual (Zhang 2023): 20 clients of 100 rows, d = 23 as on ijcnn1, one seed and 20 stacked. zCDP-NFL
(Gauthier 2023): 50 clients of 48 rows, d = 8, on a random graph. The hand-written loops draw the same noise
and must end at the same point, so both do the same work. Rows are synthetic.
"""

import argparse
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from scipy.special import expit
from threadpoolctl import threadpool_limits

from twinflower.data.sets import Dataset
from twinflower.problems.topologies import adjacency
from twinflower.randomness import normals
from twinflower.simulation.runs.setup import PreparedRun, prepare, prepare_seeds
from twinflower.simulation.runtimes.cohort import Cohort
from twinflower.simulation.settings import parse

CLIENTS, ROWS, FEATURES = 20, 100, 23
L2, GAMMA, RHO, CLIP = 0.1, 0.25, 0.1, 1.0


def synthetic(keys: dict[str, Any], classes: int, seed: int) -> PreparedRun:
    """A set-up run whose clients have random rows of norm 1, the same under every seed."""
    setup = prepare(parse(keys | {"clients.count": CLIENTS, "evaluation.every": 10**6, "seed": seed}))
    rng = np.random.default_rng(0)
    features = rng.normal(size=(CLIENTS * ROWS, FEATURES))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.integers(classes, size=len(features)) if classes else features @ rng.normal(size=FEATURES)
    data = Dataset("synthetic", features, labels, features[:10], labels[:10], classes)
    offsets = np.arange(0, len(labels) + 1, ROWS)
    objective = replace(setup.objective, num_features=FEATURES)
    division = replace(setup.partition, rows=np.arange(len(labels)), offsets=offsets)
    return replace(setup, dataset=data, partition=division, objective=objective, start=np.zeros(FEATURES))


def ldp(seeds: int, rounds: int) -> list[PreparedRun]:
    """Zhang 2023, Fig. 1, on synthetic rows."""
    keys = {
        "algorithm": "ldp-primal-dual", "data.name": "breast-cancer", "objective.name": "logistic", "l2": L2,
        "regulariser.name": "none", "privacy.mode": "public-state", "epsilon": 1.0, "rounds": rounds,
        "step-size": GAMMA,
    }  # fmt: skip
    return [synthetic(keys, 2, seed) for seed in range(seeds)]


def ldp_by_hand(setups: Sequence[PreparedRun], rounds: int) -> np.ndarray:
    """(7) for all seeds and clients at once; the last mean (seeds, d)."""
    features, signs = (np.stack(parts) for parts in zip(*map(_stacked, setups), strict=True))
    signs = 2.0 * signs - 1.0
    sigmas = _sigmas(setups[0])
    clients = np.arange(CLIENTS)
    sent = np.zeros((len(setups), CLIENTS, FEATURES))
    mean, dual = np.zeros((len(setups), 1, FEATURES)), np.zeros_like(sent)
    for t in range(1, rounds + 1):
        apart = sent - mean
        dual += apart
        x = sent - GAMMA * apart
        scores = (features @ x[..., None])[..., 0]
        slopes = -signs * expit(-signs * scores) / ROWS
        grad = (slopes[..., None, :] @ features)[..., 0, :] + L2 * x
        noise = np.stack([normals(seed, "noise", clients, t, FEATURES) for seed in range(len(setups))])
        sent = x - GAMMA * (grad + dual) + sigmas[t - 1] * noise
        mean = sent.mean(1, keepdims=True)
    return mean[:, 0]


def ldp_in_place(setups: Sequence[PreparedRun], rounds: int) -> np.ndarray:
    """The same with the labels in the rows, and in place."""
    features, labels = (np.stack(parts) for parts in zip(*map(_stacked, setups), strict=True))
    signed = features * (1.0 - 2.0 * labels)[..., None]  # -s a for every row a with the label s
    sigmas = _sigmas(setups[0])
    clients = np.arange(CLIENTS)
    sent = np.zeros((len(setups), CLIENTS, FEATURES))
    mean, dual = np.zeros((len(setups), 1, FEATURES)), np.zeros_like(sent)
    for t in range(1, rounds + 1):
        apart = sent - mean
        dual += apart
        apart *= GAMMA
        x = sent - apart
        slopes = (signed @ x[..., None])[..., 0]
        expit(slopes, out=slopes)
        slopes *= GAMMA / ROWS
        step = (slopes[..., None, :] @ signed)[..., 0, :]
        noise = np.stack([normals(seed, "noise", clients, t, FEATURES) for seed in range(len(setups))])
        noise *= sigmas[t - 1]
        sent = (1 - GAMMA * L2) * x - step
        sent -= GAMMA * dual
        sent += noise
        mean = sent.mean(1, keepdims=True)
    return mean[:, 0]


def _sigmas(setup: PreparedRun) -> np.ndarray:
    """The standard deviation of the noise in each round."""
    bounds, z, workload = setup.plan.bounds, float(setup.plan.multipliers[0]), setup.schedule.workload(ROWS)
    plain = z * setup.algorithm.release(bounds, workload, 1)._replace(weight=1.0).spread
    return plain / np.sqrt(setup.algorithm.weights(bounds))


def nfl(seeds: int) -> list[PreparedRun]:
    """Gauthier 2023, Fig. 3."""
    keys = {
        "algorithm": "zcdp-nfl", "data.name": "linear", "bias": False, "objective.name": "least-squares",
        "clip-norm": CLIP, "regulariser.name": "none", "clients.count": 50, "samples-per-client": 48,
        "rho": RHO, "step-size": 1.0,
        "privacy.mode": "public-state", "epsilon": 8.0, "rounds": 2000, "evaluation.every": 10**6,
    }  # fmt: skip
    return prepare_seeds(parse(keys), list(range(seeds)))


def nfl_by_hand(setups: Sequence[PreparedRun], rounds: int) -> np.ndarray:
    """(7)-(9) for all seeds and clients at once; the mean models (seeds, d)."""
    count = setups[0].config.clients.count
    rows = [[setup.shards.rows(k) for k in range(count)] for setup in setups]
    a, y = (np.array([[getattr(r, part) for r in each] for each in rows]) for part in ("features", "labels"))
    near = adjacency(setups[0].algorithm.info.neighbours).toarray()
    degrees, d, clients, plan = near.sum(1)[:, None], a.shape[-1], np.arange(count), setups[0].plan
    weight = 1 + 2 * RHO * degrees
    sigma = plan.multipliers[0] * 2 * plan.bounds.gradient / a.shape[2] / weight
    w, dual = np.zeros((len(rows), count, d)), np.zeros((len(rows), count, d))
    sums, norms = near @ w, np.linalg.norm(a, axis=-1)
    for t in range(1, rounds + 1):
        residual = (a @ w[..., None])[..., 0] - y
        residual *= CLIP / np.maximum(np.abs(residual) * norms, CLIP)
        slope = (residual[..., None, :] @ a)[..., 0, :] / a.shape[2]
        model = (w - slope - dual + RHO * (degrees * w + sums)) / weight
        noise = np.stack([normals(seed, "noise", clients, t, d) for seed in range(len(rows))])
        w = model + sigma * noise
        sums = near @ w
        dual = dual + RHO * (degrees * w - sums)
    return w.mean(1)


def _stacked(setup: PreparedRun) -> tuple[np.ndarray, np.ndarray]:
    shape = (CLIENTS, ROWS)
    return setup.dataset.features.reshape(*shape, FEATURES), setup.dataset.labels.reshape(shape)


def in_cohort(setups: Sequence[PreparedRun], rounds: int) -> np.ndarray:
    """The same rounds in the cohort runtime; the models (seeds, d)."""
    cohort = Cohort(setups)
    (end,) = deque(cohort.rounds(rounds), maxlen=1)
    return cohort.models(end.server)


Runner = Callable[[Sequence[PreparedRun], int], np.ndarray]


def duel(name: str, setups: Sequence[PreparedRun], by_hand: Runner, rounds: int, turns: int = 20) -> str:
    """One line of the table: best times of both over some turns; they must agree."""
    best = dict.fromkeys((by_hand, in_cohort), np.inf)
    for _ in range(turns):
        ends = []
        for runner in best:
            began = time.perf_counter()
            ends.append(runner(setups, rounds))
            best[runner] = min(best[runner], (time.perf_counter() - began) / rounds)
        np.testing.assert_allclose(*ends, rtol=1e-6, atol=1e-9)
    hand, ours = (1e6 * seconds for seconds in best.values())
    return f"| {name} | {hand:.0f} | {ours:.0f} | {ours / hand:.2f} |"


def main() -> None:
    """Print, and perhaps store, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        lines = [
            "| method, clients x rows, d | by hand, us per round | cohort, us per round | time against by hand |",
            "|---|---|---|---|",
            duel("ldp-primal-dual, 20 x 100, 23", ldp(1, 2000), ldp_by_hand, 2000),
            duel("the same, by hand in place", ldp(1, 2000), ldp_in_place, 2000),
            duel("the same, 20 seeds stacked", ldp(20, 300), ldp_by_hand, 300),
            duel("zcdp-nfl, 50 x 48, 8", nfl(1), nfl_by_hand, 2000),
            duel("the same, 20 seeds stacked", nfl(20), nfl_by_hand, 300),
        ]
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
