"""NumPy arrays in Flower's records and messages, in the byte format of its NumPyClient."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.client import Client, NumPyClient
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
)
from numpy.typing import NDArray

from twinflower.wire import dtype_name, from_npy, to_npy


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


_DONE, _NPY = Status(Code.OK, "Success"), "numpy.ndarray"


class StrictClient(Client):
    """A NumPyClient as Flower's Client, with our conversion from and to bytes: NumPy's allocates any size that a header
    states. Flower's own wrapper is a new class for every client, which takes longer than some rounds. Of the methods it
    leaves out `get_parameters`, which strategies no longer call."""

    def __init__(self, numpy_client: NumPyClient) -> None:
        self.numpy_client = numpy_client

    def get_properties(self, ins: GetPropertiesIns) -> GetPropertiesRes:
        return GetPropertiesRes(_DONE, self.numpy_client.get_properties(ins.config))

    def fit(self, ins: FitIns) -> FitRes:
        arrays, rows, metrics = self.numpy_client.fit(*_received(ins))
        return FitRes(_DONE, Parameters([to_npy(array) for array in arrays], _NPY), rows, metrics)

    def evaluate(self, ins: EvaluateIns) -> EvaluateRes:
        return EvaluateRes(_DONE, *self.numpy_client.evaluate(*_received(ins)))


def _received(ins: FitIns | EvaluateIns) -> tuple[list[Any], dict[str, Any]]:
    """The arrays and the config of a request."""
    return [from_npy(data) for data in ins.parameters.tensors], ins.config
