"""Confidence intervals for shares, and for the area under a ROC curve, of which only noisy counts are known."""

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from .. import special
from ..arrays import Array

LEVEL = 0.95
"""How often an interval covers the share, at least."""


def share_interval(count: float, rows: int, sigma: float = 0.0) -> tuple[float, float]:
    """An interval for p, given count = B + sigma Z with B binomial (rows, p) and Z standard normal.

    It holds every p in [0, 1] for which neither a count this high nor one this low has a probability below
    (1 - LEVEL) / 2, so it covers p with probability `LEVEL` at least, whatever p, rows and sigma are. Without noise it
    is the interval of Clopper and Pearson ("The use of confidence or fiducial limits", Biometrika 1934). A count
    below 0 or above rows is taken as 0 or rows, which can only widen the interval, and keeps it from shrinking to a
    point.
    """
    count = min(max(count, 0.0), float(rows))
    alpha = (1 - LEVEL) / 2
    return _lowest(count, rows, sigma, alpha), 1 - _lowest(rows - count, rows, sigma, alpha)


def _lowest(count: float, rows: int, sigma: float, alpha: float) -> float:
    """The smallest p with P(B + sigma Z >= count) >= alpha, which increases with p; 1 if there is none."""
    excess = partial(_excess, count, rows, sigma, alpha)
    if excess(0.0) >= 0:
        return 0.0
    return special.root(excess, 0.0, 1.0, xtol=1e-9) if excess(1.0) > 0 else 1.0


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


class Share(NamedTuple):
    """An estimate in [0, 1], NaN if there is none, and the ends of its interval, 0 and 1 if nothing is known."""

    value: float
    low: float
    high: float


NOTHING = Share(math.nan, 0.0, 1.0)


def mean_share(parts: Sequence[Share]) -> Share:
    """The mean of estimates, NaN if one is not known, with the means of the ends of their intervals.

    The standard deviation of a mean is at most the mean of the standard deviations, whatever the correlations are, so
    this interval is not shorter than one that knew them, if the parts' intervals are symmetric.
    """
    mean = Share(*np.mean(parts, axis=0).tolist())
    return NOTHING if math.isnan(mean.value) else mean


CANDIDATES = np.linspace(0.0, 1.0, 10_001)
"""Candidates for a share, a probability or an area."""
DEVIATIONS = 1.959963984540054
"""Standard deviations of the normal distribution that an interval at `LEVEL` extends to both sides."""
_CLEAR = 2.0  # a number of rows that is fewer deviations of its noise above 0 says nothing


def share(hits: float, misses: float, sigma: float = 0.0, hit_cells: int = 1, miss_cells: int = 1) -> Share:
    """The share p = hits / (hits + misses) with its interval, for sums of so many noisy counts each.

    sigma: the standard deviation of the noise in every count. The interval holds every p for which
    D = (1 - p) hits - p misses, whose mean is 0, is within 1.96 of its standard deviations; its variance is
    rows p (1 - p) + sigma^2 ((1 - p)^2 hit_cells + p^2 miss_cells). Without noise this is the interval of Wilson
    ("Probable inference, the law of succession, and statistical inference", JASA 1927).
    """
    rows = hits + misses
    if rows <= _CLEAR * sigma * math.sqrt(hit_cells + miss_cells):
        return NOTHING
    p = CANDIDATES
    noise = sigma**2 * ((1 - p) ** 2 * hit_cells + p**2 * miss_cells)
    return accepted(hits / rows, (rows * p * (1 - p) + noise) / rows**2)


def area(negatives: Array, positives: Array, sigma: float = 0.0) -> Share:
    """The area under the ROC curve from the counts (bins,) of both classes in ascending bins, with its interval.

    The area A is the probability that a positive lies above a negative, where a tie counts one half. sigma: the
    standard deviation of the noise in every count. Without noise this is the interval of Newcombe ("Confidence
    intervals for an effect size measure based on the Mann-Whitney statistic, part 2", Statistics in Medicine 2006,
    method 5): it holds every A within 1.96 standard deviations of the estimate, whose variance is that of Hanley and
    McNeil (Radiology 1982) at A. The noise adds its own variance at A: its part that is linear in the noise, and the
    product of the noise of both classes. The sampling of rows is that of independent rows of one population. Rows whose
    scores are tied only because they lie in one bin need `binned_area`.
    """
    totals = np.array([negatives.sum(), positives.sum()])
    if totals.min() <= _CLEAR * sigma * math.sqrt(len(negatives)):
        return NOTHING
    above = 1 - (np.cumsum(positives) - positives / 2) / totals[1]  # share of positives above each bin
    below = (np.cumsum(negatives) - negatives / 2) / totals[0]
    value = float(positives @ below) / float(totals[1])
    sampling = hanley_mcneil(CANDIDATES, *np.maximum(totals, 1.0))
    return accepted(value, sampling + _area_noise(below, above, totals, sigma))


def binned_area(negatives: Array, positives: Array, sigma: float = 0.0) -> Share:
    """The area under the ROC curve of rows of which only the bins of their scores are known; see `area`.

    The order of a negative n and a positive p in one bin is not known, so the area of the scores themselves is within
    sum n_k p_k / (2 N P) of the area with ties, over the bins k. The interval of `area` is widened on both sides by
    this, estimated from the counts, plus 1.96 standard deviations of the noise in the estimate. The sampling error of
    the estimate is not counted in.
    """
    share, hidden = area(negatives, positives, sigma), _hidden(negatives, positives, sigma)
    return Share(share.value, max(share.low - hidden, 0.0), min(share.high + hidden, 1.0))


def _hidden(negatives: Array, positives: Array, sigma: float) -> float:
    """An estimate of how far ties in bins move the area, at most; with noise it is exceeded in one of 40 cases.

    The noise in sum n_k p_k has the variance sigma^2 sum (n_k^2 + p_k^2) + bins sigma^4 at the true counts. Its first
    part at the noisy counts overestimates this.
    """
    noise = DEVIATIONS * sigma * math.sqrt(negatives @ negatives + positives @ positives)
    pairs = 2 * float(negatives.sum() * positives.sum())
    return min(max(float(negatives @ positives + noise) / pairs, 0.0), 0.5) if pairs > 0 else 0.5


def hanley_mcneil(a: Array, m: float, n: float) -> Array:
    """The variance of the area, if it is a, with m negatives and n positives; symmetric in both, as in Newcombe."""
    both = (m + n) / 2
    return a * (1 - a) * (1 + (both - 1) * ((1 - a) / (2 - a) + a / (1 + a))) / (m * n)


def _area_noise(below: Array, above: Array, totals: Array, sigma: float) -> Array:
    """The variance that the noise adds to the area, for every area in the grid."""
    a, bins = CANDIDATES, len(below)
    spread = [(side @ side) - 2 * a * side.sum() + bins * a**2 for side in (above, below)]
    linear = sigma**2 * (spread[0] / totals[0] ** 2 + spread[1] / totals[1] ** 2)
    pairs = bins * (bins - 1) / 2 * ((1 - a) ** 2 + a**2) + bins * (0.5 - a) ** 2
    return linear + sigma**4 * pairs / (totals[0] * totals[1]) ** 2  # type: ignore[no-any-return]


def accepted(value: float, variance: Array) -> Share:
    """The estimate, clipped to [0, 1], and the ends of those of the `CANDIDATES` that are within `DEVIATIONS` of it.

    variance: of the estimate, if a candidate is the truth; one number for each, or for all.
    """
    value = min(max(value, 0.0), 1.0)
    near = CANDIDATES[np.abs(value - CANDIDATES) <= DEVIATIONS * np.sqrt(variance)]
    low, high = (near[0], near[-1]) if near.size else (value, value)
    return Share(value, min(float(low), value), max(float(high), value))
