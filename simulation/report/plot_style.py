"""The plot style: one colour per method, one line style per curve."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgb
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

from twinflower.arrays import Array

from ..settings import Config
from ..settings.experiment import Curve
from .labels import BITS, words
from .series import limits

# Each method has the same colour in every figure, with a distinct hue. Methods without an entry are black.
COLOURS = {
    "fedpdm": "#1f77b4",
    "bsdp-fedpdm": "#17becf",
    "fedavg": "#ff7f0e",
    "fedprox": "#2ca02c",
    "scaffold": "#d62728",
    "feddyn": "#9467bd",
    "fedadmm": "#902b99",
    "feddr": "#3f29a3",
    "feddualavg": "#7a6a12",
    "fedmid": "#85a329",
    "fedadam": "#a8481a",
    "mr-mtl": "#29a37a",
    "proxskip": "#0a4e64",
    "tamuna": "#29a351",
    "isrl-dp": "#8c564b",
    "soteriafl": "#48a329",
    "ldp-primal-dual": "#c2185b",
    "ssca": "#a8a914",
    "ssca-constrained": "#00796b",
    "fedsgm": "#8129a3",
    "zcdp-nfl": "#3f51b5",
    "dp-nfl": "#e377c2",
    "p-admm": "#ffb300",
    "networked-subgradient": "#7cb342",
    "newton": "#a32941",
    "newton-path": "#a32996",
}
ROLES = ("#333333", "#b5179e", "#2a9d8f", "#e09f3e", "#5e60ce")  # of curves where every panel has one method
_LINES = ("-", "--", "-.", ":")
_MARKERS = "os^Dv<>pPX"
_MARKED = 8  # most markers on a curve


def styles(algorithms: Sequence[str]) -> list[dict[str, Any]]:
    """The keyword arguments of `Axes.plot` for the curves of one panel, in order.

    Curves of one method have shades of its colour, and different line styles and markers. Every curve is thinner than
    the one before it, so that both remain visible where two curves coincide.
    """
    totals, so_far, drawn = Counter(algorithms), Counter[str](), []
    widths = np.linspace(2.6, 1.4, len(algorithms)) if len(algorithms) > 1 else [1.6]
    for place, (algorithm, width) in enumerate(zip(algorithms, widths, strict=True)):
        nth = so_far[algorithm]
        so_far[algorithm] += 1
        drawn.append({
            "color": shade(COLOURS.get(algorithm, "black"), nth, totals[algorithm]),
            "linestyle": _LINES[nth % len(_LINES)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "linewidth": width,
            "markersize": 2.5 + 1.2 * width,
        })  # fmt: skip
    return drawn


def shade(colour: str, nth: int, total: int) -> tuple[float, float, float]:
    """The nth of total shades of a colour, from dark to light, as RGB; a single shade is the colour itself."""
    amount = np.linspace(-min(0.5, 0.15 * (total - 1)), min(0.45, 0.25 * (total - 1)), total)[nth]
    target = 1.0 if amount > 0 else 0.0
    red, green, blue = (part + abs(amount) * (target - part) for part in to_rgb(colour))
    return float(red), float(green), float(blue)


def marked(x: Array, nth: int, total: int) -> list[int]:
    """Indices of the points with a marker on the nth of total curves: at most 8, spread over x, and offset between
    curves."""
    if not len(x):
        return []
    count = int(np.clip(len(x) // total, 1, _MARKED))
    targets = x[0] + (x[-1] - x[0]) * (np.arange(count) + (nth + 0.5) / total) / count
    return sorted({int(np.abs(x - target).argmin()) for target in targets})


def log_scale(axis: Axis, set_scale: Callable[..., None]) -> None:
    """Make the axis logarithmic and mask values <= 0; over less than three decades, label it in plain numbers, which
    are equally spaced if they differ by less than a factor of 4."""
    set_scale("log", nonpositive="mask")
    low, high = axis.get_view_interval()
    if high < 1000 * low:
        subs = (1, 2, 5) if high < 100 * low else (1, 3)
        axis.set_major_locator(LogLocator(subs=subs) if high > 4 * low else MaxNLocator(6))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def label(ax: Axes, x: str, y: str, config: Config) -> None:
    """Label the axes, with units."""
    ax.set_xlabel(words(x, config))
    ax.set_ylabel(words(y, config) if y else "")
    if x in BITS:
        ax.xaxis.set_major_formatter(EngFormatter(unit="bit"))
    if y in BITS:
        ax.yaxis.set_major_formatter(EngFormatter(unit="bit"))
    ax.grid(alpha=0.3)


def draw_bounds(ax: Axes, curves: Sequence[Curve], x: str, y: str) -> None:
    """Draw a line at every bound that the curves of a panel must satisfy, on the columns x and y."""
    for column, draw in ((x, ax.axvline), (y, ax.axhline)):
        bounds = sorted({limit for curve in curves for limit in limits(curve.config, column)})
        name = "bound" if column == "excess" else f"bound U = {', '.join(f'{limit:g}' for limit in bounds)}"
        for nth, limit in enumerate(bounds):
            draw(limit, color="0.4", linewidth=0.8, linestyle=(0, (4, 2)), label="" if nth else name)
