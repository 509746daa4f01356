"""Functions of one client, computed for many clients and rows in pieces that fit into memory, and a probe of them.

The clients' arrays become tensors, stacked where the clients have arrays of their own.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from ..arrays import Array
from ..errors import SettingError
from ..norms import clippable, clipping, norms
from ..problems.interfaces import Batch
from .checks import check_outputs, in_one_sentence, no_broadcasting
from .parameters import RowFunctions, to_point

_ROWS = 1024  # computed at once
_IN_CACHE = 2**17  # entries of gradients in double precision at once, 1 MB
_NUMBERS = 2**23  # largest number of entries in per-record gradients at once, 32 MB in float32
_ALIGNED = 64  # bytes; for other alignments, kernels may round differently
_FAR = 2**40  # beyond every table of embeddings

Dims = tuple[int | None, ...]
OfClient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _whole_numbers(features: NDArray[Any]) -> NDArray[np.int64]:
    """The features as whole numbers within what `_check_far` tries; 0 for NaN."""
    return np.clip(np.nan_to_num(features), -_FAR, _FAR).astype(np.int64)


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


@dataclass(frozen=True)
class Probe:
    """Calls the functions once for each kind of rows, on artificial rows that are independent of all data.

    row_shape, threads: as in `ModuleObjective`. by_row: whether the gradient of each row is needed, and not only that
    of a sum.
    """

    functions: RowFunctions
    row_shape: tuple[int, ...]
    by_row: bool
    threads: int
    _checked: dict[Any, Tensor] = field(default_factory=dict)
    _whole: dict[int, bool] = field(default_factory=dict)

    def output(self, rows: Batch) -> Tensor:
        """The module's output for an artificial row; cached by the rows' width and by the types of rows and labels.

        Raises SettingError if an output depends on more than its own row, or if outputs do not fit the loss.
        """
        kind = rows.features.shape[-1], self.whole(rows), rows.labels.dtype.kind in "iub"
        if kind not in self._checked:
            with computing(self.threads):
                self._checked[kind] = self._try(*kind)
        return self._checked[kind]

    def whole(self, rows: Batch) -> bool:
        """Whether the module receives rows as whole numbers, because it takes no others, as an embedding does."""
        width = rows.features.shape[-1]
        if width not in self._whole:
            with computing(self.threads):
                self._whole[width] = not self._takes(width, False) and self._takes(width, True)
        return self._whole[width]

    def _takes(self, width: int, whole: bool) -> bool:
        """Whether the module takes such rows."""
        try:
            with torch.no_grad():
                self.functions.outputs(self.functions.parameters.current(), self._made_up(width, whole))
        except Exception:  # noqa: BLE001  a user's module may raise any exception
            return False
        return True

    def _try(self, width: int, whole_rows: bool, whole_labels: bool) -> Tensor:
        features, point = self._made_up(width, whole_rows), self.functions.parameters.current()
        label = torch.zeros((), dtype=torch.int64 if whole_labels else point.dtype, device=point.device)
        with torch.no_grad():
            output = self._check_forward(features, width)
            self._check_output(output, label)
            if whole_rows and self.by_row:
                self._check_far(features)
        labels, weights = label.expand(len(features)), point.new_ones(len(features))
        one = self.functions.row_grads if self.by_row else grad(self.functions.total)
        with in_one_sentence("torch cannot take the gradient of each row of this module"):
            one(point, features, labels, weights)
        return output

    def check_stacked(self, work: Work) -> None:
        """SettingError if torch cannot vectorise this module over clients; checked once per combination of axes."""
        stacked = tuple(dim is not None for dim in work.dims)
        if stacked in self._checked or not any(stacked):
            return
        part = next(work.parts(1, 1))[2]
        with in_one_sentence("torch cannot take this module for clients at once, as the runtime cohort does"):
            self._checked[stacked] = over_clients(grad(self.functions.total), work.dims)(*part)

    def _made_up(self, width: int, whole: bool) -> Tensor:
        """Three artificial rows (3, *row_shape), independent of all data."""
        like = next(self.functions.module.parameters())
        if self.row_shape and prod(self.row_shape) != width:
            raise SettingError(
                f"rows have {width} numbers, and row_shape {self.row_shape} has {prod(self.row_shape)} (a bias "
                "column is one more: bias = false leaves it out)"
            )
        draw = torch.Generator().manual_seed(0)
        rows = torch.randn(3, width, generator=draw)
        if whole:
            rows = torch.stack([torch.zeros(width), torch.ones(width), (rows[0] > 0).float()])
        return rows.to(like.device, torch.int64 if whole else like.dtype).reshape(
            3, *(self.row_shape or (width,))
        )

    def _check_forward(self, features: Tensor, width: int) -> Tensor:
        point = self.functions.parameters.current()
        with in_one_sentence(
            f"the module cannot take rows of {width} numbers: set row_shape, or leave out the bias column (bias = "
            "false)"
        ):
            return check_outputs(
                lambda rows: self.functions.outputs(point, rows), self.functions.module, features
            )[0]

    def _check_far(self, features: Tensor) -> None:
        """SettingError unless the module takes every whole number: an error would reveal something about a row."""
        with in_one_sentence(
            "a module whose rows are clipped must take every whole number, such as by rows.clamp(0, 99) in front of an "
            "embedding of 100"
        ):
            for far in (-_FAR, _FAR):
                self.functions.outputs(self.functions.parameters.current(), torch.full_like(features, far))

    def _check_output(self, output: Tensor, label: Tensor) -> None:
        shape = tuple(output.shape)
        with (
            in_one_sentence(f"the loss does not fit the module's output of shape {shape} for a row"),
            no_broadcasting(),
        ):
            loss = self.functions.row_loss(output, label)
        if not (isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point()):
            raise SettingError(
                f"the loss of one row must be a scalar; for an output of shape {shape} and one label it gave "
                f"{tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__}"
            )


@dataclass(frozen=True)
class Batched:
    """The functions on points x (..., d) and rows with any number of leading client axes.

    clip_norm: the norm to which the gradient of every row is clipped; 0 for none. chunk: as in `ModuleObjective`.
    """

    functions: RowFunctions
    probe: Probe
    clip_norm: float
    chunk: int

    def by_row(self, function: OfClient, x: Array, rows: Batch) -> Array:
        """The values of `function`, one for each row, (..., b)."""
        work = self._work(x, rows)
        values = np.empty((work.clients, work.rows))
        with computing(self.probe.threads), torch.no_grad():
            for clients, rows_, part in work.parts(*self._sizes(work, False)):
                values[clients, rows_] = over_clients(function, work.dims)(*part).cpu()
        return values.reshape(work.lead + (work.rows,))

    def mean_grad(self, x: Array, rows: Batch) -> Array:
        """The weighted mean of the rows' gradients, (..., d), each clipped to clip_norm if that is above 0."""
        work = self._work(x, rows)
        function = self._clipped_mean if self.clip_norm else self._mean
        total = np.zeros((work.clients, x.shape[-1]))
        with computing(self.probe.threads):
            for clients, _, part in work.parts(*self._sizes(work, self.clip_norm > 0)):
                total[clients] += function(part, work.dims)
        return total.reshape(work.lead + (x.shape[-1],))

    def _work(self, x: Array, rows: Batch) -> Work:
        """Points and rows as tensors, after checking that the rows fit the module."""
        self.probe.output(rows)
        count = rows.labels.shape[-1]
        weights = np.full(count, 1.0 / count) if rows.weights is None else rows.weights
        cores = ((x, 1), (rows.features, 2), (rows.labels, 1), (weights, 1))
        lead = np.broadcast_shapes(*(array.shape[:-core] for array, core in cores))
        parts = [stacked(array, core, lead) for array, core in cores]
        point, features, labels, shares = (array for array, _ in parts)
        tensors = [self.tensor(array) for array in (point, features, labels, shares)]
        # In single precision a weight, and what a record can change, may be larger by rounding.
        if self.clip_norm:
            tensors[3] = torch.from_numpy(np.array(shares, dtype=np.float64)).to(tensors[0].device)
        whole = self.probe.whole(rows)  # from doubles, which hold more whole numbers than the module's type
        tensors[1] = self.tensor(_whole_numbers(features)) if whole else tensors[1].to(tensors[0].dtype)
        if self.probe.row_shape:
            tensors[1] = tensors[1].reshape(*tensors[1].shape[:-1], *self.probe.row_shape)
        work = Work(lead, tensors, tuple(dim for _, dim in parts))
        self.probe.check_stacked(work)
        return work

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the module's device: integers as int64, other numbers in the module's dtype."""
        like = next(self.functions.module.parameters())
        dtype = torch.int64 if array.dtype.kind in "iub" else like.dtype
        array = np.ascontiguousarray(array)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy()).to(like.device, dtype)
        return tensor if tensor.data_ptr() % _ALIGNED == 0 else tensor.clone()

    def _sizes(self, work: Work, clipped: bool) -> tuple[int, int]:
        """Number of clients, and number of rows of each client, to compute at once."""
        most = self.chunk or (
            min(_ROWS, max(1, _NUMBERS // self.functions.parameters.count)) if clipped else _ROWS
        )
        rows = min(most, work.rows)
        return max(1, most // rows), rows

    def _mean(self, part: list[Tensor], dims: Dims) -> Array:
        """The weighted sum of the rows' gradients, in one backward pass."""
        return to_point(over_clients(grad(self.functions.total), dims)(*part))

    def _clipped_mean(self, part: list[Tensor], dims: Dims) -> Array:
        """The weighted sum of the rows' gradients, each clipped to clip_norm.

        A gradient that is not finite, or too long to be clipped, counts as 0. It raises no error, because that would
        reveal information about the row.
        """
        grads, shares = over_clients(self.functions.row_grads, dims)(*part), to_point(part[3])
        size = max(1, _IN_CACHE // grads.shape[-1])
        blocks = [slice(first, first + size) for first in range(0, grads.shape[-2], size)]
        return sum(self._clipped_sum(to_point(grads[..., own, :]), shares[..., own]) for own in blocks)  # type: ignore[return-value]

    def _clipped_sum(self, grads: Array, shares: Array) -> Array:
        """The sum (..., d) of gradients (..., b, d), each clipped, with the weights `shares` (..., b)."""
        lengths = norms(grads)
        there = lengths <= clippable(self.clip_norm, lengths.dtype)
        grads[~there] = 0.0
        shares = np.where(there, clipping(self.clip_norm, lengths)[..., 0], 0.0) * shares
        return (shares[..., None, :] @ grads)[..., 0, :]  # type: ignore[no-any-return]
