"""P-ADMM: networked ADMM with the local problem solved exactly, for smooth losses (Ding et al. 2019).

The method is zCDP-NFL with a different primal step, and without a step size:

    w_k = argmin_w  f_k(w) + h(w) + <gamma_k, w> + rho sum_{l in N_k} ||w - (w~_k + w~_l) / 2||^2

It is computed by accelerated proximal gradient steps. Their number is chosen such that the result of a strongly convex
problem is exact to rounding; if this takes too many steps, the run is refused.

Privacy. The argmin of a 2 rho d_k-strongly convex function moves by at most 2 C / (M_k 2 rho d_k) when the gradient of
a convex loss changes by at most 2 C / M_k everywhere. (An l2 penalty would reduce this; the noise does not rely on it.)
In a private run, the size and number of a client's steps follow from the public bound on the norm of rows, not from the
rows themselves.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..arrays import Array, Index
from ..errors import RunError, SettingError
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.objectives import LinearModel
from ..work import LocalWork
from .algorithm import length
from .echo import Unacknowledged, confirmed
from .relay import GrowingBudget
from .zcdp_nfl import Inbox, NetworkedADMM

_DIGITS, _MOST_STEPS = 74.0, 10_000  # (1 - rate)^(74 / rate) < 1e-32, for squared errors


@dataclass(frozen=True)
class PADMM(NetworkedADMM, GrowingBudget):
    """The method with the settings of `zcdp_nfl.NetworkedADMM`. It uses the prox of h."""

    name: ClassVar[str] = "p-admm"
    title: ClassVar[str] = "P-ADMM (Gauthier 2023): exact local steps, smooth losses only, to compare"

    def check(self, objective: Any) -> None:
        """Raise SettingError for a non-smooth loss, for a private run without a public bound on the norm of rows, or if
        rho is so small that the local problem would take too many steps."""
        smooth = isinstance(objective, LinearModel) and np.isfinite(objective.loss.curvature_bound)
        if not (smooth and objective.convex):
            raise SettingError(
                f"{self.name} needs a smooth and convex loss: choose another objective, or algorithm zcdp-nfl"
            )
        public = self.info.row_norm
        if self.privacy != "none" and not public > 0:
            raise SettingError(
                f"a private {self.name} needs a public bound on the norm of rows: set row-norm above 0"
            )
        if public:
            steps = int(_steps(2 * self.rho, _smoothness(objective, public, 2 * self.rho)))
            if not steps <= _MOST_STEPS:
                raise SettingError(
                    f"rho = {self.rho:g} is too small for {self.name} here: a local problem would take {steps:,} "
                    f"steps, and {_MOST_STEPS:,} are allowed"
                )

    def primal(self, work: LocalWork, last: Array, pull: Array, degree: Array) -> Array:
        """The argmin, by Nesterov's method from last, with enough steps to be exact to rounding."""
        objective, rows = work.objective, work.rows
        strong = 2 * self.rho * degree[..., None]
        longest = rows.norms().max(-1)[..., None] if self.privacy == "none" else self.info.row_norm
        smooth = _smoothness(objective, longest, strong)
        steps, rate = _steps(strong, smooth), np.sqrt(strong / smooth)
        most, alike = int(steps.max()), steps.min() == steps.max()
        momentum = (1 - rate) / (1 + rate)
        if most > _MOST_STEPS:
            raise RunError(f"the local problem would take {most:,} steps: raise rho, or scale the rows by row-norm")
        w = y = last
        for step in range(most):
            slope = objective.grad(y, rows) + pull + strong * y
            following = self.prox(y - slope / smooth, 1 / smooth)
            ahead = following + momentum * (following - w)
            if not alike:  # a client's steps do not depend on the others'
                following, ahead = (np.where(step < steps, new, old) for new, old in ((following, w), (ahead, y)))
            y, w = ahead, following
        return w

    def rounding(
        self, state: Unacknowledged, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the steps near the argmin, and for the distance that is left to it.

        The steps are no longer than (C + ||pull||) / strong. The rounding error of a step is 1 / strong times that of
        its gradient, and momentum adds up the errors of sqrt(smooth / strong) steps. By the contraction of Nesterov's
        method, a point y of the steps has ||y - w*|| <= 3 sqrt(smooth / strong + 1) ||last - w*||.
        """
        _, last, pull = self.pulled(confirmed(state, inbox.heard), inbox)
        strong = 2 * self.rho * float(inbox.degree)
        smooth = float(_power_of_two(bounds.curvature + bounds.steepest + strong))
        slope = bounds.gradient + length(pull)
        size = (slope + smooth * slope / strong) / strong + length(last)
        size *= math.sqrt(smooth / strong)
        return Rounding(size, 5 * size, float(self.shrink(inbox.degree, round_)))

    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """The sensitivity for a client with one neighbour, the smallest number in a connected graph."""
        return 2 * bounds.gradient * workload.replaced_in_batch / workload.rows / (2 * self.rho)

    def shrink(self, degree: Array, round_: int) -> Array:
        """1 / d_k, since the sensitivity is planned for one neighbour."""
        return 1 / np.asarray(degree)


def _smoothness(objective: Any, longest: Array | float, strong: Array | float) -> Array:
    """A bound on the curvature of the local problem for rows of norm at most `longest`."""
    return _power_of_two(objective.curvature(longest) + objective.penalty_curvature[1] + strong)


def _power_of_two(bound: Array | float) -> Array:
    """The bound rounded up, so that stacked clients have few different step sizes."""
    return np.exp2(np.ceil(np.log2(bound)))  # type: ignore[no-any-return]


def _steps(strong: Array | float, smooth: Array) -> Index:
    """Steps until (1 - rate)^steps < 1e-32 with rate = sqrt(strong / smooth)."""
    return np.minimum(_DIGITS / np.sqrt(strong / smooth), 2.0**62).astype(np.int64) + 1
