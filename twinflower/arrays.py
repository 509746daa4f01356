"""Names for the kinds of arrays that everything here takes and returns."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]
Seeds = NDArray[np.uint64]
Labels = NDArray[Any]  # int64 classes, or float64 of a regression
