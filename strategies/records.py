"""NumPy arrays in Flower's records, in the bytes that its NumPyClient speaks."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from twinflower.wire import dtype_name, to_npy


def encode(array: NDArray[Any]) -> Array:
    """A Flower Array with the bytes that Flower's own NumPy serialisation gives."""
    array = np.asarray(array)
    return Array(dtype_name(array.dtype), array.shape, "numpy.ndarray", to_npy(array))


def record_of(arrays: Iterable[NDArray[Any]]) -> ArrayRecord:
    """An ArrayRecord "0", "1", ...; filled one by one, because from a dict Flower would copy every array."""
    record = ArrayRecord()
    for place, array in enumerate(arrays):
        record[str(place)] = encode(array)
    return record
