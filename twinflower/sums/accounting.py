"""What a sum with shared noise costs: against the server and some of the sites, and against everybody else together.

N sites send whole numbers (`grid`), each with discrete Gaussian noise of s = 2^SHARE_BITS cells. An attacker who knows
everything but h honest sites' numbers sees one of these hidden behind the noise of h sites, of deviation S = s sqrt(h).
With h = 1 this is everybody else together. One record moves its site's numbers by at most

    D = move / cell + 2 sqrt(d)      cells, in Euclidean norm

because two roundings move an entry by 1 at most (the other sqrt(d) is for the proof). Then the round is mu-GDP (Dong,
Roth and Su 2022) with

    mu = (D / S) (1 + sqrt(pi / 2) sqrt(d) / S),                                        (*)

the second factor being the price of discrete noise. Costs mu^2 add up over rounds that are chosen adaptively.

Proof of (*). Let n have the law of one discrete Gaussian of deviation S >= 1, Z_S its sum of exp(-j^2 / (2 S^2)).
(1) n and a normal x of deviation S can be drawn together with |n - x| <= 1: take equal quantiles. It says that
P(n <= k) lies between P(x <= k) and P(x <= k + 1), and by symmetry the first half is enough. For k >= 0 it reads
P(n >= k + 1) <= P(x > k), and holds because sum_{j > k} exp(..) is below the integral from k on, and Z_S above
S sqrt(2 pi), which by Poisson's formula it exceeds by the factor 1 + 2 exp(-2 pi^2 S^2) + ... only. For k = -m < 0 it
reads P(n >= m) >= P(x >= m): here the sum exceeds the integral by more than that factor.
(2) For a move by whole numbers D, ||D|| <= D, the logarithm of the ratio of both densities is linear,
(||D||^2 - 2 <n, D>) / (2 S^2), as it is for the normal x: so the two differ by at most ||D||_1 / S^2 <= e with
e = sqrt(d) D / S^2. Because delta(epsilon) is the mean of max(0, 1 - exp(epsilon - ratio)), the discrete noise has
delta(epsilon) <= delta_m(epsilon - e), the curve of m-GDP with m = D / S.
(3) In u = epsilon/m - m/2, v = epsilon/m + m/2 the curve's derivatives are phi(u) by m and -e^epsilon Phi(-v) =
-phi(u) M(v) by epsilon, M = Phi(-v) / phi(v) <= sqrt(pi/2) for v >= 0, and v >= 0 from epsilon = -e on, because
e = m sqrt(d) / S <= m^2 / 2. So if m grows sqrt(pi/2) times as fast as
epsilon shrinks, delta does not fall: delta_m(epsilon - e) <= delta_mu(epsilon), mu = m + sqrt(pi/2) e, for all epsilon
>= 0. Both orders of the two data sets are alike, so the round is mu-GDP.

Sums of h discrete Gaussians are not quite one of deviation s sqrt(h). Complete the square: the sum of one of deviation
s sqrt(k) and one of s takes the value z with the wanted probability, times the sum over j of
exp(-(j - c z)^2 / (2 r^2)), r^2 = s^2 k / (k + 1). By Poisson's formula that depends on z by a factor
1 +- 2 exp(-2 pi^2 r^2) and less. Over all k the logarithms of the probabilities differ by at most

    tau = 10 sum_{k<h} exp(-2 pi^2 s^2 k / (k + 1))

for each number, as in Kairouz, Liu and Steinke, "The distributed discrete Gaussian mechanism for federated learning
with secure aggregation", ICML 2021. It adds 2 tau to epsilon for each number and multiplies delta by exp(tau). With
s = 2^30 this is below 10^(-10^18) (`convolution_loss`, 0 in floats).
"""

import math

import numpy as np

from ..arrays import Array
from ..errors import require
from ..privacy.accountant import gdp_epsilon
from .grid import SHARE_BITS

SHARE = 2.0**SHARE_BITS
"""Deviation of a site's noise, in cells."""


def spread(honest: int, share: float = SHARE) -> float:
    """S, the deviation in cells of the noise of so many sites together; share: of one site."""
    return share * math.sqrt(honest)


def round_mu(moves: Array, entries: int, deviation: float) -> Array:
    """(*) for records that move a site's value by so many cells, before rounding; entries: d."""
    worst = moves + 2 * math.sqrt(entries)
    return worst / deviation * _price(entries, deviation)


def _price(entries: int, deviation: float) -> float:
    """1 + sqrt(pi / 2) sqrt(d) / S."""
    require(deviation >= 1, f"discrete noise needs a deviation of at least one cell; got {deviation:g}")
    return 1 + math.sqrt(math.pi / 2 * entries) / deviation


def noise_for(
    mu: float, moves: Array, weights: Array, entries: int, honest: int, share: float = SHARE
) -> float:
    """z: the noise of `honest` sites has the deviation z max_i moves_ti / sqrt(w_t) in round t, and no site spends more
    than mu against everybody but these.

    moves (T, N): how far a record of a site moves its value, in the unit of the values. weights (T,). With u = 1/z a
    site's cost is (1 + c)^2 sum_t (a_t u + b)^2, a_t = sqrt(w_t) moves_t / max moves, b = 2 sqrt(d) / S: a quadratic.
    """
    deviation = spread(honest, share)
    a = np.sqrt(weights)[:, None] * moves / moves.max(-1, keepdims=True)
    b = 2 * math.sqrt(entries) / deviation
    square, line = (a * a).sum(0), b * a.sum(0)
    room = (mu / _price(entries, deviation)) ** 2 - len(moves) * b * b
    require(
        room > 0,
        f"rounding alone uses up the budget mu = {mu:g} over {len(moves)} rounds: raise epsilon or lower rounds",
    )
    return float(((line + np.sqrt(line * line + square * room)) / room).max())


def convolution_loss(honest: int, numbers: int, share: float = SHARE) -> float:
    """tau for so many numbers (entries times rounds) altogether; see the module's docstring."""
    k = np.arange(1, honest)
    return numbers * 10 * math.fsum(np.exp(-2 * math.pi**2 * share**2 * k / (k + 1)))


def sum_epsilon(mu: float, delta: float, honest: int, numbers: int, share: float = SHARE) -> float:
    """epsilon at this delta against everybody but `honest` sites, the price of summing discrete noise included."""
    tau = convolution_loss(honest, numbers, share)
    return gdp_epsilon(mu, delta * math.exp(-tau)) + 2 * tau
