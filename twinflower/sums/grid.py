"""Encoding of values as integers modulo 2^64, so that sums are exact and masks can hide the summands.

A site divides its value by the cell width, rounds it to integers, adds its share of the noise, and sends the result
modulo 2^64. The sum over all sites is then identical to the last bit in any order, with or without masks. All sites use
the same cell width, chosen such that one site's noise has a standard deviation of 2^SHARE_BITS cells.

A sum that wraps around modulo 2^64 does not weaken privacy, because the remainder is a function of the sum. But it
would be meaningless, so values are clipped to a range in which no sum wraps around (`Grid.most`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, within
from ..errors import SettingError

CellArray = NDArray[np.uint64]
Draw = Callable[[int], Index]
"""A site's own noise of a round: so many whole numbers."""

SHARE_BITS = 30
"""A site's noise has the deviation 2^30 cells: rounding to cells then costs about 1e-9 of the noise for each entry."""

_FARTHEST = 40 * 2**SHARE_BITS  # cells
_RESOLVED = 2**52  # cells; floats resolve integers up to 2^53


class Grid(NamedTuple):
    """The grid of a round. cell: the width of a cell in the unit of the values. sites: how many sites are summed."""

    cell: float
    sites: int

    @classmethod
    def of_noise(cls, sigma: float, honest: int, sites: int) -> "Grid":
        """The grid for which the summed noise of `honest` sites has standard deviation sigma."""
        return cls(sigma / math.sqrt(honest) / 2.0**SHARE_BITS, sites)

    @property
    def most(self) -> int:
        """The public range: each entry of a site's value is clipped to [-most, most] cells.

        The sum is then at most sites * (most + 40 * 2^30), because a site's noise exceeds 40 standard deviations with
        probability 2 exp(-800) at most. `most` is chosen such that this is below 2^63, so the sum does not wrap around.
        Floats represent every integer in the range exactly.
        """
        return min(_RESOLVED, (2**63 - 1) // self.sites - _FARTHEST)

    @property
    def reach(self) -> float:
        """The largest entry of a value that is not clipped, in the unit of the values."""
        return self.most * self.cell

    def check(self, longest: float) -> None:
        """Raise SettingError unless values of norm `longest` fit into the range."""
        if not (self.most >= 2**SHARE_BITS and longest <= self.reach):
            raise SettingError(
                f"trust sum needs values below {self.reach:.3g}, the grid's range for {self.sites} sites at this "
                f"noise; got values up to {longest:.3g}: lower epsilon"
            )

    def encode(self, value: Array) -> Index:
        """Round a value (..., d) to integers, in cells, clipped to the range; NaN becomes its upper end."""
        cells: Index = np.rint(within(value / self.cell, -self.most, self.most)).astype(np.int64)
        return cells

    def mean(self, total: CellArray, count: float | None = None) -> Array:
        """The mean value (..., d) over sites of total weight `count`, by default all; total (..., d): the sum of their
        numbers modulo 2^64."""
        return total.view(np.int64).astype(np.float64) * (self.cell / (count or self.sites))


def add(cells: CellArray, axis: int = -2, words: int = 1) -> CellArray:
    """The sum (..., d) of the sites' numbers (..., K, d) modulo 2^64. With words > 1 a number has so many words, as in
    `plus`, and the sum is (d,) of numbers (K, d)."""
    if words > 1:
        return reduce(partial(plus, words=words), cells)
    return np.add.reduce(cells, axis=axis, dtype=np.uint64)


def plus(a: CellArray, b: CellArray, words: int = 1) -> CellArray:
    """a + b (d,) modulo 2^(64 words), of numbers that have so many words of 64 bits each, the lowest first."""
    total, carry = a + b, np.zeros(len(a) // words, dtype=np.uint64)
    for place in range(words):
        without, part = total[place::words].copy(), a[place::words]
        total[place::words] += carry
        carry = ((without < part) | (total[place::words] < without)).astype(np.uint64)
    return total


def negative(a: CellArray, words: int = 1) -> CellArray:
    """-a (d,) modulo 2^(64 words), of numbers as those of `plus`."""
    one = np.zeros_like(a)
    one[::words] = 1
    return plus(~a, one, words)


@dataclass(frozen=True)
class SumNoise:
    """Encodes a site's value and adds the site's noise, in place of `work.Noise`.

    weights: the weight of a site's value, a number, or (..., K, 1) for stacked sites. draws: the noise of a site, one
    function for each stacked site.
    """

    grid: Grid
    weights: Array | float
    draws: list[Draw]

    def __call__(self, value: Array) -> CellArray:
        """Return noisy integers (..., d) modulo 2^64 for values (..., d)."""
        entries = value.shape[-1]
        noise = np.stack([draw(entries) for draw in self.draws]).reshape(value.shape)
        cells: CellArray = (self.grid.encode(self.weights * value) + noise).view(np.uint64)
        return cells
