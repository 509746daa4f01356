"""The data of a figure, read from stored results: centre and spread over seeds, by round or of the last rows."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from twinflower.arrays import Array
from twinflower.problems.constraints import parse_constraints

from ..results import names
from ..results.folder import run_folder
from ..results.reading import read_rows
from ..settings import Config
from ..settings.columns import CURVE, GAP, SIGNED_COLUMNS
from ..settings.experiment import Curve, Experiment

Rows = Sequence[dict[str, float]]
Found = list[tuple[Curve, dict[int, Rows]]]  # curves with the rows of metrics.csv of each seed


class Series(NamedTuple):
    """One line of a panel: x, the centre of the seeds, and the lower and upper ends of the band or bars, all (points,).

    cut: whether a lower end was raised (`spread`). seeds: the largest number of seeds at any point.
    """

    label: str
    algorithm: str
    x: Array
    centre: Array
    low: Array
    high: Array
    cut: bool = False
    seeds: int = 0


def line(label: str, x: Array, y: Array) -> Series:
    """A line of one result, without a band."""
    return Series(label, "", x, y, y, y, seeds=1)


def runs_of(experiment: Experiment, out: Path, curves: Sequence[Curve]) -> Found:
    """The curves of a panel with the rows of their runs; with `ends` only of those that finished."""
    return [(curve, _runs(experiment, out, curve)) for curve in curves]


def series(experiment: Experiment, found: Found, column: str) -> list[Series]:
    """The lines of one panel, in the order of the file; a curve without results gives an empty line."""
    if column == GAP:
        found = _with_gaps(found)
    if not experiment.ends:
        return [_by_round(experiment, curve, list(runs.values()), column) for curve, runs in found]
    lines = dict.fromkeys(curve.line for curve, _ in found)
    return [_ends(experiment, [pair for pair in found if pair[0].line == line], column) for line in lines]


def _with_gaps(found: Found) -> Found:
    """The same rows with a further column: the objective minus the lowest of all curves and rounds for this seed."""
    lowest: dict[int, float] = {}
    for _, runs in found:
        for seed, rows in runs.items():
            lowest[seed] = np.fmin(lowest.get(seed, np.inf), np.nanmin(_column(rows, "objective")))
    return [
        (
            curve,
            {
                seed: [row | {GAP: row["objective"] - lowest[seed]} for row in rows]
                for seed, rows in runs.items()
            },
        )
        for curve, runs in found
    ]


def note(shown: Sequence[Series], centre: str = "mean") -> str:
    """A legend title that explains lines and bands, such as "mean and standard deviation over 3 seeds"."""
    seeds = max((one.seeds for one in shown), default=0)
    if seeds < 2:
        return "one seed" if seeds else "no results"
    if centre == "median":
        return f"median and range over {seeds} seeds"
    cut = (
        ", bands end at the lowest seed where they would reach zero" if any(one.cut for one in shown) else ""
    )
    return f"mean and standard deviation over {seeds} seeds{cut}"


def spread(values: Array, column: str, centre: str = "mean") -> tuple[Array, Array, Array, bool]:
    """Mean and mean -+ one standard deviation of values (seeds, points), and whether a lower end was raised.

    For a nonnegative quantity near zero the distribution is skewed, and mean - deviation may be below zero. The lower
    end is then the value of the lowest seed. An accuracy is such a quantity; the R^2 of a regression is not.
    centre: "median" for the median, the lowest and the highest seed, which suit outliers and seeds in several groups.
    """
    if centre == "median":
        return np.median(values, 0), values.min(0), values.max(0), False
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
    """The columns without those that every row lacks or that are NaN there; all without rows."""
    return [column for column in columns if not rows or any(_measured(row, column) for row in rows)]


def _measured(row: Mapping[str, float], column: str) -> bool:
    return not np.isnan(row.get(column, np.nan))


def _by_round(experiment: Experiment, curve: Curve, runs: list[Rows], column: str) -> Series:
    label = counted(curve.label, len(runs), experiment)
    return by_round(label, curve.config, runs, experiment.x, column, experiment.centre)


def by_round(
    label: str, config: Config, runs: Sequence[Rows], x: str, column: str, centre: str = "mean"
) -> Series:
    """The line of a curve by round. It ends with the shortest run, and its label says if that stopped early.

    runs: the rows of metrics.csv of the curve's seeds, at least one row of each. centre: see `spread`.
    """
    length = min(map(len, runs), default=0)
    if not length:
        return Series(f"{label}, no result", config.algorithm, *np.empty((4, 0)))
    if runs[0][length - 1]["round"] < config.rounds:
        label += f", ends at round {runs[0][length - 1]['round']:.0f} of {config.rounds}"
    across = _middle([_column(rows[:length], x) for rows in runs], centre)
    middle, low, high, cut = spread(
        np.array([_column(rows[:length], column) for rows in runs]), column, centre
    )
    return Series(label, config.algorithm, across, middle, low, high, cut, len(runs))


def _ends(experiment: Experiment, curves: Found, column: str) -> Series:
    """A line with one point per curve, from the last rows of the curve's runs."""
    line, algorithm = curves[0][0].line, curves[0][0].config.algorithm
    found = [(curve, list(runs.values())) for curve, runs in curves if runs]
    if not found:
        return Series(f"{line}, no result", algorithm, *np.empty((4, 0)))
    lasts = [np.array([_column(rows[-1:], column) for rows in runs]) for _, runs in found]
    points = [spread(last, column, experiment.centre) for last in lasts]
    middle, low, high = (np.concatenate([point[place] for point in points]) for place in range(3))
    x = np.array([_place(experiment, curve, runs) for curve, runs in found])
    fewest, most = min(len(runs) for _, runs in found), max(len(runs) for _, runs in found)
    label = counted(line, fewest, experiment)
    return Series(label, algorithm, x, middle, low, high, any(point[3] for point in points), most)


def _place(experiment: Experiment, curve: Curve, runs: Sequence[Rows]) -> float:
    """The x of a curve's point: a key of its configuration, or the centre of a column of the last rows."""
    value = curve.config.items().get(experiment.x)
    lasts = [_column(rows[-1:], experiment.x) for rows in runs]
    return float(_middle(lasts, experiment.centre)[0] if value is None else value)


def _middle(values: Sequence[Array], centre: str) -> Array:
    """The centre of the seeds' values, each (points,)."""
    return np.median(values, 0) if centre == "median" else np.mean(values, axis=0)


def _runs(experiment: Experiment, out: Path, curve: Curve) -> dict[int, Rows]:
    """The rows of metrics.csv of the curve's runs by seed; with `ends` or dots only of those that finished."""
    needed = names.MODEL if experiment.ends or experiment.x == CURVE else names.METRICS
    folders = {seed: run_folder(experiment, out, curve, seed) for seed in experiment.seeds}
    found = {seed: read_rows(folder) for seed, folder in folders.items() if (folder / needed).exists()}
    return {seed: rows for seed, rows in found.items() if rows}


def counted(label: str, runs: int, experiment: Experiment) -> str:
    """The curve's label, followed by the number of seeds if some are missing."""
    seeds = len(experiment.seeds)
    return label if runs in (0, seeds) else f"{label}, {runs} of {seeds} seeds"


def _column(rows: Rows, column: str) -> Array:
    return np.array([row.get(column, np.nan) for row in rows])
