"""The public range of a number."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Range:
    """The public range of a number."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The middle of the range."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """Half the width of the range."""
        return self.high / 2 - self.low / 2

    def scaled(self, values: Floats) -> Floats:
        """The values scaled from the range to [-1, 1] and clipped; NaN stays NaN."""
        with np.errstate(over="ignore"):  # far outside a narrow range
            return np.clip((values - self.middle) / self.half, -1.0, 1.0)

    def features(self, values: Floats) -> Floats:
        """The scaled values with 0 in place of NaN."""
        return np.nan_to_num(self.scaled(values))

    def excludes(self, values: Floats) -> NDArray[np.bool_]:
        """Which values are outside of the range, and are clipped; not NaN."""
        return (values < self.low) | (values > self.high)
