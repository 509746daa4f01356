"""The bounds on costs of constrained SSCA: settings, what one record changes, and whether a model satisfies them.

With privacy "gradient", the gradients and values of a round are one release with noise. Values are means of losses
clipped to [0, loss_clip], divided by loss_clip before they are sent. ||S||^2 then includes the energy of the noise,
which is not subtracted, so the multipliers are smaller than without noise.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from ..arrays import Array
from ..errors import SettingError, require
from ..privacy.release import Release, Rounding
from ..problems.batches import Workload
from ..problems.constraints import groups_of_a_record, read_penalties
from ..problems.interfaces import Bounds
from ..problems.penalised import Penalised
from ..problems.regularisers import Zero
from ..settings import Setting
from .bounded_losses import BoundedLosses
from .messages import Vector
from .surrogates import Decay, Surrogates


@dataclass(frozen=True)
class CostBounds(Surrogates, BoundedLosses):
    """The settings of constrained SSCA: those of `surrogates.Surrogates` and `bounded_losses.BoundedLosses`, and
    penalties: c, or an increasing list of penalties.

    The default step_decay is larger than the paper's 0.3, with which fewer runs satisfy their constraints.
    """

    server_columns: ClassVar[tuple[str, ...]] = ("squared_norm", "nu", "slack")

    step_decay: Decay = 0.36
    penalties: Annotated[
        str, Setting("penalty c of a slack, or an increasing list of them", unit="comma-separated numbers",
                     numbers=True)
    ] = "1e5"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(isinstance(self.regulariser, Zero), "ssca-constrained minimises ||x||^2: set regulariser to none")
        literal = [c.name for c in self.bounded] == ["cost"]
        if self.surrogate != "exact" and not literal:
            raise SettingError(
                f"surrogate = literal supports only one constraint, a bound on the cost; got constraints "
                f"'{self.constraints}': use surrogate = exact"
            )
        read_penalties(self.penalties)
        self.check_clip(self.privacy != "none")

    def check_sum(self, steps: int) -> None:
        """Always raise SettingError: running on sums alone is not yet supported."""
        require(
            False,
            "trust sum does not support ssca-constrained, whose messages contain losses as well as gradients: use ssca",
        )

    @cached_property
    def costs(self) -> list[float]:
        """The penalties c."""
        return read_penalties(self.penalties)

    def check(self, objective: Any) -> None:
        """Raise SettingError for a penalty inside the loss, which would be bounded as well, once per group, and for
        unsuitable objectives."""
        require(
            not isinstance(objective, Penalised) or not (objective.l2 or objective.nonconvex),
            "ssca-constrained bounds the data loss alone: set l2 and nonconvex to 0",
        )
        super().check(objective)

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One release of all gradients and values.

        In a group that it stays in, a replaced record changes the gradient by at most 2 C and the value, loss - U in
        units of loss_clip, by at most 1. In a group that it leaves or joins, it changes them by at most C and 1, which
        is less. It is assumed to stay in the `others` groups (all rows, or a feature). By class, it either stays in at
        most `first` groups, or changes its class and leaves or joins at most `first` + `second` groups.
        """
        stays, moves = (2 * bounds.gradient) ** 2 + 1, bounds.gradient**2 + 1
        others, first, second = groups_of_a_record(self.bounded)
        squares = others * stays + max(first * stays, (first + second) * moves)
        return Release(math.sqrt(squares) * workload.replaced_in_batch / workload.rows)

    def rounding(
        self, state: Any, inbox: Vector, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for all gradients and for the values loss - U in units of loss_clip."""
        limits = math.fsum(1 + abs(c.limit) / self.loss_clip for c in self.bounded)
        return Rounding(len(self.bounded) * bounds.gradient + limits, 0.0)

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """||x||^2, the largest multiplier, and the total slack."""
        return {**super().server_metrics(server), "nu": server.nu, "slack": server.slack}
