"""Confidence intervals for a share of which only a noisy count is known."""

import math
from functools import partial

import numpy as np

from .. import special
from ..arrays import Array

LEVEL = 0.95
"""How often an interval covers the share, at least."""


def share_interval(count: float, rows: int, sigma: float = 0.0, level: float = LEVEL) -> tuple[float, float]:
    """An interval for p, given count = B + sigma Z with B binomial (rows, p) and Z standard normal.

    It holds every p in [0, 1] for which neither a count this high nor one this low has a probability below
    (1 - level) / 2, so it covers p with probability `level` at least, whatever p, rows and sigma are. Without noise it
    is the interval of Clopper and Pearson ("The use of confidence or fiducial limits", Biometrika 1934). A count
    below 0 or above rows is taken as 0 or rows, which can only widen the interval, and keeps it from shrinking to a
    point.
    """
    count = min(max(count, 0.0), float(rows))
    alpha = (1 - level) / 2
    return _lowest(count, rows, sigma, alpha), 1 - _lowest(rows - count, rows, sigma, alpha)


def _lowest(count: float, rows: int, sigma: float, alpha: float) -> float:
    """The smallest p with P(B + sigma Z >= count) >= alpha, which increases with p; 1 if there is none."""
    from scipy.optimize import brentq  # slow to import, and needed only here

    excess = partial(_excess, count, rows, sigma, alpha)
    if excess(0.0) >= 0:
        return 0.0
    return float(brentq(excess, 0.0, 1.0, xtol=1e-9)) if excess(1.0) > 0 else 1.0


def _excess(count: float, rows: int, sigma: float, alpha: float, p: float) -> float:
    """P(B + sigma Z >= count) - alpha."""
    likely = _likely(rows, p)
    above = special.ndtr((likely - count) / sigma) if sigma else likely >= count
    return float(np.exp(_log_binomial(likely, rows, p)) @ above) - alpha


def _likely(rows: int, p: float) -> Array:
    """The numbers among which B is, except with a probability far below any alpha."""
    mean, width = rows * p, 10 * math.sqrt(rows * p * (1 - p)) + 20
    return np.arange(max(0, math.floor(mean - width)), min(rows, math.ceil(mean + width)) + 1.0)


def _log_binomial(k: Array, rows: int, p: float) -> Array:
    """ln P(B = k)."""
    choices = special.gammaln(rows + 1) - special.gammaln(k + 1) - special.gammaln(rows - k + 1)
    return choices + special.xlogy(k, p) + special.xlog1py(rows - k, -p)  # type: ignore[no-any-return]
