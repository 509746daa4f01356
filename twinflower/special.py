"""SciPy's special functions by name, such as `special.expit`, imported when one is first used, and roots of functions.

Importing `scipy.special` or `scipy.optimize` takes about half a second, longer than everything else that `twinflower
list` needs.
"""

from collections.abc import Callable
from math import copysign, inf
from typing import Any


def __getattr__(name: str) -> Any:
    import scipy.special

    function = globals()[name] = getattr(scipy.special, name)
    return function


def root(function: Callable[[float], float], low: float, high: float, xtol: float) -> float:
    """The x between low and high, to within xtol + 2^-50 |x|, at which a continuous function changes its sign.

    The method of Brent ("Algorithms for minimization without derivatives", 1973, chapter 4) with the steps of SciPy's
    `brentq`, whose results it has to the bit. ValueError if the signs at low and high are equal.
    """
    before, x = float(low), float(high)
    f_before, f = float(function(before)), float(function(x))
    if f_before == 0:
        return before
    if f != 0 and copysign(1, f_before) == copysign(1, f):
        raise ValueError(f"the function must have different signs at {low} and {high}")
    other, f_other, last, step = before, f_before, x - before, x - before
    while True:
        if f != 0 and copysign(1, f_before) != copysign(1, f):
            other, f_other, last, step = before, f_before, x - before, x - before
        if abs(f_other) < abs(f):
            before, x, other = x, other, x
            f_before, f, f_other = f, f_other, f
        nearest, half = (xtol + 2**-50 * abs(x)) / 2, (other - x) / 2
        if f == 0 or abs(half) < nearest:
            return x
        tried = _interpolated(before, x, other, f_before, f, f_other) if abs(last) > nearest else inf
        if abs(f) < abs(f_before) and 2 * abs(tried) < min(abs(last), 3 * abs(half) - nearest):
            last, step = step, tried
        else:
            last, step = half, half
        before, f_before = x, f
        x += step if abs(step) > nearest else copysign(nearest, half)
        f = float(function(x))


def _interpolated(before: float, x: float, other: float, f_before: float, f: float, f_other: float) -> float:
    """The step from x to the zero of a line, or an inverse parabola, through these points; inf if it has none."""
    try:
        if before == other:
            return -f * (x - before) / (f - f_before)
        near, far = (f_before - f) / (before - x), (f_other - f) / (other - x)
        return -f * (f_other * far - f_before * near) / (far * near * (f_other - f_before))
    except ZeroDivisionError:
        return inf
