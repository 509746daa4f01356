"""The privacy cost of Gaussian releases, and the noise that a given (epsilon, delta) requires.

Neighbouring data sets differ in one record of one client, which is REPLACED by another; every statement here is for
that relation. A release is f(D) + N(0, sigma^2 I) with ||f(D) - f(D')|| <= sensitivity. It costs
mu^2 = (sensitivity / sigma)^2. Costs add up, even if later releases are chosen after seeing earlier ones, and all
releases together are mu-GDP with mu = sqrt(sum mu_t^2). They are then (epsilon, delta)-DP for every pair on the curve

    delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu),

which is exact: no smaller delta holds for all data sets. A noise multiplier is sigma / sensitivity.

Sources. Curve: Balle and Wang, "Improving the Gaussian mechanism", ICML 2018, Theorem 8. Composition:
Dong, Roth and Su, "Gaussian differential privacy", JRSS B 2022, Corollary 3.3. Adaptive filter: Smith and
Thakurta, "Fully adaptive composition for Gaussian differential privacy", 2022 (arXiv:2210.17520).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import special
from ..errors import RunError, SettingError

Array = NDArray[np.float64]

ROUNDING = 1e-9
"""How far beyond its maximum, relatively, a `Budget` may go: room for rounding and for nothing else."""


# Gauss-Legendre quadrature on [0, 1]. For the Mills ratio it is exact to rounding over steps up to this length.
_SHORT_STEP = 0.1
_NODES, _WEIGHTS = (np.polynomial.legendre.leggauss(8) + np.array([[1.0], [0.0]])) / 2


# --- validation of arguments; nan fails every check, because comparisons with it are false ---


def check_positive(name: str, value: float) -> None:
    """Raise SettingError unless value is a finite number above 0."""
    if not 0 < value < math.inf:
        raise SettingError(f"{name} must be a finite number above 0; got {value}")


def check_not_negative(name: str, value: float) -> None:
    """Raise SettingError unless value is a finite number of at least 0."""
    if not 0 <= value < math.inf:
        raise SettingError(f"{name} must be a finite number from 0; got {value}")


def check_probability(name: str, value: float) -> None:
    """Raise SettingError unless value is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise SettingError(f"{name} must be strictly between 0 and 1; got {value}")


def check_count(name: str, value: int) -> None:
    """Raise SettingError unless value is a whole number of at least 1."""
    if not (value >= 1 and value % 1 == 0):
        raise SettingError(f"{name} must be a whole number from 1; got {value}")


def check_target(epsilon: float, delta: float) -> None:
    """Raise SettingError unless epsilon is finite and above 0, and delta is strictly between 0 and 1."""
    check_positive("epsilon", epsilon)
    check_probability("delta", delta)


def _array(name: str, values: ArrayLike, rule: str, good: Callable[[Array], NDArray[np.bool_]]) -> Array:
    """Return `values` as a flat float array; SettingError names the first entry that is not finite or not `good`."""
    array = np.ravel(np.asarray(values, dtype=np.float64))
    if not array.size > 0:
        raise SettingError(f"{name} must have at least one entry; got an empty schedule")
    bad = np.flatnonzero(~(good(array) & np.isfinite(array)))
    if bad.size:
        raise SettingError(f"{name} must be {rule}; got {array[bad[0]]} at entry {bad[0] + 1}")
    return array


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The zero of a monotone function between low and high, to nearly full floating-point precision.

    `high` is widened by 1% to allow for rounding.
    """
    return special.root(function, low, 1.01 * high, xtol=1e-300)


# --- Gaussian differential privacy ---


def _mills(x: Array) -> Array:
    """M(x) = Phi(-x) / phi(x), the Mills ratio of the normal distribution, in a form free of under- and overflow."""
    ratio: Array = math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))
    return ratio


def _mills_drop(x: float, step: float) -> float:
    """M(x) - M(x + step). For a short step it integrates -M'(y) = 1 - y M(y), which avoids cancellation."""
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

    The first form is used where delta is small, the second where it is near 1. Compared with a calculation in 60
    digits, for epsilon from 1e-3 to 1e3 and delta from 1e-12 to 0.1, the relative error of delta is below 5e-14.
    """
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    log_phi = -u * u / 2 - math.log(2 * math.pi) / 2
    if u < -1:
        return math.log1p(-float(special.ndtr(u)) - math.exp(log_phi) * float(_mills(np.array(v))))
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


@lru_cache(1024)  # the runs of an experiment ask the same
def gdp_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which mu-GDP is (epsilon, delta)-DP; epsilon > 0, 0 < delta < 1.

    The root lies between the mu of the zCDP conversion, which satisfies (epsilon, delta), and the mu with
    2 Phi(u) = 1 - delta, which does not, because M(v) < M(-u) in the formula of `log_delta`.
    """
    check_target(epsilon, delta)
    kept = math.sqrt(2 * zcdp_rho_papers(epsilon, delta))
    u = float(special.ndtri((1 - delta) / 2))
    broken = math.sqrt(u * u + 2 * epsilon) - u
    return _root(lambda mu: log_delta(mu, epsilon) - math.log(delta), kept, broken)


def best_guess(mu: float) -> float:
    """Phi(mu/2): how often the best attacker guesses correctly which of two equally likely records was used; mu >= 0.

    mu-GDP means that distinguishing the two cases is no easier than distinguishing N(0, 1) from N(mu, 1). With equal
    prior odds the best rule picks the more likely case: its threshold is mu/2, and its error rate is Phi(-mu/2).
    """
    check_not_negative("mu", mu)
    return float(special.ndtr(mu / 2))


def detection(mu: float, false_alarms: float = 0.05) -> float:
    """Phi(mu - z): the power of the best test for a record at this false-alarm rate (0.05 means 5%); mu >= 0.

    By the Neyman-Pearson lemma it separates N(0, 1) from N(mu, 1) with the threshold z = Phi^-1(1 - false_alarms).
    """
    check_not_negative("mu", mu)
    check_probability("false_alarms", false_alarms)
    return float(special.ndtr(mu + special.ndtri(false_alarms)))


# --- composition and budgets ---


def total_mu(sensitivities: ArrayLike, sigmas: ArrayLike) -> float:
    """mu = sqrt(sum (sensitivity_t / sigma_t)^2) of all releases together.

    sensitivities, sigmas: (T,), in the unit of the released numbers; a scalar applies to every release. A release of
    sensitivity 0 costs nothing. Raises SettingError for other lengths, a negative sensitivity, or a sigma of 0 or less.
    """
    top = _array("sensitivities", sensitivities, "finite numbers from 0", lambda x: x >= 0)
    bottom = _array("sigmas", sigmas, "finite numbers above 0", lambda x: x > 0)
    same = top.size == bottom.size or 1 in (top.size, bottom.size)
    if not same:
        raise SettingError(f"sensitivities and sigmas must be equally many; got {top.size} and {bottom.size}")
    return math.sqrt(np.sum(np.square(top / bottom)))


@dataclass(frozen=True)
class Budget:
    """A privacy filter: releases may be chosen adaptively, and are refused once the budget is used up.

    All amounts are in mu^2. A plan that spends the budget exactly must not fail at its last release because of rounding
    errors in 10,000 additions. So the total (not each release) may exceed the maximum by the factor 1 + `ROUNDING`,
    which increases mu by a relative 5e-10 at most.
    planned: what the run is expected to spend, 0 if unknown; a `FileLedger` refuses to start a run whose plan does not
    fit.
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
        """An unused budget for (epsilon, delta)-DP in total, over all releases of one data set."""
        mu_squared = gdp_mu(epsilon, delta) ** 2
        if not mu_squared > 0:
            raise SettingError(f"epsilon must be large enough for a finite noise; got {epsilon:g}")
        return cls(mu_squared)

    @property
    def remaining(self) -> float:
        """The unspent part of the budget in mu^2, at least 0."""
        return max(0.0, self.mu_max_squared - self.spent)

    def fits(self, cost: float) -> bool:
        """Whether a release of this cost in mu^2, or several of this total cost, still fits into the budget."""
        if not cost >= 0:
            raise SettingError(f"cost must be a number from 0; got {cost}")
        return self.spent + cost <= self.mu_max_squared * (1 + ROUNDING)

    def spend(self, cost: float) -> "Budget":
        """Return the budget after a release of this cost in mu^2; RunError if the release does not fit."""
        if not self.fits(cost):
            raise RunError(
                f"the privacy budget is used up: this release costs mu^2 = {cost:.6g}, "
                f"{self.remaining:.6g} of {self.mu_max_squared:.6g} is left"
            )
        return replace(self, spent=self.spent + cost)


# --- zero-concentrated differential privacy ---


def zcdp_mu(rho_zcdp: float) -> float:
    """mu = sqrt(2 rho_zcdp) of Gaussian releases whose cost is given in zCDP.

    This holds for compositions of Gaussian releases only; another rho-zCDP mechanism need not be mu-GDP. `gdp_epsilon`
    of this mu is the exact conversion for the mechanisms of Zhang 2023 and Gauthier 2023.
    """
    check_not_negative("rho_zcdp", rho_zcdp)
    return math.sqrt(2 * rho_zcdp)


def zcdp_epsilon_papers(rho_zcdp: float, delta: float) -> float:
    """epsilon = rho + 2 sqrt(rho ln(1/delta)), the conversion in Zhang 2023 and Gauthier 2023; valid but not tight.

    Source: Bun and Steinke, "Concentrated differential privacy", TCC 2016, Proposition 1.3.
    """
    check_not_negative("rho_zcdp", rho_zcdp)
    check_probability("delta", delta)
    return rho_zcdp + 2 * math.sqrt(-rho_zcdp * math.log(delta))


def zcdp_rho_papers(epsilon: float, delta: float) -> float:
    """The largest rho with rho + 2 sqrt(rho ln(1/delta)) <= epsilon, as Zhang 2023 and Gauthier 2023 choose it."""
    check_target(epsilon, delta)
    log_term = -math.log(delta)
    # (sqrt(L + epsilon) - sqrt(L))^2, rewritten to avoid cancellation
    return (epsilon / (math.sqrt(log_term + epsilon) + math.sqrt(log_term))) ** 2


# --- older composition rules, for comparison with the papers ---


class Guarantee(NamedTuple):
    """The (epsilon, delta) guarantee of one release."""

    epsilon: float
    delta: float


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """sigma / sensitivity = sqrt(2 ln(1.25/delta)) / epsilon, the rule of Li 2023 and Li 2024.

    The rule is proved for epsilon < 1 only (Dwork and Roth 2014, Theorem A.1) and is false from about epsilon = 8 on.
    The epsilon that this noise actually achieves is gdp_epsilon(1 / noise multiplier, delta).
    """
    check_target(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def basic_share(epsilon: float, delta: float, releases: int) -> Guarantee:
    """The (epsilon, delta) of each of `releases` equal releases under basic composition: both totals divided evenly."""
    check_target(epsilon, delta)
    check_count("releases", releases)
    return Guarantee(epsilon / releases, delta / releases)


def advanced_share(epsilon: float, delta: float, releases: int) -> Guarantee:
    """The guarantee that each of `releases` equal releases needs so that advanced composition gives (epsilon, delta).

    Advanced composition adds a slack to the sum of the deltas. Here the slack is half of delta, and the releases share
    the other half equally:

        epsilon = sqrt(2 ln(1/slack) sum epsilon_t^2) + sum epsilon_t (e^epsilon_t - 1)
        delta   = slack + sum delta_t

    Source: Dwork and Roth 2014, Theorem 3.20.
    """
    check_target(epsilon, delta)
    check_count("releases", releases)
    slope = math.sqrt(-2 * releases * math.log(delta / 2))
    # at each bound one term alone is at least epsilon; the second bound keeps e^epsilon_t finite
    far = min(epsilon / slope, 1 + math.log1p(epsilon / releases))
    each = _root(lambda e: slope * e + releases * e * math.expm1(e) - epsilon, 0.0, far)
    return Guarantee(each, delta / (2 * releases))
