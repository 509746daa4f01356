"""Dot plots, for curves that would cover each other by round: the last values of a curve's seeds, and their centre."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from twinflower import special
from twinflower.arrays import Array

from ..settings.experiment import Experiment
from .plot_style import COLOURS, draw_bounds, label, log_scale
from .series import Found, counted, runs_of

_WIDTH = 4.0  # of a panel in inches
_LETTER = 0.08  # of a curve's name
_CURVE = 0.22  # height of a curve
_AROUND = 0.85  # height of a panel's title, tick labels and axis label


def compose(experiment: Experiment, out: Path) -> Figure:
    """The figure of an experiment with x = "curve": a row for every panel, and in it an axis for every y.

    A curve is a line of dots, one per seed. Panels of one data set share their scales.
    """
    panels = experiment.panels
    heights = [_AROUND + _CURVE * len(panel) for panel in panels.values()]
    width = _WIDTH * len(experiment.y) + _LETTER * max(len(curve.label) for curve in experiment.curves)
    figure = Figure(figsize=(width, sum(heights) + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(panels), len(experiment.y), squeeze=False, sharey="row", height_ratios=heights)
    first: dict[str, Sequence[Axes]] = {}
    for row, (name, panel) in zip(axes, panels.items(), strict=True):
        for ax, shared in zip(row, first.setdefault(str(panel[0].config.data.name), row), strict=True):
            if ax is not shared:
                ax.sharex(shared)
        found = runs_of(experiment, out, panel)
        for ax, column in zip(row, experiment.y, strict=True):
            _draw(ax, experiment, found, column)
        row[0].set_title(name, fontsize=10, loc="left")
    figure.suptitle(experiment.title, fontsize=11, wrap=True)
    figure.supxlabel(_note(experiment), fontsize=8.5)
    return figure


def interval(values: Array, centre: str = "mean") -> tuple[float, float, float]:
    """The mean of values (seeds,) and the ends of its 95% interval by Student's t; or their median and range.

    One value is its own interval.
    """
    if centre == "median":
        return float(np.median(values)), float(values.min()), float(values.max())
    if len(values) == 1:
        return float(values[0]), float(values[0]), float(values[0])
    half = special.stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def _draw(ax: Axes, experiment: Experiment, found: Found, column: str) -> None:
    """Draw a column of the last rows, with the curves from top to bottom."""
    for height, (curve, runs) in enumerate(found):
        values = np.array([rows[-1].get(column, np.nan) for rows in runs.values()])
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        colour = COLOURS.get(curve.config.algorithm, "black")
        ax.plot(values, np.full(len(values), height), "o", color=colour, markersize=4, alpha=0.3, mew=0)
        middle, low, high = interval(values, experiment.centre)
        low = values.min() if column in experiment.log_axes and low <= 0 else low
        bars = [[middle - low], [high - middle]]
        ax.errorbar([middle], [height], xerr=bars, fmt="D", color=colour, markersize=4, capsize=2)
    draw_bounds(ax, [curve for curve, _ in found], column, "")
    label(ax, column, "", found[0][0].config)
    names = [
        counted(curve.label, len(runs), experiment) + ("" if runs else ", no model") for curve, runs in found
    ]
    ax.set_yticks(range(len(found)), names, fontsize=8.5)
    ax.set_ylim(len(found) - 0.5, -0.5)
    if column in experiment.log_axes:
        log_scale(ax.xaxis, ax.set_xscale)
    else:
        ax.xaxis.set_major_locator(MaxNLocator(5))


def _note(experiment: Experiment) -> str:
    if len(experiment.seeds) < 2:
        return "one seed"
    centre = "median and range" if experiment.centre == "median" else "mean with its 95% interval"
    return f"dots: {len(experiment.seeds)} seeds; diamonds: {centre}"
