"""Lower bounds on privacy parameters, with a confidence, from what an attack achieved on repeated runs, or in one run.

A mechanism is run on two neighbouring data sets, called first and second, and an attack says after every run which of
them was used. `alpha` is always the probability, at most, with which a bound exceeds the true value; the confidence is
1 - alpha. A bound holds for an attack that was chosen before the runs that are counted, on other runs.

Sources. Rates: Clopper and Pearson, "The use of confidence or fiducial limits", Biometrika 1934, as used by Jagielski,
Ullman and Oprea, "Auditing differentially private machine learning", NeurIPS 2020. mu: Dong, Roth and Su, "Gaussian
differential privacy", JRSS B 2022; Nasr et al., "Tight auditing of differentially private machine learning", USENIX
Security 2023. One run: Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run", ICML 2025.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Mask
from ..errors import SettingError, require
from .accountant import check_probability

_NEVER = 1e-300  # stands for a probability of 0 below a fraction
_LARGE = 500.0  # an epsilon that no number of runs shows


class Counts(NamedTuple):
    """How often an attack said "second": in `hits` of `seconds` runs on the second data set, and in `alarms` of
    `firsts` runs on the first."""

    hits: int
    seconds: int
    alarms: int
    firsts: int


def clopper_pearson(successes: int, trials: int, alpha: float) -> tuple[float, float]:
    """A lower and an upper bound on a probability; each by itself is wrong with a probability of at most alpha.

    The lower bound is the p at which as many successes or more have probability alpha, P[Binomial(n, p) >= k] = alpha.
    If it exceeds the true p, then k is among the largest outcomes, which together have probability alpha or less. By
    P[Binomial(n, p) >= k] = P[Beta(k, n - k + 1) <= p] it is a quantile of a beta distribution. The upper bound is the
    same for the failures.
    """
    check_probability("alpha", alpha)
    if not 0 <= successes <= trials > 0:
        raise SettingError(f"successes must be from 0 to trials; got {successes} of {trials}")
    misses = trials - successes
    low = special.betaincinv(successes, misses + 1, alpha) if successes else 0.0
    high = special.betaincinv(successes + 1, misses, 1 - alpha) if misses else 1.0
    return float(low), float(high)


def _rates(counts: Counts, alpha: float) -> tuple[float, float]:
    """A lower bound on the probability of a hit and an upper bound on that of an alarm; both hold at once."""
    low, _ = clopper_pearson(counts.hits, counts.seconds, alpha / 2)
    _, high = clopper_pearson(counts.alarms, counts.firsts, alpha / 2)
    return low, high


def epsilon_of_rates(counts: Counts, delta: float, alpha: float) -> float:
    """A lower bound on epsilon at delta from 0; no assumption on the mechanism.

    (epsilon, delta)-DP means P[hit] <= e^epsilon P[alarm] + delta, and the same for the complements:
    1 - P[alarm] <= e^epsilon (1 - P[hit]) + delta. Both are solved for epsilon at bounds on the two probabilities, each
    with alpha / 2. However well the attack works, n runs can show no more than about ln(n / ln(2 / alpha)).
    """
    low, high = _rates(counts, alpha)
    ratios = (low - delta) / max(high, _NEVER), (1 - high - delta) / max(1 - low, _NEVER)
    return max(0.0, math.log(max(*ratios, _NEVER)))


def runs_to_exceed(epsilon: float, delta: float, alpha: float) -> int:
    """The number of runs on each data set from which on an attack without a mistake shows more than this epsilon.

    After n runs, (alpha / 2)^(1/n) is the lower bound on P[hit] and 1 minus it the upper bound on P[alarm], and
    `epsilon_of_rates` exceeds epsilon if (alpha / 2)^(1/n) > (e^epsilon + delta) / (e^epsilon + 1): about
    e^epsilon ln(2 / alpha) runs.
    """
    failures = (1 - delta) / (1 + math.exp(min(epsilon, _LARGE)))
    return math.floor(math.log(alpha / 2) / math.log1p(-failures)) + 1


def mu_of_rates(counts: Counts, alpha: float) -> float:
    """A lower bound on mu; no assumption but that it is asked about mu-GDP.

    mu-GDP means that no test does better than the best one of N(0, 1) against N(mu, 1), so that
    P[hit] <= Phi(Phi^-1(P[alarm]) + mu), and mu >= Phi^-1(P[hit]) - Phi^-1(P[alarm]).
    """
    low, high = _rates(counts, alpha)
    if low == 0 or high == 1:
        return 0.0
    return max(0.0, float(special.ndtri(low) - special.ndtri(high)))


def mu_of_shift(shift: float, noise: Array, alpha: float) -> float:
    """A lower bound on mu of a score whose noise is normal, if the data move it by a known amount.

    noise: the scores of n independent runs on one data set. With their deviation s, (n - 1) s^2 / sigma^2 is
    chi-square with n - 1 degrees of freedom, so that sigma is above s sqrt((n - 1) / q), q the quantile at alpha, with
    probability alpha. mu = |shift| / sigma. The shift is known if the same draws can be used on both data sets.
    """
    freedom = len(noise) - 1
    quantile = 2 * float(special.gammaincinv(freedom / 2, alpha))
    deviation = float(np.std(noise, ddof=1))
    return abs(shift) / max(deviation, _NEVER) * math.sqrt(quantile / freedom)


def mu_of_means(first: Array, second: Array, alpha: float) -> float:
    """A lower bound on mu of a score that is normal on both data sets, with a common deviation.

    With n and m independent runs, T = (mean difference) / (s sqrt(1/n + 1/m)) has the noncentral t-distribution with
    n + m - 2 degrees of freedom and noncentrality mu / sqrt(1/n + 1/m). P[T >= t] grows with mu, and the bound is the
    mu at which it is alpha. Its sign is known from other runs: `second` is expected to be the larger.
    """
    from scipy import stats  # slow to import, and needed only here

    freedom = len(first) + len(second) - 2
    unit = math.sqrt(1 / len(first) + 1 / len(second))
    squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (first, second))
    deviation = math.sqrt(max(squares / freedom, _NEVER))
    t = float(second.mean() - first.mean()) / (deviation * unit)
    return largest(lambda mu: float(stats.nct.sf(t, freedom, mu / unit)) <= alpha, t * unit)


def largest(holds: Callable[[float], bool], limit: float, digits: float = 1e-7) -> float:
    """The largest number from 0 to limit at which `holds`, which is true up to some number and false from there;
    0 if it is false at 0."""
    if limit <= 0 or not holds(0.0):
        return 0.0
    low, high = 0.0, limit
    while high - low > digits * limit:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# --- a single run, in which each of many records, the canaries, depended on a fair coin. Heads and tails may mean that
# a record is included or not, or that it is one record or another: the neighbours are then those of adding or removing
# a record, or of replacing one.

_PARTS = 1, 4, 8, 16  # guesses about all coins, a quarter of them, and so on
_MOST_EPSILON, _MOST_MU = 50.0, 20.0  # which no number of canaries shows

FalseAlarms = Callable[[float], float]
"""The least probability of a false alarm of a test on two neighbours that detects with a given probability."""


class Guesses(NamedTuple):
    """How many coins of so many canaries were guessed, and how many of the guesses are right."""

    correct: int
    guesses: int
    canaries: int


def guessed(scores: Array, coins: Mask, guesses: int) -> Guesses:
    """Guesses about the `guesses` canaries of the most extreme scores (m,): heads for the larger half of them, tails
    for the smaller; about all others there is none. coins: whether each fell heads (m,)."""
    order = np.argsort(scores, kind="stable")
    tails, heads = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return Guesses(int(coins[heads].sum() + (~coins[tails]).sum()), guesses, len(coins))


def contradicts(found: Guesses, false_alarms: FalseAlarms, alpha: float) -> bool:
    """Whether so many right guesses or more have a probability below alpha, whatever the attack.

    Let K of r guesses about m canaries be right, R_t = E[K; K >= t] / m and W_t = E[r - K; K >= t] / m.

    1. Given the other coins, "the guess about a canary is right, and K >= t" is the same event for one side of its coin
       as "it is wrong, and K >= t - 1" for the other. So the probability of the second is at least false_alarms of that
       of the first. false_alarms is convex, and the mean over all canaries gives W_{t-1} >= false_alarms(R_t).
    2. With P[K = t] as the unknowns, R_{t-1} = R_t + (t - 1) / (r - t + 1) (W_{t-1} - W_t). These factors grow with t,
       and by partial summation R and P[K >= t] are least where every W is.
    3. If P[K >= c] >= alpha, then R_c >= alpha c / m. The least W and R below c follow from 1 and 2. They need a total
       probability P[K >= 0] = (R_0 + W_0) m / r. A total above 1 is a contradiction (Algorithm 3).
    """
    c, r, m = found
    require(0 <= c <= r <= m, "correct <= guesses <= canaries is needed")
    right, wrong = alpha * c / m, alpha * (r - c) / m
    for t in range(c - 1, -1, -1):
        least = false_alarms(right)
        right, wrong = right + t / (r - t) * (least - wrong), least
        if not 0 <= right < 1:
            return right >= 1
    return (right + wrong) * m / r > 1


def epsilon_of_one_run(found: Guesses, delta: float, alpha: float) -> float:
    """A lower bound on epsilon at delta; no assumption on the mechanism."""

    def refuted(epsilon: float) -> bool:
        def false_alarms(detected: float) -> float:
            return max(
                0.0, (detected - delta) * math.exp(-epsilon), 1 - delta - math.exp(epsilon) * (1 - detected)
            )

        return contradicts(found, false_alarms, alpha)

    return largest(refuted, _MOST_EPSILON)


def mu_of_one_run(found: Guesses, alpha: float) -> float:
    """A lower bound on mu; no assumption but that it is asked about mu-GDP."""

    def refuted(mu: float) -> bool:
        return contradicts(found, lambda p: float(special.ndtr(special.ndtri(p) - mu)), alpha)

    return largest(refuted, _MOST_MU)


def best_guesses(
    scores: Array, coins: Mask, bound: Callable[[Guesses, float], float], alpha: float
) -> tuple[float, Guesses]:
    """The largest bound(guesses, alpha / 4), of guesses about all coins or about a 4th, an 8th or a 16th of them."""
    tried = [guessed(scores, coins, max(len(coins) // part, 1)) for part in _PARTS]
    return max((bound(one, alpha / len(_PARTS)), one) for one in tried)
