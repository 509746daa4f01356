"""An `nn.Module` and a loss as an objective on flat points, with clipping of per-record gradients.

    f_i(x) = mean_j loss(module_x(a_j), y_j) + l2/2 ||x||^2 + nonconvex sum x^2 / (1 + x^2)

A point x (d,) is the concatenation of the module's parameters that take a gradient, in the order of
`module.named_parameters()`; the others stay as they are in the module. The module
computes in its own dtype. Points and gradients are doubles, and clipped gradients are summed in double precision, so
that the noise of a private run has to cover a sum of terms of norm at most clip_norm, up to relative rounding of 2^-53.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from importlib.util import module_from_spec, spec_from_file_location
from math import inf, prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import cross_entropy, mse_loss

from ..arrays import Array
from ..errors import SettingError, require
from ..problems.interfaces import Batch, Bounds, Part
from ..problems.objectives import mean_over, score_of
from ..problems.penalised import Penalised, Penalties
from .batched import Batched, Probe
from .checks import (
    check_loss,
    check_module,
    check_row_shape,
    check_whole,
    in_one_sentence,
)
from .parameters import Parameters, RowFunctions, RowLoss, State, to_point


@dataclass(frozen=True, eq=False)
class ModuleObjective(Penalised):
    """f_i of an `nn.Module` (formula at the top of this file); the objective works on a copy of the module.

    loss(output, label) is the scalar loss of one record, for example `torch.nn.functional.cross_entropy` (the default),
    `nn.HuberLoss()`, or a custom function; a single output is passed as a scalar. row_shape is the shape in which the
    module receives a row of n numbers, such as (1, 28, 28); if empty, (n,). A module that takes whole numbers only, as
    an embedding does, receives int64. With classifies = True the prediction is
    the index of the largest output (of a single output, whether it is positive), else the output itself. chunk is the
    number of rows computed at once; 0 chooses it for about 100 MB. threads is the number of torch threads; results are
    bit for bit the same for the same number. factory creates a new module for `start`, with torch's generator seeded;
    without it, every run starts at the module's own parameters. For clip_norm, l2, nonconvex and clip see `Penalised`.
    The class has more than 15 methods because the interfaces of an objective have: `Model`, `ChecksRows`, `NamedModel`.
    """

    module: nn.Module
    loss: RowLoss = cross_entropy
    row_shape: tuple[int, ...] = ()
    classifies: bool = True
    chunk: int = 0
    threads: int = 1
    factory: "Callable[[], nn.Module | ModuleObjective] | None" = None

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

    @cached_property
    def _functions(self) -> RowFunctions:
        return RowFunctions(self.module, self.parameters, self.loss, self.classifies)

    @cached_property
    def _batched(self) -> Batched:
        probe = Probe(self._functions, self.row_shape, self.clips_rows, self.threads)
        clip_norm = self.clip_norm if self.clips_rows else 0.0
        return Batched(self._functions, probe, clip_norm, self.chunk)

    @property
    def d(self) -> int:
        """Number of parameters that are trained."""
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
            return to_point(self.parameters.current())
        made = seeded(self.factory, int(draw.integers(2**63)))
        return to_point(Parameters(made.module if isinstance(made, ModuleObjective) else made).current())

    def bounds(self, row_norm: float) -> Bounds:
        """Public bounds from clip_norm; the curvature has no known bound. SettingError unless rows are clipped."""
        require(
            self.clips_rows,
            "a module's gradients have no public bound: set objective.clip-norm (clip_norm) above 0 for a private run, "
            "such as to 1; got 0",
        )
        return Bounds(self.clip_norm, inf, self.penalty_curvature)

    def losses(self, x: Array, rows: Batch) -> Array:
        """Loss of each row, (..., b), without the penalty."""
        return self._batched.by_row(self._functions.losses, x, rows)

    def value(self, x: Array, rows: Batch) -> Array:
        """Mean loss of the rows plus the smooth penalty, (...,)."""
        return mean_over(self.losses(x, rows), rows) + self.penalty(x)

    def grad(self, x: Array, rows: Batch) -> Array:
        """Gradient of `value`, (..., d)."""
        return self.full_grad(self._batched.mean_grad(x, rows), x)

    def predict(self, x: Array, features: NDArray[Any]) -> Array:
        """Predicted labels (..., b)."""
        rows = Batch(features, np.zeros(features.shape[:-1], np.int64 if self.classifies else float))
        return self._batched.by_row(self._functions.predictions, x, rows)

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

    def check_rows(self, rows: Batch) -> None:
        """SettingError for rows that the module or the loss does not accept, and for NaN and infinity."""
        require(
            bool(np.isfinite(rows.features).all()),
            "a row holds NaN or infinity: remove it, or fill in a number",
        )
        output = self._batched.probe.output(rows)
        if self._batched.probe.whole(rows) and not self.clips_rows:  # else it takes all
            self._check_whole(rows.features)
        labels = self._batched.tensor(np.unique(rows.labels))
        with in_one_sentence(
            "the loss does not take the labels: a class must be below the number of outputs"
        ):
            values = vmap(self._functions.row_loss, (None, 0))(output, labels)
        require(
            bool(torch.isfinite(values).all()),
            "the loss of a label is NaN or infinite: look for labels to ignore"
            if bool(torch.isfinite(output).all())
            else "the module's output is infinite for rows of normally distributed numbers: scale it down",
        )

    def _check_whole(self, features: NDArray[Any]) -> None:
        """SettingError for rows that are no whole numbers, or not those that the module takes."""
        if not len(features):
            return
        require(
            bool((features == np.floor(features)).all()),
            "the module takes whole numbers only, and a row holds another: round the rows",
        )
        ends = np.stack([features.min(0), features.max(0)])
        with in_one_sentence("the module does not take a whole number in the rows"):
            self.predict(self.start(), ends)


def seeded(make: Callable[[], Any], seed: int) -> Any:
    """The result of make() with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def load_objective(name: str, num_classes: int, **penalised: Any) -> ModuleObjective:
    """The objective called "torch:FILE.py:NAME", with the run's clip_norm, clip, l2 and nonconvex.

    NAME is a function without arguments. It returns either an nn.Module, which receives the rows unchanged and is
    trained with cross entropy (with squared error for regression), or a ModuleObjective, which can set the loss and
    the row shape. The run's seed determines the initial weights. Raises SettingError if the file or the function does
    not exist, or if it returns anything else.
    """
    path, factory = _parts(name)
    with in_one_sentence(f"{path}: {factory}() failed"):
        make = getattr(_imported(path), factory, None)
        if not callable(make):
            raise SettingError(f"{path} defines no function '{factory}'")
        made = seeded(make, 0)  # type: ignore[arg-type]
    objective = (
        made if isinstance(made, ModuleObjective) else _plain(made, num_classes, f"{path}: {factory}()")
    )
    overridden = [key for key in penalised if getattr(objective, key) != getattr(ModuleObjective, key)]
    if overridden:
        keys = ", ".join(overridden)
        raise SettingError(
            f"{path}: {keys} must be left to the run's settings; set {keys.replace('_', '-')} there"
        )
    return replace(objective, factory=make, **penalised)


def _plain(made: Any, num_classes: int, where: str) -> ModuleObjective:
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"{where} must return an nn.Module or a ModuleObjective; it returned {type(made).__name__}"
        )
    return ModuleObjective(made) if num_classes else ModuleObjective(made, mse_loss, classifies=False)


def _parts(name: str) -> tuple[Path, str]:
    """The file and the function's name in "torch:FILE.py:NAME"; SettingError for a malformed name or no such file."""
    _, _, rest = name.partition(":")
    path, colon, factory = rest.rpartition(":")
    if not (bool(colon) and path.endswith(".py") and factory.isidentifier()):
        raise SettingError(
            f"a PyTorch objective is written torch:FILE.py:NAME, NAME a function in that file; got '{name}'"
        )
    file = Path(path).expanduser().absolute()
    if not file.is_file():
        raise SettingError(f"there is no file {file}, which objective '{name}' names")
    return file, factory


def _imported(path: Path) -> ModuleType:
    """Import the file as a module. Its name is a hash of path and content, so that an edited file is imported again."""
    name = f"twinflower_torch_{path.stem}_{sha256(bytes(path) + path.read_bytes()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
