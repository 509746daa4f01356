"""The data of a figure, read from stored results: mean and spread over seeds, by round or of the last rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twinflower.arrays import Array
from twinflower.problems.constraints import parse_constraints

from ..results import names
from ..results.folder import run_folder
from ..results.reading import read_rows
from ..settings import Config
from ..settings.columns import SIGNED_COLUMNS
from ..settings.experiment import Curve, Experiment

Rows = Sequence[dict[str, float]]


class Series(NamedTuple):
    """One line of a panel: x, the mean over seeds, and the lower and upper ends of the band or bars, all (points,).

    cut: whether a lower end was raised (`spread`). seeds: the largest number of seeds at any point.
    """

    label: str
    algorithm: str
    x: Array
    mean: Array
    low: Array
    high: Array
    cut: bool = False
    seeds: int = 0


def series(experiment: Experiment, out: Path, curves: Sequence[Curve], column: str) -> list[Series]:
    """The lines of one panel, in the order of the file; a curve without results gives an empty line."""
    if not experiment.ends:
        return [_by_round(experiment, out, curve, column) for curve in curves]
    lines = dict.fromkeys(curve.line for curve in curves)
    return [_ends(experiment, out, [c for c in curves if c.line == line], column) for line in lines]


def note(shown: Sequence[Series]) -> str:
    """A legend title that explains lines and bands, such as "mean and standard deviation over 3 seeds"."""
    seeds = max((one.seeds for one in shown), default=0)
    if seeds < 2:
        return "one seed" if seeds else "no results"
    cut = ", lower ends not above zero raised to the lowest seed" if any(one.cut for one in shown) else ""
    return f"mean and standard deviation over {seeds} seeds{cut}"


def spread(values: Array, column: str) -> tuple[Array, Array, Array, bool]:
    """Mean and mean -+ one standard deviation of values (seeds, points), and whether a lower end was raised.

    For a nonnegative quantity near zero the distribution is skewed, and mean - deviation may be below zero. The lower
    end is then the value of the lowest seed. An accuracy is such a quantity; the R^2 of a regression is not.
    """
    negative = column == "excess" or (column in SIGNED_COLUMNS and bool((values < 0).any()))
    with np.errstate(invalid="ignore"):  # the objective is infinite if a seed's model violates a constraint
        mean = values.mean(0)
        deviation = values.std(0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
        low, lowest = mean - deviation, values.min(0)
    cut = (low <= 0) & (not negative) & (deviation > 0)
    return mean, np.where(cut, lowest, low), mean + deviation, bool(cut.any())


def limits(config: Config, column: str) -> list[float]:
    """The bounds of a constrained run on a column: U for the cost, 0 for the excess of the cost over U."""
    text = config.items().get(f"{config.algorithm}.constraints")
    if text is None or column not in ("cost", "objective", "excess"):
        return []
    if column == "excess":
        return [0.0]
    return [bound.limit for bound in parse_constraints(str(text)) if bound.kind == "cost"]


def columns_of_run(config: Config, rows: Rows = ()) -> list[str]:
    """The columns of metrics.csv that are drawn of a single run: the last is the cost, if the run has bounds on it.

    rows: of the run, whose empty columns are left out.
    """
    bounded = ["cost" if limits(config, "cost") else "excess"] if limits(config, "excess") else []
    return measured(["objective", "test_accuracy", "nonzeros", *bounded], rows)


def measured(columns: Sequence[str], rows: Rows) -> list[str]:
    """The columns without those that are NaN in every row; all without rows."""
    return [column for column in columns if not rows or any(row[column] == row[column] for row in rows)]


def _by_round(experiment: Experiment, out: Path, curve: Curve, column: str) -> Series:
    runs = _runs(experiment, out, curve, names.METRICS)
    return by_round(_label(curve.label, len(runs), experiment), curve.config, runs, experiment.x, column)


def by_round(label: str, config: Config, runs: Sequence[Rows], x: str, column: str) -> Series:
    """The line of a curve by round. It ends with the shortest run, and its label says if that stopped early.

    runs: the rows of metrics.csv of the curve's seeds, at least one row of each.
    """
    length = min(map(len, runs), default=0)
    if not length:
        return Series(f"{label}, no result", config.algorithm, *np.empty((4, 0)))
    if runs[0][length - 1]["round"] < config.rounds:
        label += f", ends at round {runs[0][length - 1]['round']:.0f} of {config.rounds}"
    across = np.mean([_column(rows[:length], x) for rows in runs], axis=0)
    mean, low, high, cut = spread(np.array([_column(rows[:length], column) for rows in runs]), column)
    return Series(label, config.algorithm, across, mean, low, high, cut, len(runs))


def _ends(experiment: Experiment, out: Path, curves: Sequence[Curve], column: str) -> Series:
    """A line with one point per curve, from the last rows of the curve's finished runs."""
    found = [(curve, _runs(experiment, out, curve, names.MODEL)) for curve in curves]
    found = [(curve, runs) for curve, runs in found if runs]
    line, algorithm = curves[0].line, curves[0].config.algorithm
    if not found:
        return Series(f"{line}, no result", algorithm, *np.empty((4, 0)))
    points = [spread(np.array([_column(rows[-1:], column) for rows in runs]), column) for _, runs in found]
    mean, low, high = (np.concatenate([point[place] for point in points]) for place in range(3))
    x = np.array([_place(experiment, curve, runs) for curve, runs in found])
    fewest, most = min(len(runs) for _, runs in found), max(len(runs) for _, runs in found)
    label = _label(line, fewest, experiment)
    return Series(label, algorithm, x, mean, low, high, any(point[3] for point in points), most)


def _place(experiment: Experiment, curve: Curve, runs: Sequence[Rows]) -> float:
    """The x of a curve's point: a key of its configuration, or the mean of a column over the last rows."""
    value = curve.config.items().get(experiment.x)
    return float(np.mean([_column(rows[-1:], experiment.x) for rows in runs]) if value is None else value)


def _runs(experiment: Experiment, out: Path, curve: Curve, needed: str) -> list[Rows]:
    """The rows of metrics.csv of every run of the curve's seeds that has this file."""
    folders = [run_folder(experiment, out, curve, seed) for seed in experiment.seeds]
    found = [read_rows(folder) for folder in folders if (folder / needed).exists()]
    return [rows for rows in found if rows]


def _label(label: str, runs: int, experiment: Experiment) -> str:
    """The curve's label, followed by the number of seeds if some are missing."""
    seeds = len(experiment.seeds)
    return label if runs in (0, seeds) else f"{label}, {runs} of {seeds} seeds"


def _column(rows: Rows, column: str) -> Array:
    return np.array([row.get(column, np.nan) for row in rows])
