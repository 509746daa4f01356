"""Fed-Heart-Disease of FLamby: four hospitals, 740 patients and 13 features, prepared and split as FLamby does it."""

import csv
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

HOSPITALS = ("cleveland", "hungary", "switzerland", "long-beach")
DROPPED = ("slope", "ca", "thal")
ONE_HOT = {"cp": (2, 3, 4), "restecg": (1, 2)}  # without the first level
RANGES = {  # those of examples/hospitals/schema.toml
    "age": (20, 90), "trestbps": (80, 220), "chol": (100, 500), "thalach": (60, 220), "oldpeak": (-3, 7),
}  # fmt: skip

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Patients of all hospitals: features (rows, 13) in the tables' units, labels 0 or 1, and hospitals 0 to 3."""

    features: Floats
    labels: NDArray[np.int64]
    sites: NDArray[np.int64]

    def __getitem__(self, chosen):
        return Rows(*(part[chosen] for part in (self.features, self.labels, self.sites)))


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


def patients(folder: Path) -> tuple[list[str], Rows]:
    """Names of the features, and all patients."""
    tables = [hospital(folder / "heart" / f"{name}.csv") for name in HOSPITALS]
    sites = np.repeat(np.arange(len(tables)), [len(labels) for _, _, labels in tables])
    features, labels = (np.concatenate([table[part] for table in tables]) for part in (1, 2))
    return tables[0][0], Rows(features, labels, sites)


def trained_rows(rows: Rows, seed: int) -> NDArray[np.bool_]:
    """Which rows are for training: 66 % of each hospital, stratified where each label occurs more than twice."""
    mask = np.zeros(len(rows.labels), dtype=bool)
    for site in range(len(HOSPITALS)):
        (own,) = np.nonzero(rows.sites == site)
        counts = np.unique(rows.labels[own], return_counts=True)[1]
        strata = rows.labels[own] if len(counts) > 1 and counts.min() > 2 else None
        train, _ = train_test_split(own, test_size=0.34, train_size=0.66, random_state=seed, stratify=strata)
        mask[train] = True
    return mask


def by_ranges(names: list[str], rows: Rows, train: NDArray[np.bool_]) -> Rows:
    """Columns in [-1, 1] by public ranges; values beyond them are clipped."""
    low, high = np.transpose([RANGES.get(name, (0, 1)) for name in names])
    return rows._replace(features=np.clip(2 * (rows.features - low) / (high - low) - 1, -1, 1))


def by_own_rows(names: list[str], rows: Rows, train: NDArray[np.bool_]) -> Rows:
    """Columns minus the mean, over the deviation, of each hospital's own training rows, as FLamby has them; then a
    third of that, clipped to [-1, 1]."""
    features = rows.features.copy()
    for site in range(len(HOSPITALS)):
        own = rows.sites == site
        known = rows.features[own & train]
        features[own] = (features[own] - known.mean(0)) / (known.std(0, ddof=1) + 1e-9)
    return rows._replace(features=np.clip(features / 3, -1, 1))


def score(found: NDArray[np.int64], rows: Rows) -> float:
    """FLamby's: the mean of the hospitals' accuracies."""
    right = found == rows.labels
    return float(np.mean([right[rows.sites == site].mean() for site in range(len(HOSPITALS))]))
