"""The discrete-time Cox model on Fed-TCGA-BRCA, six regions, with the split of FLamby (du Terrail et al. 2022).

    python examples/survival/brca.py FOLDER

FOLDER has FLamby's brca.csv and train_test_split.csv. Printed are the concordance index of the final model on the test
persons of each region, and the mean over the regions, which is FLamby's score.
"""

import csv
import sys
from pathlib import Path

import numpy as np

import twinflower

REGIONS = 6
SETTINGS = {
    "fedavg": {"fedavg.step-size": 0.5, "local.max-steps": 50},
    "scaffold": {"scaffold.step-size": 0.5, "local.max-steps": 20},
    "fedpdm": {"fedpdm.step-size": 0.2, "local.max-steps": 50, "fedpdm.rho": 0.05},
}
COMMON = {"objective.l2": 1e-3, "clients.weighting": "rows"}


def table(folder: Path) -> tuple[np.ndarray, ...]:
    """Features (rows, 39), labels (rows, 2) of event and time, regions, and whether a row is for training."""
    with (folder / "brca.csv").open() as file:
        known = {row.pop("pid"): row for row in csv.DictReader(file)}
    with (folder / "train_test_split.csv").open() as file:
        split = list(csv.DictReader(file))
    rows = np.array([list(map(float, known[own["pid"]].values())) for own in split])
    labels = np.column_stack([rows[:, -2], np.maximum(rows[:, -1], 1.0)])  # a time of 0 is the first day
    regions = np.array([int(own["fold2"].split("_")[1]) for own in split])
    return rows[:, :-2], labels, regions, np.array([own["fold"] == "train" for own in split])


def main() -> None:
    """Train with each method and print the scores."""
    features, labels, regions, training = table(Path(sys.argv[1]))
    ranges = [20.0] + [0.0] * 38, [90.0] + [1.0] * 38  # age, and features of 0 or 1
    held = [~training & (regions == region) for region in range(REGIONS)]
    for algorithm, settings in SETTINGS.items():
        model = twinflower.FederatedCoxRegressor(
            algorithm, intervals="10 x 365", rounds=300, ranges=ranges, settings=COMMON | settings, random_state=0
        ).fit(features[training], labels[training], sites=regions[training])  # fmt: skip
        scores = [model.score(features[own], labels[own]) for own in held]
        print(f"{algorithm:8}", " ".join(f"{score:.3f}" for score in scores), f"mean {np.mean(scores):.4f}")


if __name__ == "__main__":
    main()
