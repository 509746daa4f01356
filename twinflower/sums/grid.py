"""Values on a grid of integers modulo 2^64, so that sums are exact and masks can hide the summands.

A site divides its value by the cell width, rounds it to integers, adds its share of the noise, and sends the result
modulo 2^64. The sum over all sites is then identical to the last bit in any order, with or without masks. All sites use
the same cell width, chosen such that one site's noise has a standard deviation of 2^SHARE_BITS cells.

A sum that wraps around does not weaken privacy, because the remainder is a function of the sum. But its value would be
meaningless, so values are clipped to a range in which no sum can wrap around (`Grid.most`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index
from ..errors import require

Cells = NDArray[np.uint64]
Draw = Callable[[int], Index]
"""A site's own noise of a round: so many whole numbers."""

SHARE_BITS = 30
"""A site's noise has the deviation 2^30 cells: rounding to cells then costs about 1e-9 of the noise for each entry."""

_FARTHEST = 40 * 2**SHARE_BITS  # cells
_RESOLVED = 2**52  # cells of a value; floats resolve 2^53


class Grid(NamedTuple):
    """cell: the width of a cell in the unit of the value. sites: how many add up."""

    cell: float
    sites: int

    @classmethod
    def of_noise(cls, sigma: float, honest: int, sites: int) -> "Grid":
        """sigma: the deviation of the noise of `honest` sites together."""
        return cls(sigma / math.sqrt(honest) / 2.0**SHARE_BITS, sites)

    @property
    def most(self) -> int:
        """The public range: a site's value is clipped to so many cells, and floats resolve these.

        The largest sum is then sites * (most + 40 * 2^30), because a site's noise is beyond 40 deviations with
        probability 2 exp(-800) at most. `most` is chosen such that this is below 2^63, so no sum wraps around.
        """
        return min(_RESOLVED, (2**63 - 1) // self.sites - _FARTHEST)

    @property
    def reach(self) -> float:
        """The largest entry of a value that is not clipped, in its own unit."""
        return self.most * self.cell

    def check(self, longest: float) -> None:
        """SettingError unless values of this length fit, for so many sites."""
        require(
            self.most >= 2**SHARE_BITS and longest <= self.reach,
            f"trust sum needs values below {self.reach:.3g}, the grid's range for {self.sites} sites at this noise; "
            f"got values up to {longest:.3g}: lower epsilon",
        )

    def encode(self, value: Array) -> Index:
        """Whole cells of a value (..., d), clipped to the range."""
        cells: Index = np.rint(np.clip(value / self.cell, -self.most, self.most)).astype(np.int64)
        return cells

    def mean(self, total: Cells) -> Array:
        """The mean value (..., d) of the sites whose numbers add up to `total` modulo 2^64."""
        return total.view(np.int64).astype(np.float64) * (self.cell / self.sites)


def add(cells: Cells, axis: int = -2) -> Cells:
    """The sum (..., d) of the sites' numbers (..., K, d) modulo 2^64."""
    return np.add.reduce(cells, axis=axis, dtype=np.uint64)


@dataclass(frozen=True)
class SumNoise:
    """What a site does with its value before it is summed (in place of `work.Noise`).

    weights: by which sites' values count, a number, or (..., K, 1) for stacked sites. draws: a site's noise, or one for
    each stacked site.
    """

    grid: Grid
    weights: Array | float
    draws: list[Draw]

    def __call__(self, value: Array) -> Cells:
        """Noisy whole numbers (..., d) modulo 2^64 of values (..., d)."""
        entries = value.shape[-1]
        noise = np.stack([draw(entries) for draw in self.draws]).reshape(value.shape)
        cells: Cells = (self.grid.encode(self.weights * value) + noise).view(np.uint64)
        return cells
