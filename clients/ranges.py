"""A client's columns with private ranges: what it counts before round 1, and how it scales its rows afterwards."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twinflower.data.ranges import Bins, Unscaled, unpack_ranges
from twinflower.privacy.guard import Guard
from twinflower.privacy.release import Release, Rounding
from twinflower.work import Noise, no_noise

COUNTS_ROUND = 0
"""The round in which counts are released, before the first of the training."""


@dataclass(frozen=True)
class PrivateColumns:
    """The columns of one client whose ranges are private.

    rows: the client's rows. bins: those that the run counts in. release: of all counts together.
    """

    rows: Unscaled
    bins: Bins
    release: Release

    def open(self, guard: Guard | None, session: str) -> Noise:
        """Charge the release of the counts and return its noise; without a guard there is neither."""
        if guard is None:
            return no_noise
        if guard.secret:
            largest = len(self.rows.rows) * math.sqrt(len(self.rows.schema.private))
            guard.check_size(self.release, 1, Rounding(largest, 0.0), [])
        return guard.open(self.release, COUNTS_ROUND, session)

    @property
    def counts_bytes(self) -> int:
        """The size of the counts."""
        return 8 * self.bins.count * len(self.rows.schema.private)

    def counts(self, noise: Noise) -> NDArray[np.float64]:
        """The noisy counts of all columns, (columns * bins,)."""
        return noise(self.bins.counts(self.rows.values).ravel())

    def features(self, ranges: object) -> NDArray[np.float64]:
        """The rows scaled by the ranges in a request (`pack_ranges`); ReplyError if these are invalid."""
        return self.rows.scaled(unpack_ranges(ranges, len(self.rows.schema.private)))[0]
