"""The problem and the switch of FedSGM (`fedsgm`): settings, mixed gradients, measures, and what one record changes."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, Index
from ..errors import require
from ..privacy.release import Release, Rounding, gradient_release
from ..problems.batches import Workload
from ..problems.constraints import Group, check_classes, groups_of_a_record, parse_group, shares
from ..problems.interfaces import Batch, Bounds
from ..problems.penalised import Penalised
from ..problems.regularisers import Zero
from ..settings import Setting, at_least, one_of
from .base import LocalMethod
from .bounded_losses import BoundedLosses


@dataclass(frozen=True)
class Switching(LocalMethod, BoundedLosses):
    """The settings of `LocalMethod` (`missing` and `sensitivity` have no effect) and of `BoundedLosses`, and these.

    minimise: the group whose mean loss is f; "none" leaves the objective's penalty alone. threshold: epsilon in (4).
    switching, beta: (4); with beta = 0 it is the theory's least, 2 / epsilon. final_model: "average" is (6).
    """

    modes: ClassVar[tuple[str, ...]] = ("none", "gradient")
    server_columns: ClassVar[tuple[str, ...]] = ("switch", "squared_norm")
    model_columns: ClassVar[tuple[str, ...]] = ("cost", "excess", "group_cost", "group_objective")

    minimise: Annotated[str, Setting("rows whose mean loss is minimised: cost, class C, feature J or none")] = field(
        default="cost", kw_only=True
    )
    threshold: Annotated[
        float, Setting("excess of a bound, as a mean over all rows, above which steps follow it", at_least(0))
    ] = field(default=0.001, kw_only=True)
    switching: Annotated[
        str, Setting("steps along either, or near the threshold along both", one_of(("hard", "soft")))
    ] = field(default="hard", kw_only=True)
    beta: Annotated[float, Setting("slope of a soft switch; 0: 2 / threshold", at_least(0))] = field(
        default=0.0, kw_only=True
    )
    final_model: Annotated[
        str, Setting("model to evaluate and deploy: the last, the mean of those that followed the objective, or of the "
                     "last part", one_of(("last", "average", "tail-mean")))
    ] = field(default="average", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.regulariser, Zero),
            "fedsgm has no prox: set regulariser to none, and write a penalty as objective.l2",
        )
        require(
            self.switching == "hard" or bool(self.beta or self.threshold),
            "a soft switch needs beta or threshold above 0: set fedsgm.threshold, or switching to hard",
        )
        self.group  # noqa: B018  raises SettingError
        self.check_clip(self.privacy != "none")

    def check_sum(self, steps: int) -> None:
        """Always raise SettingError: running on sums alone is not yet supported."""
        require(False, "trust sum does not support fedsgm, whose messages contain losses as well as steps: use fedavg")

    def check(self, objective: Any) -> None:
        """Raise SettingError for an objective without losses of rows, or without a class that is named."""
        super().check(objective)
        check_classes([self.group], objective)

    @cached_property
    def group(self) -> Group:
        """The rows whose mean loss is f."""
        return parse_group(self.minimise, "minimise")

    def slope(self, objective: Any, x: Array, rows: Batch, inbox: Any) -> Array:
        """The gradient (..., d) of (1 - s) f_j + s g_jm at x on these rows."""
        s = inbox.switch[..., None]
        bound = sum((inbox.bound == m)[..., None] * shares(c, rows, x.dtype) for m, c in enumerate(self.bounded))
        weights = (1 - s) * shares(self.group, rows, x.dtype) + s * bound
        grad = objective.grad(x, rows._replace(weights=weights))
        if isinstance(objective, Penalised):  # the penalty belongs to f_j alone
            grad -= s * objective.add_penalty_grad(np.zeros_like(grad), x)
        return grad  # type: ignore[no-any-return]

    def decided(self, values: Array) -> tuple[Array, Index]:
        """s and m (...,) from the mean values (..., M)."""
        over, bound = values.max(-1) - self.threshold, values.argmax(-1)
        if self.switching == "hard":
            return (over > 0).astype(values.dtype), bound                       # (4)
        return np.clip(1 + (self.beta or 2 / self.threshold) * over, 0, 1), bound

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """s of the next round, and ||w||^2 of the model."""
        return {"switch": server.switch, "squared_norm": (self.model(server) ** 2).sum(-1)}

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """Those of `BoundedLosses`, the mean loss of the group that is minimised, and f."""
        group_rows = rows._replace(weights=shares(self.group, rows, x.dtype))
        return {
            **super().model_metrics(x, objective, rows),
            "group_cost": self.group.mean_loss(objective.losses(x, rows), rows),
            "group_objective": float(objective.value(x, group_rows)),
        }

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy gradients of all steps, all charged as the first one, which holds the values, too.

        A record is in the groups of all rows and of features, and in those of its class; a value that it stays in,
        leaves or joins moves by at most 1.
        """
        release = gradient_release(bounds, workload)
        squares = (2 * bounds.gradient) ** 2 + sum(groups_of_a_record(self.bounded))
        return release._replace(sensitivity=math.sqrt(squares) * workload.replaced_in_batch / workload.rows)

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for each gradient, and for the values in units of loss_clip."""
        loop = super().rounding(state, inbox, bounds, workload, round_, sigma)
        return loop._replace(size=loop.size + math.fsum(1 + c.limit / self.unit for c in self.bounded))
