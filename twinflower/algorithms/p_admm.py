"""P-ADMM: networked ADMM with the local problem solved exactly, for smooth losses (Ding et al.; compared in 004).

As zCDP-NFL but for the primal step, and without a step size:

    w_k = argmin_w  f_k(w) + h(w) + <gamma_k, w> + rho sum_{l in N_k} ||w - (w~_k + w~_l) / 2||^2

It is found by accelerated proximal gradient steps, as many as a strongly convex problem needs for all digits.

Privacy. The argmin of a 2 rho d_k-strongly convex function moves by at most 2 C / (M_k 2 rho d_k) when the gradient of
a convex loss moves by at most 2 C / M_k everywhere. (l2 would make it less; the noise does not count on that.)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array
from ..errors import require
from ..objectives import Batch, Objective
from ..privacy.release import Bounds, Pace
from .zcdp_nfl import ZCDPNFL

_DIGITS, _MOST_STEPS = 74.0, 10_000  # (1 - rate)^(74 / rate) < 1e-32, of squares


@dataclass(frozen=True)
class PADMM(ZCDPNFL):
    """zCDP-NFL's settings; step_size, step_decay and composite mean nothing."""

    name: ClassVar[str] = "p-admm"
    title: ClassVar[str] = "P-ADMM (004): networked ADMM with exact local steps, smooth losses only, to compare"

    def check_subgradients(self) -> None:
        """It takes the prox of h."""

    def check(self, objective: Any) -> None:
        """SettingError for a loss with kinks."""
        curvature, convex = objective.loss.curvature_bound, objective.convex
        require(
            np.isfinite(curvature) and convex,
            f"{self.name} needs a smooth and convex loss: choose another objective, or algorithm zcdp-nfl",
        )

    def primal(
        self, objective: Objective, rows: Batch, own: Array, pull: Array, degree: Array, round_: int
    ) -> Array:
        """The argmin, from own, by Nesterov's method with as many steps as make it exact to rounding."""
        strong = 2 * self.rho * degree[..., None]
        smooth = _two_power(_curvature(objective, rows)[..., None] + strong)
        rate = np.sqrt(strong / smooth)
        momentum = (1 - rate) / (1 + rate)
        w = y = own
        for _ in range(min(int(_DIGITS / rate.min()) + 1, _MOST_STEPS)):
            slope = objective.grad(y, rows) + pull + strong * y
            following = self._prox(y - slope / smooth, 1 / smooth)
            y, w = following + momentum * (following - w), following
        return w

    def sensitivity(self, bounds: Bounds, pace: Pace, round_: int) -> float:
        """Of a client with one neighbour, the fewest there are in a connected graph."""
        return 2 * bounds.gradient / pace.rows / (2 * self.rho)

    def shrink(self, degree: Array, round_: int) -> Array:
        """1 / d_k."""
        return 1 / np.asarray(degree)


def _curvature(objective: Any, rows: Batch) -> Array:
    """A bound on the curvature of each client's f on its rows, (...,)."""
    longest = (rows.features * rows.features).sum(-1).max(-1)
    return objective.loss.curvature_bound * longest + objective.penalty_curvature[1]  # type: ignore[no-any-return]


def _two_power(x: Array) -> Array:
    """The next power of two, so that stacked clients have few different steps."""
    return np.exp2(np.ceil(np.log2(x)))  # type: ignore[no-any-return]
