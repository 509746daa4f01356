"""Checks that need a call of the module, on artificial rows that are independent of all data."""

from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.func import grad

from ..errors import SettingError
from ..problems.interfaces import Batch
from .checks import check_outputs, in_one_sentence, no_broadcasting
from .rows import RowFunctions
from .stacked import Work, computing, over_clients


@dataclass(frozen=True)
class Probe:
    """Calls the functions once for each kind of rows. row_shape, threads: as in `ModuleObjective`. by_row: whether
    the gradient of each row is needed, and not only that of a sum."""

    functions: RowFunctions
    row_shape: tuple[int, ...]
    by_row: bool
    threads: int
    _checked: dict[Any, Tensor] = field(default_factory=dict)

    def output(self, rows: Batch) -> Tensor:
        """The module's output for an artificial row; cached by the rows' width and by the types of rows and labels.

        Raises SettingError if an output depends on more than its own row, or if outputs do not fit the loss.
        """
        width = rows.features.shape[-1]
        kind = width, rows.features.dtype.kind in "iub", rows.labels.dtype.kind in "iub"
        if kind not in self._checked:
            with computing(self.threads):
                self._checked[kind] = self._try(*kind)
        return self._checked[kind]

    def _try(self, width: int, whole_rows: bool, whole_labels: bool) -> Tensor:
        features, point = self._made_up(width, whole_rows), self.functions.parameters.current()
        label = torch.zeros((), dtype=torch.int64 if whole_labels else point.dtype, device=point.device)
        with torch.no_grad():
            output = self._check_forward(features, width)
            self._check_output(output, label)
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
        rows = torch.zeros(3, width) if whole else torch.randn(3, width, generator=draw)
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

    def _check_output(self, output: Tensor, label: Tensor) -> None:
        shape = tuple(output.shape)
        with (
            in_one_sentence(f"the loss does not fit the module's output of shape {shape} for a row"),
            no_broadcasting(),
        ):
            loss = self.functions.row_loss(output, label)
        fits = isinstance(loss, Tensor) and loss.shape == () and loss.is_floating_point()
        if not fits:
            raise SettingError(
                f"the loss of one row must be a scalar; for an output of shape {shape} and one label it gave "
                f"{tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__}"
            )
