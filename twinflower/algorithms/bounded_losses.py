"""Upper bounds on mean losses as a part of the problem: their settings, values, and whether a model satisfies them.

    F_m(x) - U_m = (1/n) sum over all n rows of [row in group m] (loss - U_m) <= 0,     m = 1..M

Values are sent in units of loss_clip, if losses are clipped to [0, loss_clip], as a private run needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, within
from ..errors import SettingError
from ..problems.constraints import (
    Constraint,
    check_classes,
    parse_constraints,
    shares,
)
from ..problems.interfaces import Batch, RowLosses, WeighsRows
from ..problems.objectives import mean_over
from ..settings import Setting, at_least
from .algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class BoundedLosses(Algorithm):
    """The settings of the bounds.

    constraints: see `twinflower.problems.constraints`. tolerance: the excess over a bound up to which the constraint
    counts as satisfied at the end. loss_clip: losses are clipped to [0, loss_clip]; 0 = no clipping.
    """

    constrained: ClassVar[bool] = True
    model_columns: ClassVar[tuple[str, ...]] = ("cost", "excess")

    constraints: Annotated[
        str, Setting("bounds on mean losses, such as 'cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4'")
    ] = "cost <= 0.3"
    tolerance: Annotated[float, Setting("by how much the final model may exceed a bound", at_least(0))] = 0.01
    loss_clip: Annotated[float, Setting("losses are clipped to [0, loss-clip]; 0: not at all", at_least(0))] = 0.0

    @cached_property
    def bounded(self) -> tuple[Constraint, ...]:
        """The parsed constraints."""
        return parse_constraints(self.constraints)

    @property
    def unit(self) -> float:
        """The unit of the values sent."""
        return self.loss_clip or 1.0

    def check_clip(self, private: bool) -> None:
        """Raise SettingError for a malformed constraint, or unless losses are clipped above every bound if they are
        clipped or the run is private."""
        largest = max(c.limit for c in self.bounded)
        if (self.loss_clip or private) and not largest < self.loss_clip < np.inf:
            raise SettingError(
                f"loss-clip must be above every bound, here {largest:g}, and a private run needs it; got "
                f"{self.loss_clip:g}"
            )

    def check(self, objective: Any) -> None:
        """Raise SettingError for an objective without losses of rows, or without a class that is bounded."""
        if not isinstance(objective, RowLosses):
            raise SettingError(f"{self.name} needs an objective with `losses`, the loss of each row")
        if isinstance(objective, WeighsRows) and objective.heaviest is not None:
            raise SettingError(
                f"{self.name} bounds mean losses, which rows with weights would change: use a method without bounds, "
                "or leave the weights out"
            )
        check_classes(self.bounded, objective)

    def excesses(self, losses: Array, rows: Batch) -> Array:
        """F_m - U_m on these rows, in units of loss_clip (..., M), given the rows' losses (..., b)."""
        if self.loss_clip:
            losses = within(losses, 0, self.loss_clip)  # a custom loss may also be negative, or NaN
        values = [(shares(c, rows, losses.dtype) * (losses - c.limit)).sum(-1) for c in self.bounded]
        return np.stack(values, -1) / self.unit

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The mean loss, and the largest excess over a bound (negative if all constraints are satisfied with a margin).
        """
        losses = objective.losses(x, rows)
        excess = max(c.excess(losses, rows) for c in self.bounded)
        return {"cost": float(mean_over(losses, rows)), "excess": excess}

    def satisfied(self, metrics: Mapping[str, float]) -> bool:
        """Whether all bounds hold to within the tolerance."""
        return metrics["excess"] <= self.tolerance
