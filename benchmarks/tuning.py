"""What tuning costs: accuracy at a total epsilon if the candidates are charged, against tuning for free and none.

    python benchmarks/tuning.py tuning.json --data-dir DATA    # some minutes; draws tuning.png beside it

Ten step sizes of FedAvg with one full-batch step per round, on digits and Adult with 10 clients. "Free" trains every
candidate with the noise of the whole budget, scores it by its exact accuracy on held-out training rows, and charges
nothing for that. "Charged" spends a share of the budget on successive halving
(`twinflower.simulation.tuning.charged`), and the rest on the final run. "Default" is the method's default step size
with the whole budget.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings.experiment import read_experiment
from twinflower.simulation.tuning.grid import read_tuning
from twinflower.simulation.tuning.search import tune

EPSILONS, SEEDS = (2.0, 8.0), range(100, 110)
SHARES = {"charged, 10%": 0.1, "charged, 30%": 0.3, "free": 0.0}
DATA: dict[str, dict[str, Any]] = {
    "digits": {"clients.count": 10, "objective.name": "softmax"},
    "adult": {"clients.count": 10, "objective.name": "logistic"},
}
FILE = """
title = "Step sizes"
seeds = [0]
[tune]
seeds = [{seed}]
by = "accuracy"
[grid]
step-size = [0.03, 0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
[run]
algorithm = "fedavg"
rounds = 30
local.max-steps = 1
local.batch-size = 0
regulariser.name = "none"
data.row-norm = 1.0
privacy.mode = "public-state"
evaluation.every = 30
[[curve]]
"""


def accuracy(path: Path, keys: dict[str, Any], seed: int) -> float:
    """The test accuracy of the experiment's only curve with this seed, which is also the seed of its data."""
    (curve,) = read_experiment(path, keys | {"seed": seed}).curves
    (result,) = cohort.train([prepare(curve.config)])
    return float(result.rows[-1]["test_accuracy"])


def measured(folder: Path, data: str, data_dir: str, epsilon: float, seed: int) -> Iterator[dict[str, Any]]:
    """A row for each way of tuning."""
    path, tuned = folder / "run.toml", folder / "tuned.toml"
    path.write_text(FILE.format(seed=seed))
    keys = {"data.name": data, "privacy.epsilon": epsilon, **DATA[data]} | (
        {"data.dir": data_dir} if data_dir else {}
    )
    row = {"data": data, "epsilon": epsilon, "seed": seed}
    yield row | {"tuning": "default", "accuracy": accuracy(path, keys, seed)}
    for name, share in SHARES.items():
        own = keys | {"privacy.tune-share": share}
        tuned.write_text(tune(read_tuning(path, own), lambda line: None))
        (curve,) = read_experiment(tuned, own).curves
        yield row | {
            "tuning": name, "accuracy": accuracy(tuned, own, seed), "step-size": curve.config.method.step_size,
        }  # fmt: skip


def values(rows: list[dict[str, Any]], data: str, epsilon: float, name: str) -> list[float]:
    """The accuracies of all seeds."""
    wanted = (data, epsilon, name)
    return [row["accuracy"] for row in rows if (row["data"], row["epsilon"], row["tuning"]) == wanted]


def table(rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over the seeds, in Markdown."""
    names = ["default", *SHARES]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for data in DATA:
        for epsilon in EPSILONS:
            cells = [np.array(values(rows, data, epsilon, name)) for name in names]
            words = " | ".join(f"{own.mean():.3f} +- {own.std(ddof=1):.3f}" for own in cells)
            lines.append(f"| {data}, epsilon {epsilon:g} | {words} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """A panel for each data set: for every way of tuning, a point for each seed and a line at their mean."""
    import matplotlib.pyplot as plt

    names = ["default", *SHARES]
    figure, panels = plt.subplots(1, len(DATA), figsize=(8, 3.6), layout="constrained")
    for axis, data in zip(panels, DATA, strict=True):
        for place, epsilon in enumerate(EPSILONS):
            for offset, name in enumerate(names):
                x, own = place + 0.2 * (offset - 1.5), values(rows, data, epsilon, name)
                axis.plot([x] * len(own), own, "o", color=f"C{offset}", alpha=0.5, markersize=4)
                axis.plot(x, np.mean(own), "_", color=f"C{offset}", markersize=20, markeredgewidth=2.5,
                          label=None if place else name)  # fmt: skip
        axis.set_xticks(range(len(EPSILONS)), [f"epsilon {e:g}" for e in EPSILONS])
        axis.set_title(f"{data.capitalize()}, {DATA[data]['clients.count']} clients")
        axis.grid(axis="y", alpha=0.3)
    panels[0].set_ylabel("test accuracy")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", default="")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in SEEDS:
            for data in DATA:
                for epsilon in EPSILONS:
                    for row in measured(Path(folder), data, arguments.data_dir, epsilon, seed):
                        rows.append(row)
                        print(row, flush=True)
    arguments.out.write_text(json.dumps(rows, indent=1))
    draw(rows, arguments.out.with_suffix(".png"))
    print(table(rows))


if __name__ == "__main__":
    main()
