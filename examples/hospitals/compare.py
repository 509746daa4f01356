"""Four hospitals: federated, federated with privacy, pooled, and each alone. Run it in this folder.

python compare.py [REPEATS]
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold

from twinflower import FederatedClassifier
from twinflower.data.schema_file import read_schema
from twinflower.data.tables import read_rows

matplotlib.use("Agg")
HERE = Path(__file__).parent
HOSPITALS = ("cleveland", "hungary", "long-beach", "switzerland")
EPSILONS = (1, 4, 8)
SETTINGS = {"clients.weighting": "rows"}
PRIVATE = SETTINGS | {"fedpdm.step-size": 0.8, "local.max-steps": 1, "fedpdm.rho": 0.05}
Predict = Callable[[np.ndarray, np.ndarray, np.ndarray, int], Any]


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, labels and hospitals of all 920 patients."""
    schema = read_schema(HERE / "schema.toml")
    tables = [read_rows(HERE / "sites" / f"{name}.csv", schema) for name in HOSPITALS]
    sites = np.repeat(np.arange(len(tables)), [len(labels) for _, labels in tables])
    return np.concatenate([own for own, _ in tables]), np.concatenate([own for _, own in tables]), sites


def pooled(X, y, sites, seed):
    """Logistic regression on the rows of all hospitals."""
    return LogisticRegression(max_iter=1000).fit(X, y)


def together(epsilon: float | None) -> Predict:
    """Federated, with a total epsilon for each hospital; the features are in [-1, 1] by the public schema."""

    def fit(X, y, sites, seed):
        keys = {"settings": SETTINGS if epsilon is None else PRIVATE, "rounds": 30 if epsilon is None else 15}
        model = FederatedClassifier(epsilon=epsilon, ranges=(-1, 1), random_state=seed, **keys)
        return model.fit(X, y, sites=sites)

    return fit


class Alone:
    """One model for each hospital, which sees no other's patients; `fit_one` trains it."""

    def __init__(self, fit_one: Predict) -> None:
        self.fit_one = fit_one

    def __call__(self, X, y, sites, seed):
        self.models = [self.fit_one(X[sites == k], y[sites == k], sites[sites == k], seed) for k in range(4)]
        return self


class Larger:
    """What each hospital gets by always naming its more frequent label."""

    def __call__(self, X, y, sites, seed):
        self.most = [int(y[sites == k].mean() > 0.5) for k in range(4)]
        return self


def right(model: Any, X: np.ndarray, y: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """Which test rows are predicted right."""
    if isinstance(model, Larger):
        return np.array(model.most)[sites] == y
    if isinstance(model, Alone):
        each = np.array([own.predict(X) for own in model.models])
        return each[sites, np.arange(len(y))] == y
    return model.predict(X) == y


METHODS: dict[str, Predict] = {
    "each hospital's majority": Larger(),
    "each alone": Alone(pooled),
    "pooled": pooled,
    "federated": together(None),
    **{f"federated, epsilon {e}": together(e) for e in EPSILONS},
    **{f"each alone, epsilon {e}": Alone(together(e)) for e in EPSILONS},
}


def folds(y: np.ndarray, sites: np.ndarray, repeats: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Five folds, alike in hospitals and labels, under several seeds."""
    for seed in range(repeats):
        yield from StratifiedKFold(5, shuffle=True, random_state=seed).split(y, 2 * sites + y)


def accuracies(repeats: int) -> dict[str, np.ndarray]:
    """Of every method, (repeats, 1 + hospitals): on all patients, and on each hospital's."""
    X, y, sites = rows()
    found = {}
    for name, method in METHODS.items():
        hits = np.empty((repeats, len(y)))
        for number, (train, test) in enumerate(folds(y, sites, repeats)):
            model = method(X[train], y[train], sites[train], number)
            hits[number // 5, test] = right(model, X[test], y[test], sites[test])
        found[name] = np.stack([hits.mean(1), *(hits[:, sites == k].mean(1) for k in range(4))], axis=1)
    return found


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Bars with the mean over the repeats, and their standard deviation."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    means = [own[:, 0].mean() for own in found.values()]
    colours = ["#888888" if "alone" in name or "majority" in name else "#00796b" for name in found]
    axes.barh(list(found), means, xerr=[own[:, 0].std() for own in found.values()], color=colours)
    for place, mean in enumerate(means):
        axes.text(0.505, place, f"{mean:.3f}", va="center", color="white")
    axes.set(xlim=(0.5, 0.9), xlabel="accuracy on held-out patients of all four hospitals")
    axes.invert_yaxis()
    figure.savefig(path, dpi=120)


def main(repeats: int, figure: Path) -> dict[str, np.ndarray]:
    """Print the table, draw the figure."""
    found = accuracies(repeats)
    print(f"{'':26}{'all':>14}" + "".join(f"{name:>14}" for name in HOSPITALS))
    for name, own in found.items():
        print(
            f"{name:26}" + "".join(f"{m:8.3f}±{s:.3f}" for m, s in zip(own.mean(0), own.std(0), strict=True))
        )
    draw(found, figure)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, HERE / "compare.png")
