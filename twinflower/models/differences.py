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

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from .summaries import ALL, Line, Summaries, Variable

_NO_VARIANCE = 1e-12  # relative eigenvalue of a covariance
_UNSPREAD = 1e-6  # relative part of a difference in directions without variance: rounding


class Difference(NamedTuple):
    """A standardised difference, and the noise in it; NaN: not known."""

    value: float
    noise: float


UNKNOWN = Difference(np.nan, np.nan)


def with_differences(table: Summaries) -> list[Line]:
    """The lines of a table, by groups with the differences between these in the lines of all rows together. Rows whose
    group is missing are no group."""
    lines, layout = list(table.lines()), table.layout
    compared = layout.by.categories if layout.by else ()
    known = {}
    for variable in layout.variables:
        own = [line for line in lines if line.column == variable.name]
        groups = [[line for line in own if line.group == group] for group in compared]
        known[variable.name] = _largest(variable, groups, table)
    ends = (known.get(line.column, UNKNOWN) if line.group == ALL else UNKNOWN for line in lines)
    return [
        line._replace(difference=end.value, difference_noise=end.noise)
        for line, end in zip(lines, ends, strict=True)
    ]


def _largest(variable: Variable, groups: Sequence[Sequence[Line]], table: Summaries) -> Difference:
    """The largest difference of a column between two groups, each with its lines; unknown if any pair's is."""
    between = _of_categories if variable.categories else _of_numbers
    pairs = [between(variable, table, *pair) for pair in combinations(groups, 2)]
    return max(pairs) if pairs and all(pair.value == pair.value for pair in pairs) else UNKNOWN


def _of_numbers(variable: Variable, table: Summaries, *groups: Sequence[Line]) -> Difference:
    a, b = (lines[0] for lines in groups)
    spread = np.sqrt((a.deviation**2 + b.deviation**2) / 2)
    if not spread > 0:
        return UNKNOWN
    assert variable.range
    middle, share = variable.range.middle, variable.bins / variable.cells
    shared = (a.mean - middle) / a.rows * (b.mean - middle) / b.rows * table.rows_covariance * share**2
    noise = np.sqrt(max(a.mean_noise**2 + b.mean_noise**2 - 2 * shared, 0.0))
    return Difference(float(abs(a.mean - b.mean) / spread), float(noise / spread))


def _of_categories(variable: Variable, table: Summaries, *groups: Sequence[Line]) -> Difference:
    size = len(variable.categories)
    counts = [lines[:size] for lines in groups]  # without that of the missing values
    shares = [_shares(lines) for lines in counts]
    if np.isnan(shares).any():
        return UNKNOWN
    covariance = sum(np.diag(p) - np.outer(p, p) for p in shares) / 2
    inverse = np.linalg.pinv(covariance, rcond=_NO_VARIANCE, hermitian=True)
    away = shares[0] - shares[1]
    if np.linalg.norm(covariance @ inverse @ away - away) > _UNSPREAD * np.linalg.norm(away):
        return UNKNOWN
    first, second = (_slopes(*pair) for pair in zip(counts, shares, strict=True))
    slopes = np.hstack([first, -second])
    own, between = (part[:size, :size] for part in table.fitted_noise(variable))
    noise = slopes @ np.block([[own, between], [between, own]]) @ slopes.T
    return Difference(float(np.sqrt(away @ inverse @ away)), float(np.sqrt(np.trace(inverse @ noise))))


def _shares(lines: Sequence[Line]) -> Array:
    """The shares of the categories (k,); noisy ones from 0 to 1, with the sum 1."""
    shares = np.clip([line.percent for line in lines], 0.0, None)  # NaN if any is not known
    return shares / shares.sum()


def _slopes(lines: Sequence[Line], shares: Array) -> Array:
    """The derivatives (k, k) of the shares in the counts."""
    return (np.eye(len(shares)) - shares[:, None]) / sum(line.rows for line in lines)  # type: ignore[no-any-return]
