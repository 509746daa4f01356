"""How the LDP primal-dual method divides its budget among the rounds, and the accuracy that a private run can expect.

Everything here is computed from public numbers alone, before the run starts.

Each round reduces the distance to x* at least by the factor c = 1 - gamma min(mu_f, 1), and the mean of n messages adds
noise of squared norm d sigma_t^2 / n. If f has the least possible curvature, theta_2, the error at the end is

    E ||xbar - x*||^2  <~  (d / n) sum_t c^(2 (T - t)) sigma_t^2

(9) of Zhang 2023, telescoped, bounds all n clients together, including their duals. For long runs that bound is 7.5 n^2
times as large for dynamic shares and 5 n^2 times as large for static ones. Directions of larger curvature contract
faster, so the estimate tends to be too high.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np

from ..arrays import Array
from ..batches import Workload
from ..errors import require
from ..objectives import Bounds
from ..privacy.allocation import ALLOCATIONS, allocation, read_shares
from ..privacy.release import Release
from ..settings import Setting, at_least, one_of
from .abilities import Forecasts
from .algorithm import RunInfo

_FORGOTTEN = 0.1  # share of the floor


class Outlook(NamedTuple):
    """The forecast of a private run.

    floor: the part of ||xbar - x*||^2 that is due to noise. begun: ||x* - start||^2, or a bound on it. enough: the
    number of rounds after which the start contributes only a tenth of the floor; more rounds cannot gain more than
    that.
    """

    floor: float
    begun: float
    enough: int


def look_out(sigmas: Array, log_contraction: float, d: int, n: int, begun: float) -> Outlook:
    """The forecast for releases with noise sigmas (T,) and the contraction c = exp(log_contraction) below 1."""
    ages = np.arange(len(sigmas))[::-1]
    left = np.where(ages, np.exp(np.maximum(2 * log_contraction, -1e3) * ages), 1.0)
    floor = d / n * float((left * sigmas**2).sum())
    rounds = math.log(max(begun / (_FORGOTTEN * floor), 1.0)) / (-2 * log_contraction)
    return Outlook(floor, begun, max(1, math.ceil(rounds)))


def in_words(told: Outlook, known: bool, rounds: int) -> list[tuple[str, str]]:
    """The forecast as rows of a table. known: whether `begun` is exact."""
    begun = f"{'' if known else 'at most '}{told.begun:.3g}"
    return [
        ("expected noise floor", f"||xbar - x*||^2 = {told.floor:.3g}, where the start has {begun}"),
        ("rounds that are enough", f"{told.enough}; the run has {rounds}"),
    ]


def warnings(told: Outlook, bounds: Bounds, step_size: float, pull: float, rounds: int) -> list[tuple[str, str]]:
    """Warnings about settings that are allowed but probably unintended. pull = s/n."""
    steepest = pull * (bounds.curvature + bounds.penalty[1])  # L_f
    largest = min(0.25, 1 / steepest)
    reasons = {
        "at this budget the result will be no better than the start: take more rows, clients or epsilon":
            told.floor >= told.begun,
        "the run ends before the start is forgotten: take more rounds, or scale = 0": rounds < told.enough,
        f"the theory wants a step-size of at most min(1/4, 1/L_f) = {largest:.3g}": step_size > largest,
    }
    return [("warning", text) for text, holds in reasons.items() if holds]


@dataclass(frozen=True, kw_only=True)
class UnequalRounds(Forecasts):
    """Settings that divide the privacy budget among the rounds.

    allocation: "dynamic" (11), geometric with the contraction of the method; "static", all rounds equal; "shares",
    geometric between the numbers of `shares`: "1, 10" gives the last round ten times the budget of the first.
    strong_convexity: theta_2 of f_i for the dynamic allocation, or 0 to use the value of the objective.
    """

    allocation: Annotated[
        str, Setting("how rounds share the privacy budget: geometrically, evenly, or by `shares`", one_of(ALLOCATIONS))
    ] = "dynamic"
    shares: Annotated[
        str, Setting("shares of the budget for allocation shares, geometric in between: first, ..., last",
                     unit="numbers with commas between", numbers=True)
    ] = ""
    strong_convexity: Annotated[
        float, Setting("strong convexity of every f_i for the dynamic allocation; 0: the objective's l2", at_least(0))
    ] = 0.0

    def check_shares(self) -> None:
        """Raise SettingError if `shares` is not a list of numbers, or is set without allocation "shares"."""
        require(
            (self.allocation == "shares") == bool(self.shares),
            f"shares belong to allocation 'shares', and it needs them; got '{self.shares}' with '{self.allocation}'",
        )
        read_shares(self.shares)

    @property
    @abstractmethod
    def info(self) -> RunInfo:
        """Public information about the run."""

    @property
    @abstractmethod
    def step_size(self) -> float:
        """The step size gamma."""

    @property
    @abstractmethod
    def pull(self) -> float:
        """s/n, the weight of grad f_i and of g."""

    @abstractmethod
    def sensitivity(self, bounds: Bounds, workload: Workload) -> float:
        """The most by which one record can change a message."""

    @abstractmethod
    def log_contraction(self, theta: float) -> float:
        """Logarithm of the factor by which a round contracts the squared distance to x* if every f_i is theta-strongly
        convex."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One message, which one record changes by at most gamma (s/n) 2 C / rows, with the round's share of the budget
        (11).

        Raises SettingError for a round that the budget was not planned for.
        """
        rounds = self.info.rounds
        require(1 <= round_ <= rounds, f"the budget is shared between {rounds} rounds; round {round_} has no share")
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
            "allocation dynamic needs a strongly convex objective: set l2 (or strong-convexity) above 0, or allocation "
            "static",
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
            return [("expected noise floor", "unknown: the objective is not strongly convex, or not surely smooth")]
        sigmas = noise_multiplier * self.sensitivity(bounds, workload) / np.sqrt(self.weights(bounds))
        farthest = bounds.gradient / theta + float(np.linalg.norm(start))
        begun = farthest**2 if away is None else away
        told = look_out(sigmas, self.log_contraction(theta), len(start), self.info.num_clients, begun)
        return in_words(told, away is not None, rounds) + warnings(told, bounds, self.step_size, self.pull, rounds)
