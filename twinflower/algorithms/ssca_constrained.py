"""Constrained mini-batch SSCA: the smallest model whose cost is at most U (Ye 2021, Algorithm 2 with (18), (8)).

    minimise  ||x||^2     subject to     F_m(x) <= U_m,   m = 1..M,    F_m a mean of losses over (a group of) the rows

client keeps     nothing
       receives  x (..., d)
       sends     for every m, from one random batch at x: gradient and value of F_m - U_m, (..., M d + M)
server keeps     x (..., d); for every m the surrogate's slope S_m and constant A_m (..., M d + M); and the surrogate's
                 weight kappa, the largest multiplier nu, the slack of the last step, the index of the current penalty
                 and the current stage of the run (...,)
A client that does not reply is left out; clients are weighted by their rows (see `ssca`).

    Fbar_m(x) = <S_m, x> + tau kappa ||x||^2 + A_m,     U inside A_m, so that it is averaged with the same weights
    min ||x||^2 + c sum s_m,   Fbar_m(x) <= s_m,   s >= 0                                            Problem 5, (19)

The dual problem has M multipliers in [0, c]: x = -sum nu_m S_m / (2 (1 + tau kappa sum nu)). The paper's A-bar has
+y log Q, the negative of the cost; with that sign the model shrinks to 0. surrogate = "literal" is the paper's (23),
with kappa = 1 and U outside, for one bound on the whole cost. With penalties "10, 1e3, 1e5" the run has three stages,
and each stage starts a new surrogate. If a stage ends with positive slack, the next stage uses the next penalty.

Privacy. With "gradient", the gradients and values of a round are one release with noise. Values are means of losses
clipped to [0, loss_clip], divided by loss_clip before they are sent. ||S||^2 then includes the energy of the noise,
which is not subtracted, so nu is smaller than without noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..batches import Workload
from ..constraints import Constraint, check_classes, groups_of_a_record, parse_constraints, read_penalties
from ..errors import require
from ..objectives import Batch, Bounds, Penalised, RowLosses
from ..privacy.release import Release, Rounding
from ..regularisers import Zero
from ..settings import Setting, at_least
from .abilities import Constrained, RestrictsObjective
from .layout import Layout, Point
from .messages import Vector
from .multipliers import multipliers
from .surrogates import Decay, Surrogates


class Server(NamedTuple):
    """The server's state; the module's docstring gives the shapes."""

    x: Array
    surrogate: Array
    kappa: Array
    nu: Array
    slack: Array
    level: Index
    stage: Index


@dataclass(frozen=True)
class ConstrainedSSCA(Surrogates, Constrained, RestrictsObjective):
    """The method with the settings of `surrogates.Surrogates` and the following ones.

    constraints: see `twinflower.constraints`. penalties: c, or an increasing list of penalties. tolerance: the excess
    over a bound up to which the constraint counts as satisfied at the end. loss_clip: losses are clipped to [0,
    loss_clip]; 0 = no clipping. The default step_decay is larger than the paper's 0.3, with which fewer runs satisfy
    their constraints.
    """

    name: ClassVar[str] = "ssca-constrained"
    title: ClassVar[str] = "constrained SSCA (Ye 2021): the smallest model whose cost, or cost per group, is at most U"
    server_columns: ClassVar[tuple[str, ...]] = ("squared_norm", "nu", "slack")
    model_columns: ClassVar[tuple[str, ...]] = ("cost", "excess")

    step_decay: Decay = 0.36
    constraints: Annotated[
        str, Setting("bounds on mean losses, such as 'cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4'")
    ] = "cost <= 0.3"
    penalties: Annotated[
        str, Setting("penalty c of a slack, or an increasing list of them", unit="numbers with commas between",
                     numbers=True)
    ] = "1e5"
    tolerance: Annotated[float, Setting("by how much the final model may exceed a bound", at_least(0))] = 0.01
    loss_clip: Annotated[float, Setting("losses are clipped to [0, loss-clip]; 0: not at all", at_least(0))] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            isinstance(self.regulariser, Zero),
            "ssca-constrained minimises ||x||^2 itself: set regulariser to none",
        )
        literal = [c.name for c in self.bounded] == ["cost"]
        require(
            self.surrogate == "exact" or literal,
            f"surrogate = literal supports only one constraint, a bound on the cost; got constraints "
            f"'{self.constraints}': use surrogate = exact",
        )
        read_penalties(self.penalties)
        largest = max(c.limit for c in self.bounded)
        require(
            (not self.loss_clip and self.privacy == "none") or largest < self.loss_clip < np.inf,
            f"loss-clip must be above every bound, here {largest:g}, and a private run needs it; got "
            f"{self.loss_clip:g}",
        )

    def check_sum(self, steps: int) -> None:
        """Always raise SettingError: running on sums alone is not yet supported."""
        require(False, "trust sum takes no ssca-constrained: its messages hold losses beside gradients; choose ssca")

    @cached_property
    def upload(self) -> Layout:
        """The layout of one array with M gradients (d,), followed by M values."""
        m = len(self.bounded)
        return Layout(Vector, Point("x", per_entry=m, extra=m))

    @cached_property
    def bounded(self) -> tuple[Constraint, ...]:
        """The parsed constraints."""
        return parse_constraints(self.constraints)

    @cached_property
    def _costs(self) -> list[float]:
        return read_penalties(self.penalties)

    def check(self, objective: Any) -> None:
        """Raise SettingError for a penalty inside the loss, which would be bounded as well, once per group, and for
        unsuitable objectives."""
        require(
            not isinstance(objective, Penalised) or not (objective.l2 or objective.nonconvex),
            "ssca-constrained bounds the data loss alone: set l2 and nonconvex to 0",
        )
        require(
            isinstance(objective, RowLosses), "ssca-constrained needs an objective with `losses`, the loss of each row"
        )
        check_classes(self.bounded, objective)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start at x = start with empty surrogates and the first penalty."""
        none = np.zeros(start.shape[:-1])
        surrogate = np.zeros((*start.shape[:-1], len(self.bounded) * (start.shape[-1] + 1)))
        return Server(start, surrogate, none, none, none, *2 * [none.astype(np.int64)])

    def estimate(self, objective: Any, x: Array, rows: Batch) -> Array:
        """The gradients, then the values, of F_m - U_m on these rows, (..., M d + M)."""
        losses = objective.losses(x, rows)
        share = 1.0 / losses.shape[-1] if rows.weights is None else rows.weights
        if self.loss_clip:
            losses = np.clip(losses, 0, self.loss_clip)  # also for custom losses, which may be negative
        weights = [share * c.members(rows) for c in self.bounded]
        grads = [objective.grad(x, rows._replace(weights=w)) for w in weights]
        values = [(w * (losses - c.limit)).sum(-1) for w, c in zip(weights, self.bounded, strict=True)]
        return np.concatenate([*grads, np.stack(values, -1) / (self.loss_clip or 1.0)], axis=-1)

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
        return Release(math.sqrt(squares) / workload.rows)

    def rounding(self, state: Any, inbox: Vector, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """The bound for all gradients and for the values loss - U in units of loss_clip."""
        limits = math.fsum(1 + abs(c.limit) / self.loss_clip for c in self.bounded)
        return Rounding(len(self.bounded) * bounds.gradient + limits)

    def server_update(self, server: Server, uploads: Vector, clients: Index, round_: int) -> Server:
        """Update the surrogates, compute the multipliers, and move x towards the solution of (19)."""
        server, t = self._stage(server, round_)
        x, old, kappa, *_, level, stage = server
        rho, gamma = self.weights(t)                                            # (3), (5)
        told = self.mean(uploads.x, clients)
        gradients, values = np.split(told, [-len(self.bounded)], -1)
        self.refuse_rest(x, gradients, values.any(-1))
        surrogate = (1 - rho) * old + rho * self.linearised(x, told)            # (7), (14), (15), (20)
        kappa = (1 - rho) * kappa + rho
        slopes, constants, weight = self._quadratics(surrogate, kappa)
        nu = multipliers(slopes, constants, self.curvature * weight, np.array(self._costs)[level])
        width = 2 * (1 + self.curvature * weight * nu.sum(-1))
        lowest = -(nu[..., None] * slopes).sum(-2) / width[..., None]           # (21), (22)
        values = (slopes * lowest[..., None, :]).sum(-1) + constants
        values = values + (self.curvature * weight * (lowest**2).sum(-1))[..., None]
        x = (1 - gamma) * x + gamma * lowest                                    # (4)
        return Server(x, surrogate, kappa, nu.max(-1), np.maximum(values, 0).sum(-1), level, stage)

    def _stage(self, server: Server, round_: int) -> tuple[Server, int]:
        """The server's state at the beginning or in the middle of a stage, and the number of the round within the
        stage."""
        count = len(self._costs)
        length = max(1, self.info.rounds // count)
        stage = min((round_ - 1) // length, count - 1)
        t = round_ - stage * length
        if (server.stage == stage).all():
            return server, t
        level, stages = server.level + (server.slack > self.tolerance), np.full_like(server.stage, stage)
        return server._replace(surrogate=0 * server.surrogate, kappa=0 * server.kappa, level=level, stage=stages), t

    def linearised(self, x: Array, told: Array) -> Array:
        """The contribution of all gradients and values to S_m and A_m: g - 2 tau x and f - U + tau ||x||^2 - <g, x>."""
        g, f = self._parts(told)
        f = f * (self.loss_clip or 1.0)
        slopes = g - 2 * self.curvature * x[..., None, :]
        constants = f + self.curvature * (x**2).sum(-1)[..., None] - (g * x[..., None, :]).sum(-1)
        return np.concatenate([slopes.reshape(*slopes.shape[:-2], -1), constants], axis=-1)

    def _parts(self, flat: Array) -> tuple[Array, Array]:
        """Split a flat array into vectors (..., M, d) and numbers (..., M)."""
        m = len(self.bounded)
        return flat[..., :-m].reshape(*flat.shape[:-1], m, -1), flat[..., -m:]

    def _quadratics(self, surrogate: Array, kappa: Array) -> tuple[Array, Array, Array]:
        """S (..., M, d), A (..., M) and the weight of tau ||x||^2 (...,)."""
        slopes, constants = self._parts(surrogate)
        if self.surrogate == "exact":
            return slopes, constants, kappa
        return slopes, constants - (1 - kappa)[..., None] * self.bounded[0].limit, np.ones_like(kappa)

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """||x||^2, the largest multiplier, and the total slack."""
        return {**super().server_metrics(server), "nu": server.nu, "slack": server.slack}

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The mean loss, and the largest excess over a bound (negative if all constraints are satisfied with a margin).
        """
        losses = objective.losses(x, rows)
        return {"cost": float(losses.mean()), "excess": max(c.excess(losses, rows) for c in self.bounded)}

    def satisfied(self, metrics: Mapping[str, float]) -> bool:
        """Whether all bounds hold to within the tolerance."""
        return metrics["excess"] <= self.tolerance
