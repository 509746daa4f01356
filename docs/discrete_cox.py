"""How the discrete-time Cox model approaches Cox's as intervals become short: docs/figures/discrete-cox.png.

    python docs/discrete_cox.py

20 data sets of 600 simulated persons with hazards exp(.8 a - .5 b), censored at random and at the time by which 70% of
the events have happened. The intervals end at quantiles of the times of events. Shown is how far the estimates of both
coefficients are from those of the partial likelihood (statsmodels' PHReg), in standard errors of the latter.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from statsmodels.duration.hazard_regression import PHReg

from twinflower.models.information import Information
from twinflower.problems.discrete_cox import LINKS, CoxObjective
from twinflower.problems.interfaces import Batch
from twinflower.simulation.report.plot_style import COLOURS
from twinflower.survival_labels import signed

NUMBERS, SEEDS, STEPS = [1, 2, 4, 8, 16, 32, 64, 128], 20, 12


def people(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (600, 2), times and events."""
    draw = np.random.default_rng(seed)
    features = draw.uniform(-1, 1, size=(600, 2))
    event, end = draw.exponential(np.exp(-features @ [0.8, -0.5])), draw.exponential(2, 600)
    times, events = np.minimum(event, end), event <= end
    horizon = np.quantile(times[events], 0.7, method="higher")
    return features, np.minimum(times, horizon), events & (times <= horizon)


def distances(seed: int, link: str) -> list[float]:
    """The larger distance of the two coefficients for each number of intervals."""
    features, times, events = people(seed)
    rows, found = Batch(features, signed(times, events)), []
    cox = PHReg(times, features, status=events.astype(int)).fit()
    for number in NUMBERS:
        ends = np.quantile(times[events], np.arange(1, number + 1) / number, method="higher")
        model = CoxObjective(intervals=", ".join(map(repr, ends.tolist())), link=link).build(2, 0)
        x = np.zeros(model.d)
        for _ in range(STEPS):  # of Newton's method
            sums = Information.of(model, x, rows)
            x = x - np.linalg.solve(sums.matrix, sums.gradient)
        found.append(float(np.abs((x[:2] - cox.params) / cox.bse).max()))
    return found


def main() -> None:
    """Compute, print and draw the distances."""
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for link, colour in zip(LINKS, COLOURS.values(), strict=False):
        found = np.array([distances(seed, link) for seed in range(SEEDS)])
        middle = np.median(found, axis=0)
        print(link, ", ".join(f"{number}: {own:.3g}" for number, own in zip(NUMBERS, middle, strict=True)))
        axes.fill_between(NUMBERS, found.min(0), found.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.plot(NUMBERS, middle, marker="o", color=colour, label=f"link {link}")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="intervals",
        ylabel="distance from Cox's estimate\n(standard errors)",
    )
    axes.set_xticks(NUMBERS, map(str, NUMBERS))
    axes.minorticks_off()
    axes.legend(frameon=False)
    figure.savefig(Path(__file__).parent / "figures" / "discrete-cox.png", dpi=150)


if __name__ == "__main__":
    main()
