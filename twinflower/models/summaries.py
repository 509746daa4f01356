"""Descriptions of the columns of a table, as in an article's Table 1, from sums over its rows.

A category is described by the counts of its values, a number, scaled to v in [-1, 1] by its public range, by the counts
of even bins of the range and the sums of v and v^2, from which follow

    mean = sum v / m,    variance = (sum v^2 - m mean^2) / (m - 1),    quartiles, interpolated within bins

of the m values that are not missing. Missing values have a count of their own. All this can be by groups of the rows.

Sensitivity. A row is in one cell of the counts of every column, and in one group. Replacing it therefore moves the
counts of a column by at most sqrt 2. The sums of a number move by at most 2: within a group from (v, v^2) to (w, w^2),
which are (1, 1) and (-1, 1) in the worst case, since with s = |v + w| and d = |v - w|, s + d <= 2, the squared distance
d^2 (1 + s^2) grows with d; between groups by |(v, v^2)|^2 + |(w, w^2)|^2 <= 4. A number moves by at most sqrt 6 in all,
also between groups, and the columns together by the root of the sum of the squares (`Layout.squared_move`).

Without noise a site can withhold cells of fewer than `least` rows (`Variable.counted`): a negative count -u stands for
one from 0 to u.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Mask
from ..data.columns import Range

MISSING = "missing"
ALL = "all"
_QUARTILES = np.array([0.25, 0.5, 0.75])
_CLEAR = 5.0  # values, in deviations of the noise in their count, from which they are described
_LOST = 0.1  # noise in the rank of a median, as a share of the values, above which there are no quartiles


@dataclass(frozen=True)
class Variable:
    """A column: its categories, or the range of its numbers and the number of bins; may_miss: whether values can be
    missing.

    Values are places of categories, or numbers scaled to [-1, 1]; NaN where missing.
    """

    name: str
    categories: tuple[str, ...] = ()
    range: Range | None = None
    bins: int = 0
    may_miss: bool = False

    @property
    def cells(self) -> int:
        """The number of counts."""
        return len(self.names) or self.bins + self.may_miss

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the counts of categories."""
        return (*self.categories, *[MISSING] * self.may_miss) if self.categories else ()

    @property
    def entries(self) -> int:
        """The number of counts and sums."""
        return self.cells if self.categories else self.cells + 2

    @property
    def squared_move(self) -> int:
        """The square of the most by which replacing a row moves them."""
        return 2 if self.categories else 6

    def counted(self, values: Array, least: int = 1) -> Array:
        """The counts and sums (entries,) of these values (rows,), of which cells of fewer than `least` are withheld.

        Of categories, others are withheld, too, until those withheld are at least two with `least` rows together. Bins
        are merged with their neighbours, among which the rows are then spread evenly. Where fewer values of a number
        are missing, further ones are left out, so that `least` are missing or left out.
        """
        if not self.categories:
            return self._described(values, least)
        codes = np.nan_to_num(values, nan=self.cells - 1).astype(np.int64)
        return _withheld(np.bincount(codes, minlength=self.cells).astype(np.float64), least)

    def _described(self, values: Array, least: int) -> Array:
        known = np.clip(values[~np.isnan(values)], -1.0, 1.0)
        missing = float(len(values) - len(known))
        if 0 < missing < least:
            known, missing = _thinned(known, least - int(missing)), -float(least)
        if 0 < len(known) < least:
            return self.hidden(len(values))
        codes = np.minimum(((known + 1) / 2 * self.bins).astype(np.int64), self.bins - 1)
        bins = _merged(np.bincount(codes, minlength=self.bins).astype(np.float64), least)
        return np.concatenate([bins, [missing] * self.may_miss, [known.sum(), known @ known]])

    def hidden(self, most: float) -> Array:
        """The counts and sums of at most so many rows, all of which are withheld."""
        shown = np.zeros(self.entries)
        shown[0 if self.categories else self.bins : self.cells] = -most
        return shown


def _withheld(counts: Array, least: int) -> Array:
    """These counts, with minus the sum of those withheld in their places."""
    small = int(((counts > 0) & (counts < least)).sum())
    if not small:
        return counts
    ascending = np.argsort(counts, kind="stable")
    filled = ascending[counts[ascending] > 0]
    enough = int(np.searchsorted(np.cumsum(counts[filled]), least)) + 1
    hidden = filled[: max(2, small, enough)]
    shown = counts.copy()
    shown[hidden] = -counts[hidden].sum()
    return shown


def _merged(counts: Array, least: int) -> Array:
    """These counts, of which small ones are spread over as many neighbours as hold `least` rows; their sum is kept."""
    groups, first = [], 0
    for end in range(1, len(counts) + 1):
        held = counts[first:end].sum()
        if held == 0 or held >= least:
            groups.append(slice(first, end))
            first = end
    while first < len(counts) and counts[first:].sum() < least and groups:  # the last rows join those before
        first = groups.pop().start
    rest = [slice(first, len(counts))] if first < len(counts) else []
    shown = counts.copy()
    for group in groups + rest:
        shown[group] = counts[group].mean()
    return shown


def _thinned(values: Array, fewer: int) -> Array:
    """These values without so many, evenly spaced in their order, which is the same in every run."""
    return np.delete(values, np.linspace(0, len(values) - 1, min(fewer, len(values))).astype(np.int64))


@dataclass(frozen=True)
class Layout:
    """The columns of a table, and the one by whose categories its rows are grouped, None for one group."""

    variables: tuple[Variable, ...]
    by: Variable | None = None

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of the groups."""
        return self.by.names if self.by else ("",)

    @cached_property
    def block(self) -> int:
        """The number of entries of a group."""
        return sum(variable.entries for variable in self.variables)

    @property
    def entries(self) -> int:
        """The number of all entries: the counts of groups, if there are any, and then group by group."""
        return (self.by.cells if self.by else 0) + len(self.groups) * self.block

    @property
    def squared_move(self) -> int:
        """The square of the most by which replacing a row moves them."""
        return sum(variable.squared_move for variable in self.variables) + (2 if self.by else 0)

    @cached_property
    def sums(self) -> Mask:
        """Which entries are sums of numbers, which can be negative."""
        block = [entry >= variable.cells for variable in self.variables for entry in range(variable.entries)]
        return np.array([False] * (self.by.cells if self.by else 0) + block * len(self.groups))

    @property
    def histograms(self) -> int:
        """The number of entries that a row can raise to the number of rows."""
        return sum(1 if variable.categories else 3 for variable in self.variables) + bool(self.by)

    def counted(self, values: Array, groups: Array, least: int = 1) -> Array:
        """The entries of rows with these values (rows, variables) in these groups (rows,), NaN where missing."""
        sizes = self.by.counted(groups, least) if self.by else np.zeros(0)
        codes = np.nan_to_num(groups, nan=len(self.groups) - 1)
        blocks = [self._counted(values[codes == group], least) for group in range(len(self.groups))]
        for group in np.flatnonzero(sizes < 0):
            blocks[group] = [variable.hidden(-sizes[group]) for variable in self.variables]
        return np.concatenate([sizes, *(part for block in blocks for part in block)])

    def _counted(self, values: Array, least: int) -> list[Array]:
        return [
            variable.counted(column, least) for variable, column in zip(self.variables, values.T, strict=True)
        ]


class Line(NamedTuple):
    """What is known of a category, of a number (category empty), or of all rows of a group (column empty, too).

    rows: how many, without missing ones for a number; most_rows: at most, if some are withheld. percent: of those that
    are not missing. mean_noise, deviation_noise, noise: standard deviations of the noise in the mean and in the
    deviation, to first order, and in the rows.
    bin_width: of the bins from which a number's quartiles follow. difference, difference_noise: between the groups, of
    the lines of all groups together (`differences`). NaN: not known.
    """

    group: str
    column: str
    category: str
    rows: float
    most_rows: float
    percent: float = np.nan
    mean: float = np.nan
    deviation: float = np.nan
    lower_quartile: float = np.nan
    median: float = np.nan
    upper_quartile: float = np.nan
    mean_noise: float = np.nan
    deviation_noise: float = np.nan
    noise: float = 0.0
    bin_width: float = np.nan
    difference: float = np.nan
    difference_noise: float = np.nan


class Summaries(NamedTuple):
    """The entries of the rows of one or more sites, at least `low` and at most `high` (entries,), with Gaussian noise
    of the standard deviation sigma; rows: how many rows there are, which is public."""

    layout: Layout
    low: Array
    high: Array
    rows: int
    sigma: float = 0.0

    @classmethod
    def of(cls, layout: Layout, entries: Array, rows: int, sigma: float = 0.0) -> "Summaries":
        """Those of one site, given what it sent."""
        known = layout.sums | bool(sigma)
        low, high = (np.where(known, entries, end) for end in (np.maximum(entries, 0.0), np.abs(entries)))
        return cls(layout, low, high, rows, sigma)

    @classmethod
    def together(cls, tables: Iterable["Summaries"]) -> "Summaries":
        """Those of all rows of these, at least one, of one layout."""
        layouts, low, high, rows, sigmas = zip(*tables, strict=True)
        ends = np.sum(low, axis=0), np.sum(high, axis=0)
        return cls(layouts[0], *ends, sum(rows), float(np.hypot.reduce(sigmas)))

    @property
    def rows_covariance(self) -> float:
        """The covariance of the noise in the rows of two groups, which are fitted to the number of all rows."""
        return -(self.sigma**2) / len(self.layout.groups)

    @property
    def _rows_variance(self) -> float:
        """The variance of the noise in the rows of one of several groups."""
        return self.sigma**2 + self.rows_covariance

    def fitted_noise(self, variable: Variable) -> tuple[Array, Array]:
        """The covariances (cells, cells) of the noise in the counts of a column, which are fitted to the rows of a
        group: within one of several groups and between two, s^2 (I - J) + R J / m and R' J / m for the noise s, m cells
        with J = 1 1^T / m, and the variance R and covariance R' of the rows."""
        m = variable.cells
        mean = np.full((m, m), 1 / m)
        own = self.sigma**2 * (np.eye(m) - mean) + self._rows_variance / m * mean
        return own, self.rows_covariance / m * mean

    def lines(self) -> Iterator[Line]:
        """What is known of all rows together (group "all") and of each group."""
        groups, block = self.layout.groups, self.layout.block
        first = len(self.low) - len(groups) * block
        ends = [end[first:].reshape(len(groups), block) for end in (self.low, self.high)]
        sigma, size = self.sigma, len(groups)
        whole = _Group(ALL, [self.rows] * 2, ends[0].sum(0), ends[1].sum(0), sigma * float(np.sqrt(size)))
        yield from whole.lines(self.layout.variables)
        if self.layout.by:
            sizes = [whole.fitted(end[:first]) for end in (self.low, self.high)]
            for name, *rows, low, high in zip(groups, *sizes, *ends, strict=True):
                group = _Group(name, rows, low, high, sigma, self._rows_variance)
                yield from group.lines(self.layout.variables)


class _Group(NamedTuple):
    """The entries (block,) of a group of rows, of which there are at least rows[0] and at most rows[1].

    sigma: standard deviation of the noise in an entry. rows_variance: variance of that in the rows.
    """

    name: str
    rows: list[float]
    low: Array
    high: Array
    sigma: float
    rows_variance: float = 0.0

    def lines(self, variables: Iterable[Variable]) -> Iterator[Line]:
        rows, most = self.rows
        yield Line(self.name, "", "", rows, most, noise=float(np.sqrt(self.rows_variance)))
        first = 0
        for variable in variables:
            counts = slice(first, first + variable.cells)
            first += variable.entries
            low, high = (self.fitted(end[counts], most) for most, end in enumerate((self.low, self.high)))
            if variable.categories:
                yield from self._categories(variable, low, high)
            else:
                yield from self._number(variable, low, high, *self.low[counts.stop : first])

    def fitted(self, counts: Array, end: int = 0) -> Array:
        """The counts of all of the rows; noisy ones add up to their number. end: 0 for that at least, 1 at most."""
        return counts + (self.rows[end] - counts.sum()) / len(counts) if self.sigma else counts

    def _noise(self, variable: Variable, cells: int = 1) -> float:
        """The standard deviation of the noise in the sum of so many fitted counts."""
        share = cells / variable.cells
        return float(np.sqrt(self.sigma**2 * cells * (1 - share) + share**2 * self.rows_variance))

    def _clear(self, count: float, noise: float) -> bool:
        return count > _CLEAR * max(self.sigma, noise)

    def _categories(self, variable: Variable, low: Array, high: Array) -> Iterator[Line]:
        size, noise = len(variable.categories), self._noise(variable)
        known = low[:size]
        clear = self._clear(known.sum(), self._noise(variable, size)) and (low == high).all()
        shares = np.append(100 * known / (known.sum() if clear else np.nan), [np.nan] * variable.may_miss)
        for name, rows, most, share in zip(variable.names, low, high, shares, strict=True):
            yield Line(self.name, variable.name, name, rows, most, share, noise=noise)

    def _number(
        self, variable: Variable, low: Array, high: Array, total: float, squares: float
    ) -> Iterator[Line]:
        bins, noise = low[: variable.bins], self._noise(variable, variable.bins)
        values = bins.sum() if self.sigma else np.rint(bins.sum())  # merged bins are rounded
        most = values if self.sigma else self.rows[1] - low[variable.bins :].sum()
        described = self._described(variable, bins, total, squares, noise)
        assert variable.range
        width = 2 * variable.range.half / variable.bins
        line = Line(self.name, variable.name, "", values, most, np.nan, *described)
        yield line._replace(noise=noise, bin_width=width)
        if variable.may_miss:
            yield Line(self.name, variable.name, MISSING, low[-1], high[-1], noise=self._noise(variable))

    def _described(
        self, variable: Variable, bins: Array, total: float, squares: float, noise: float
    ) -> Array:
        """Mean, deviation, quartiles, and the standard deviations of the noise in the first two, (7,); noise: that in
        the number of values."""
        count, public = bins.sum(), variable.range
        assert public
        if not self._clear(count, noise):
            return np.full(7, np.nan)
        mean = np.clip(total / count, -1.0, 1.0)
        variance = min(squares / count, 1.0) - mean**2
        shown = count > 1 and (variance > 0 or not self.sigma)
        deviation = np.sqrt(max(variance, 0.0) * count / (count - 1)) if shown else np.nan
        return np.concatenate(
            [
                [public.middle + public.half * mean, public.half * deviation],
                public.middle + public.half * quartiles_of(bins, self.sigma),
                public.half * self._noises(count, mean, squares / count, deviation, noise),
            ]
        )

    def _noises(self, count: float, mean: float, square: float, deviation: float, noise: float) -> Array:
        """The standard deviations of the noise in a mean and a deviation, (2,), by their slopes in the two sums and in
        the number of values. square: the mean of the squares; noise: that in the number."""
        if not self.sigma:
            return np.zeros(2)
        slopes = np.array(
            [[1.0, 0.0, -mean], np.array([-2 * mean, 1.0, 2 * mean**2 - square]) / (2 * deviation)]
        )
        return np.linalg.norm(slopes * [self.sigma, self.sigma, noise], axis=1) / count  # type: ignore[no-any-return]


def rank_noise(sigma: float, bins: int) -> float:
    """The standard deviation of the noise in the rank of a median, of bins with noise sigma each."""
    return sigma * bins**0.5 / 2


def quartiles_of(bins: Array, sigma: float) -> Array:
    """The quartiles (3,), scaled to [-1, 1], of values that are spread evenly within bins; the middle of a gap between
    bins if it divides the values so. NaN if noise of the standard deviation sigma in each bin hides them."""
    if rank_noise(sigma, len(bins)) > _LOST * bins.sum():
        return np.full(3, np.nan)
    sums = np.append(0.0, np.cumsum(bins))
    if sigma:
        from scipy.optimize import isotonic_regression  # slow to import

        sums = np.clip(isotonic_regression(sums).x, 0.0, sums[-1])
    edges, targets = np.linspace(-1.0, 1.0, len(sums)), _QUARTILES * sums[-1]
    last = np.maximum(np.searchsorted(sums, targets), 1)
    share = (targets - sums[last - 1]) / (sums[last] - sums[last - 1])
    inside = edges[last - 1] + share * (edges[last] - edges[last - 1])
    beyond = edges[np.searchsorted(sums, targets, side="right") - 1]
    return (inside + np.where(sums[last] == targets, beyond, inside)) / 2
