"""Features computed from the numbers in a file: divided, with a column of ones, with limited row norms."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import DOUBLE
from ..norms import corrected

Floats = NDArray[np.float64]
EACH, ALL = ROW_SCALINGS = ("each", "all")
_BLOCK = 2**15  # numbers, 256 KiB of doubles: what is computed block by block stays in the cache


@dataclass(frozen=True, eq=False)
class Deferred:
    """Features that are computed when rows are taken, for a process that takes few: MNIST's pixels are bytes, and need
    an eighth of the memory of doubles. NumPy's functions compute all of them.

    complete: computes features (k, n) from raw rows (k, ...), row by row.
    """

    complete: Callable[[NDArray[Any]], Floats]
    raw: NDArray[Any]

    @cached_property
    def _first(self) -> Floats:
        return self.complete(self.raw[:1])

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and of features."""
        return len(self.raw), self._first.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the features."""
        return self._first.dtype

    def take(self, rows: NDArray[np.int64], axis: int = 0) -> Floats:
        """The features (..., n) of the rows with these numbers (...)."""
        features = self.complete(self.raw.take(np.ravel(rows), axis=0))
        return features.reshape(*np.shape(rows), features.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        return self.complete(self.raw).astype(dtype or self.dtype, copy=False)


def common_factor(row_norm: float, longest: float) -> float:
    """What all rows of norms up to `longest` are multiplied by so that none is longer than row_norm; 0: no limit."""
    return min(1.0, row_norm / longest) if row_norm else 1.0


def completed(
    features: NDArray[Any],
    bias: bool,
    row_norm: float = 0.0,
    divisor: int = 1,
    dtype: np.dtype[Any] = DOUBLE,
    longest: float = 0.0,
) -> Floats:
    """The features (rows, n), any numbers, divided by `divisor`; with bias with a column of ones appended, and with
    row_norm > 0 with each row multiplied by min(1, row_norm / its Euclidean norm). C-contiguous, of type dtype.

    longest > 0: a public bound on the norms of all rows, the one included. They are then multiplied by their
    `common_factor` instead.

    The rows are computed as doubles, block by block with small buffers, because new memory costs more time than the
    arithmetic.
    """
    if divisor == 1 and not bias and not row_norm:
        return np.ascontiguousarray(features, dtype)
    columns = features.shape[1]
    whole = np.empty((len(features), columns + bias), dtype)
    squares, buffer = (np.empty((min(_step(whole), len(whole)), columns + bias)) for _ in range(2))
    for rows in _blocks(whole):
        target = whole[rows]
        block = target if dtype == DOUBLE else buffer[: len(target)]
        np.divide(features[rows], divisor, out=block[:, :columns])
        block[:, columns:] = 1.0
        if longest:
            block *= common_factor(row_norm, longest)
        elif row_norm:
            _limit_norms(block, row_norm, squares[: len(target)])
        if block is not target:
            target[...] = block
    return whole


def _limit_norms(features: Floats, bound: float, squares: Floats) -> None:
    """Multiply each row by min(1, bound / its Euclidean norm) in place; squares: memory for as many numbers."""
    with np.errstate(over="ignore"):
        lengths = np.sqrt(np.add.reduce(np.multiply(features, features, out=squares), axis=1))
        lengths = corrected(lengths, features)
    features *= (bound / np.maximum(lengths, bound))[:, None]


def finite(array: NDArray[Any]) -> bool:
    """Whether all numbers of the array are finite; it is read block by block."""
    return array.dtype.kind in "biu" or all(np.isfinite(array[rows]).all() for rows in _blocks(array))


def _blocks(array: NDArray[Any]) -> Iterator[slice]:
    step = _step(array)
    return (slice(first, first + step) for first in range(0, len(array), step))


def _step(array: NDArray[Any]) -> int:
    """The number of rows in a block, which has at most `_BLOCK` numbers but at least one row."""
    return max(1, _BLOCK * len(array) // max(array.size, 1))
