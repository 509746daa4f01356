"""The noise of a run in which the server sees only sums: planned before the run, charged round by round.

Every site computes the same plan from public settings and the public numbers of rows. The plan gives two privacy costs
for each site: against a server that colludes with all but `honest` sites, and against all other parties together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..algorithms.summed import Summed
from ..arrays import Array, Index
from ..errors import require
from ..privacy.counts import CountPlan
from ..privacy.guard import Guard
from ..privacy.ledger import Charge
from ..privacy.mechanism import Draws
from ..privacy.release import Release
from ..problems.batches import LocalSchedule, Workload
from ..problems.interfaces import Bounds
from .accounting import SHARE, noise_for, round_mu, spread, sum_epsilon
from .discrete import Words, discrete_gaussian, seeded_words
from .grid import SHARE_BITS, Draw, Grid, SumNoise

MOST_SITES = 1000
"""The largest number of sites in a sum. (The cost grows with it: a mask for each pair of sites.)"""


@dataclass(frozen=True)
class SumPlan:
    """The noise of a run whose server sees only sums over the sites.

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
    ) -> "SumPlan":  # fmt: skip
        """Plan a run of clients with these numbers of rows (N,).

        The noise is noise_multiplier if that is above 0. Otherwise it is the smallest noise with which no site spends
        more than mu against all parties but `honest` sites. Raises SettingError if no plan is possible.
        """
        _check_honest(honest, len(sizes))
        moves, longest, weights = _loads(algorithm, bounds, schedule, np.asarray(sizes), rounds)
        noise = noise_multiplier or noise_for(mu, moves, weights, entries, honest)
        plan = cls(moves, weights, entries, honest, noise, longest)
        for round_, most in enumerate(longest, 1):
            plan.grid(round_).check(float(most))
        return plan

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

    def epsilon(self, delta: float) -> float:
        """The largest epsilon of any site at delta, against a server that colludes with all but `honest` sites."""
        return sum_epsilon(float(self.mu.max()), delta, self.honest, self.entries * self.rounds)

    def epsilon_alone(self, delta: float) -> float:
        """The largest epsilon of any site at delta, against all other parties together."""
        return sum_epsilon(float(self.mu_alone.max()), delta, 1, self.entries * self.rounds)


def _check_honest(honest: int, sites: int) -> None:
    require(
        2 <= sites <= MOST_SITES,
        f"trust sum needs from 2 to {MOST_SITES} clients, because each pair of them shares masks; got {sites}",
    )
    require(
        1 <= honest <= sites,
        f"honest-sites must be from 1 to the number of clients, {sites}; got {honest}: it is how many sites, each one "
        "itself included, add noise that no attacker knows",
    )


def _loads(
    algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Index, rounds: int
) -> tuple[Array, Array, Array]:
    """The fields moves (T, N), longest (T,) and weights (T,) of a `SumPlan`."""
    shares = algorithm.info.shares(np.arange(len(sizes)))
    weights = np.ones(len(sizes)) if shares is None else len(sizes) * shares
    known, place = np.unique(sizes, return_inverse=True)
    workloads = [schedule.workload(int(m)) for m in known]
    moves = _sensitivities(algorithm, bounds, workloads, rounds)
    require(
        bool(np.isfinite(moves).all() and (moves > 0).all()),
        "the releases of this run have no finite sensitivity, because its local steps stretch every difference: lower "
        "step-size, or local.max-steps",
    )
    ones = _sensitivities(algorithm, bounds, [workload.for_one_row for workload in workloads], rounds)
    rows = np.array([workload.rows for workload in workloads])
    longest = (ones * rows / 2)[
        :, place
    ] * weights  # the norm of a mean gradient is at most C, and one record moves it by 2 C / rows
    shared = [algorithm.release(bounds, workloads[0], t).weight for t in range(1, rounds + 1)]
    return moves[:, place] * weights, longest.max(-1), np.array(shared)


def _sensitivities(algorithm: Any, bounds: Bounds, workloads: Sequence[Workload], rounds: int) -> Array:
    """The sensitivity (T, workloads) of every release."""
    return np.array(
        [[algorithm.release(bounds, p, t).sensitivity for p in workloads] for t in range(1, rounds + 1)]
    )


def plain_draws(round_: int) -> Draws:
    """A placeholder for `Guard.draws` that is never called, because the noise of a sum is discrete."""
    raise AssertionError("a sum's noise is drawn in cells")


@dataclass(frozen=True, kw_only=True)
class SumGuard(Guard):
    """The guard of a site whose server sees only sums: it charges each round and returns the site's share of the noise.

    plan: the plan of the run. number: the number of the site. words(round): the source of random 64-bit words for a
    round. weight: the weight of the site's values in the sum.
    """

    plan: SumPlan
    number: int
    words: Callable[[int], Words]
    weight: float = 1.0

    def open(self, release: Release, round_: int, run: str = "") -> SumNoise:  # type: ignore[override]
        """Charge the round and return the function that encodes a value and adds noise; see `Guard.open`."""
        require(
            1 <= round_ <= self.plan.rounds,
            f"noise was planned for {self.plan.rounds} rounds; got round {round_}",
        )
        place = round_ - 1, self.number
        sigma, cost, alone = (float(x) for x in (self.plan.sigmas[round_ - 1], self.plan.costs[place],
                                                 self.plan.costs_alone[place]))  # fmt: skip
        charge = Charge(
            run or self.run, round_, float(self.plan.moves[place]), sigma, 1, cost, self.config, alone=alone,
            split=self.split,
        )  # fmt: skip
        self.ledger.charge(charge, self.budget)
        return SumNoise(self.plan.grid(round_), self.weight, [_draw(self.words(round_))])


def _draw(words: Words) -> Draw:
    return lambda count: discrete_gaussian(count, SHARE_BITS, words)


@dataclass(frozen=True)
class SimulatedSums:
    """The noise of all sites in a simulation (`rounds.NoiseOf`), addressed by (seed, client, round) and not secret."""

    algorithm: Summed
    plan: SumPlan
    seed: int = 0

    def __call__(self, round_: int, clients: Index) -> SumNoise:
        """The noise in a round of the clients (...,), given by number."""
        draws = [_draw(seeded_words(self.seed, int(client), round_)) for client in clients.flat]
        return SumNoise(self.plan.grid(round_), self.algorithm.weights(clients)[..., None], draws)


def largest_mu(mu: Array, evaluation: CountPlan | None) -> float:
    """The largest mu that a site can reach in a run whose sums cost mu (N,), evaluations included.

    Evaluations are not summed. A site's own noise protects them, so they cost the same against every attacker.
    """
    costs = mu.max(keepdims=True) ** 2
    return math.sqrt((evaluation.with_training(costs) if evaluation else costs).max())


def lost_site(plan: SumPlan, delta: float, evaluation: CountPlan | None = None) -> tuple[float, float]:
    """The total epsilons of a client if a site is lost permanently and the run is repeated without it.

    The client takes part in at most one whole run and then in a second one, planned for the same target, at most as
    many honest sites and the same evaluations, so mu grows by at most sqrt(2). The two runs may divide the rows
    differently, but a record costs at most the larger of training and evaluation in each. The first epsilon holds
    against a server that colludes with all but `honest` sites, the second against all other parties together.
    """
    numbers = 2 * plan.entries * plan.rounds
    mu, alone = (math.sqrt(2) * largest_mu(each, evaluation) for each in (plan.mu, plan.mu_alone))
    return sum_epsilon(mu, delta, plan.honest, numbers), sum_epsilon(alone, delta, 1, numbers)
