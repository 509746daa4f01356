"""What a client counts before round 1, columns with private ranges and persons for a survival curve, and how it scales
its rows by the ranges afterwards."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .arrays import Labels
from .data.ranges import Bins, Unscaled, unpack_ranges
from .models.survival import TimeGrid
from .privacy.guard import Guard
from .privacy.release import Release, Rounding
from .work import Noise, no_noise

COUNTS_ROUND = 0
"""The round in which counts are released, before the first of the training."""


@dataclass(frozen=True)
class PrivateColumns:
    """The columns of one client whose ranges are private: the client's rows, and the bins that the run counts in."""

    rows: Unscaled
    bins: Bins

    @property
    def count(self) -> int:
        """The number of these columns."""
        return len(self.rows.schema.private)

    def counts(self) -> NDArray[np.float64]:
        """The counts of all columns, (columns * bins,)."""
        return self.bins.counts(self.rows.values).ravel()

    def features(self, ranges: object) -> NDArray[np.float64]:
        """The rows scaled by the ranges in a request (`pack_ranges`); ReplyError if these are invalid."""
        return self.rows.scaled(unpack_ranges(ranges, self.count))[0]


@dataclass(frozen=True)
class Persons:
    """The persons of one client, with their signed times (rows,), who are counted by the cells of a grid."""

    labels: Labels
    grid: TimeGrid

    def counts(self) -> NDArray[np.float64]:
        """The counts of all cells, (cells,)."""
        return self.grid.counts(self.labels)


@dataclass(frozen=True)
class FirstCounts:
    """The counts that one client releases before round 1.

    release: of all counts together. rows: the number of rows that are counted. columns, persons: what is counted, None
    for what is not.
    """

    release: Release
    rows: int
    columns: PrivateColumns | None = None
    persons: Persons | None = None

    def open(self, guard: Guard | None, session: str) -> Noise:
        """Charge the release of the counts and return its noise; without a guard there is neither."""
        if guard is None:
            return no_noise
        if guard.secret:
            largest = self.rows * math.sqrt(self._histograms)
            guard.check_size(self.release, 1, Rounding(largest, 0.0), [])
        return guard.open(self.release, COUNTS_ROUND, session)

    @property
    def _histograms(self) -> int:
        """In how many histograms every row is counted once."""
        return (self.columns.count if self.columns else 0) + (self.persons is not None)

    @property
    def bytes(self) -> int:
        """The size of the counts."""
        columns = self.columns.count * self.columns.bins.count if self.columns else 0
        return 8 * (columns + (self.persons.grid.cells if self.persons else 0))

    def counts(self, noise: Noise) -> NDArray[np.float64]:
        """The noisy counts (entries,), those of the columns first."""
        return noise(np.concatenate([part.counts() for part in (self.columns, self.persons) if part]))
