"""A module's parameters as one flat vector, in the order of `module.named_parameters()`, and back."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ..arrays import Array
from ..errors import require
from ..regularisers import Span

State = Mapping[str, Tensor]


class Parameters:
    """Names, shapes and places of a module's parameters; one that has two names (tied weights) counts once."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = dict(module.named_parameters())
        self.names = list(named)
        self.shapes = [tuple(tensor.shape) for tensor in named.values()]
        self.sizes = [prod(shape) for shape in self.shapes]
        self.count = sum(self.sizes)

    @cached_property
    def spans(self) -> dict[str, Span]:
        """Where each parameter stands in the flat vector."""
        return dict(zip(self.names, pairwise(accumulate(self.sizes, initial=0)), strict=True))

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters (by name) in a flat vector (d,): views, no copies."""
        parts = flat.split(self.sizes)
        return {n: part.view(s) for n, part, s in zip(self.names, parts, self.shapes, strict=True)}

    def own(self) -> Tensor:
        """The module's own parameters, (d,)."""
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.module.parameters()])

    def chosen(self, patterns: str) -> dict[str, Span]:
        """Names and places of the parameters that match "*.weight, head.bias", as file names are matched.

        SettingError for a pattern that matches none.
        """
        found: dict[str, Span] = {}
        for pattern in map(str.strip, patterns.split(",")):
            hits = {name: span for name, span in self.spans.items() if fnmatchcase(name, pattern)}
            require(bool(hits), f"no parameter is called '{pattern}'; there are {', '.join(self.names)}")
            found |= hits
        return dict(sorted(found.items(), key=lambda item: item[1]))

    def state_dict(self, x: Array) -> dict[str, Tensor]:
        """The module's state_dict with its parameters at the point x (d,); the module itself is not changed."""
        flat = torch.as_tensor(x).to(self.own())
        values = self.named(flat)
        tied = {id(tensor): name for name, tensor in self.module.named_parameters()}
        alias = {n: tied[id(p)] for n, p in self.module.named_parameters(remove_duplicate=False)}
        state = self.module.state_dict()
        return {key: (values[alias[key]] if key in alias else state[key]).clone() for key in state}

    def flat(self, state: State) -> Array:
        """The point (d,) of a state_dict of this module; SettingError where it belongs to another one."""
        mine = self.module.state_dict()
        require(
            isinstance(state, Mapping) and all(isinstance(tensor, Tensor) for tensor in state.values()),
            f"a state_dict maps names to tensors; got {type(state).__name__}: call module.state_dict()",
        )
        self._check_keys(mine.keys(), state)
        for name, tensor in mine.items():
            got, wanted = tuple(state[name].shape), tuple(tensor.shape)
            require(
                got == wanted,
                f"the state_dict has '{name}' with shape {got}; the module's has shape {wanted}",
            )
        for name, buffer in self.module.named_buffers():
            require(
                name not in mine or torch.equal(state[name].to(buffer), buffer),
                f"the state_dict has another buffer '{name}' than the module: call module.load_state_dict(state) and "
                "make the objective from that module",
            )
        return to_point(torch.cat([state[name].detach().reshape(-1) for name in self.names]))

    def _check_keys(self, mine: Any, state: State) -> None:
        missing, strange = sorted(mine - state.keys()), sorted(state.keys() - mine)
        require(
            not missing and not strange,
            f"the state_dict is not of this module: it lacks {', '.join(missing) or 'nothing'} and has "
            f"{', '.join(strange) or 'nothing'} besides",
        )


def to_point(tensor: Tensor) -> Array:
    """A new NumPy array of doubles, as all points are."""
    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()  # type: ignore[no-any-return]
