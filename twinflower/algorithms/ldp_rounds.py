"""How the LDP primal-dual method divides its budget among the rounds (Zhang 2023, section 4), and its settings."""

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np

from ..arrays import Array
from ..errors import SettingError, require
from ..privacy.allocation import ALLOCATIONS, allocation, read_shares
from ..privacy.release import Release
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import ZERO, Regulariser
from ..settings import Rule, Setting, at_least, check_settings, one_of
from .algorithm import NO_INFO, Algorithm, RunInfo
from .ldp_outlook import in_words, look_out, warnings
from .messages import check_mode

_STEPS = Rule("above 0 and below 4/3", lambda v: 0 < v < 4 / 3)


@dataclass(frozen=True)
class UnequalRounds(Algorithm):
    """The settings of `ldp_primal_dual.LDPPrimalDual`.

    step_size: gamma in (0, 4/3). The theory requires at most 1/4; gamma = 1 is proximal gradient descent on all rows.
    scale: s, the factor that multiplies the losses and g; 0 means n. The paper has s = 1, which gives the same
    solution, but takes n times as many rounds.

    allocation: "dynamic" (11), geometric with the contraction of the method; "static", all rounds equal; "shares",
    geometric between the numbers of `shares`: "1, 10" gives the last round ten times the budget of the first.
    strong_convexity: theta_2 of f_i for the dynamic allocation, or 0 to use the value of the objective.
    """

    modes: ClassVar[tuple[str, ...]] = ("none", "public-state")
    works_on_sums: ClassVar[bool] = True

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    step_size: Annotated[
        float, Setting("gamma; the theory wants at most 1/4, and duals are unstable from 4/3 on", _STEPS)
    ] = 0.25
    scale: Annotated[float, Setting("s, by which losses and g are multiplied; 0: number of clients", at_least(0))] = 0.0
    privacy: str = "none"
    _: KW_ONLY
    allocation: Annotated[
        str, Setting("how rounds share the privacy budget: geometrically, evenly, or by `shares`", one_of(ALLOCATIONS))
    ] = "dynamic"
    shares: Annotated[
        str, Setting("shares of the budget for allocation shares, geometric in between: first, ..., last",
                     unit="comma-separated numbers", numbers=True)
    ] = ""
    strong_convexity: Annotated[
        float, Setting("strong convexity of every f_i for the dynamic allocation; 0: the objective's l2", at_least(0))
    ] = 0.0

    def __post_init__(self) -> None:
        check_settings(self)
        check_mode(self)
        if (self.allocation == "shares") != bool(self.shares):
            raise SettingError(
                f"shares belong to allocation 'shares', and it needs them; got '{self.shares}' with '{self.allocation}'"
            )
        read_shares(self.shares)

    @cached_property
    def pull(self) -> float:
        """s/n, the weight of grad f_i and of g."""
        return (self.scale or self.info.num_clients) / self.info.num_clients

    def sensitivity(self, bounds: Bounds, workload: Workload) -> float:
        """One record changes a message by at most gamma (s/n) 2 C / rows, several records by as many times that."""
        return self.step_size * self.pull * 2 * bounds.gradient * workload.replaced_in_batch / workload.rows

    def log_contraction(self, theta: float) -> float:
        """ln(1 - gamma min(mu_f, 1)) with mu_f = s theta / n, if every f_i is theta-strongly convex.

        (11) is the contraction of the squared distance to x*; `ldp_outlook` uses the same factor for the distance.
        """
        progress = self.step_size * min(self.pull * theta, 1.0)
        return math.log1p(-progress) if progress < 1 else -math.inf

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One message, with the round's share of the budget (11).

        Raises SettingError for a round that the budget was not planned for.
        """
        rounds = self.info.rounds
        if not 1 <= round_ <= rounds:
            raise SettingError(f"the budget is shared between {rounds} rounds; round {round_} has no share")
        return Release(self.sensitivity(bounds, workload), weight=float(self.weights(bounds)[round_ - 1]))

    def weights(self, bounds: Bounds) -> Array:
        """Shares of the budget (T,) with mean 1; sigma_t ~ 1 / sqrt(w_t).

        (11) has xi_t^2 = sqrt(pi / q_t) with q_t = (1 - gamma min(mu_f, 1))^(T - t), so w_t ~ sqrt(q_t). This is
        computed with logarithms, because q_t underflows for long runs. Raises SettingError for a dynamic allocation
        without strong convexity.
        """
        theta = self._convexity(bounds)
        require(
            theta > 0 or self.allocation != "dynamic",
            "ldp-primal-dual.allocation = dynamic needs a strongly convex objective: set objective.l2 (or "
            "ldp-primal-dual.strong-convexity) above 0, or ldp-primal-dual.allocation to static",
        )
        return allocation(self.allocation, self.info.rounds, self.log_contraction(theta) / 2, self.shares)

    def _convexity(self, bounds: Bounds) -> float:
        """theta_2 of every f_i, or 0 if it is unknown."""
        return self.strong_convexity or max(bounds.penalty[0], 0.0)

    def forecast(
        self, bounds: Bounds, noise_multiplier: float, workload: Workload, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """The noise floor and a sensible number of rounds. If the distance of the start from x* is unknown, ||x*|| <= C
        / theta_2 bounds it."""
        theta, rounds = self._convexity(bounds), self.info.rounds
        if not theta or not math.isfinite(bounds.curvature):
            return [("expected noise floor", "unknown: the objective is not strongly convex or not smooth")]
        sigmas = noise_multiplier * self.sensitivity(bounds, workload) / np.sqrt(self.weights(bounds))
        farthest = bounds.gradient / theta + float(np.linalg.norm(start))
        begun = farthest**2 if away is None else away
        outlook = look_out(sigmas, self.log_contraction(theta), len(start), self.info.num_clients, begun)
        words = in_words(outlook, away is not None, rounds)
        return words + warnings(outlook, bounds, self.step_size, self.pull, rounds)
