"""NumPy arrays in Flower's records, in the byte format of its NumPyClient."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from twinflower.wire import dtype_name, to_npy


def encode(array: NDArray[Any]) -> Array:
    """A Flower Array with the same bytes as Flower's own NumPy serialisation."""
    array = np.asarray(array)
    return Array(dtype_name(array.dtype), array.shape, "numpy.ndarray", to_npy(array))


def record_of(arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    """An ArrayRecord with keys "0", "1", ...; filled one by one, because Flower would copy the arrays of a dict."""
    record = ArrayRecord()
    for place, array in enumerate(arrays):
        record[str(place)] = encode(array)
    return record
