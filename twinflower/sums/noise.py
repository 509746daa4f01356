"""The sums of a run in which the server sees nothing else: how much noise is in each, and what each costs a site.

Every site computes the same numbers from public settings and the public numbers of rows. Each site has two privacy
costs: against a server that colludes with all but `honest` sites, and against all other parties together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..privacy.counts import CountPlan
from ..privacy.load import check_sensitivities
from ..problems.batches import LocalSchedule, Workload
from ..problems.interfaces import Bounds
from .accounting import SHARE, noise_for, round_mu, spread, sum_epsilon
from .discrete import Words, discrete_gaussian, seeded_words
from .grid import SHARE_BITS, Draw, Grid, SumNoise
from .summed import Summed, weights_of

MOST_SITES = 1000
"""The largest number of sites in a sum. A site computes a mask for each of the others, in every round."""


@dataclass(frozen=True)
class Sums:
    """The sums over the sites in a run of T rounds: how far a record moves each, and the noise in each.

    moves (T, N): how far one record of a site can move the site's value in a round, times the site's weight. weights
    (T,): the budget weights of the rounds. entries: d. honest: the number of sites whose noise no attacker knows.
    noise_multiplier: the standard deviation of the summed noise of `honest` sites, as a multiple of the largest move in
    a round of weight 1. longest (T,): the largest expected norm of a site's weighted value.
    """

    moves: Array
    weights: Array
    entries: int
    honest: int
    noise_multiplier: float
    longest: Array = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def of(
        cls, algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Sequence[int] | Index, rounds: int,
        entries: int, honest: int, mu: float = 0.0, noise_multiplier: float = 0.0,
    ) -> "Sums":  # fmt: skip
        """The sums of clients with these numbers of rows (N,).

        The noise is noise_multiplier if that is above 0. Otherwise it is the smallest noise with which no site spends
        more than mu against a server that colludes with all but `honest` sites. Raises SettingError if no noise can
        meet that.
        """
        _check_honest(honest, len(sizes))
        moves, longest, weights = _loads(algorithm, bounds, schedule, np.asarray(sizes), rounds)
        noise = noise_multiplier or noise_for(mu, moves, weights, entries, honest)
        sums = cls(moves, weights, entries, honest, noise, longest)
        for round_, most in enumerate(longest, 1):
            sums.grid(round_).check(float(most))
        return sums

    @property
    def sites(self) -> int:
        """The number of sites N."""
        return self.moves.shape[-1]

    @property
    def rounds(self) -> int:
        """The number of rounds T."""
        return len(self.weights)

    @cached_property
    def sigmas(self) -> Array:
        """The standard deviation (T,) of the summed noise of `honest` sites, in the unit of the values."""
        return self.noise_multiplier * self.moves.max(-1) / np.sqrt(self.weights)

    def grid(self, round_: int) -> Grid:
        """The grid of a round; rounds count from 1."""
        return Grid.of_noise(float(self.sigmas[round_ - 1]), self.honest, self.sites)

    @cached_property
    def widths(self) -> tuple[float, ...]:
        """The width of a grid cell in each round (T,)."""
        return tuple(self.grid(t).cell for t in range(1, self.rounds + 1))

    @cached_property
    def costs(self) -> Array:
        """The cost mu^2 (T, N) of each round against a server that colludes with all but `honest` sites."""
        return self._costs(spread(self.honest))

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
        return self.noise_multiplier / math.sqrt(self.honest) * ratios

    @property
    def factor(self) -> float:
        """The ratio of `mu_alone` to `mu`.

        It is sqrt(honest), apart from the cost of discrete noise.
        """
        one = np.ones(1)
        return float(
            round_mu(one, self.entries, SHARE)[0] / round_mu(one, self.entries, spread(self.honest))[0]
        )

    @property
    def mu(self) -> Array:
        """mu (N,) of all rounds together, against a server that colludes with all but `honest` sites."""
        return np.sqrt(self.costs.sum(0))  # type: ignore[no-any-return]

    @property
    def mu_alone(self) -> Array:
        """mu (N,) of all rounds together, against all other parties together."""
        return np.sqrt(self.costs_alone.sum(0))  # type: ignore[no-any-return]


def _check_honest(honest: int, sites: int) -> None:
    if not 2 <= sites <= MOST_SITES:
        raise SettingError(
            f"trust sum needs from 2 to {MOST_SITES} clients, because each pair of them shares masks; got {sites}"
        )
    if not 1 <= honest <= sites:
        raise SettingError(
            f"honest-sites must be from 1 to the number of clients, {sites}; got {honest}: it is how many sites, "
            "each one itself included, add noise that no attacker knows"
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
    # the norm of a mean gradient is at most C, and one record moves it by 2 C / rows
    longest = (ones * rows / 2)[:, place] * weights
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


def largest_mu(mu: Array, evaluation: CountPlan | None) -> float:
    """The largest mu that a site can reach in a run whose sums cost mu (N,), evaluations included.

    Evaluations are not summed. A site's own noise protects them, so they cost the same against every attacker.
    """
    costs = mu.max(keepdims=True) ** 2
    return math.sqrt((evaluation.with_training(costs) if evaluation else costs).max())


def lost_site(sums: Sums, delta: float, evaluation: CountPlan | None = None) -> tuple[float, float]:
    """The total epsilons of a client if a site is lost permanently and the run is repeated without it.

    The client takes part in at most one whole run and then in a second one, planned for the same target, at most as
    many honest sites and the same evaluations, so mu grows by at most sqrt(2). The two runs may divide the rows
    differently, but a record costs at most the larger of training and evaluation in each. The first epsilon holds
    against a server that colludes with all but `honest` sites, the second against all other parties together.
    """
    numbers = 2 * sums.entries * sums.rounds
    mu, alone = (math.sqrt(2) * largest_mu(each, evaluation) for each in (sums.mu, sums.mu_alone))
    return sum_epsilon(mu, delta, sums.honest, numbers), sum_epsilon(alone, delta, 1, numbers)
