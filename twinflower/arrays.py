"""Type aliases for the NumPy arrays used throughout the package, and views that protect them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]  # or float32 in a run in single precision
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Seeds = NDArray[np.uint64]
Labels = NDArray[Any]  # int64 for classes, a float type for regression targets

DOUBLE: np.dtype[Any] = np.dtype(np.float64)
SINGLE: np.dtype[Any] = np.dtype(np.float32)
PRECISIONS: dict[str, np.dtype[Any]] = {"double": DOUBLE, "single": SINGLE}


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view
