"""P-ADMM: networked ADMM with the local problem solved exactly, for smooth losses (Ding et al. 2019).

As zCDP-NFL but for the primal step, and without a step size:

    w_k = argmin_w  f_k(w) + h(w) + <gamma_k, w> + rho sum_{l in N_k} ||w - (w~_k + w~_l) / 2||^2

It is found by accelerated proximal gradient steps, as many as a strongly convex problem needs for all digits; where
that is more than can be done, the run is refused.

Privacy. The argmin of a 2 rho d_k-strongly convex function moves by at most 2 C / (M_k 2 rho d_k) when the gradient of
a convex loss moves by at most 2 C / M_k everywhere. (l2 would make it less; the noise does not count on that.) How long
and how many a private client's steps are follows from the public bound on the norm of rows, not from its rows.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array
from ..batches import Workload
from ..errors import RunError, require
from ..objectives import Bounds, LinearModel
from ..privacy.release import Rounding
from ..work import LocalWork
from .abilities import RestrictsObjective, length
from .echo import Tentative
from .networked_admm import Inbox, NetworkedADMM
from .relay import GrowingBudget

_DIGITS, _MOST_STEPS = 74.0, 10_000  # (1 - rate)^(74 / rate) < 1e-32, of squares


@dataclass(frozen=True)
class PADMM(NetworkedADMM, GrowingBudget, RestrictsObjective):
    """The method with its settings, those of `networked_admm.NetworkedADMM`. It takes the prox of h."""

    name: ClassVar[str] = "p-admm"
    title: ClassVar[str] = "P-ADMM (Gauthier 2023): exact local steps, smooth losses only, to compare"

    def check(self, objective: Any) -> None:
        """SettingError for a loss with kinks, for rows without a public bound in a private run, and for a rho so small
        that the local problem would take too many steps."""
        smooth = isinstance(objective, LinearModel) and np.isfinite(objective.loss.curvature_bound)
        require(
            smooth and objective.convex,
            f"{self.name} needs a smooth and convex loss: choose another objective, or algorithm zcdp-nfl",
        )
        public = self.info.row_norm
        require(
            self.privacy == "none" or public > 0,
            f"a private {self.name} needs a public bound on the norm of rows: set row-norm above 0",
        )
        if public:
            steps = _steps(2 * self.rho, _smoothness(objective, public**2, 2 * self.rho))
            require(
                steps <= _MOST_STEPS,
                f"rho = {self.rho:g} is too small for {self.name} here: a local problem would take {steps:,} steps, "
                f"and {_MOST_STEPS:,} are allowed",
            )

    def primal(self, work: LocalWork, own: Array, pull: Array, degree: Array) -> Array:
        """The argmin, from own, by Nesterov's method with as many steps as make it exact to rounding."""
        objective, rows = work.objective, work.rows
        strong = 2 * self.rho * degree[..., None]
        longest = rows.squared_norms().max(-1)[..., None] if self.privacy == "none" else self.info.row_norm**2
        smooth = _smoothness(objective, longest, strong)
        steps, rate = _steps(strong, smooth), np.sqrt(strong / smooth)
        momentum = (1 - rate) / (1 + rate)
        if steps > _MOST_STEPS:
            raise RunError(f"the local problem would take {steps:,} steps: raise rho, or scale the rows by row-norm")
        w = y = own
        for _ in range(steps):
            slope = objective.grad(y, rows) + pull + strong * y
            following = self.prox(y - slope / smooth, 1 / smooth)
            y, w = following + momentum * (following - w), following
        return w

    def rounding(self, state: Tentative, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """Of the steps near the argmin, no longer than (C + ||pull||) / strong, and of what is left of the way there:
        errors of a step are 1 / strong of those of its slope, and the momentum adds those of sqrt(cond) steps."""
        _, own, pull = self.pulled(state, inbox)
        strong = 2 * self.rho * float(inbox.degree)
        smooth = float(np.exp2(np.ceil(np.log2(bounds.curvature + bounds.steepest + strong))))
        slope = bounds.gradient + length(pull)
        size = (slope + smooth * slope / strong) / strong + length(own)
        return Rounding(math.sqrt(smooth / strong) * size, float(self.shrink(inbox.degree, round_)))

    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """Of a client with one neighbour, the fewest there are in a connected graph."""
        return 2 * bounds.gradient / workload.rows / (2 * self.rho)

    def shrink(self, degree: Array, round_: int) -> Array:
        """1 / d_k."""
        return 1 / np.asarray(degree)


def _smoothness(objective: Any, longest: Array | float, strong: Array | float) -> Array:
    """A bound on the curvature of the local problem, given the squared norm of the longest row: a power of two, so that
    stacked clients have few different steps."""
    curvature = objective.loss.curvature_bound * longest + objective.penalty_curvature[1]
    return np.exp2(np.ceil(np.log2(curvature + strong)))  # type: ignore[no-any-return]


def _steps(strong: Array | float, smooth: Array) -> int:
    """Steps until (1 - rate)^steps < 1e-32 with rate = sqrt(strong / smooth)."""
    return int(_DIGITS / np.sqrt(strong / smooth).min()) + 1
