"""Type aliases for the NumPy arrays used throughout the package, and views that protect them."""

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=np.generic)

Array = NDArray[np.float64]  # or float32 in a run in single precision
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Seeds = NDArray[np.uint64]
Labels = NDArray[Any]  # int64 for classes, a float type for regression targets

DOUBLE: np.dtype[Any] = np.dtype(np.float64)
SINGLE: np.dtype[Any] = np.dtype(np.float32)
PRECISIONS: dict[str, np.dtype[Any]] = {"double": DOUBLE, "single": SINGLE}


def all_finite(array: NDArray[Any]) -> bool:
    """Whether all entries are finite. The sum of squares is the cheapest test; if it is not finite, every entry is
    checked."""
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def within(values: NDArray[T], low: Any, high: Any) -> NDArray[T]:
    """The values clipped to [low, high], with `high` in place of NaN, which np.clip would keep."""
    return np.where(values < high, np.maximum(values, low), high)


def of_clients(values: NDArray[T], clients: Index) -> NDArray[T]:
    """The values (..., N) of clients (..., K); one number each."""
    if values.ndim == 1:
        return values[clients]  # much faster
    return np.take_along_axis(values, clients, -1)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view
