"""Draw docs/figures/hero.png, the picture of the README, from results:

    twinflower run experiments/methods-composite.toml --out RUNS && python docs/hero.py RUNS

The left panel has four curves of that comparison, the right one the table of examples/hospitals/README.md.
"""

import re
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from twinflower.simulation.report.series import runs_of, series
from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {
    "FedPDM": "#0b6e8a",
    "SCAFFOLD, server prox": "#b8452c",
    "FedAvg, server momentum": "#5a5a5a",
    "FedProx": "#8c8c8c",
}
BELOW = ("FedPDM", "SCAFFOLD, server prox")  # their names are below the line, so that names do not touch
NAMES = {"FedAvg, server momentum": "FedAvg", "SCAFFOLD, server prox": "SCAFFOLD"}


def convergence(ax: Axes, runs: Path) -> None:
    """Draw medians of ten seeds, with the range of the seeds as a band."""
    plan = read_experiment(ROOT / "experiments" / "methods-composite.toml")
    curves = [curve for curve in plan.curves if curve.label in COLOURS]
    for line in series(plan, runs_of(plan, runs, curves), "suboptimality"):
        colour = COLOURS[line.label]
        ax.plot(line.x, line.centre, color=colour, linewidth=2.2)
        ax.fill_between(line.x, line.low, line.high, color=colour, alpha=0.25, linewidth=0)
        above, end = line.label not in BELOW, 30 if line.label == "FedPDM" else -1
        ax.annotate(
            NAMES.get(line.label, line.label), (line.x[end], line.centre[end]), xytext=(0, 2 if above else -3),
            textcoords="offset points", color=colour, ha="right", va="bottom" if above else "top",
        )  # fmt: skip
    ax.set(yscale="log", xlim=(0, 50), xlabel="communication round")
    ax.set_title("Objective above its optimum", loc="left")


def accuracy() -> dict[str, tuple[float, float]]:
    """Mean and standard deviation over the repeats, of all patients, by the first column of the example's table."""
    text = (ROOT / "examples" / "hospitals" / "README.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| ([^|]+) \| ([\d.]+)(?: ± ([\d.]+))? \|", text, re.MULTILINE)
    return {name: (float(mean), float(spread or 0)) for name, mean, spread in cells}


def price(ax: Axes) -> None:
    """Draw accuracy by epsilon, beside the pooled table and the majority class."""
    found = accuracy()
    points = [found[f"federated, epsilon {epsilon}"] for epsilon in (1, 4, 8)] + [found["federated"]]
    means, spreads = zip(*points, strict=True)
    ax.errorbar(range(4), means, spreads, fmt="o", color=COLOURS["FedPDM"], capsize=4, markersize=7)
    ax.annotate(
        "federated", (1, means[1]), xytext=(0, -20), textcoords="offset points", color=COLOURS["FedPDM"]
    )
    levels = {
        "pooled: logistic regression on all rows together": "pooled table",
        "each hospital's majority": "majority class",
    }
    for name, text in levels.items():
        ax.axhline(found[name][0], color="#555555", linewidth=1, linestyle="--")
        ax.annotate(
            text,
            (-0.4, found[name][0]),
            xytext=(2, 4),
            textcoords="offset points",
            color="#555555",
            fontsize=9,
        )
    ax.set(xticks=range(4), xticklabels=["1", "4", "8", "no noise"], xlim=(-0.4, 3.4), ylim=(0.65, 0.85))
    ax.set_xlabel("epsilon per hospital, all rounds")
    ax.set_title("Accuracy, four heart hospitals", loc="left")


def main(runs: Path) -> None:
    """Draw both panels."""
    figure, axes = plt.subplots(1, 2, figsize=(6.4, 2.9), width_ratios=(1.15, 1), layout="constrained")
    convergence(axes[0], runs)
    price(axes[1])
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="y", alpha=0.25)
    figure.savefig(ROOT / "docs" / "figures" / "hero.png", dpi=200)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
