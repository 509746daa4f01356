"""Two tasks of FLamby as it prepares and splits them: Fed-Heart-Disease (four hospitals, 740 patients, 13 features, a
diagnosis) and Fed-TCGA-BRCA (six regions, 1,088 patients, 39 features, survival)."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from twinflower import FederatedClassifier, FederatedCoxRegressor
from twinflower.concordance import concordance
from twinflower.survival_labels import signed, unsigned

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
DROPPED = ("slope", "ca", "thal")
ONE_HOT = {"cp": (2, 3, 4), "restecg": (1, 2)}  # without the first level
RANGES = {  # those of examples/hospitals/schema.toml
    "age": (20, 90), "trestbps": (80, 220), "chol": (100, 500), "thalach": (60, 220), "oldpeak": (-3, 7),
    "age_at_index": (20, 90),
}  # fmt: skip
INTERVALS = "10 x 365"  # of the discrete-time Cox model: ten years
PUBLIC, OWN = "public ranges", "FLamby's scaling"
SPLIT = 43  # FLamby's

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Rows(NamedTuple):
    """Patients: features (rows, n), labels (rows,), sites (rows,), and FLamby's training rows if it names them."""

    features: Floats
    labels: NDArray[Any]
    sites: NDArray[np.int64]
    train: Mask | None = None

    def of(self, chosen: Mask) -> "Rows":
        """These rows only."""
        return Rows(self.features[chosen], self.labels[chosen], self.sites[chosen])


class Task(NamedTuple):
    """What the benchmark needs to know. read(folder): names of the features, and all patients; make(algorithm, ...): an
    estimator; pooled(): one that sees all rows; score(predicted, rows): of one site; constant(): an estimator that
    predicts one label, if that is a prediction."""

    sites: int
    measure: str
    read: Callable[[Path], tuple[list[str], Rows]]
    preparations: tuple[str, ...]
    make: Callable[..., Any]
    pooled: Callable[[], Any]
    score: Callable[[NDArray[Any], Rows], float]
    constant: Callable[[], Any] | None = None

    def scores(self, predicted: NDArray[Any], rows: Rows) -> list[float]:
        """The score of every site."""
        return [self.score(predicted[own], rows.of(own)) for own in self.each(rows)]

    def each(self, rows: Rows) -> list[Mask]:
        """Which rows are of each site."""
        return [rows.sites == site for site in range(self.sites)]

    def fixed(self, rows: Rows) -> Mask:
        """Which rows are for training in FLamby's split."""
        return self.trained(rows, SPLIT) if rows.train is None else rows.train

    def trained(self, rows: Rows, seed: int) -> Mask:
        """Which rows are for training: 66 % of each site, stratified where each label occurs more than twice."""
        mask = np.zeros(len(rows.labels), dtype=bool)
        kinds = rows.labels > 0  # ill, or with an event
        for (own,) in map(np.nonzero, self.each(rows)):
            counts = np.unique(kinds[own], return_counts=True)[1]
            strata = kinds[own] if len(counts) > 1 and counts.min() > 2 else None
            sizes = {"test_size": 0.34, "train_size": 0.66, "random_state": seed, "stratify": strata}
            mask[train_test_split(own, **sizes)[0]] = True
        return mask

    def prepared(self, preparation: str, names: list[str], rows: Rows, train: Mask) -> Rows:
        """Rows with features in [-1, 1]. By FLamby's scaling these are a third of the distance from the mean, over the
        deviation, of each site's own training rows, clipped."""
        if preparation == PUBLIC:
            return rows._replace(features=by_ranges(names, rows.features))
        features = rows.features.copy()
        for own in self.each(rows):
            known = rows.features[own & train]
            features[own] = (features[own] - known.mean(0)) / (known.std(0, ddof=1) + 1e-9)
        return rows._replace(features=np.clip(features / 3, -1, 1))


def by_ranges(names: list[str], features: Floats) -> Floats:
    """Numbers in [-1, 1] by public ranges, to which they are clipped; indicators as they are."""
    low, high = np.transpose([RANGES.get(name, (-1, 1)) for name in names])
    return np.clip(2 * (features - low) / (high - low) - 1, -1, 1)


# ---------------------------------------------------------------------------------------------- Fed-Heart-Disease


def hospital(path: Path) -> tuple[list[str], Floats, NDArray[np.int64]]:
    """Names of the features, features and labels of the patients without a missing value."""
    with path.open() as file:
        rows = [{k: v for k, v in row.items() if k not in DROPPED} for row in csv.DictReader(file)]
    rows = [{k: float(v) for k, v in row.items()} for row in rows if all(row.values())]
    columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    labels = (columns.pop("num") != 0).astype(np.int64)
    for name, levels in ONE_HOT.items():
        own = columns.pop(name)
        columns |= {f"{name} = {level}": (own == level).astype(float) for level in levels}
    return list(columns), np.stack(list(columns.values()), axis=1), labels


def heart(folder: Path) -> tuple[list[str], Rows]:
    """Names of the features, and the patients of all hospitals."""
    tables = [hospital(folder / "heart" / f"{name}.csv") for name in HOSPITALS]
    sites = np.repeat(np.arange(len(tables)), [len(labels) for _, _, labels in tables])
    features, labels = (np.concatenate([table[part] for table in tables]) for part in (1, 2))
    return tables[0][0], Rows(features, labels, sites)


def accuracy(predicted: NDArray[Any], rows: Rows) -> float:
    """The share of right labels."""
    return float((predicted == rows.labels).mean())


# -------------------------------------------------------------------------------------------------- Fed-TCGA-BRCA


def brca(folder: Path) -> tuple[list[str], Rows]:
    """Names of the features, and the patients of all regions; a time of 0 days counts as 1."""
    with (folder / "flamby" / "train_test_split.csv").open() as file:
        folds = {row["pid"]: row["fold2"].split("_") for row in csv.DictReader(file)}
    with (folder / "flamby" / "brca.csv").open() as file:
        table = [row for row in csv.DictReader(file) if row["pid"] in folds]
    names = [name for name in table[0] if name not in ("pid", "E", "T")]
    features = np.array([[float(row[name]) for name in names] for row in table])
    times, events = (np.array([float(row[name]) for row in table]) for name in ("T", "E"))
    kinds, sites = zip(*(folds[row["pid"]] for row in table), strict=True)
    labels = signed(np.maximum(times, 1.0), events > 0)
    return names, Rows(features, labels, np.array(sites, dtype=np.int64), np.array(kinds) == "train")


def concordance_index(predicted: NDArray[Any], rows: Rows) -> float:
    """Harrell's, NaN without two patients that can be compared."""
    return concordance(predicted, *unsigned(rows.labels)).share


def cox(algorithm: str | None = "fedpdm", epsilon: float | None = None, **own: Any) -> FederatedCoxRegressor:
    """The discrete-time Cox model. Without privacy it takes 200 rounds, since after 30 the objective still falls."""
    rounds = {} if epsilon else {"rounds": 200}
    return FederatedCoxRegressor(algorithm, intervals=INTERVALS, epsilon=epsilon, **(rounds | own))


class PooledCox:
    """The discrete-time Cox model on the rows of all regions, at its optimum by Newton's method."""

    def fit(self, X: Any, y: Any, sites: Any) -> FederatedCoxRegressor:
        own = cox(None, ranges=(-1, 1), settings={"objective.l2": 1e-3})
        return own.fit(X, y, sites=np.zeros(len(y), int))


class PooledLogistic:
    """Logistic regression on the rows of all hospitals."""

    def fit(self, X: Any, y: Any, sites: Any) -> LogisticRegression:
        return LogisticRegression(max_iter=1000).fit(X, y)


class CommonerClass:
    """The commoner class of the rows of all hospitals."""

    def fit(self, X: Any, y: Any, sites: Any) -> DummyClassifier:
        return DummyClassifier().fit(X, y)


TASKS = {
    "Fed-Heart-Disease": Task(
        len(HOSPITALS),
        "accuracy",
        heart,
        (PUBLIC, OWN),
        FederatedClassifier,
        PooledLogistic,
        accuracy,
        CommonerClass,
    ),
    "Fed-TCGA-BRCA": Task(6, "concordance index", brca, (PUBLIC,), cox, PooledCox, concordance_index),
}
