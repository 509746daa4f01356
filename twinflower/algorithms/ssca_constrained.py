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

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..problems.constraints import shares
from ..problems.interfaces import Batch, losses_and_grads
from .layout import Layout, Point
from .messages import Vector
from .multipliers import multipliers
from .ssca_bounds import CostBounds


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
    """Constrained SSCA; its settings are in `ssca_bounds.CostBounds`."""

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
