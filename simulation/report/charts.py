"""Line charts as numbers for the template, which draws them as SVG.

A plot is stretched to the width of the screen, so that places are shares of its width and height, and texts stand
beside it. (An SVG by matplotlib has some 20 kB in place of 1.5 kB, its texts shrink with it, it knows no dark screen,
and it can neither show the values under the pointer nor hide a curve.)
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from twinflower.arrays import Array, Mask

from .series import Series

_MOST_POINTS = 300  # of a line; a screen shows no more
_MOST_DOTS = 12  # points of a line that are marked
_UNITS = 1000.0  # of a plot's width and height in its drawing
_TICKS = 5
_ROUNDING = 1e-9  # relative difference below which numbers are equal
_DECADES = 7  # most labels of a log axis


class Tick(NamedTuple):
    """A number on an axis, at this share of the axis's length in percent."""

    place: str
    text: str


class Line(NamedTuple):
    """A line: the path of its mean, dots at its points if they are few, the outline of its band (empty without one),
    its points as numbers, and the last of them."""

    label: str
    path: str
    dots: str
    band: str
    x: str
    y: str
    final: str


class Counts(NamedTuple):
    """Whole numbers below a chart, at places x (P,) on its axis, which are its ticks: for each line of them, (P,)."""

    title: str
    x: Array
    rows: Sequence[Array]


class Chart(NamedTuple):
    """A chart of lines; bounds are the heights of horizontal lines, in percent, that a result must not exceed.

    frame: see `chart`.
    """

    title: str
    x_label: str
    lines: Sequence[Line]
    x_ticks: Sequence[Tick]
    y_ticks: Sequence[Tick]
    bounds: Sequence[Tick]
    remark: str = ""
    frame: str = ""
    below: str = ""  # title of the counts
    counts: Sequence[Sequence[Tick]] = ()

    @property
    def description(self) -> str:
        """What is drawn, for those who do not see it, with the last values of a chart that ends with a result."""
        ends = ", ".join(f"{line.label} {line.final}" for line in self.lines)
        return f"{self.title} by {self.x_label}{'' if self.frame else f', at the end: {ends}'}"


class Axis(NamedTuple):
    """The range of an axis, on a linear or a log scale. whole: whether its values are whole numbers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @classmethod
    def over(cls, values: Array, log: bool) -> "Axis":
        """The axis that holds all of these values that can be drawn."""
        good = values[_drawable(values, log)]
        if not good.size:
            return cls(1.0, 10.0, log)
        low, high = float(good.min()), float(good.max())
        if log:
            return cls(low / 1.1, high * 1.1, True)
        apart = high - low > _ROUNDING * abs(high)  # seeds that differ by rounding are equal
        margin = 0.04 * (high - low) * apart or abs(high) / 10 or 1.0
        return cls(low - margin, high + margin, whole=bool((good == good.round()).all()))

    def share(self, values: Array) -> Array:
        """The places of values on the axis, as shares of its length."""
        ends = np.array([self.low, self.high])
        if self.log:
            values, ends = np.log10(values), np.log10(ends)
        found: Array = (values - ends[0]) / (ends[1] - ends[0])
        return found

    def ticks(self, unit: str = "") -> list[Tick]:
        """The labelled places of the axis."""
        from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator  # slow to import

        locator = LogLocator(numticks=_DECADES) if self.log else MaxNLocator(_TICKS, steps=[1, 2, 2.5, 5, 10])
        values = np.asarray(locator.tick_values(self.low, self.high))
        values = values[(self.low <= values) & (values <= self.high)]
        if self.log and len(values) < 2:
            least, most = self.low * 1.1, self.high / 1.1
            values = np.array([least, most] if most > least * (1 + _ROUNDING) else [least])
        write = EngFormatter(unit) if unit else f"{{:.{_digits(values)}g}}".format
        return [_tick(self, value, write(value + 0.0)) for value in values]


def chart(
    title: str, x_label: str, series: Sequence[Series], logs: tuple[bool, bool] = (False, False),
    units: tuple[str, str] = ("", ""), limits: Sequence[float] = (), remark: str = "", frame: str = "",
    counts: Counts | None = None,
) -> Chart:  # fmt: skip
    """A chart of series, each a mean with a band over the seeds.

    logs, units: whether an axis is logarithmic, and its unit, for x and y. limits: bounds on y.
    frame: "fraction", with y from 0 to 1 and no last values, which say nothing of a curve that ends at 0 or 1; or
    "square", with both axes from 0 to 1 and their diagonal. counts: for each series, and the range of x.
    """
    series = [_thinned(one) for one in series]
    x = Axis.over(counts.x if counts else _all(one.x for one in series), logs[0])
    heights = [part for one in series for part in (one.centre, one.low, one.high)]
    y = Axis.over(_all([*heights, np.asarray(limits, dtype=float)]), logs[1])
    x, y = Axis(0.0, 1.0) if frame == "square" else x, Axis(0.0, 1.0) if frame else y
    across = [_tick(x, at, f"{at:g}") for at in counts.x] if counts else x.ticks(units[0])
    return Chart(
        title, x_label, [_line(one, x, y) for one in series], across, y.ticks(units[1]),
        [_tick(y, limit, f"bound {limit:g}") for limit in limits], remark, frame, *_below(counts, x),
    )  # fmt: skip


def _below(counts: Counts | None, x: Axis) -> tuple[str, Sequence[Sequence[Tick]]]:
    if counts is None:
        return "", ()
    return counts.title, [
        [_tick(x, at, f"{round(n):,}" if n == n else "-") for at, n in zip(counts.x, row, strict=True)]
        for row in counts.rows
    ]


def _all(parts: Iterable[Array]) -> Array:
    return np.concatenate([np.empty(0), *parts])


def _drawable(values: Array, log: bool) -> Mask:
    return np.isfinite(values) & (values > 0) if log else np.isfinite(values)


def _thinned(one: Series) -> Series:
    """The series with at most `_MOST_POINTS` of its points, the first and the last among them."""
    places = np.linspace(0, len(one.x) - 1, min(len(one.x), _MOST_POINTS))
    keep = places.round().astype(int)
    x, centre, low, high = (array[keep] for array in (one.x, one.centre, one.low, one.high))
    return one._replace(x=x, centre=centre, low=low, high=high)


def _line(one: Series, x: Axis, y: Axis) -> Line:
    good = _drawable(one.x, x.log) & _drawable(one.centre, y.log)
    places, means = one.x[good], one.centre[good]
    band = ""
    if (one.low < one.high).any():
        low, high = (np.where(_drawable(end[good], y.log), end[good], means) for end in (one.low, one.high))
        outline = np.concatenate([places, places[::-1]]), np.concatenate([high, low[::-1]])
        band = _path(_points(*outline, x, y))
    final = f"{means[-1]:.5g}" if len(means) else "no result"
    points = _points(places, means, x, y)
    dots = "".join(f"M{point}h0" for point in points) if len(points) <= _MOST_DOTS else ""
    return Line(one.label, _path(points), dots, band, _numbers(places), _numbers(means), final)


def _points(across: Array, up: Array, x: Axis, y: Axis) -> list[str]:
    """Points as the coordinates of an SVG path."""
    left, top = _UNITS * x.share(across), _UNITS * (1 - y.share(up))
    return [f"{a:.1f} {b:.1f}" for a, b in zip(left, top, strict=True)]


def _path(points: Sequence[str]) -> str:
    return f"M{'L'.join(points)}" if points else ""


def _numbers(values: Array) -> str:
    return " ".join(f"{value:.7g}" for value in values)


def _digits(values: Array) -> int:
    """The significant digits, at least 4, by which these ascending numbers differ."""
    if len(values) < 2:
        return 4
    return max(4, 2 + math.ceil(math.log10(np.abs(values).max() / np.diff(values).min())))


def _tick(axis: Axis, value: float, text: str) -> Tick:
    return Tick(f"{100 * float(axis.share(np.asarray(value))):.3f}", text)
