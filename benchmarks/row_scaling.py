"""What it costs to scale all rows by one public constant: test accuracy beside that of rows divided by their own norms.

    python benchmarks/row_scaling.py --data-dir DATA

Three tables as a schema with public ranges encodes them: the four hospitals of examples/hospitals; Adult (adult.data
and adult.test in DATA) and scikit-learn's digits, dealt at random among ten sites. FedPDM with one full-batch step in
each round and rho = 1 / (2 step-size). The step size is tuned for every cell, on other seeds than those measured, over
the same eight values.
"""

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from twinflower.data.builtin import _ADULT_CATEGORIES
from twinflower.data.dataset import ARRAYS, Dataset, with_features
from twinflower.data.features import ROW_SCALINGS, completed
from twinflower.data.sets import load_dataset
from twinflower.data.sites import TableData, load_tables
from twinflower.simulation.runs.setup import prepare_rows
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

ROOT = Path(__file__).resolve().parent.parent
STEPS = [2.0**power for power in range(-2, 6)]
TUNED, MEASURED = range(100, 110), range(10)
EPSILONS = (1, 4, 8)
SITES = 10


def hospitals(folder: str) -> tuple[Dataset, int]:
    """The data set without a limit on rows, and its number of columns."""
    home = ROOT / "examples" / "hospitals"
    data = load_tables(
        TableData(files=str(home / "sites" / "*.csv"), schema=str(home / "schema.toml"), row_norm=0.0)
    )
    assert data.schema is not None
    return data, len(data.schema.columns)


def adult(folder: str) -> tuple[Dataset, int]:
    """As `hospitals`, with a feature for every category, in place of all but one."""
    sizes = [len(known) - 1 for known in _ADULT_CATEGORIES.values()]
    numbers = 5

    def encoded(rows: np.ndarray) -> np.ndarray:
        parts = np.split(rows[:, numbers:], np.cumsum(sizes)[:-1], axis=1)
        first = [1 - part.sum(1, keepdims=True) for part in parts]
        return np.hstack([2 * rows[:, :numbers] - 1, *first, *parts, np.ones((len(rows), 1))])

    return with_features(load_dataset("adult", folder, bias=False), encoded), numbers + len(sizes)


def digits(folder: str) -> tuple[Dataset, int]:
    """As `hospitals`; a pixel has the range [0, 16]."""
    data = load_dataset("digits", bias=False)
    encoded = with_features(data, lambda rows: completed(2 * rows - 1, True))
    return encoded, data.features.shape[1]


TABLES: dict[str, tuple[Callable[[str], tuple[Dataset, int]], int]] = {
    "hospitals": (hospitals, 15), "Adult": (adult, 30), "digits": (digits, 30),
}  # fmt: skip


def scaled(data: Dataset, columns: int, scaling: str) -> Dataset:
    """The data set with rows of norm at most 1, by one of `ROW_SCALINGS`, as arrays of sites."""
    longest = np.sqrt(columns + 1) if scaling == "all" else 0.0
    own = with_features(data, partial(completed, bias=False, row_norm=1.0, longest=longest))
    rows = len(own.labels)
    sites = data.sites or tuple(map(len, np.array_split(np.arange(rows), SITES)))
    order = np.arange(rows) if data.sites else np.random.default_rng(0).permutation(rows)
    return Dataset(
        ARRAYS, own.features[order], own.labels[order], own.test_features, own.test_labels, data.num_classes,
        sites=sites,
    )  # fmt: skip


def accuracies(data: Dataset, rounds: int, epsilon: float, step: float, seeds: range) -> np.ndarray:
    """The test accuracy of every seed."""
    keys: dict[str, Any] = {
        "algorithm": "fedpdm", "rounds": rounds, "data.name": ARRAYS, "evaluation.every": rounds,
        "objective.name": "logistic" if data.num_classes == 2 else "softmax", "regulariser.name": "none",
        "clients.weighting": "rows", "local.max-steps": 1, "fedpdm.step-size": step, "fedpdm.rho": 0.5 / step,
        "privacy.mode": "public-state", "privacy.epsilon": float(epsilon),
    }  # fmt: skip
    setups = [prepare_rows(parse(keys | {"seed": seed}), data) for seed in seeds]
    return np.array([result.rows[-1]["test_accuracy"] for result in cohort.train(setups)])


def tuned(data: Dataset, rounds: int, epsilon: float) -> tuple[float, np.ndarray]:
    """The best step size, and the accuracies with it."""
    step = max(STEPS, key=lambda own: accuracies(data, rounds, epsilon, own, TUNED).mean())
    return step, accuracies(data, rounds, epsilon, step, MEASURED)


def main() -> None:
    """Print a row for each table and epsilon."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", default=".")
    folder = parser.parse_args().data_dir
    print("| table | epsilon | each row by its own norm | all rows by one constant | step sizes |")
    print("|---|---|---|---|---|")
    for name, (load, rounds) in TABLES.items():
        data, columns = load(folder)
        both = [scaled(data, columns, scaling) for scaling in ROW_SCALINGS]
        for epsilon in EPSILONS:
            found = [tuned(own, rounds, epsilon) for own in both]
            cells = " | ".join(f"{own.mean():.3f} ± {own.std(ddof=1):.3f}" for _, own in found)
            print(
                f"| {name} | {epsilon} | {cells} | {', '.join(f'{step:g}' for step, _ in found)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
