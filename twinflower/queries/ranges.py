"""The question for private ranges: clients count the values of columns whose range is private (`data.ranges`), and
scale their rows by the ranges that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..arrays import Array, Index
from ..data.columns import Range
from ..data.ranges import Bins, Unscaled, pack_ranges, unpack_ranges
from .query import Answers, Histogram, Part, Run


@dataclass(frozen=True)
class PrivateColumns(Part):
    """The columns of one client whose ranges are private: the client's rows, and the bins that the run counts in."""

    rows: Unscaled
    bins: Bins
    scales = True

    @property
    def histograms(self) -> int:
        """The number of these columns."""
        return len(self.rows.schema.private)

    def counts(self) -> Array:
        """The counts of all columns, (columns * bins,)."""
        return self.bins.counts(self.rows.values).ravel()

    def features(self, agreed: object) -> Array:
        """The rows scaled by the ranges in a request (`pack_ranges`); ReplyError if these are invalid."""
        return self.rows.scaled(unpack_ranges(agreed, self.histograms))[0]


class Found(NamedTuple):
    """The ranges, and bounds on how many values are outside of them, by column."""

    ranges: tuple[Range, ...]
    outside: Mapping[str, int]


class RangeAnswers(Answers):
    """The ranges, which summary.json repeats."""

    @classmethod
    def stored(cls, found: "Found") -> Any:
        """See `Answers`."""
        return [[(own.low, own.high) for own in found.ranges], found.outside]

    @classmethod
    def restored(cls, stored: Any) -> "Found":
        """See `Answers`."""
        ranges, outside = stored
        return Found(tuple(Range(*own) for own in ranges), outside)

    @classmethod
    def summarised(cls, found: "Found | None") -> dict[str, Any]:
        """See `Answers`."""
        named = zip(found.outside, found.ranges, strict=True) if found else ()
        return {"private_ranges": {name: [own.low, own.high] for name, own in named} or None}


class PrivateRanges(Histogram):
    """The ranges of the columns whose schema says range = "private"."""

    name = "ranges"
    what = "counts for ranges"
    follows, otherwise = "private ranges", "give the schema's columns public ranges"
    reported = RangeAnswers
    share_key = "data.range-share"

    @classmethod
    def of(cls, run: Run) -> "PrivateRanges | None":
        """See `SiteQuery`."""
        return cls(run) if run.dataset.unscaled is not None else None

    @property
    def _unscaled(self) -> Unscaled:
        assert self.run.dataset.unscaled is not None
        return self.run.dataset.unscaled

    @property
    def columns_private(self) -> int:
        """The number of columns with private ranges."""
        return len(self._unscaled.schema.private)

    @property
    def squared_move(self) -> int:
        """Two counts of every column move by 1."""
        return 2 * self.columns_private

    @property
    def bins(self) -> Bins:
        """The bins of the counts, which follow from public numbers."""
        return Bins.for_noise(self.run.first.total_sigma / int(self.run.partition.sizes.sum()))

    @property
    def entries(self) -> int:
        """See `Histogram`."""
        return self.columns_private * self.bins.count

    def part(self, client: int, site: Any = None) -> PrivateColumns:
        """See `Histogram`."""
        return PrivateColumns(self._unscaled.taken(self.run.rows_of(client)), self.bins)

    def ranges(self, counts: Array, clients: Index) -> tuple[Range, ...]:
        """The ranges from the counts (K, entries) of these clients (K,)."""
        total = self._together(counts)
        if self.run.plan is None:
            return self.bins.holding_ranges(total)
        return self.bins.find_ranges(total, *self._size(clients))

    def _together(self, counts: Array) -> Array:
        """The counts (columns, bins) of all clients together."""
        return counts.sum(0).reshape(-1, self.bins.count)

    def _size(self, clients: Index) -> tuple[int, float]:
        """The number of rows of these clients, and the deviation of the noise in a count of all of these."""
        return int(self.run.partition.sizes[clients].sum()), self.run.first.deviation(clients)

    def content(self, counts: Array, clients: Index) -> bytes:
        """The ranges, by which clients scale their rows."""
        return pack_ranges(self.ranges(counts, clients))

    def found(self, counts: Array, clients: Index) -> "Found":
        """See `Histogram`."""
        ranges = self.ranges(counts, clients)
        outside = self.bins.outside(self._together(counts), *self._size(clients), ranges)
        return Found(ranges, dict(zip(self._unscaled.schema.private, outside, strict=True)))

    def applied(self, run: Any, found: "Found") -> Any:
        """The run with its rows scaled."""
        named = tuple(zip(self._unscaled.schema.private, found.ranges, strict=True))
        return replace(run, dataset=run.dataset.scaled(found.ranges), ranges=named, outside=found.outside)

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        return [("private ranges", f"of {self.columns_private} columns, {self.run.first.cost()}")]

    def advice(self) -> list[str]:
        """A warning if the noise of the counts hides most columns."""
        remedy = (
            ", so many ranges will be wrong: raise data.range-share or epsilon, or give the schema's columns public "
            "ranges"
        )
        return self.run.first.advice("private ranges", remedy)  # type: ignore[no-any-return]
