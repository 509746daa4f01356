"""Functions of one client, computed for many clients and rows in pieces that fit into memory."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad

from ..arrays import Array
from ..norms import clippable, clipping, norms
from ..problems.interfaces import Batch
from .parameters import to_point
from .probe import Probe
from .rows import RowFunctions
from .stacked import Dims, OfClient, Work, computing, over_clients, stacked

_ROWS = 1024  # computed at once
_NUMBERS = 2**23  # largest number of entries in per-record gradients at once, 32 MB in float32
_ALIGNED = 64  # bytes; for other alignments, kernels may round differently


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
        tensors = [self.tensor(array) for array, _ in parts]
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
        grads = to_point(over_clients(self.functions.row_grads, dims)(*part))
        lengths = norms(grads)
        there = lengths <= clippable(self.clip_norm, lengths.dtype)
        grads[~there] = 0.0
        shares = np.where(there, clipping(self.clip_norm, lengths)[..., 0], 0.0) * to_point(part[3])
        return (shares[..., None, :] @ grads)[..., 0, :]  # type: ignore[no-any-return]
