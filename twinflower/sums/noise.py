"""How much noise is in the sums of a run, and what each costs a site: against the server with some sites, and against
all other parties.

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

Every site computes the same numbers from public settings and the public numbers of rows (`Sums`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..privacy.accountant import gdp_epsilon
from ..privacy.release import check_sensitivities
from ..problems.batches import LocalSchedule, Workload
from ..problems.interfaces import Bounds
from .discrete import Words, discrete_gaussian, seeded_words
from .grid import SHARE_BITS, Draw, Grid, SumNoise
from .summed import Summed, weights_of

MOST_SITES = 1000
"""The largest number of sites in a sum. A site computes a mask for each of the others, in every round."""
SHARE = 2.0**SHARE_BITS
"""Deviation of a site's noise, in cells."""


def spread(honest: int, share: float = SHARE) -> float:
    """S, the standard deviation in cells of the summed noise of `honest` sites; share: that of one site."""
    return share * math.sqrt(honest)


def counted(honest: int, lost: int) -> int:
    """The fewest honest sites in the sum of a round, if up to `lost` sites may be missing (docs/sums.md).

    An honest site is left out only if honest - lost honest ones have left it out, and each leaves out at most `lost`.
    """
    return honest - lost * honest // (honest - lost)


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


@dataclass(frozen=True)
class Sums:
    """The sums over the sites in a run of T rounds: how far a record moves each, and the noise in each.

    moves (T, N): how far one record of a site can move the site's value in a round, times the site's weight. weights
    (T,): the budget weights of the rounds. entries: d. honest: the number of sites whose noise no attacker knows.
    noise_multiplier: the standard deviation of the summed noise of `counted` sites, as a multiple of the largest move
    in a round of weight 1. longest (T,): the largest expected norm of a site's weighted value. lost: how many sites may
    be missing in a round.
    """

    moves: Array
    weights: Array
    entries: int
    honest: int
    noise_multiplier: float
    longest: Array = field(default_factory=lambda: np.zeros(1))
    lost: int = 0

    @classmethod
    def of(
        cls, algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Sequence[int] | Index, rounds: int,
        entries: int, honest: int, mu: float = 0.0, noise_multiplier: float = 0.0, lost: int = 0,
    ) -> "Sums":  # fmt: skip
        """The sums of clients with these numbers of rows (N,).

        The noise is noise_multiplier if that is above 0. Otherwise it is the smallest noise with which no site spends
        more than mu against a server that colludes with all but `honest` sites. Raises SettingError if no noise can
        meet that.
        """
        _check_honest(honest, len(sizes), lost)
        moves, longest, weights = _loads(algorithm, bounds, schedule, np.asarray(sizes), rounds)
        noise = noise_multiplier or noise_for(mu, moves, weights, entries, counted(honest, lost))
        sums = cls(moves, weights, entries, honest, noise, longest, lost)
        for round_, most in enumerate(longest, 1):
            sums.grid(round_).check(float(most))
        return sums

    @property
    def sites(self) -> int:
        """The number of sites N."""
        return self.moves.shape[-1]

    @property
    def counted(self) -> int:
        """The number of sites whose noise the plan counts on in every round; `honest` if no site may be missing."""
        return counted(self.honest, self.lost)

    @property
    def rounds(self) -> int:
        """The number of rounds T."""
        return len(self.weights)

    @cached_property
    def sigmas(self) -> Array:
        """The standard deviation (T,) of the summed noise of `counted` sites, in the unit of the values."""
        return self.noise_multiplier * self.moves.max(-1) / np.sqrt(self.weights)

    def grid(self, round_: int) -> Grid:
        """The grid of a round; rounds count from 1."""
        return Grid.of_noise(float(self.sigmas[round_ - 1]), self.counted, self.sites)

    @cached_property
    def widths(self) -> tuple[float, ...]:
        """The width of a grid cell in each round (T,)."""
        return tuple(self.grid(t).cell for t in range(1, self.rounds + 1))

    @cached_property
    def costs(self) -> Array:
        """The cost mu^2 (T, N) of each round against a server that colludes with all but `honest` sites."""
        return self._costs(spread(self.counted))

    @cached_property
    def costs_alone(self) -> Array:
        """The cost mu^2 (T, N) of each round against all other parties together."""
        return self._costs(SHARE)

    def _costs(self, deviation: float) -> Array:
        cells = self.moves / np.array(self.widths)[:, None]
        costs: Array = round_mu(cells, self.entries, deviation) ** 2
        return costs

    @property
    def shares(self) -> Array:
        """Each site's own noise multiplier (N,): its standard deviation over the largest move by a record of the site,
        minimised over the rounds."""
        largest = self.moves.max(-1, keepdims=True)
        ratios: Array = (largest / self.moves).min(0)
        return self.noise_multiplier / math.sqrt(self.counted) * ratios

    @property
    def factor(self) -> float:
        """The ratio of `mu_alone` to `mu`.

        It is sqrt(counted), apart from the cost of discrete noise.
        """
        one = np.ones(1)
        return float(
            round_mu(one, self.entries, SHARE)[0] / round_mu(one, self.entries, spread(self.counted))[0]
        )

    @property
    def mu(self) -> Array:
        """mu (N,) of all rounds together, against a server that colludes with all but `honest` sites."""
        return np.sqrt(self.costs.sum(0))  # type: ignore[no-any-return]

    @property
    def mu_alone(self) -> Array:
        """mu (N,) of all rounds together, against all other parties together."""
        return np.sqrt(self.costs_alone.sum(0))  # type: ignore[no-any-return]


def check_sites(sites: int) -> None:
    """Raise SettingError unless so many sites can add up their messages."""
    if not 2 <= sites <= MOST_SITES:
        raise SettingError(
            f"trust sum needs from 2 to {MOST_SITES} clients, because each pair of them shares masks; got {sites}"
        )


def _check_honest(honest: int, sites: int, lost: int) -> None:
    check_sites(sites)
    if not 1 <= honest <= sites:
        raise SettingError(
            f"honest-sites must be from 1 to the number of clients, {sites}; got {honest}: it is how many sites, "
            "each one itself included, add noise that no attacker knows"
        )
    if not 2 * lost < honest:
        raise SettingError(
            f"privacy.lost-sites must be below half of privacy.honest-sites, {honest}, because a majority of the "
            f"honest sites decides which sum a server may read; got {lost}: lower it, or raise privacy.honest-sites"
        )


def _loads(
    algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Index, rounds: int
) -> tuple[Array, Array, Array]:
    """The fields moves (T, N), longest (T,) and weights (T,) of a `Sums`."""
    weights = weights_of(algorithm, np.arange(len(sizes)))
    known, place = np.unique(sizes, return_inverse=True)
    workloads = [schedule.workload(int(m)) for m in known]
    moves = _sensitivities(algorithm, bounds, workloads, rounds)
    check_sensitivities(moves)
    ones = _sensitivities(algorithm, bounds, [workload.for_one_row for workload in workloads], rounds)
    rows = np.array([workload.rows for workload in workloads])
    # the norm of a mean gradient, for example, is at most C, and one record moves it by 2 C / rows
    longest = (ones * rows * algorithm.row_reach)[:, place] * weights
    shared = [algorithm.release(bounds, workloads[0], t).weight for t in range(1, rounds + 1)]
    return moves[:, place] * weights, longest.max(-1), np.array(shared)


def _sensitivities(algorithm: Any, bounds: Bounds, workloads: Sequence[Workload], rounds: int) -> Array:
    """The sensitivity (T, workloads) of every release."""
    return np.array(
        [[algorithm.release(bounds, p, t).sensitivity for p in workloads] for t in range(1, rounds + 1)]
    )


def share_of(words: Words) -> Draw:
    """A site's share of the noise in a sum, from random words."""
    return lambda count: discrete_gaussian(count, SHARE_BITS, words)


@dataclass(frozen=True)
class SimulatedSums:
    """The noise of all sites in a simulation (`rounds.NoiseOf`), addressed by (seed, client, round) and not secret."""

    algorithm: Summed
    sums: Sums
    seed: int = 0

    def __call__(self, round_: int, clients: Index) -> SumNoise:
        """The noise in a round of the clients (...,), given by number."""
        draws = [share_of(seeded_words(self.seed, int(client), round_)) for client in clients.flat]
        return SumNoise(
            self.sums.grid(round_), weights_of(self.algorithm.algorithm, clients)[..., None], draws
        )
