"""Private ranges: the ranges of columns whose schema says range = "private", from noisy counts of all clients.

Before the first round every client counts, for each such column, its values in public bins (`Bins`) and adds
Gaussian noise. The server adds up the counts and computes one range per column (`find_ranges`), with which all clients
and the model then scale. This is post-processing of what the clients released, and costs no further privacy. In a run
without privacy the counts are exact, and a range holds all values (`holding_ranges`).

Sensitivity. A value is in exactly one bin of its column: a magnitude with a sign, zero, or missing. Replacing a record
therefore changes at most two counts of a column, each by 1, and the counts of all c columns together by at most
sqrt(2 c) in Euclidean norm, however many bins there are. Replacing k records changes them by at most k times as much.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ReplyError
from ..settings import LARGEST, SMALLEST
from .columns import Range
from .schema import Schema

Floats = NDArray[np.float64]

_LOWEST, _HIGHEST = -30, 40  # exponents of 2: magnitudes from 1e-9 to 1e12
_INNER = 3  # octaves below the largest magnitude in which a range can begin or end; all below are one bin
_DEVIATIONS = 2.0  # of a column from its mean that its range has room for
_TAIL = 0.005  # share of a column's values beyond each end of its range, if the noise lets it be seen
_SEEN = (
    0.01  # share of the rows; with more noise tails are not seen, and a wide range costs accuracy for nothing
)
_SURE = 1.645  # deviations of its noise that a sum exceeds in 5% of the cases
_CLEAR = 5.0  # deviations of its noise from which the count of an octave shows that there are values
_UNKNOWN = Range(-1.0, 1.0)  # if no magnitude stands out
RESOLUTIONS = (8, 4, 2, 1)
_MOST_NOISE = 0.05  # largest standard deviation of an octave's total count, as a share of the rows


@dataclass(frozen=True)
class Bins:
    """The public bins of a column: zero, missing, and per sign `per_octave` magnitudes in every octave.

    Magnitudes below 2^-30 count as zero, those above 2^40 belong to the last bin.
    """

    per_octave: int = 1

    @classmethod
    def for_noise(cls, share: float) -> "Bins":
        """The finest bins for which an octave's total count is known well enough.

        share: the standard deviation of the noise in the total count of one bin, as a share of all rows. The noise of
        an octave of r bins is sqrt(r) times as large.
        """
        fits = (r for r in RESOLUTIONS if math.sqrt(r) * share <= _MOST_NOISE)
        return cls(next(fits, RESOLUTIONS[-1]))

    @cached_property
    def edges(self) -> Floats:
        """The ascending edges of the magnitudes, (K + 1,)."""
        return np.exp2(np.arange(_LOWEST * self.per_octave, _HIGHEST * self.per_octave + 1) / self.per_octave)

    @property
    def magnitudes(self) -> int:
        """The number K of magnitudes."""
        return (_HIGHEST - _LOWEST) * self.per_octave

    @property
    def count(self) -> int:
        """The number of bins of a column, 2 K + 2: negative, zero, positive, missing."""
        return 2 * self.magnitudes + 2

    def counts(self, values: Floats) -> Floats:
        """How many of the values (rows, columns), NaN where missing, are in each bin: (columns, bins)."""
        sizes = np.searchsorted(self.edges, np.abs(values), side="right")
        codes = self.magnitudes + np.where(values < 0, -1, 1) * np.minimum(sizes, self.magnitudes)
        codes = np.where(np.isnan(values), self.count - 1, codes)
        return np.stack([np.bincount(column, minlength=self.count) for column in codes.T]).astype(np.float64)

    def find_ranges(self, counts: Floats, rows: int, sigma: float) -> tuple[Range, ...]:
        """A range for each column from the noisy counts (columns, bins) of altogether so many rows.

        sigma: the standard deviation of the noise in a count. A range holds the mean plus and minus two standard
        deviations of the column's densest interval, and all but `_TAIL` of the values on either side as far as the
        noise allows to see them.
        """
        return tuple(self._range(column, rows, sigma) for column in counts)

    def holding_ranges(self, counts: Floats) -> tuple[Range, ...]:
        """The range of the bins that are not empty for each column, from exact counts (columns, bins)."""
        ends = np.concatenate([-self.edges[::-1], self.edges])
        return tuple(_holding(column[:-1], ends) for column in counts)

    def outside(self, counts: Floats, rows: int, sigma: float, ranges: Sequence[Range]) -> list[int]:
        """For each column a bound on how many of the rows are outside of its range, which 95% of noises let hold.

        It is post-processing of the noisy counts (columns, bins). The rows outside are those in bins that are not
        within the range, and also all rows but the missing ones and those in bins within it; the sum of fewer bins has
        less noise, of standard deviation sigma in each. Zero is within a range that touches it.
        """
        pairs = zip(counts, ranges, strict=True)
        return [self._outside(column, rows, sigma, range_) for column, range_ in pairs]

    def _outside(self, counts: Floats, rows: int, sigma: float, range_: Range) -> int:
        ends = np.concatenate([-self.edges[::-1], self.edges])
        ends[[self.magnitudes, self.magnitudes + 1]] = 0.0
        held = (ends[:-1] >= range_.low) & (ends[1:] <= range_.high)
        bins, kept = counts[:-1], int(held.sum()) + 1
        if kept < len(bins) - kept:
            value, terms = rows - counts[-1] - bins[held].sum(), kept
        else:
            value, terms = bins[~held].sum(), len(bins) - kept + 1
        return int(min(max(math.ceil(value + _SURE * sigma * math.sqrt(terms)), 0), rows))

    def _range(self, counts: Floats, rows: int, sigma: float) -> Range:
        """The range of one column.

        The upper edge of the densest window of magnitudes is the largest magnitude whose bins have a mean and a
        deviation without much noise. Quantiles need the tail, so their largest magnitude is that of the last octave
        that clearly has values.
        """
        k = self.magnitudes
        negative, zero, positive, missing = counts[:k][::-1], counts[k], counts[k + 1 : -1], counts[-1]
        present = max(rows - zero - missing, 0.0)
        window = _densest(negative + positive, np.arange(k + 1.0), present)
        if window is None:
            return _UNKNOWN
        bins, edges = self._bins(negative, positive, present, window[1])
        interval = _densest(bins, edges, present)
        if interval is None:
            return _UNKNOWN
        bulk, top = _around(bins, edges, *interval), self._last(negative, positive, sigma)
        bins, edges = self._bins(negative, positive, present, max(window[1], top))
        whole = _hull(bulk, _quantiles(bins, edges, present, sigma))
        return _hull(whole, Range(0.0, 0.0) if zero > _TAIL * rows + _CLEAR * sigma else None)

    def _bins(self, negative: Floats, positive: Floats, present: float, top: int) -> tuple[Floats, Floats]:
        """Counts and edges of the bins of the last few octaves below a magnitude, for both signs, and of one bin for
        everything nearer to zero.

        The count of that one bin is the number of remaining rows, because summing its many small bins would add up
        their noise.
        """
        outer = slice(max(top - _INNER * self.per_octave, 0), top)
        below, above, edges = negative[outer][::-1], positive[outer], self.edges[outer.start : outer.stop + 1]
        inner = present - below.sum() - above.sum()
        return np.concatenate([below, [inner], above]), np.concatenate([-edges[::-1], edges])

    def _last(self, negative: Floats, positive: Floats, sigma: float) -> int:
        """The upper edge of the last octave whose count, of one sign, is clearly not only noise; 0 without any."""
        octaves = np.maximum(*(counts.reshape(-1, self.per_octave).sum(1) for counts in (negative, positive)))
        clear = np.flatnonzero(octaves > _CLEAR * sigma * math.sqrt(self.per_octave))
        return (int(clear[-1]) + 1) * self.per_octave if clear.size else 0


def _densest(counts: Floats, edges: Floats, rows: float) -> tuple[int, int] | None:
    """The pair of edges with the largest (count between them - rows / 2) / distance; None if no count exceeds rows / 2.

    For equally likely bins of equal width this is the maximum-likelihood window; a bell-shaped density it cuts at about
    its 5% and 95% quantiles. No setting depends on the noise.
    """
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    excess = sums[None, :] - sums[:, None] - rows / 2
    width = edges[None, :] - edges[:, None]
    scores = np.divide(excess, width, out=np.full_like(width, -np.inf), where=width > 0)
    first, last = np.unravel_index(scores.argmax(), scores.shape)
    return (int(first), int(last)) if scores[first, last] > 0 else None


def _around(counts: Floats, edges: Floats, first: int, last: int) -> Range:
    """Mean -+ `_DEVIATIONS` standard deviations of the bins between two edges and one more bin on either side, with
    values spread evenly within each bin."""
    near = slice(max(first - 1, 0), last + 1)
    shares = np.maximum(counts[near], 0.0)
    shares = shares / shares.sum()
    low, high = edges[:-1][near], edges[1:][near]
    mean = float(shares @ (low + high)) / 2
    reach = _DEVIATIONS * math.sqrt(float(shares @ (low * low + low * high + high * high)) / 3 - mean * mean)
    return Range(mean - reach, mean + reach)


def _quantiles(counts: Floats, edges: Floats, rows: float, sigma: float) -> Range | None:
    """The edges beyond which there are at most `_TAIL` of the rows, and two deviations of the noise in a sum of so many
    bins; None if the noise of all bins together is more than `_SEEN` of the rows."""
    noise = sigma * np.sqrt(np.arange(1, len(counts) + 1))
    if noise[-1] > _SEEN * rows:
        return None
    limit = _TAIL * rows + 2 * noise
    first, last = (int(np.argmax(np.cumsum(side) > limit)) for side in (counts, counts[::-1]))
    return Range(float(edges[first]), float(edges[len(counts) - last]))


def _hull(one: Range, other: Range | None) -> Range:
    """The range that holds both."""
    return Range(min(one.low, other.low), max(one.high, other.high)) if other else one


def _holding(counts: Floats, ends: Floats) -> Range:
    """The range of the signed bins (2 K + 1,), of which the middle one is zero, that are not empty."""
    filled = np.flatnonzero(counts > 0)
    if not np.any(filled != len(counts) // 2):
        return _UNKNOWN
    return Range(float(ends[filled[0]]), float(ends[filled[-1] + 1]))


# ----------------------------------------------------------------------------------------- the message


def pack_ranges(ranges: Sequence[Range]) -> bytes:
    """The ranges as bytes, two little-endian numbers of 64 bits for each."""
    return np.array([(range_.low, range_.high) for range_ in ranges], dtype="<f8").tobytes()


def unpack_ranges(content: Any, columns: int) -> tuple[Range, ...]:
    """Inverse of `pack_ranges`; ReplyError unless there is a valid range for each of the columns."""
    if type(content) is not bytes or len(content) != 16 * columns:
        raise ReplyError(f"a request must carry the ranges of {columns} columns")
    pairs = np.frombuffer(content, dtype="<f8").reshape(columns, 2).tolist()
    ranges = tuple(Range(low, high) for low, high in pairs)
    if not all(-LARGEST <= r.low < r.high <= LARGEST and r.half >= SMALLEST for r in ranges):
        raise ReplyError("the ranges of columns must be finite, each with low < high")
    return ranges


# -------------------------------------------------------------------------------------------- the rows


@dataclass(frozen=True, eq=False)
class Unscaled:
    """Rows whose columns with private ranges are not scaled yet.

    rows, test_rows (rows, n): features by `schema`, with the numbers of these columns as they are and NaN where they
    are missing. finish: what follows the scaling, such as the column of ones and the limit on row norms.
    """

    schema: Schema
    rows: Floats
    test_rows: Floats
    finish: Callable[[Floats], Floats]

    @property
    def values(self) -> Floats:
        """The numbers of the columns with private ranges, (rows, columns)."""
        return self.rows[:, self.schema.private_indices]

    def taken(self, selected: Any) -> "Unscaled":
        """Some of the rows, which are also the test rows."""
        rows = self.rows[selected]
        return Unscaled(self.schema, rows, rows, self.finish)

    def scaled(self, ranges: Sequence[Range] | None = None) -> tuple[Floats, Floats]:
        """Features and test features as the objective receives them; without ranges, with [-1, 1] for all."""
        ranges = ranges or [_UNKNOWN] * len(self.schema.private)
        features = self._finished(self.rows, ranges)
        return features, features if self.test_rows is self.rows else self._finished(self.test_rows, ranges)

    def _finished(self, rows: Floats, ranges: Sequence[Range]) -> Floats:
        out = rows.copy()
        for index, range_ in zip(self.schema.private_indices, ranges, strict=True):
            out[:, index] = range_.features(out[:, index])
        return self.finish(out)
