"""The privacy cost of a sum with distributed noise: against the server with some sites, and against all other parties.

N sites send integers (`grid`), each with discrete Gaussian noise of standard deviation s = 2^SHARE_BITS cells. An
attacker who knows everything except the numbers of h honest sites sees only the sum of these, so each honest site is
protected by the noise of all h, of standard deviation S = s sqrt(h). With h = 1 the attacker is all other parties
together. One record moves its site's numbers by at most

    D = move / cell + 2 sqrt(d)      cells, in Euclidean norm

because rounding both values changes the difference in an entry by at most 1; the second sqrt(d) is needed in the proof.
Then the round is mu-GDP (Dong, Roth and Su 2022) with

    mu = (D / S) (1 + sqrt(pi / 2) sqrt(d) / S),                                        (*)

where the second factor is the cost of using discrete noise. Costs mu^2 add up over rounds that are chosen adaptively.

Proof of (*). Let n be a discrete Gaussian of standard deviation parameter S >= 1, and Z_S its normalising sum of
exp(-j^2 / (2 S^2)).
(1) n and a normal x of standard deviation S can be coupled with |n - x| <= 1, by taking equal quantiles. This says that
P(n <= k) lies between P(x <= k) and P(x <= k + 1). By symmetry it suffices to prove the first inequality. For k >= 0 it
reads P(n >= k + 1) <= P(x > k). It holds because sum_{j > k} exp(..) is below the integral from k on, and Z_S is above
S sqrt(2 pi), by the factor 1 + 2 exp(-2 pi^2 S^2) + ... only (Poisson summation). For k = -m < 0 it reads
P(n >= m) >= P(x >= m), and here the sum exceeds the integral by more than that factor.
(2) For a move by an integer vector D of norm ||D|| <= D, the logarithm of the ratio of the two densities is linear,
(||D||^2 - 2 <n, D>) / (2 S^2), and it has the same form for the normal x. So the two logarithms differ by at most
||D||_1 / S^2 <= e with e = sqrt(d) D / S^2. Because delta(epsilon) is the mean of max(0, 1 - exp(epsilon - ratio)), the
discrete noise has delta(epsilon) <= delta_m(epsilon - e), where delta_m is the curve of m-GDP with m = D / S.
(3) Let u = epsilon/m - m/2 and v = epsilon/m + m/2. The derivative of the curve in m is phi(u), and in epsilon it is
-e^epsilon Phi(-v) = -phi(u) M(v) with M(v) = Phi(-v) / phi(v) <= sqrt(pi/2) for v >= 0. And v >= 0 for all
epsilon >= -e, because e = m sqrt(d) / S <= m^2 / 2. So if m grows sqrt(pi/2) times as fast as epsilon decreases, delta
does not decrease: delta_m(epsilon - e) <= delta_mu(epsilon) with mu = m + sqrt(pi/2) e, for all epsilon >= 0. The
argument is symmetric in the two data sets, so the round is mu-GDP.

The sum of h discrete Gaussians is not exactly a discrete Gaussian of standard deviation s sqrt(h). Complete the square:
the sum of one with s sqrt(k) and one with s takes the value z with the desired probability, times the sum over j of
exp(-(j - c z)^2 / (2 r^2)), r^2 = s^2 k / (k + 1). By Poisson summation that factor varies with z by at most
1 +- 2 exp(-2 pi^2 r^2). Over all k the logarithms of the probabilities differ by at most

    tau = 10 sum_{k<h} exp(-2 pi^2 s^2 k / (k + 1))

for each number, as in Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism for federated learning
with secure aggregation", ICML 2021. Each number adds 2 tau to epsilon and multiplies delta by exp(tau). With s = 2^30,
tau is below 10^(-10^18) (`convolution_loss` is 0 in floating point).
"""

import math

import numpy as np

from ..arrays import Array
from ..errors import SettingError
from ..privacy.accountant import gdp_epsilon
from .grid import SHARE_BITS

SHARE = 2.0**SHARE_BITS
"""Deviation of a site's noise, in cells."""


def spread(honest: int, share: float = SHARE) -> float:
    """S, the standard deviation in cells of the summed noise of `honest` sites; share: that of one site."""
    return share * math.sqrt(honest)


def round_mu(moves: Array, entries: int, deviation: float) -> Array:
    """mu of a round by (*). moves: how far a record moves its site's value, in cells before rounding. entries: d."""
    worst = moves + 2 * math.sqrt(entries)
    return worst / deviation * _price(entries, deviation)


def _price(entries: int, deviation: float) -> float:
    """The factor 1 + sqrt(pi / 2) sqrt(d) / S of (*)."""
    if not deviation >= 1:
        raise SettingError(f"discrete noise needs a deviation of at least one cell; got {deviation:g}")
    return 1 + math.sqrt(math.pi / 2 * entries) / deviation


def noise_for(
    mu: float, moves: Array, weights: Array, entries: int, honest: int, share: float = SHARE
) -> float:
    """The smallest noise multiplier z with which no site spends more than mu against a server that colludes
    with all but `honest` sites.

    In round t the summed noise of `honest` sites has standard deviation z max_i moves_ti / sqrt(w_t). moves (T, N): how
    far a record of a site moves its value, in the unit of the values. weights (T,): budget weights w_t. entries: d.
    With u = 1/z the cost of a site is (1 + c)^2 sum_t (a_t u + b)^2, where a_t = sqrt(w_t) moves_t / max moves and
    b = 2 sqrt(d) / S; z follows from this quadratic. Raises SettingError if rounding alone exceeds mu.
    """
    deviation = spread(honest, share)
    a = np.sqrt(weights)[:, None] * moves / moves.max(-1, keepdims=True)
    b = 2 * math.sqrt(entries) / deviation
    square, line = (a * a).sum(0), b * a.sum(0)
    room = (mu / _price(entries, deviation)) ** 2 - len(moves) * b * b
    if not room > 0:
        raise SettingError(
            f"rounding alone uses up the budget mu = {mu:g} over {len(moves)} rounds: raise epsilon or lower rounds"
        )
    return float(((line + np.sqrt(line * line + square * room)) / room).max())


def convolution_loss(honest: int, numbers: int, share: float = SHARE) -> float:
    """The total tau of `numbers` released numbers (entries times rounds); see the module docstring."""
    k = np.arange(1, honest)
    return numbers * 10 * math.fsum(np.exp(-2 * math.pi**2 * share**2 * k / (k + 1)))


def sum_epsilon(mu: float, delta: float, honest: int, numbers: int, share: float = SHARE) -> float:
    """epsilon at delta against a server that colludes with all but `honest` sites.

    It includes the cost of summing discrete noise.
    """
    tau = convolution_loss(honest, numbers, share)
    return gdp_epsilon(mu, delta * math.exp(-tau)) + 2 * tau
