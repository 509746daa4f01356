"""An `nn.Module` and a loss as an objective on flat points, with clipping of per-record gradients.

    f_i(x) = mean_j loss(module_x(a_j), y_j) + l2/2 ||x||^2 + nonconvex sum x^2 / (1 + x^2)

A point x (d,) is the concatenation of the module's parameters, in the order of `module.named_parameters()`. The module
computes in its own dtype. Points and gradients are doubles, and clipped gradients are summed in double precision, so
that the noise of a private run has to cover a sum of terms of norm at most clip_norm, up to relative rounding of 2^-53.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from ..arrays import Array
from ..errors import require
from ..norms import clippable, norms
from ..problems.interfaces import Batch, Bounds, Part
from ..problems.objectives import Penalised, Penalties, clipping, mean_over, score_of
from ..problems.regularisers import OnPart, Regulariser, on_part
from .checks import (
    check_loss,
    check_module,
    check_outputs,
    check_row_shape,
    check_whole,
    in_one_sentence,
    no_broadcasting,
)
from .parameters import Parameters, State, to_point

RowLoss = Callable[[Tensor, Tensor], Tensor]

_ROWS = 1024  # computed at once
_NUMBERS = 2**23  # largest number of entries in per-record gradients at once, 32 MB in float32
_ALIGNED = 64  # bytes; for other alignments, kernels may round differently


@dataclass(frozen=True, eq=False)
class ModuleObjective(Penalised):
    """f_i of an `nn.Module` (formula at the top of this file); the objective works on a copy of the module.

    loss(output, label) is the scalar loss of one record, for example `torch.nn.functional.cross_entropy` (the default),
    `nn.HuberLoss()`, or a custom function; a single output is passed as a scalar. row_shape is the shape in which the
    module receives a row of n numbers, such as (1, 28, 28); if empty, (n,). With classifies = True the prediction is
    the index of the largest output (of a single output, whether it is positive), else the output itself. chunk is the
    number of rows computed at once; 0 chooses it for about 100 MB. threads is the number of torch threads; results are
    bit for bit the same for the same number. factory creates a new module for `start`, with torch's generator seeded;
    without it, every run starts at the module's own parameters. For clip_norm, l2, nonconvex and clip see `Penalised`.
    """

    module: nn.Module
    loss: RowLoss = cross_entropy
    row_shape: tuple[int, ...] = ()
    classifies: bool = True
    chunk: int = 0
    threads: int = 1
    factory: Callable[[], nn.Module] | None = None
    _checked: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        Penalties("torch", self.l2, self.nonconvex, self.clip_norm, self.clip).check()
        check_whole("chunk", self.chunk, 0, " (0 = as memory allows)")
        check_whole("threads", self.threads, 1)
        check_row_shape(self.row_shape)
        check_module(self.module)
        check_loss(self.loss)
        object.__setattr__(self, "module", copy.deepcopy(self.module))

    @cached_property
    def parameters(self) -> Parameters:
        """The module's parameters and their positions in a point."""
        return Parameters(self.module)

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.parameters.count

    @property
    def convex(self) -> bool:
        """False, since convexity in the module's parameters is not known."""
        return False

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the parameters as matrices: the first axis, and the product of all others."""
        return tuple((shape[0] if shape else 1, prod(shape[1:])) for shape in self.parameters.shapes)

    def start(self, draw: np.random.Generator | None = None) -> Array:
        """The starting point (d,): the module's parameters, or with a factory those of a new module seeded by draw."""
        if self.factory is None or draw is None:
            return to_point(self.parameters.own())
        made = seeded(self.factory, int(draw.integers(2**63)))
        return to_point(Parameters(getattr(made, "module", made)).own())

    def bounds(self, row_norm: float) -> Bounds:
        """Public bounds from clip_norm; the curvature has no known bound. SettingError unless rows are clipped."""
        require(
            self.clips_rows,
            "a module's gradients have no public bound: set clip_norm (clip-norm) above 0 for a private run",
        )
        return Bounds(self.clip_norm, inf, self.penalty_curvature)

    def losses(self, x: Array, rows: Batch) -> Array:
        """Loss of each row, (..., b), without the penalty."""
        return self._by_row(self._losses, x, rows)

    def value(self, x: Array, rows: Batch) -> Array:
        """Mean loss of the rows plus the smooth penalty, (...,)."""
        return mean_over(self.losses(x, rows), rows) + self.penalty(x)

    def grad(self, x: Array, rows: Batch) -> Array:
        """Gradient of `value`, (..., d)."""
        work = self._work(x, rows)
        function = self._clipped_mean if self.clips_rows else self._mean
        total = np.zeros((work.clients, self.d))
        with self._computing():
            for clients, _, part in work.parts(*self._sizes(work)):
                total[clients] += function(part, work.dims)
        return self.full_grad(total.reshape(work.lead + (self.d,)), x)

    def predict(self, x: Array, features: NDArray[Any]) -> Array:
        """Predicted labels (..., b)."""
        rows = Batch(features, np.zeros(features.shape[:-1], np.int64 if self.classifies else float))
        return self._by_row(self._predictions, x, rows)

    def score(self, x: Array, rows: Batch) -> Array:
        """Accuracy, or R^2 for regression, (...,); see `score_of`."""
        return score_of(self.predict(x, rows.features), rows, self.classifies)

    def state_dict(self, x: Array) -> dict[str, Tensor]:
        """The state_dict at the point x (d,), for `module.load_state_dict`."""
        return self.parameters.state_dict(x)

    def point(self, state: State) -> Array:
        """The parameters in a state_dict of this module, as a point (d,)."""
        return self.parameters.flat(state)

    def save(self, x: Array, path: Path) -> None:
        """Write the state_dict at x (d,) to a file for `torch.load`."""
        torch.save(self.state_dict(x), path)

    def parts(self, patterns: str) -> list[Part]:
        """The parameters whose names match patterns such as "*.weight, head.bias", in the order of a point."""
        rows = dict(zip(self.parameters.names, self.shapes, strict=True))
        return [Part(span, rows[name][0]) for name, span in self.parameters.chosen(patterns).items()]

    def regularised(self, regulariser: Regulariser, patterns: str) -> OnPart:
        """The regulariser applied only to the parameters that match the patterns."""
        return on_part(regulariser, [part.span for part in self.parts(patterns)])

    def check_rows(self, rows: Batch) -> None:
        """SettingError for rows that the module or the loss does not accept, and for NaN and infinity."""
        require(
            bool(np.isfinite(rows.features).all()),
            "a row holds NaN or infinity: remove it, or fill in a number",
        )
        output = self._probe(rows)
        labels = self._tensor(np.unique(rows.labels))
        with in_one_sentence(
            "the loss does not take the labels: a class must be below the number of outputs"
        ):
            values = vmap(self._row_loss, (None, 0))(output, labels)
        require(
            bool(torch.isfinite(values).all()),
            "the loss of a label is NaN or infinite: look for labels to ignore",
        )

    # rows and clients as tensors

    def _work(self, x: Array, rows: Batch) -> "_Work":
        """Points and rows as tensors, after checking that the rows fit the module."""
        self._probe(rows)
        count = rows.labels.shape[-1]
        weights = np.full(count, 1.0 / count) if rows.weights is None else rows.weights
        cores = ((x, 1), (rows.features, 2), (rows.labels, 1), (weights, 1))
        lead = np.broadcast_shapes(*(array.shape[:-core] for array, core in cores))
        parts = [_stacked(array, core, lead) for array, core in cores]
        tensors = [self._tensor(array) for array, _ in parts]
        if self.row_shape:
            tensors[1] = tensors[1].reshape(*tensors[1].shape[:-1], *self.row_shape)
        work = _Work(lead, tensors, tuple(dim for _, dim in parts))
        self._check_stacked(work)
        return work

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor on the module's device: integers as int64, other numbers in the module's dtype."""
        like = next(self.module.parameters())
        dtype = torch.int64 if array.dtype.kind in "iub" else like.dtype
        array = np.ascontiguousarray(array)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy()).to(like.device, dtype)
        return tensor if tensor.data_ptr() % _ALIGNED == 0 else tensor.clone()

    def _sizes(self, work: "_Work", clipped: bool | None = None) -> tuple[int, int]:
        """Number of clients, and number of rows of each client, to compute at once."""
        clips = self.clips_rows if clipped is None else clipped
        most = self.chunk or (min(_ROWS, max(1, _NUMBERS // self.d)) if clips else _ROWS)
        rows = min(most, work.rows)
        return max(1, most // rows), rows

    def _by_row(self, function: "_OfClient", x: Array, rows: Batch) -> Array:
        """The values of `function`, one for each row, (..., b)."""
        work = self._work(x, rows)
        found = np.empty((work.clients, work.rows))
        with self._computing(), torch.no_grad():
            for clients, place, part in work.parts(*self._sizes(work, False)):
                found[clients, place] = _over_clients(function, work.dims)(*part).cpu()
        return found.reshape(work.lead + (work.rows,))

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """A context with the configured number of torch threads and without NumPy's floating-point warnings."""
        before = torch.get_num_threads()
        torch.set_num_threads(self.threads)
        try:
            with np.errstate(all="ignore"):
                yield
        finally:
            torch.set_num_threads(before)

    # functions of one client: point (d,), features (b, ...), labels (b,), weights (b,)

    def _outputs(self, point: Tensor, features: Tensor) -> Tensor:
        return functional_call(self.module, self.parameters.named(point), (features,))  # type: ignore[no-any-return]

    def _row_loss(self, output: Tensor, label: Tensor) -> Tensor:
        return self.loss(output.reshape(()) if output.numel() == 1 else output, label)

    def _losses(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return vmap(self._row_loss)(self._outputs(point, features), labels)  # type: ignore[no-any-return]

    def _predictions(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        outputs = self._outputs(point, features).flatten(1)
        if outputs.shape[-1] > 1:
            return outputs.argmax(-1)
        return (outputs[..., 0] > 0).to(outputs) if self.classifies else outputs[..., 0]

    def _loss_of_row(self, point: Tensor, row: Tensor, label: Tensor) -> Tensor:
        return self._row_loss(self._outputs(point, row[None])[0], label)

    def _row_grads(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return vmap(grad(self._loss_of_row), (None, 0, 0))(point, features, labels)  # type: ignore[no-any-return]

    def _total(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        return (weights * self._losses(point, features, labels, weights)).sum()

    # functions of all clients in a part: (clients, d), or (d,) for a single client

    def _mean(self, part: list[Tensor], dims: "_Dims") -> Array:
        """The weighted sum of the rows' gradients, in one backward pass."""
        return to_point(_over_clients(grad(self._total), dims)(*part))

    def _clipped_mean(self, part: list[Tensor], dims: "_Dims") -> Array:
        """The weighted sum of the rows' gradients, each clipped to clip_norm.

        A gradient that is not finite, or too long to be clipped, counts as 0. It raises no error, because that would
        reveal information about the row.
        """
        grads = to_point(_over_clients(self._row_grads, dims)(*part))
        lengths = norms(grads)
        there = lengths <= clippable(self.clip_norm, lengths.dtype)
        grads[~there] = 0.0
        shares = np.where(there, clipping(self.clip_norm, lengths)[..., 0], 0.0) * to_point(part[3])
        return (shares[..., None, :] @ grads)[..., 0, :]  # type: ignore[no-any-return]

    # checks that need a call of the module

    def _probe(self, rows: Batch) -> Tensor:
        """The module's output for an artificial row; cached by the rows' width and by the types of rows and labels.

        Raises SettingError if an output depends on more than its own row, or if outputs do not fit the loss.
        """
        width = rows.features.shape[-1]
        kind = width, rows.features.dtype.kind in "iub", rows.labels.dtype.kind in "iub"
        if kind not in self._checked:
            with self._computing():
                self._checked[kind] = self._try(*kind)
        return self._checked[kind]

    def _try(self, width: int, whole_rows: bool, whole_labels: bool) -> Tensor:
        features, point = self._made_up(width, whole_rows), self.parameters.own()
        label = torch.zeros((), dtype=torch.int64 if whole_labels else point.dtype, device=point.device)
        with torch.no_grad():
            output = self._check_forward(features, width)
            self._check_output(output, label)
        labels, weights = label.expand(len(features)), point.new_ones(len(features))
        one = self._row_grads if self.clips_rows else grad(self._total)
        with in_one_sentence("torch cannot take the gradient of each row of this module"):
            one(point, features, labels, weights)
        return output

    def _check_stacked(self, work: "_Work") -> None:
        """SettingError if torch cannot vectorise this module over clients; checked once per combination of axes."""
        stacked = tuple(dim is not None for dim in work.dims)
        if stacked in self._checked or not any(stacked):
            return
        part = next(work.parts(1, 1))[2]
        with in_one_sentence("torch cannot take this module for clients at once, as the runtime cohort does"):
            self._checked[stacked] = _over_clients(grad(self._total), work.dims)(*part)

    def _made_up(self, width: int, whole: bool) -> Tensor:
        """Three artificial rows (3, *row_shape), independent of all data."""
        like = next(self.module.parameters())
        require(
            not self.row_shape or prod(self.row_shape) == width,
            f"rows have {width} numbers, and row_shape {self.row_shape} has {prod(self.row_shape)} (a bias column is "
            "one more: bias = false leaves it out)",
        )
        draw = torch.Generator().manual_seed(0)
        rows = torch.zeros(3, width) if whole else torch.randn(3, width, generator=draw)
        return rows.to(like.device, torch.int64 if whole else like.dtype).reshape(
            3, *(self.row_shape or (width,))
        )

    def _check_forward(self, features: Tensor, width: int) -> Tensor:
        point = self.parameters.own()
        with in_one_sentence(
            f"the module cannot take rows of {width} numbers: set row_shape, or leave out the bias column (bias = "
            "false)"
        ):
            return check_outputs(lambda rows: self._outputs(point, rows), self.module, features)[0]

    def _check_output(self, output: Tensor, label: Tensor) -> None:
        shape = tuple(output.shape)
        with (
            in_one_sentence(f"the loss does not fit the module's output of shape {shape} for a row"),
            no_broadcasting(),
        ):
            loss = self._row_loss(output, label)
        fits = isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point()
        require(
            fits,
            f"the loss of one row must be a scalar; for an output of shape {shape} and one label it gave "
            f"{tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__}",
        )


_Dims = tuple[int | None, ...]
_OfClient = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class _Work(NamedTuple):
    """The tensors of a computation over clients: points, features, labels and weights.

    A tensor whose entry in dims is 0 has a leading axis of clients; one whose entry is None is the same for all
    clients. lead is the shape of the client axes in the original arrays.
    """

    lead: tuple[int, ...]
    tensors: list[Tensor]
    dims: _Dims

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
                yield *where, [self._cut(place, *where) for place in range(4)]

    def _cut(self, place: int, clients: slice, rows: slice) -> Tensor:
        tensor, dim = self.tensors[place], self.dims[place]
        tensor = tensor if dim is None else tensor[clients]
        if place == 0:
            return tensor
        return tensor[rows] if dim is None else tensor[:, rows]


def _stacked(array: NDArray[Any], core: int, lead: tuple[int, ...]) -> tuple[NDArray[Any], int | None]:
    """An array (..., core axes) with one client axis, or with none if all clients share it; and its entry in dims."""
    inner = array.shape[-core:]
    if prod(array.shape[:-core]) == 1:
        return array.reshape(inner), None
    return np.broadcast_to(array, lead + inner).reshape(-1, *inner), 0


def _over_clients(function: Callable[..., Tensor], dims: _Dims) -> Callable[..., Tensor]:
    """A function of one client, vectorised (vmap) over the client axes given by dims."""
    return function if all(dim is None for dim in dims) else vmap(function, in_dims=dims)  # type: ignore[no-any-return]


def seeded(make: Callable[[], Any], seed: int) -> Any:
    """The result of make() with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()
