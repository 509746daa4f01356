"""Standardised mean differences between groups of rows, from the lines of their Table 1.

    number:      |m - m'| / sqrt((s^2 + s'^2) / 2)    with means m, m' and standard deviations s, s'
    categories:  sqrt(D^T S^- D)                      with D = p - p' of the shares p, p', S the mean of their
                                                      covariances diag(p) - p p^T, and its pseudo-inverse S^-

The second is that of Yang and Dalton (SAS Global Forum 2012, paper 335), and the first one for two categories. It is
not known if D is not in the range of S: between groups that have no category in common nothing varies. Values that are
missing do not count. Of more than two groups it is the largest difference between any two.

Noise. For a number it is the standard deviation of that in the difference of the means; what the noise in s and s' adds
is a part of the difference. For categories it is the root of the expected D^T S^- D if nothing differs but noise.
Differences of its size are noise.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from .summaries import ALL, MISSING, Line

_NO_VARIANCE = 1e-12  # relative eigenvalue of a covariance
_UNSPREAD = 1e-6  # relative part of a difference in directions without variance: rounding


class Difference(NamedTuple):
    """A standardised difference, and the noise in it; NaN: not known."""

    value: float
    noise: float


UNKNOWN = Difference(np.nan, np.nan)


def with_differences(lines: Iterable[Line]) -> list[Line]:
    """The lines of a table by groups, with the differences between the groups in those of all rows together. Rows whose
    group is missing are no group."""
    lines = list(lines)
    parts: dict[str, dict[str, list[Line]]] = {}
    for line in lines:
        if line.column and line.group not in (ALL, MISSING):
            parts.setdefault(line.column, {}).setdefault(line.group, []).append(line)
    known = {column: largest(list(groups.values())) for column, groups in parts.items()}
    ends = (known.get(line.column, UNKNOWN) if line.group == ALL else UNKNOWN for line in lines)
    return [
        line._replace(difference=end.value, difference_noise=end.noise)
        for line, end in zip(lines, ends, strict=True)
    ]


def largest(groups: Sequence[Sequence[Line]]) -> Difference:
    """The largest difference of two groups, each with the lines of a number or of the categories of
    a column, and of its missing values; unknown if any pair's is."""
    pairs = [_between(a, b) for a, b in combinations(groups, 2)]
    return max(pairs) if pairs and all(pair.value == pair.value for pair in pairs) else UNKNOWN


def _between(a: Sequence[Line], b: Sequence[Line]) -> Difference:
    return _of_categories(a, b) if a[0].category else _of_numbers(a[0], b[0])


def _of_numbers(a: Line, b: Line) -> Difference:
    spread = np.sqrt((a.deviation**2 + b.deviation**2) / 2)
    if not spread > 0:
        return UNKNOWN
    noise = float(np.hypot(a.mean_noise, b.mean_noise) / spread)
    return Difference(float(abs(a.mean - b.mean) / spread), noise)


def _of_categories(a: Sequence[Line], b: Sequence[Line]) -> Difference:
    shares = [_shares(lines) for lines in (a, b)]
    if np.isnan(shares).any():
        return UNKNOWN
    covariance = sum(np.diag(p) - np.outer(p, p) for p in shares) / 2
    inverse = np.linalg.pinv(covariance, rcond=_NO_VARIANCE, hermitian=True)
    noise, away = sum(map(_noise, (a, b), shares)), shares[0] - shares[1]
    if np.linalg.norm(covariance @ inverse @ away - away) > _UNSPREAD * np.linalg.norm(away):
        return UNKNOWN
    return Difference(float(np.sqrt(away @ inverse @ away)), float(np.sqrt(np.trace(inverse @ noise))))


def _shares(lines: Sequence[Line]) -> Array:
    """The shares of the categories (k,); noisy ones from 0 to 1, with the sum 1."""
    shares = np.clip([line.percent for line in lines if line.percent == line.percent], 0.0, None)
    known = sum(line.category != MISSING for line in lines)
    return shares / shares.sum() if len(shares) == known else np.full(known, np.nan)


def _noise(lines: Sequence[Line], shares: Array) -> Array:
    """The covariance (k, k) of the noise in the shares, to first order. Counts were fitted to the number of rows, so
    the noise in all of them together is 0."""
    every, k = len(lines), len(shares)
    slopes = (np.eye(k) - shares[:, None]) / sum(line.rows for line in lines[:k])
    counts = lines[0].noise ** 2 * (np.eye(k) - (1 - np.eye(k)) / max(every - 1, 1))
    return slopes @ counts @ slopes.T  # type: ignore[no-any-return]
