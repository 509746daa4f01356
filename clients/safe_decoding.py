"""A NumPyClient as Flower's Client."""

from typing import Any

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

from twinflower.wire import from_npy, to_npy

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
