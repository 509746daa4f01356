"""What Gaussian releases cost, and how much noise a promised privacy needs.

One record of a client is REPLACED by another; everything here speaks of that neighbouring relation.
A release is f(D) + N(0, sigma^2 I) with ||f(D) - f(D')|| <= sensitivity, and costs
mu^2 = (sensitivity / sigma)^2. Costs add up, also when later releases are chosen by looking at earlier
ones, and the joint law of all releases is mu-GDP with mu = sqrt(sum mu_t^2). It then is
(epsilon, delta)-DP for every pair on the curve

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

which is exact: no smaller delta holds for all data. A noise multiplier is sigma / sensitivity.

Sources. Curve: Balle and Wang, "Improving the Gaussian mechanism", ICML 2018, Theorem 8. Composition:
Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, Corollary 3.3. Adaptive filter: Smith and
Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022 (arXiv:2210.17520).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, ndtr, ndtri

from ..errors import RunError, SettingError, require

Array = NDArray[np.float64]

ROUNDING = 1e-9
"""How far beyond its maximum, relatively, a `Budget` may go: room for rounding and for nothing else."""


# Gauss-Legendre on [0, 1]: exact to rounding for the Mills ratio over steps up to this length
_SHORT_STEP = 0.1
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(8) + np.array([[1.0], [0.0]])) / 2


# --- checks at the door: nan breaks every rule, because it compares as false ---


def check_positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    require(0 < value < math.inf, f"{name} must be a finite number above 0; got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Refuse anything but a finite number from 0."""
    require(0 <= value < math.inf, f"{name} must be a finite number from 0; got {value}")


def check_probability(name: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    require(0 < value < 1, f"{name} must be strictly between 0 and 1; got {value}")


def check_count(name: str, value: int) -> None:
    """Refuse anything but a whole number from 1."""
    require(value >= 1 and value % 1 == 0, f"{name} must be a whole number from 1; got {value}")


def check_target(epsilon: float, delta: float) -> None:
    """Refuse a pair (epsilon, delta) that promises nothing or too much."""
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)


def _array(name: str, values: ArrayLike, rule: str, good: Callable[[Array], NDArray[np.bool_]]) -> Array:
    """`values` as a flat array of finite numbers; the first one that is not `good` is named."""
    array = np.ravel(np.asarray(values, dtype=np.float64))
    require(array.size > 0, f"{name} must have at least one entry; got an empty schedule")
    bad = np.flatnonzero(~(good(array) & np.isfinite(array)))
    if bad.size:
        raise SettingError(f"{name} must be {rule}; got {array[bad[0]]} at entry {bad[0] + 1}")
    return array


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a monotone function between two points, to the last digits.

    `high` is widened against rounding; the many steps are for a zero that is nothing but rounding above 0.
    """
    from scipy.optimize import brentq  # takes a third of the time in which everything else is imported

    last_digits = 4 * np.finfo(float).eps
    return float(brentq(function, low, 1.01 * high, xtol=1e-300, rtol=last_digits, maxiter=10_000))


# --- Gaussian differential privacy ---


def _mills(x: Array) -> Array:
    """M(x) = Phi(-x) / phi(x), the Mills ratio of the normal law: smooth, free of under- and overflow."""
    ratio: Array = math.sqrt(math.pi / 2) * erfcx(x / math.sqrt(2))
    return ratio


def _mills_drop(x: float, step: float) -> float:
    """M(x) - M(x + step); a short step as the integral of -M'(y) = 1 - y M(y), which does not cancel."""
    if step > _SHORT_STEP:
        near, far = _mills(np.array([x, x + step]))
        return float(near - far)
    y = x + step * _NODES
    return step * float(_WEIGHTS @ (1 - y * _mills(y)))


def log_delta(mu: float, epsilon: float) -> float:
    """ln of the smallest delta for which mu-GDP is (epsilon, delta)-DP; mu > 0, epsilon >= 0.

    With u = epsilon/mu - mu/2 and v = u + mu, e^epsilon phi(v) = phi(u), so that both terms of the curve
    share one factor and e^epsilon is never formed:

        delta = phi(u) (M(u) - M(v)),   1 - delta = Phi(u) + phi(u) M(v).

    The first form is used where delta is small, the second where it is near 1. Measured against 60 digits
    for epsilon 1e-3 to 1e3 and delta 1e-12 to 0.1: relative error of delta below 5e-14.
    """
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_phi = -u * u / 2 - math.log(2 * math.pi) / 2
    if u < -1:
        return math.log1p(-float(ndtr(u)) - math.exp(log_phi) * float(_mills(np.array(v))))
    drop = _mills_drop(u, mu)
    return log_phi + math.log(drop) if drop > 0 else -math.inf


def gdp_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 for which mu-GDP is (epsilon, delta)-DP; mu >= 0, 0 < delta < 1."""
    check_not_negative("mu", mu)
    check_probability("delta", delta)
    if mu == 0 or log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    enough = zcdp_epsilon_papers(mu * mu / 2, delta)  # mu-GDP is (mu^2 / 2)-zCDP
    return _root(lambda epsilon: log_delta(mu, epsilon) - math.log(delta), 0.0, enough)


def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which mu-GDP is (epsilon, delta)-DP; epsilon > 0, 0 < delta < 1.

    The root lies between the mu of the zCDP conversion, which keeps the promise, and the mu with
    2 Phi(u) = 1 - delta, which breaks it because M(v) < M(-u) in the formula of `log_delta`.
    """
    check_target(epsilon, delta)
    kept = math.sqrt(2 * zcdp_rho_papers(epsilon, delta))
    u = float(ndtri((1 - delta) / 2))
    broken = math.sqrt(u * u + 2 * epsilon) - u
    return _root(lambda mu: log_delta(mu, epsilon) - math.log(delta), kept, broken)


def best_guess(mu: float) -> float:
    """Phi(mu/2): how often the best attacker is right on which of two records is there, from even odds; mu >= 0.

    mu-GDP says that telling the two cases apart is no easier than telling N(0, 1) from N(mu, 1). From even odds the
    best rule takes the more likely one, so it draws the line at mu/2 and is wrong with probability Phi(-mu/2).
    """
    check_not_negative("mu", mu)
    return float(ndtr(mu / 2))


def detection(mu: float, false_alarms: float = 0.05) -> float:
    """Phi(mu - z): how often the most powerful test with this rate of false alarms detects the record; mu >= 0.

    By Neyman and Pearson it draws a line at z = Phi^-1(1 - false_alarms) between N(0, 1) and N(mu, 1).
    """
    check_not_negative("mu", mu)
    check_probability("false_alarms", false_alarms)
    return float(ndtr(mu + ndtri(false_alarms)))


# --- composition, and noise plans that meet a total ---


def total_mu(sensitivities: ArrayLike, sigmas: ArrayLike) -> float:
    """mu = sqrt(sum (sensitivity_t / sigma_t)^2) of all releases together; both in the unit of the released numbers.

    A scalar stands for all releases. A sensitivity of 0 costs nothing.
    """
    top = _array("sensitivities", sensitivities, "finite numbers from 0", lambda x: x >= 0)
    bottom = _array("sigmas", sigmas, "finite numbers above 0", lambda x: x > 0)
    same = top.size == bottom.size or 1 in (top.size, bottom.size)
    require(same, f"sensitivities and sigmas must be equally many; got {top.size} and {bottom.size}")
    return math.sqrt(np.sum(np.square(top / bottom)))


@dataclass(frozen=True)
class Budget:
    """A privacy filter: releases may be chosen adaptively, and are refused once the budget is gone.

    Counted in mu^2. A plan that spends the budget exactly must not fail at its last release because
    10,000 sums were rounded, so the sum may exceed the maximum by the factor 1 + `ROUNDING`, altogether
    and not per release. Using all of that makes mu larger by 5e-10 of itself, and nothing more.
    planned: what is meant to be spent, 0 if nobody knows; a lasting ledger lets nothing begin that it could not finish.
    """

    mu_max_squared: float
    spent: float = 0.0
    planned: float = 0.0

    def __post_init__(self) -> None:
        check_positive("mu_max_squared", self.mu_max_squared)
        check_not_negative("spent", self.spent)
        check_not_negative("planned", self.planned)

    @classmethod
    def for_target(cls, epsilon: float, delta: float) -> "Budget":
        """A fresh budget for (epsilon, delta)-DP in total, over all releases of one data set."""
        mu_squared = gdp_mu(epsilon, delta) ** 2
        require(mu_squared > 0, f"epsilon must be large enough for a finite noise; got {epsilon:g}")
        return cls(mu_squared)

    @property
    def remaining(self) -> float:
        """mu^2 left to spend; 0 when nothing is."""
        return max(0.0, self.mu_max_squared - self.spent)

    def fits(self, cost: float) -> bool:
        """Whether a release of cost mu^2 (or several, costs added) may still be made."""
        require(cost >= 0, f"cost must be a number from 0; got {cost}")
        return self.spent + cost <= self.mu_max_squared * (1 + ROUNDING)

    def spend(self, cost: float) -> "Budget":
        """The budget after a release of cost mu^2; `RunError` when it does not fit."""
        if not self.fits(cost):
            raise RunError(
                f"the privacy budget is used up: this release costs mu^2 = {cost:.6g}, "
                f"{self.remaining:.6g} of {self.mu_max_squared:.6g} is left"
            )
        return replace(self, spent=self.spent + cost)


# --- zero-concentrated differential privacy ---


def zcdp_mu(rho_zcdp: float) -> float:
    """mu = sqrt(2 rho_zcdp) of Gaussian releases that were accounted for in zCDP.

    True for sums of Gaussian releases only; another rho-zCDP mechanism need not be GDP at this mu. With it,
    `gdp_epsilon` is the exact conversion for Zhang 2023 and Gauthier 2023.
    """
    check_not_negative("rho_zcdp", rho_zcdp)
    return math.sqrt(2 * rho_zcdp)


def zcdp_epsilon_papers(rho_zcdp: float, delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1/delta)): valid, wasteful, and what Zhang 2023 and Gauthier 2023 use.

    Bun and Steinke, "Concentrated differential privacy", TCC 2016, Proposition 1.3.
    """
    check_not_negative("rho_zcdp", rho_zcdp)
    check_probability("delta", delta)
    return rho_zcdp + 2 * math.sqrt(-rho_zcdp * math.log(delta))


def zcdp_rho_papers(epsilon: float, delta: float) -> float:
    """The largest rho_zcdp with rho + 2 sqrt(rho ln(1/delta)) <= epsilon, the papers' choice of rho."""
    check_target(epsilon, delta)
    log_term = -math.log(delta)
    # sqrt(L + epsilon) - sqrt(L), written without the cancellation
    return (epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))) ** 2


# --- the older rules, for comparison with the papers ---


class Guarantee(NamedTuple):
    """A pair (epsilon, delta) of one release."""

    epsilon: float
    delta: float


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """sigma / sensitivity = sqrt(2 ln(1.25/delta)) / epsilon, the rule of Li 2023 and Li 2024.

    Proved for epsilon < 1 only (Dwork and Roth 2014, Theorem A.1), and false from about 8 on; what it
    really gives is gdp_epsilon(1 / noise multiplier, delta).
    """
    check_target(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def basic_share(epsilon: float, delta: float, releases: int) -> Guarantee:
    """What each of `releases` equal releases may cost so that their sums are (epsilon, delta)."""
    check_target(epsilon, delta)
    check_count("releases", releases)
    return Guarantee(epsilon / releases, delta / releases)


def advanced_share(epsilon: float, delta: float, releases: int) -> Guarantee:
    """What each of `releases` equal releases may cost so that advanced composition gives (epsilon, delta).

    It pays a slack on top of the deltas, here half of delta, and the other half is shared out:

        epsilon = sqrt(2 ln(1/slack) sum epsilon_t^2) + sum epsilon_t (e^epsilon_t - 1)
        delta   = slack + sum delta_t

    Dwork and Roth 2014, Theorem 3.20.
    """
    check_target(epsilon, delta)
    check_count("releases", releases)
    slope = math.sqrt(-2 * releases * math.log(delta / 2))
    # either term alone reaches epsilon here; the second bound keeps e^epsilon_t finite
    far = min(epsilon / slope, 1 + math.log1p(epsilon / releases))
    each = _root(lambda e: slope * e + releases * e * math.expm1(e) - epsilon, 0.0, far)
    return Guarantee(each, delta / (2 * releases))
