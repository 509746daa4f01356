"""Type aliases for the NumPy arrays used throughout the package."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Seeds = NDArray[np.uint64]
Labels = NDArray[Any]  # int64 for classes, float64 for regression targets
