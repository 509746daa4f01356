"""Weights of rows, which multiply their losses: the column of a table, and the check of a data set."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError
from .cells import Cells, Floats, numbers, refuse
from .columns import Range


@dataclass(frozen=True)
class Weight:
    """The column of the rows' weights, which multiply the losses of the rows, and their public range, from 0 on.

    Weights are clipped to the range.
    """

    column: str
    range: Range

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The weights (rows,); CellError for an invalid cell."""
        values = numbers(cells, absent)
        refuse(np.isnan(values), "the weight is missing", "leave the row out")
        refuse(values < 0, "a weight must not be negative", "correct it, or leave the row out")
        return np.clip(values, self.range.low, self.range.high)


def check_row_weights(where: str, weights: NDArray[Any], labels: NDArray[Any], public: Range | None) -> None:
    """DataError unless there is a weight in the public range for every label; `where` is the prefix of their name."""
    if not (public is not None and public.low >= 0):
        raise DataError(f"{where}: row_weights need weight_range, from 0 on")
    assert public
    if weights.shape != labels.shape:
        raise DataError(f"{where}: row_weights must have shape {labels.shape}; got {weights.shape}")
    good = (weights >= public.low) & (weights <= public.high)
    if not good.all():
        raise DataError(f"{where}: row_weights must be from {public.low:g} to {public.high:g}")
