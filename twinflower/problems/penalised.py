"""What all objectives share: the smooth penalty, the clipping of gradients, and their settings."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from ..arrays import Array
from ..errors import SettingError, require
from ..norms import clipping, norms
from ..settings import Setting, at_least, check_settings, one_of
from .interfaces import Objective


@dataclass(frozen=True, kw_only=True)
class Penalised:
    """The smooth penalty l2/2 ||x||^2 + nonconvex sum x^2 / (1 + x^2), and gradient clipping.

    l2 and nonconvex are the papers' theta_2 and beta, both >= 0. clip_norm > 0 clips data gradients to that norm.
    clip = "rows" clips the gradient of every row and then takes the mean; clip = "batch" clips the mean gradient of the
    batch, which Assumption 3 of Li 2023 and Li 2024 bounds by G. With "batch", one record can move the clipped mean by
    up to 2 clip_norm for any batch size; with "rows", by at most 2 clip_norm / rows (`check_clipping`).
    """

    l2: float = 0.0
    nonconvex: float = 0.0
    clip_norm: float = 0.0
    clip: str = "rows"

    @property
    def penalty_curvature(self) -> tuple[float, float]:
        """An interval that contains the curvature of the penalty."""
        return self.l2 - self.nonconvex / 2, self.l2 + 2 * self.nonconvex

    def penalty(self, x: Array) -> Array:
        """Value of the penalty, (...,)."""
        squares = x * x
        wells = self.nonconvex * (squares / (1.0 + squares)).sum(-1) if self.nonconvex else 0.0
        return 0.5 * self.l2 * squares.sum(-1) + wells

    @cached_property
    def clips_rows(self) -> bool:
        """Whether gradients are clipped row by row."""
        return self.clip_norm > 0 and self.clip == "rows"

    def full_grad(self, grad: Array, x: Array, scale: float = 1.0) -> Array:
        """scale times the full gradient at x (..., d), given scale times the mean data gradient, `grad` (..., d), which
        is overwritten: it is clipped if clip = "batch", and the penalty's gradient is added."""
        if self.clip_norm and self.clip == "batch":
            grad *= clipping(scale * self.clip_norm, norms(grad))
        return self.add_penalty_grad(grad, x, scale)

    def add_penalty_grad(self, grad: Array, x: Array, scale: float = 1.0) -> Array:
        """Add scale times the penalty's gradient to `grad` in place: memory bandwidth limits large cohorts."""
        if self.l2:
            grad += (scale * self.l2) * x
        if self.nonconvex:  # 2 nonconvex x / (1 + x^2)^2
            slope = x * x
            slope += 1.0
            slope *= slope
            np.divide(x, slope, out=slope)
            slope *= scale * 2.0 * self.nonconvex
            grad += slope
        return grad


def check_clipping(objective: Objective, privacy: str) -> None:
    """SettingError if the guarantee needs a gradient bound for every record, but the objective clips batch means."""
    by_batch = isinstance(objective, Penalised) and objective.clip == "batch"
    if by_batch and privacy not in ("none", "as-published"):
        raise SettingError(
            f"clip must be rows with privacy {privacy}: a mean gradient clipped at C can move by 2 C with one record, "
            "however many rows the batch has, and the guarantee counts on 2 C / rows; got 'batch'"
        )


@dataclass(frozen=True)
class Penalties:
    """The settings that all objectives share."""

    name: str = ""
    l2: Annotated[float, Setting("weight of the penalty ||x||^2 / 2", at_least(0))] = 0.0
    nonconvex: Annotated[float, Setting("weight of the penalty sum x^2 / (1 + x^2)", at_least(0))] = 0.0
    clip_norm: Annotated[float, Setting("largest norm of a data gradient; 0: no clipping", at_least(0))] = 0.0
    clip: Annotated[
        str,
        Setting("gradients that clip-norm bounds: of every row, or of the batch", one_of(("rows", "batch"))),
    ] = "rows"

    @property
    def form(self) -> dict[str, Any]:
        """The settings without which the scores of a point cannot be computed, by their names."""
        return {}

    def check(self) -> None:
        """SettingError for settings that are out of range or contradict each other."""
        check_settings(self)
        require(
            self.clip == "rows" or self.clip_norm > 0,
            "clip = batch needs clip-norm above 0, the bound on a batch's gradient",
        )
