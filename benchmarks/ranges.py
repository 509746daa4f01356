"""What private ranges cost: test accuracy beside that of columns whose scale no guarantee covers.

    python benchmarks/ranges.py

scikit-learn's breast-cancer table: 569 rows, 30 columns with values from 1e-3 to 4e3, a fifth of the rows held out.
FedPDM with its default settings trains a logistic regression over sites with the same numbers of rows. Mean over seeds.
"""

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
from sklearn.datasets import load_breast_cancer

from twinflower.data.features import completed
from twinflower.data.sets import Dataset
from twinflower.simulation.runs.setup import PreparedRun, prepare, prepare_rows
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

SEEDS, HELD_OUT = range(10), 114
RUN = {"objective.name": "logistic", "regulariser.name": "none", "evaluation.every": 30}


def split() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The features, the labels and a random order of the rows, whose first are held out."""
    data = load_breast_cancer()
    return data.data, data.target.astype(np.int64), np.random.default_rng(0).permutation(len(data.target))


def private(folder: Path, sites: int, keys: dict[str, object]) -> PreparedRun:
    """The run on one CSV file for each site, with a schema in which all ranges are private."""
    features, labels, order = split()
    names = [f"x{place}" for place in range(features.shape[1])]
    parts = [order[:HELD_OUT], *np.array_split(order[HELD_OUT:], sites)]
    for name, rows in zip(("test", *(f"site-{number}" for number in range(sites))), parts, strict=True):
        table = np.column_stack([features[rows], labels[rows]])
        np.savetxt(folder / f"{name}.csv", table, "%.17g", ",", header=",".join([*names, "y"]), comments="")
    schema = "".join(f'{name} = {{ range = "private" }}\n' for name in names)
    (folder / "schema.toml").write_text(f'[label]\ncolumn = "y"\nclasses = [0, 1]\n[columns]\n{schema}')
    files = {"files": "site-*.csv", "schema": "schema.toml", "test-file": "test.csv"}
    paths = {f"data.{key}": str(folder / name) for key, name in files.items()}
    return prepare(parse(RUN | {"data.name": "tables"} | paths | keys))


def by_statistics(sites: int, keys: dict[str, object], scale: bool) -> PreparedRun:
    """The run on columns as they are, or scaled by the mean and the deviation of all training rows."""
    features, labels, order = split()
    test, training = order[:HELD_OUT], order[HELD_OUT:]
    if scale:
        features = (features - features[training].mean(0)) / features[training].std(0)
    rows = completed(features, True, 1.0)
    sizes = tuple(map(len, np.array_split(training, sites)))
    data = Dataset("arrays", rows[training], labels[training], rows[test], labels[test], 2, sites=sizes)
    return prepare_rows(parse(RUN | {"data.name": "arrays"} | keys), data)


def accuracy(setup: PreparedRun) -> float:
    """The test accuracy of the run."""
    (result,) = cohort.train([setup])
    return float(result.rows[-1]["test_accuracy"])


def main() -> None:
    """Print a row for each number of sites and each epsilon."""
    print(
        "| sites | epsilon | as they are | standardised (not covered) | private ranges |\n|---|---|---|---|---|"
    )
    for sites in (4, 10):
        for epsilon in (None, 8.0, 4.0, 2.0):
            privacy = {"privacy.mode": "public-state", "privacy.epsilon": epsilon} if epsilon else {}
            runs = [privacy | {"seed": seed} for seed in SEEDS]
            with TemporaryDirectory() as folder:
                own = np.mean([accuracy(private(Path(folder), sites, keys)) for keys in runs])
            raw, scaled = (
                np.mean([accuracy(by_statistics(sites, keys, scale)) for keys in runs])
                for scale in (False, True)
            )
            print(f"| {sites} | {epsilon or 'none'} | {raw:.3f} | {scaled:.3f} | {own:.3f} |", flush=True)


if __name__ == "__main__":
    main()
