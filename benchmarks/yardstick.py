"""FedAvg and its relatives against the fastest loops that we could write by hand for the job.

    python benchmarks/yardstick.py [--rounds 40] [--markdown FILE]

The job: softmax regression, d = 7840, 100 clients of 600 rows, 30 sampled, 10 local steps of 10 rows, no bias, no
penalty, one BLAS thread. Each method is compared with its own loop in `by_hand`, in process with the one that computes
client by client, and as a cohort with the one that stacks the clients. Private runs, in double precision only, are
compared with the loop of their public form. Rows are synthetic, as sparse as MNIST's: speed does not depend on them.
All variants take turns in one process, and the best time of each counts, so that the machine's speed cancels in the
ratios.
"""

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from by_hand import BY_HAND, FedAvg
from rounds import cohort_round, inprocess_round, race
from threadpoolctl import threadpool_limits

from twinflower.arrays import DOUBLE, PRECISIONS
from twinflower.data.sets import Dataset
from twinflower.simulation.runs.setup import PreparedRun, prepare
from twinflower.simulation.runtimes.computing import reuse_freed_memory
from twinflower.simulation.settings import parse

CLIENTS, SAMPLED, ROWS, CLASSES, FEATURES, STEPS, BATCH, STEP = 100, 30, 600, 10, 784, 10, 10, 0.1
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": "fedavg"},
    "fedpdm": {"algorithm": "fedpdm", "rho": 0.05},
    "scaffold": {"algorithm": "scaffold"},
    "feddyn": {"algorithm": "feddyn", "alpha": 0.05},
    "fedpdm, private": {
        "algorithm": "fedpdm", "rho": 0.05, "privacy.mode": "public-state", "epsilon": 8.0, "clip-norm": 1.0,
    },
}  # fmt: skip
Round = Callable[[], Any]
Variant = tuple[str, str]  # the name of a variant, and of the loop by hand that it is compared with


def rows() -> tuple[np.ndarray, np.ndarray]:
    """Features (clients, rows, features) of norm 1, a fifth of them not 0, and labels (clients, rows)."""
    rng = np.random.default_rng(0)
    shape = CLIENTS, ROWS, FEATURES
    features = rng.random(shape) * (rng.random(shape) < 0.2)
    features /= np.linalg.norm(features, axis=-1, keepdims=True) + 1e-9
    return features, rng.integers(CLASSES, size=shape[:2])


def setup(method: dict[str, Any], features: np.ndarray, labels: np.ndarray) -> PreparedRun:
    """The job for one method, in the precision of the features."""
    precision = next(name for name, dtype in PRECISIONS.items() if dtype == features.dtype)
    small = prepare(
        parse(
            {"local.max-steps": STEPS, "evaluation.every": 10**6, "precision": precision},
            method | {
                "clients.count": CLIENTS, "clients.per-round": SAMPLED, "batch-size": BATCH, "step-size": STEP,
                "objective.name": "softmax", "regulariser.name": "none", "rounds": 1000,
            },
        )
    )  # fmt: skip
    flat, marks = features.reshape(-1, FEATURES), labels.reshape(-1)
    data = Dataset("synthetic", flat, marks, flat[:100], marks[:100], CLASSES, dtype=features.dtype)
    division = replace(
        small.partition, rows=np.arange(len(marks)), offsets=np.arange(0, len(marks) + 1, ROWS)
    )
    objective = replace(small.objective, num_features=FEATURES)
    start = np.zeros(objective.d, features.dtype)
    return replace(small, dataset=data, partition=division, objective=objective, start=start)


def by_hand(name: str, features: np.ndarray, labels: np.ndarray) -> FedAvg:
    """The method by hand."""
    return BY_HAND[name](features, labels, CLASSES, SAMPLED, STEPS, BATCH, STEP)


def runs(features: np.ndarray, labels: np.ndarray, note: str) -> dict[Variant, Round]:
    """A round of every variant in the precision of the features; `note` is added to the names."""
    found: dict[Variant, Round] = {}
    for name, keys in METHODS.items():
        method = keys["algorithm"]
        one, all_ = f"{method} by hand, client by client{note}", f"{method} by hand, stacked{note}"
        if name == method:
            found[one, one] = by_hand(name, features, labels).client_by_client
            found[all_, all_] = by_hand(name, features, labels).stacked
        if features.dtype == DOUBLE or "privacy.mode" not in keys:
            job = setup(keys, features, labels)
            found[f"{name}, in process{note}", one] = inprocess_round(job)
            found[f"{name}, cohort{note}", all_] = cohort_round([job])
    return found


def table(rounds: int) -> list[str]:
    """Client updates per second of every variant, and the ratio to the loop by hand in the same precision."""
    reuse_freed_memory()  # as our runtimes do; it makes the stacked loops by hand up to twice as fast
    features, labels = rows()
    single = features.astype(np.float32)
    variants = runs(features, labels, "") | runs(single, labels, ", single precision")
    seconds = race({name: round_ for (name, _), round_ in variants.items()}, rounds)
    lines = ["| variant | client updates per second | speed against by hand |", "|---|---|---|"]
    for name, base in variants:
        ratio = f"{seconds[base] / seconds[name]:.2f}" if base != name else ""
        lines.append(f"| {name} | {SAMPLED / seconds[name]:,.0f} | {ratio} |")
    return lines


def main() -> None:
    """Print, and perhaps store, the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    with threadpool_limits(1):
        lines = table(arguments.rounds)
    print("\n".join(lines))
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
