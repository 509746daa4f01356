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
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..errors import RunError, SettingError, require
from ..privacy.release import Release, Rounding
from ..problems.batches import Workload
from ..problems.constraints import groups_of_a_record, read_penalties, shares
from ..problems.interfaces import Batch, Bounds, losses_and_grads
from ..problems.penalised import Penalised
from ..problems.regularisers import Zero
from ..settings import Setting
from .bounded_losses import BoundedLosses
from .layout import Layout, Point
from .messages import Vector
from .ssca import Decay, Surrogates


@dataclass(frozen=True)
class CostBounds(Surrogates, BoundedLosses):
    """The bounds on costs: settings, what one record changes, and measures.

    With privacy "gradient", the gradients and values of a round are one release with noise. ||S||^2 then includes the
    energy of the noise, which is not subtracted, so the multipliers are smaller than without noise.

    The settings are those of `ssca.Surrogates` and `bounded_losses.BoundedLosses`, and
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


_ROUNDING = 32 * np.finfo(float).eps
_STEPS = 100  # per bound


def multipliers(slopes: Array, constants: Array, curvature: Array, penalty: Array) -> Array:
    """The multipliers nu (..., M) of Problem 5 with (19), solved to rounding, for slopes S (..., M, d), constants A
    (..., M), curvature k and penalty c (...,), both above 0.

        minimise  ||x||^2 + c sum s     subject to     <S_m, x> + k ||x||^2 + A_m <= s_m,   s >= 0,   m = 1..M

    For multipliers nu (M,) the Lagrangian is lowest at x = -S'nu / (2 w), w = 1 + k sum nu, so that the dual

        D(nu) = <A, nu> - nu'G nu / (4 w)     over [0, c]^M,     G = S S'

    needs the Gram matrix of the slopes only. D is concave, and with p = G nu its derivatives are

        slope_m = A_m - p_m / (2 w) + k nu'p / (4 w^2)              the excess over bound m at that x
        -hessian = B'G B / (2 w),   B = I - (k / w) nu 1'           semidefinite, singular where G is

    For one bound, nu has the closed form (23). For several bounds, nu is found by an active-set method. Each Newton
    step moves the free multipliers to the exact maximum along its line, or to the first limit (0 or c) that a
    multiplier reaches, which then becomes active. Once all free slopes are 0, the active limit with the largest slope
    pointing away from it is released. Every step increases D, so no active set occurs twice. A slope or a curvature
    counts as 0 if it is below the rounding error of its own terms, independent of their scale.

    Raises RunError if they are not found to rounding accuracy.
    """
    gram = slopes @ slopes.swapaxes(-1, -2)
    if slopes.shape[-2] == 1:
        return _one(gram[..., 0, 0], constants[..., 0], curvature, penalty)[..., None]
    lead = constants.shape[:-1]
    cases = zip(
        gram.reshape(-1, *gram.shape[-2:]), constants.reshape(-1, constants.shape[-1]), curvature.flat, penalty.flat,
        strict=True,
    )
    return np.array([_many(*case) for case in cases]).reshape(*lead, -1)


def _one(b: Array, a: Array, curvature: Array, penalty: Array) -> Array:
    """(23), rewritten without the difference of nearly equal numbers; c if the quadratic is positive even at its
    minimum."""
    room = b - 4 * curvature * a
    root = np.sqrt(np.where(room > 0, room, 1.0))
    return np.where(room > 0, np.clip(4 * a / (root * (np.sqrt(b) + root)), 0, penalty), penalty)


class _Dual(NamedTuple):
    """The dual function D: Gram matrix G (M, M), constants A (M,), curvature k and penalty c."""

    gram: Array
    constants: Array
    curvature: float
    penalty: float

    def slope(self, nu: Array) -> Array:
        """The gradient of D (M,), with entries set to 0 if they could be rounding errors."""
        width = 1 + self.curvature * nu.sum()
        pulled, size = self.gram @ nu / (2 * width), abs(self.gram) @ nu / (2 * width)
        share = self.curvature * nu / (2 * width)
        slope = self.constants - pulled + share @ pulled
        size = abs(self.constants) + size + share @ size
        return np.where(abs(slope) > _ROUNDING * size, slope, 0.0)

    def newton(self, nu: Array, slope: Array, free: Mask) -> Array:
        """A direction of ascent (M,) in the free multipliers; it is very long where D has no curvature."""
        width = 1 + self.curvature * nu.sum()
        turned = np.eye(len(nu)) - self.curvature / width * nu[:, None]
        hessian = (turned.T @ self.gram @ turned)[np.ix_(free, free)] / (2 * width)
        unit = 1 / np.sqrt(np.where(hessian.diagonal() > 0, hessian.diagonal(), 1.0))
        values, vectors = np.linalg.eigh(unit[:, None] * hessian * unit)
        step = np.zeros_like(nu)
        step[free] = unit * (vectors @ (vectors.T @ (unit * slope[free]) / np.maximum(values, _ROUNDING)))
        return step

    def along(self, nu: Array, step: Array, slope: Array) -> float:
        """The t >= 0 that maximises D(nu + t step), or infinity if D increases without limit.

        With r = k sum step / w and h the curvature at t = 0, the slope at t is <slope, step> - h t (2 + r t) / (2 (1 +
        r t)^2). Its zero is the analogue of (23) on that line.
        """
        width = 1 + self.curvature * nu.sum()
        r = self.curvature * step.sum() / width
        turned = step - r * nu
        h = turned @ self.gram @ turned / (2 * width)
        if h <= _ROUNDING * (abs(turned) @ abs(self.gram) @ abs(turned)) / (2 * width):
            return np.inf
        newton = slope @ step / h
        room = 1 - 2 * r * newton
        return float(2 * newton / (np.sqrt(room) * (1 + np.sqrt(room)))) if room > 0 else np.inf


def _many(gram: Array, constants: Array, curvature: float, penalty: float) -> Array:
    """nu (M,) by the active-set method; c for every multiplier if the inputs are not finite, because the run has
    diverged."""
    if not np.isfinite(gram.sum() + constants.sum()):
        return np.full_like(constants, penalty)
    dual = _Dual(gram, constants, curvature, penalty)
    nu, free = np.zeros_like(constants), np.zeros(len(constants), dtype=bool)
    for _ in range(_STEPS * len(nu)):
        slope = dual.slope(nu)
        if not slope[free].any():
            pull = np.where(free, 0.0, np.where(nu > 0, -slope, slope))
            if pull.max() <= 0:
                return nu
            free[pull.argmax()] = True
        nu, free = _move(dual, nu, np.where(free, slope, 0.0), free)
    raise RunError(f"the multipliers of {len(nu)} bounds were not found: largest slope left {abs(slope).max():.3g}")


def _move(dual: _Dual, nu: Array, slope: Array, free: Mask) -> tuple[Array, Mask]:
    """Take one Newton step. A multiplier that reaches a limit is fixed there and no longer free."""
    step = dual.newton(nu, slope, free)
    with np.errstate(divide="ignore", invalid="ignore"):
        step_to_bound = np.where(step, np.where(step > 0, dual.penalty - nu, nu) / abs(step), np.inf)
    first, t = step_to_bound.argmin(), dual.along(nu, step, slope)
    moved = np.clip(nu + min(t, step_to_bound[first]) * step, 0, dual.penalty)
    if t >= step_to_bound[first]:
        moved[first] = dual.penalty if step[first] > 0 else 0.0
        free = free & (np.arange(len(nu)) != first)
    return moved, free


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
class ConstrainedSSCA(CostBounds):
    """Constrained SSCA; its settings are in `CostBounds`."""

    name: ClassVar[str] = "ssca-constrained"
    title: ClassVar[str] = "constrained SSCA (Ye 2021): the smallest model whose cost, or cost per group, is at most U"

    @cached_property
    def upload(self) -> Layout:
        """The layout of one array with M gradients (d,), followed by M values."""
        m = len(self.bounded)
        return Layout(Vector, Point("x", per_entry=m, extra=m))

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start at x = start with empty surrogates and the first penalty."""
        none = np.zeros(start.shape[:-1], start.dtype)
        surrogate = np.zeros((*start.shape[:-1], len(self.bounded) * (start.shape[-1] + 1)), start.dtype)
        return Server(start, surrogate, none, none, none, *2 * [none.astype(np.int64)])

    def estimate(self, objective: Any, x: Array, rows: Batch) -> Array:
        """The gradients, then the values, of F_m - U_m on these rows, (..., M d + M)."""
        weights = [shares(c, rows, x.dtype) for c in self.bounded]
        losses, grads = losses_and_grads(objective, x, rows, weights)
        return np.concatenate([*grads, self.excesses(losses, rows)], axis=-1)

    def server_update(self, server: Server, uploads: Vector, clients: Index, round_: int) -> Server:
        """Update the surrogates, compute the multipliers, and move x towards the solution of (19)."""
        server, t = self._stage(server, round_)
        x, old, kappa, *_, level, stage = server
        rho, gamma = self.weights(t)                                            # (3), (5)
        estimates = self.mean(uploads.x, clients)
        gradients, values = np.split(estimates, [-len(self.bounded)], -1)
        self.refuse_rest(x, gradients, values.any(-1))
        surrogate = (1 - rho) * old + rho * self.linearised(x, estimates)       # (7), (14), (15), (20)
        kappa = (1 - rho) * kappa + rho
        lowest, nu, slack = self._solve(surrogate, kappa, np.array(self.costs)[level])
        x = (1 - gamma) * x + gamma * lowest                                    # (4)
        return Server(x, surrogate, kappa, nu, slack, level, stage)

    def _solve(self, surrogate: Array, kappa: Array, cost: Array) -> tuple[Array, Array, Array]:
        """The solution of (19) with penalty c = cost (...,): x (..., d), the largest multiplier, the total slack.

        It is computed in double precision, with which the multipliers meet the bounds to rounding, in any run.
        """
        slopes, constants, weight = self._quadratics(*(a.astype(np.float64, copy=False) for a in (surrogate, kappa)))
        tau = self.curvature * weight
        nu = multipliers(slopes, constants, tau, cost)
        x = -(nu[..., None] * slopes).sum(-2) / (2 * (1 + tau * nu.sum(-1)))[..., None]   # (21), (22)
        values = (slopes * x[..., None, :]).sum(-1) + constants
        values = values + (tau * (x**2).sum(-1))[..., None]
        solution = x, nu.max(-1), np.maximum(values, 0).sum(-1)
        return tuple(a.astype(surrogate.dtype, copy=False) for a in solution)  # type: ignore[return-value]

    def _stage(self, server: Server, round_: int) -> tuple[Server, int]:
        """The server's state, with empty surrogates at the start of a stage, and the round's number in the stage."""
        length = max(1, self.info.rounds // len(self.costs))
        stage = min((round_ - 1) // length, len(self.costs) - 1)
        t = round_ - stage * length
        if (server.stage == stage).all():
            return server, t
        level, stages = server.level + (server.slack > self.tolerance), np.full_like(server.stage, stage)
        return server._replace(surrogate=0 * server.surrogate, kappa=0 * server.kappa, level=level, stage=stages), t

    def linearised(self, x: Array, estimates: Array) -> Array:
        """The contribution of all gradients and values to S_m and A_m: g - 2 tau x and f - U + tau ||x||^2 - <g, x>."""
        g, f = self._parts(estimates)
        f = f * self.unit
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
