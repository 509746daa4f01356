"""A module's parameters that are trained as a flat vector, in the order of `module.named_parameters()`, and the module
and a loss as functions of it and of the rows of one client."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..arrays import Array
from ..errors import SettingError
from ..problems.regularisers import Span

State = Mapping[str, Tensor]


class Parameters:
    """Names, shapes and positions of a module's parameters; tied weights, which have several names, count once.

    Frozen ones, which take no gradient, stay as they are in the module and are no part of a point.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = dict(trained(module))
        self.names = list(named)
        self.shapes = [tuple(tensor.shape) for tensor in named.values()]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)

    @cached_property
    def spans(self) -> dict[str, Span]:
        """The span (first, end) of each parameter in the flat vector, by name."""
        return dict(zip(self.names, pairwise(accumulate(self.sizes, initial=0)), strict=True))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters in a flat vector (d,), by name, as views."""
        parts = flat.split(self.sizes)
        return {n: part.view(s) for n, part, s in zip(self.names, parts, self.shapes, strict=True)}

    def current(self) -> Tensor:
        """The module's current parameters as a flat vector (d,)."""
        return torch.cat([tensor.detach().reshape(-1) for _, tensor in trained(self.module)])

    def chosen(self, patterns: str) -> dict[str, Span]:
        """Names and spans of the parameters that match comma-separated patterns such as "*.weight, head.bias".

        Patterns work as for file names (fnmatch). Raises SettingError for a pattern without a match.
        """
        spans: dict[str, Span] = {}
        for pattern in map(str.strip, patterns.split(",")):
            hits = {name: span for name, span in self.spans.items() if fnmatchcase(name, pattern)}
            if not hits:
                raise SettingError(f"no parameter is called '{pattern}'; there are {', '.join(self.names)}")
            spans |= hits
        return dict(sorted(spans.items(), key=lambda item: item[1]))

    def state_dict(self, x: Array) -> dict[str, Tensor]:
        """The module's state_dict with its parameters set to x (d,); the module itself does not change."""
        flat = torch.as_tensor(x).to(self.current())
        values = self.named(flat)
        tied = {id(tensor): name for name, tensor in trained(self.module)}
        named = self.module.named_parameters(remove_duplicate=False)
        alias = {name: tied[id(tensor)] for name, tensor in named if id(tensor) in tied}
        state = self.module.state_dict()
        return {key: (values[alias[key]] if key in alias else state[key]).clone() for key in state}

    def flat(self, state: State) -> Array:
        """The parameters in a state_dict as a point (d,); SettingError unless names, shapes, buffers and frozen
        parameters match."""
        mine = self.module.state_dict()
        if not (isinstance(state, Mapping) and all(isinstance(tensor, Tensor) for tensor in state.values())):
            raise SettingError(
                f"a state_dict maps names to tensors; got {type(state).__name__}: call module.state_dict()"
            )
        _check_keys(mine.keys(), state)
        for name, tensor in mine.items():
            got, wanted = tuple(state[name].shape), tuple(tensor.shape)
            if got != wanted:
                raise SettingError(
                    f"the state_dict has '{name}' with shape {got}; the module's has shape {wanted}"
                )
        frozen = [
            (n, p, "frozen parameter") for n, p in self.module.named_parameters() if not p.requires_grad
        ]
        for name, fixed, kind in [*((n, b, "buffer") for n, b in self.module.named_buffers()), *frozen]:
            if name in mine and not torch.equal(state[name].to(fixed), fixed):
                raise SettingError(
                    f"the state_dict has another {kind} '{name}' than the module: call module.load_state_dict(state) "
                    "and make the objective from that module"
                )
        return to_point(torch.cat([state[name].detach().reshape(-1) for name in self.names]))


def _check_keys(mine: Any, state: State) -> None:
    missing, strange = sorted(mine - state.keys()), sorted(state.keys() - mine)
    if missing or strange:
        raise SettingError(
            f"the state_dict is not of this module: it lacks {', '.join(missing) or 'nothing'} and has "
            f"{', '.join(strange) or 'nothing'} besides"
        )


def trained(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a module that take a gradient, by name."""
    return ((name, tensor) for name, tensor in module.named_parameters() if tensor.requires_grad)


def to_point(tensor: Tensor) -> Array:
    """A copy of the tensor as a NumPy array of doubles, the type of all points."""
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()  # type: ignore[no-any-return]


RowLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class RowFunctions:
    """Functions of one client: point (d,), features (b, ...), labels (b,), weights (b,). See `ModuleObjective`."""

    module: nn.Module
    parameters: Parameters
    loss: RowLoss
    classifies: bool

    def outputs(self, point: Tensor, features: Tensor) -> Tensor:
        """The outputs of the module for the rows, (b, ...)."""
        return functional_call(self.module, self.parameters.named(point), (features,))  # type: ignore[no-any-return]

    def row_loss(self, output: Tensor, label: Tensor) -> Tensor:
        """The loss () of one output; a single number is passed as a scalar."""
        return self.loss(output.reshape(()) if output.numel() == 1 else output, label)

    def losses(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The loss of each row, (b,)."""
        return vmap(self.row_loss)(self.outputs(point, features), labels)  # type: ignore[no-any-return]

    def predictions(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The predicted labels (b,)."""
        outputs = self.outputs(point, features).flatten(1)
        if outputs.shape[-1] > 1:
            return outputs.argmax(-1)
        return (outputs[..., 0] > 0).to(outputs) if self.classifies else outputs[..., 0]

    def loss_of_row(self, point: Tensor, row: Tensor, label: Tensor) -> Tensor:
        """The loss () of one row (...)."""
        return self.row_loss(self.outputs(point, row[None])[0], label)

    def row_grads(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The gradient of each row's loss, (b, d)."""
        return vmap(grad(self.loss_of_row), (None, 0, 0))(point, features, labels)  # type: ignore[no-any-return]

    def total(self, point: Tensor, features: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """The weighted sum of the losses, ()."""
        return (weights * self.losses(point, features, labels, weights)).sum()
