"""Clients' arrays as tensors, stacked where the clients have arrays of their own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap

Dims = tuple[int | None, ...]
OfClient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Work(NamedTuple):
    """The tensors of a computation over clients: points, features, labels and weights.

    A tensor whose entry in dims is 0 has a leading axis of clients; one whose entry is None is the same for all
    clients. lead is the shape of the client axes in the original arrays.
    """

    lead: tuple[int, ...]
    tensors: list[Tensor]
    dims: Dims

    @property
    def clients(self) -> int:
        """Number of clients."""
        return prod(self.lead)

    @property
    def rows(self) -> int:
        """Number of rows of each client."""
        return self.tensors[2].shape[-1]

    def parts(self, clients: int, rows: int) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Split the work: yields the clients, the rows and the tensors of pieces of at most clients x rows."""
        for first in range(0, self.clients, clients):
            for row in range(0, self.rows, rows):
                where = slice(first, first + clients), slice(row, row + rows)
                yield *where, [self._cut(index, *where) for index in range(4)]

    def _cut(self, index: int, clients: slice, rows: slice) -> Tensor:
        tensor, dim = self.tensors[index], self.dims[index]
        tensor = tensor if dim is None else tensor[clients]
        if index == 0:
            return tensor
        return tensor[rows] if dim is None else tensor[:, rows]


def stacked(array: NDArray[Any], core: int, lead: tuple[int, ...]) -> tuple[NDArray[Any], int | None]:
    """An array (..., core axes) with one client axis, or with none if all clients share it; and its entry in dims."""
    inner = array.shape[-core:]
    if prod(array.shape[:-core]) == 1:
        return array.reshape(inner), None
    return np.broadcast_to(array, lead + inner).reshape(-1, *inner), 0


def over_clients(function: Callable[..., Tensor], dims: Dims) -> Callable[..., Tensor]:
    """A function of one client, vectorised (vmap) over the client axes given by dims."""
    return function if all(dim is None for dim in dims) else vmap(function, in_dims=dims)  # type: ignore[no-any-return]


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """A context with this number of torch threads and without NumPy's floating-point warnings."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        torch.set_num_threads(before)
