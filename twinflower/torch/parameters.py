"""Conversion between a module's parameters and a flat vector, in the order of `module.named_parameters()`."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import Array
from ..errors import SettingError
from ..problems.regularisers import Span

State = Mapping[str, Tensor]


class Parameters:
    """Names, shapes and positions of a module's parameters; tied weights, which have several names, count once."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = dict(module.named_parameters())
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
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.module.parameters()])

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
        tied = {id(tensor): name for name, tensor in self.module.named_parameters()}
        alias = {n: tied[id(p)] for n, p in self.module.named_parameters(remove_duplicate=False)}
        state = self.module.state_dict()
        return {key: (values[alias[key]] if key in alias else state[key]).clone() for key in state}

    def flat(self, state: State) -> Array:
        """The parameters in a state_dict as a point (d,); SettingError unless names, shapes and buffers match."""
        mine = self.module.state_dict()
        if not (isinstance(state, Mapping) and all(isinstance(tensor, Tensor) for tensor in state.values())):
            raise SettingError(
                f"a state_dict maps names to tensors; got {type(state).__name__}: call module.state_dict()"
            )
        self._check_keys(mine.keys(), state)
        for name, tensor in mine.items():
            got, wanted = tuple(state[name].shape), tuple(tensor.shape)
            if got != wanted:
                raise SettingError(
                    f"the state_dict has '{name}' with shape {got}; the module's has shape {wanted}"
                )
        for name, buffer in self.module.named_buffers():
            if name in mine and not torch.equal(state[name].to(buffer), buffer):
                raise SettingError(
                    f"the state_dict has another buffer '{name}' than the module: call module.load_state_dict(state) "
                    "and make the objective from that module"
                )
        return to_point(torch.cat([state[name].detach().reshape(-1) for name in self.names]))

    def _check_keys(self, mine: Any, state: State) -> None:
        missing, strange = sorted(mine - state.keys()), sorted(state.keys() - mine)
        if missing or strange:
            raise SettingError(
                f"the state_dict is not of this module: it lacks {', '.join(missing) or 'nothing'} and has "
                f"{', '.join(strange) or 'nothing'} besides"
            )


def to_point(tensor: Tensor) -> Array:
    """A copy of the tensor as a NumPy array of doubles, the type of all points."""
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()  # type: ignore[no-any-return]
