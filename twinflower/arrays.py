"""Type aliases for the NumPy arrays used throughout the package, and views that protect them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Seeds = NDArray[np.uint64]
Labels = NDArray[Any]  # int64 for classes, float64 for regression targets


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view of the array that cannot be written to."""
    view = array.view()
    view.setflags(write=False)
    return view
