"""Figures, drawn from stored results only."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from twinflower.errors import SettingError, cause
from twinflower.problems.topologies import Neighbours, drawing

from ..results import names
from ..results.files import replacing
from ..results.folder import has_config, is_experiment
from ..results.reading import read_config, read_plan, read_rows, read_summary
from ..settings.columns import CURVE, GAP
from ..settings.experiment import Curve, Experiment
from . import dots
from .plot_style import ROLES, draw_bounds, label, log_scale, marked, styles
from .series import Found, Series, columns_of_run, note, runs_of, series

_PANEL = (5.2, 3.6)
_ACROSS = 2  # panels side by side; more would be too small to read at the width of a page
_TITLE_LETTERS = 58  # most characters per line of the figure's title and panel
_LETTERS = 64  # and of a panel's title
_LEGEND_LETTERS = 86  # most characters per line of a legend below one panel
_NOTE_LETTERS = 66  # and of the note above its entries
_LEGEND_LINE = 0.19  # height of a legend line in inches
_TALLEST = 2.5  # panels share a vertical scale that is at most so many times that of any of them
_MOST_TICKS = 8  # values of a sweep that are ticks of a log axis
_NAMED = 5  # most curves in a legend below a single panel; more are named at their ends
_APART = 0.052  # of a panel's height, between such names
_BESIDE = 3.0  # points between the error bars of neighbouring lines
_LETTER = 0.075  # width of their letters in inches
_BELOW = 40  # points between a panel and its legend, for the tick labels and the axis label


def draw_run(folder: Path) -> Path:
    """Draw and save the figure of one run in its folder; return its path."""
    return _save(compose_run(folder), folder, read_plan(folder))


def compose_run(folder: Path) -> Figure:
    """The figure of one run: objective, test accuracy and nonzeros by round, and the cost if the run has bounds."""
    rows, summary = read_rows(folder), read_summary(folder)
    curve = read_config(folder)
    columns = columns_of_run(curve.config, rows)
    figure, axes = _canvas(1, len(columns))
    figure.set_figwidth(min(figure.get_figwidth(), _ACROSS * _PANEL[0]))
    (style,) = styles([curve.config.algorithm])
    x = np.array([row["round"] for row in rows])
    for ax, column in zip(axes[0], columns, strict=True):
        ax.plot(x, [row[column] for row in rows], **style, markevery=marked(x, 0, 1))
        draw_bounds(ax, [curve], "round", column)
        label(ax, "round", column, curve.config)
    figure.suptitle(
        f"{summary['algorithm']} on {summary['dataset']}, one seed ({summary['seed']})", fontsize=11
    )
    return figure


def draw_experiment(experiment: Experiment, out: Path) -> Path:
    """Draw and save the figure of an experiment, with a row of panels per y and legends that explain the bands."""
    return _save(compose_experiment(experiment, out), out, experiment)


def compose_experiment(experiment: Experiment, out: Path) -> Figure:
    """The figure of an experiment whose results are in the folder `out`."""
    if experiment.x == CURVE:
        return dots.compose(experiment, out)
    panels = experiment.panels
    across = min(len(panels), _ACROSS)
    figure, columns = _panels(len(panels), len(experiment.y), across)
    notes = [_draw_column(axes, experiment, out, panel) for axes, panel in zip(columns, panels, strict=True)]
    for alike in _of_one_data_set(panels.values()):
        for row in columns[alike].T:
            _share_scale([ax for ax in row if np.isfinite(ax.dataLim.y0)])
    by_lines = len(panels) == 1 or not experiment.ends  # else points whose lines end anywhere
    if by_lines and max(len(_entries(column)) for column in columns) > _NAMED:
        _name_lines(figure, columns, max(notes, key=len), across)
    else:
        _draw_legends(figure, columns, notes, across)
    figure.suptitle(_filled(experiment.title, _TITLE_LETTERS * across), fontsize=11)
    return figure


def redraw(folder: Path) -> Path:
    """Redraw the figure of an experiment's folder or a run folder and return its path."""
    if not folder.is_dir():
        raise SettingError(
            f"{folder} is not a folder with results: give the folder of a run or an experiment"
        )
    if is_experiment(folder):
        return draw_experiment(read_plan(folder), folder)
    if (folder / names.METRICS).exists():
        if not read_rows(folder):
            raise SettingError(f"{folder} holds no evaluated round: there is nothing to draw")
        return draw_run(folder)
    hint = (
        "its run has not ended, --resume goes on with it"
        if has_config(folder)
        else "give the folder of a run"
    )
    raise SettingError(f"{folder} holds neither experiment.toml nor metrics.csv: {hint}")


def draw_graph(neighbours: Neighbours, path: Path) -> Path:
    """Draw a graph of clients and return the path of the picture; SettingError if it cannot be written."""
    figure, axes = _canvas(1, 1)
    places, edges = (
        drawing(neighbours),
        [(i, j) for i, others in enumerate(neighbours) for j in others if i < j],
    )
    for i, j in edges:
        axes[0, 0].plot(*places[[i, j]].T, color="C7", linewidth=0.8, zorder=1)
    axes[0, 0].scatter(*places.T, color="C0", s=40, zorder=2)
    for client, (x, y) in enumerate(places):
        axes[0, 0].annotate(str(client), (x, y), fontsize=6, ha="center", va="center", color="white")
    axes[0, 0].set_axis_off()
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise SettingError(f"the graph cannot be drawn into {path}: {cause(error)}") from None
    return path.absolute()


def _panels(count: int, rows: int, across: int) -> tuple[Figure, np.ndarray]:
    """A figure with `across` panels side by side, and the axes of every panel from top to bottom (count, rows)."""
    figure, axes = _canvas(rows * -(-count // across), across)
    blocks = axes.reshape(-1, rows, across).swapaxes(1, 2).reshape(-1, rows)
    for ax in blocks[count:].flat:
        ax.remove()
    return figure, blocks[:count]


def _draw_column(axes: np.ndarray, experiment: Experiment, out: Path, panel: str) -> str:
    """Draw all quantities of one panel, from top to bottom, and return the note that explains its bands."""
    found = runs_of(experiment, out, experiment.panels[panel])
    shown = [_draw_panel(ax, experiment, found, y) for ax, y in zip(axes, experiment.y, strict=True)]
    for nth, (ax, lines) in enumerate(zip(axes, shown, strict=True)):
        _title(ax, "" if nth else panel, lines)
    return note([line for lines in shown for line in lines], experiment.centre)


def _draw_panel(ax: Axes, experiment: Experiment, found: Found, column: str) -> list[Series]:
    """Draw all lines of one panel and return them."""
    curves, shown = [curve for curve, _ in found], series(experiment, found, column)
    logarithmic = column in experiment.log_axes and np.isfinite(_bottom(shown))  # else nothing can be shown
    if logarithmic:
        shown = [_above_zero(line, _bottom(shown)) for line in shown]
    looks = styles([line.algorithm for line in shown])
    if _same_roles(experiment):
        looks = [look | {"color": colour} for look, colour in zip(looks, ROLES, strict=False)]
    for nth, (line, look) in enumerate(zip(shown, looks, strict=True)):
        if experiment.ends:
            _draw_ends(ax, line, look, nth - (len(shown) - 1) / 2)
        else:
            _draw_line(ax, line, look, marked(line.x, nth, len(shown)))
        if logarithmic and column == GAP:
            _mark_zeros(ax, line, look["color"])
    draw_bounds(ax, curves, experiment.x, column)
    if experiment.x in experiment.log_axes:
        log_scale(ax.xaxis, ax.set_xscale)
        points = np.unique(np.concatenate([line.x[np.isfinite(line.x)] for line in shown]))
        if (
            experiment.ends and 0 < len(points) <= _MOST_TICKS
        ):  # a sweep's own values in place of round numbers
            ax.set_xticks(points, [f"{point:g}" for point in points])
            ax.minorticks_off()
    if logarithmic:
        log_scale(ax.yaxis, ax.set_yscale)
    label(ax, experiment.x, column, curves[0].config)
    return shown


def _bottom(shown: list[Series]) -> float:
    """A value below everything positive in a panel."""
    values = np.concatenate([part for line in shown for part in (line.centre, line.low)])
    return float(values[values > 0].min(initial=np.inf)) / 2


def _above_zero(line: Series, bottom: float) -> Series:
    """A line for a log axis: bands and bars that end at zero reach the bottom, and those that are zero are left out."""
    above = line.high > 0
    low, high = np.maximum(line.low, bottom), np.where(above, line.high, np.nan)
    return line._replace(low=np.where(above, low, np.nan), high=high)


def _mark_zeros(ax: Axes, line: Series, colour: Any) -> None:
    """Say at the lower edge of a log axis, which has no place for it, where a line is zero: "0" with an arrow down."""
    for x in line.x[line.centre == 0]:
        ax.annotate(
            "0", (x, 0), (0, 9), xycoords=ax.get_xaxis_transform(), textcoords="offset points", color=colour,
            ha="center", fontsize=7, arrowprops={"arrowstyle": "->", "color": colour},
        )  # fmt: skip


def _title(ax: Axes, panel: str, shown: list[Series]) -> None:
    """Set the panel's title, which also names the curves that have no values in this panel."""
    absent = [line.label for line in shown if len(line.x) and np.isnan(line.centre).all()]
    parts = [panel] + ([f"not defined for {', '.join(absent)}"] if absent else [])
    ax.set_title("\n".join(_filled(part, _LETTERS) for part in parts if part), fontsize=10)


def _filled(text: str, letters: int) -> str:
    """The text in lines of at most so many letters, none of which ends within "rho = 10" or "(8, 1e-4)"."""
    return fill(re.sub(r" (?== )|(?<= =) | (?=[\d.e-]+\))", "\N{NO-BREAK SPACE}", text), letters)


def _of_one_data_set(panels: Iterable[Sequence[Curve]]) -> list[list[int]]:
    """The places of the panels, grouped by the data sets of their curves."""
    groups: dict[frozenset[str], list[int]] = {}
    for place, panel in enumerate(panels):
        groups.setdefault(frozenset(str(curve.config.data.name) for curve in panel), []).append(place)
    return list(groups.values())


def _share_scale(axes: list[Axes]) -> None:
    """Give panels one vertical scale, if none of them becomes too flat (`_TALLEST`)."""
    if not axes:
        return
    shared = min(ax.get_ylim()[0] for ax in axes), max(ax.get_ylim()[1] for ax in axes)
    heights = [np.ptp(ax.yaxis.get_transform().transform(np.array(ax.get_ylim()))) for ax in axes]
    if np.ptp(axes[0].yaxis.get_transform().transform(np.array(shared))) <= _TALLEST * min(heights):
        for ax in axes:
            ax.set_ylim(shared)
            if ax.get_yscale() == "log":
                log_scale(ax.yaxis, ax.set_yscale)


def _draw_line(ax: Axes, line: Series, look: dict[str, Any], markevery: list[int]) -> None:
    ax.plot(line.x, line.centre, label=line.label, markevery=markevery, **look)
    if line.seeds > 1:
        ax.fill_between(line.x, line.low, line.high, color=look["color"], alpha=0.2, linewidth=0)


def _draw_ends(ax: Axes, line: Series, look: dict[str, Any], nth: float) -> None:
    """Draw a line's points with bars; one without a place on the axis is a level, such as that without noise.

    nth: of the lines of the panel, counted from the middle; its bars stand beside those of the others.
    """
    if len(line.x) and np.isnan(line.x).all():
        ax.axhline(line.centre[0], label=line.label, **look | {"marker": ""})
        ax.axhspan(line.low[0], line.high[0], color=look["color"], alpha=0.2, linewidth=0)
        return
    bars = (line.centre - line.low, line.high - line.centre) if line.seeds > 1 else None
    beside = ax.transData + ScaledTranslation(nth * _BESIDE / 72, 0, ax.figure.dpi_scale_trans)
    ax.errorbar(
        line.x, line.centre, bars, label=line.label, capsize=2, elinewidth=1.0, transform=beside, **look
    )
    for edge in (line.low, line.high):
        ax.update_datalim(np.column_stack([line.x, edge]))
    ax.autoscale_view()


def _draw_legends(figure: Figure, panels: np.ndarray, notes: list[str], across: int) -> None:
    """Draw one legend below the figure if all panels share it, else one below each panel; enlarge the figure.

    panels: the axes of every panel, from top to bottom (panels, rows). across: how many panels are side by side.
    """
    entries = [_entries(column) for column in panels]
    keywords: dict[str, Any] = {"fontsize": 8.5, "title_fontsize": 8.5, "frameon": False}
    if len(panels) > 1 and all(_looks(other) == _looks(entries[0]) for other in entries):
        columns = _fitting(entries[0], _LEGEND_LETTERS * across)
        _grow(figure, len(entries[0]), columns)
        place: dict[str, Any] = {
            "loc": "outside lower center",
            "ncols": columns,
            "title": fill(max(notes, key=len), _NOTE_LETTERS * across),
        }
        if len(panels) % across:  # a cell is free
            blocks = -(-len(panels) // across)
            place |= {"loc": "center", "bbox_to_anchor": (1 - 0.5 / across, 0.5 / blocks), "ncols": 1}
        figure.legend(entries[0].values(), entries[0].keys(), **keywords, **place)
        return
    fitting = [_fitting(entry, _LEGEND_LETTERS) for entry in entries]
    sizes = list(zip(map(len, entries), fitting, strict=True))
    for first in range(0, len(sizes), across):
        _grow(figure, *max(sizes[first : first + across], key=lambda pair: pair[0] / pair[1]))
    for ax, entry, columns, title in zip(panels[:, -1], entries, fitting, notes, strict=True):
        below = ax.transAxes + ScaledTranslation(0, -_BELOW / 72, figure.dpi_scale_trans)
        place = {"loc": "upper center", "bbox_to_anchor": (0.5, 0.0), "bbox_transform": below}
        ax.legend(
            entry.values(), entry.keys(), title=fill(title, _NOTE_LETTERS), ncols=columns, **keywords, **place
        )


def _name_lines(figure: Figure, panels: np.ndarray, text: str, across: int) -> None:
    """Name the lines of every panel beside their ends in its first axes, where they are too many for a legend."""
    longest = 0
    for column in panels:
        first, entries = column[0], _lines(_entries(column[:1]))
        longest = max(longest, *map(len, entries))
        ends = sorted(((_height(first, line), name) for name, line in entries.items()))
        for height, (_, name) in zip(_apart([height for height, _ in ends]), ends, strict=True):
            first.annotate(
                name, (1.01, height), xycoords="axes fraction", color=entries[name].get_color(),
                fontsize=8.5, va="center", annotation_clip=False,
            )  # fmt: skip
    figure.set_figwidth(figure.get_figwidth() + across * longest * _LETTER)
    figure.supxlabel(fill(text, _NOTE_LETTERS * across), fontsize=8.5)


def _same_roles(experiment: Experiment) -> bool:
    """Whether every panel has a method of its own and the panels have the same curves, which then have the colours."""
    panels = experiment.panels.values()
    methods = [{curve.config.algorithm for curve in panel} for panel in panels]
    lines = {tuple(dict.fromkeys(curve.line for curve in panel)) for panel in panels}
    apart = len(set().union(*methods)) == len(panels) > 1 and all(len(own) == 1 for own in methods)
    return apart and len(lines) == 1 and 1 < len(*lines) <= len(ROLES)


def _apart(heights: Sequence[float]) -> list[float]:
    """Ascending heights moved up until labels do not touch, and down again from the top of the panel."""
    found, above = list(heights), -1.0
    for place, height in enumerate(heights):
        above = found[place] = max(height, above + _APART)
    below = 1.0 + _APART
    for place in reversed(range(len(found))):
        below = found[place] = min(found[place], below - _APART)
    return found


def _height(ax: Axes, line: Line2D) -> float:
    """The height of a line's last point, as a fraction of its panel, and inside of it."""
    y = np.asarray(line.get_ydata(), float)
    last = np.flatnonzero(np.isfinite(y))[-1:]
    if not len(last) or (y[last[0]] <= 0 and ax.get_yscale() == "log"):
        return 0.0
    place = ax.transAxes.inverted().transform(ax.transData.transform((ax.get_xlim()[0], y[last[0]])))[1]
    return float(np.clip(place, 0.0, 1.0))


def _entries(column: np.ndarray) -> dict[str, Any]:
    """The legend entries of one column of panels, by label, with curves before bounds."""
    pairs = [pair for ax in column for pair in zip(*ax.get_legend_handles_labels(), strict=True)]
    pairs.sort(key=lambda pair: not isinstance(pair[0], ErrorbarContainer))
    return {text: handle for handle, text in pairs}


def _looks(entries: dict[str, Any]) -> list[tuple[str, Any]]:
    """The labels of legend entries with their colours, which show whether two panels can share a legend."""
    return [(text, line.get_color()) for text, line in _lines(entries).items()]


def _lines(entries: dict[str, Any]) -> dict[str, Line2D]:
    """The lines of legend entries, without their error bars."""
    return {
        text: handle[0] if isinstance(handle, ErrorbarContainer) else handle
        for text, handle in entries.items()
    }


def _fitting(entries: dict[str, Any], letters: int) -> int:
    """The number of legend columns that fit into a line of so many letters."""
    widest = max(map(len, entries), default=0) + 10  # including the line sample
    return max(1, min(len(entries), letters // widest))


def _grow(figure: Figure, entries: int, columns: int) -> None:
    """Increase the figure's height by that of a legend with a title and this many entries."""
    figure.set_figheight(figure.get_figheight() + _LEGEND_LINE * (1 - (-entries // columns)))


def _canvas(rows: int, columns: int) -> tuple[Figure, np.ndarray]:
    """An empty figure, with its axes (rows, columns)."""
    figure = Figure(figsize=(_PANEL[0] * columns, _PANEL[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)  # to measure texts by
    return figure, figure.subplots(rows, columns, squeeze=False)


def _save(figure: Figure, folder: Path, plan: Experiment) -> Path:
    """Save a figure with its title and a digest of what it shows, by which one recognises the file that it shows."""
    path, about = folder / names.FIGURE, {"Title": plan.title, "Digest": plan.digest}
    with replacing(path) as temporary:
        figure.savefig(temporary, dpi=130, format="png", metadata=about)
    return path
