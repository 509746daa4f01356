"""The noise of a run in which the server sees sums only: planned before it starts, paid for round by round.

Every site computes the same plan from public settings and the public numbers of rows. It says two things of each site:
what its record gives away to the server and all sites but `honest` of them, and what to everybody else together.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..algorithms.summed import Summed
from ..arrays import Array, Index
from ..batches import LocalSchedule
from ..errors import require
from ..objectives import Bounds
from ..privacy.guard import Guard
from ..privacy.ledger import Charge
from ..privacy.mechanism import Draws
from ..privacy.release import Release
from .accounting import SHARE, noise_for, round_mu, spread, sum_epsilon
from .discrete import Words, discrete_gaussian, seeded_words
from .grid import SHARE_BITS, Draw, Grid, SumNoise

MOST_SITES = 1000
"""Each pair of sites has a mask, and each site checks the key messages of all others."""


@dataclass(frozen=True)
class SumPlan:
    """The noise of a run whose server sees only sums over the sites.

    moves (T, N): how far one record of a site can move the site's value in a round, times the site's weight. weights
    (T,): the rounds' shares of the budget. noise_multiplier: standard deviation of the total noise of `honest` sites,
    as a multiple of the largest move in a round of weight 1. longest (T,): the largest norm expected of a site's
    weighted value. entries: d.
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
        """For clients with these numbers of rows: the least noise with which none gives away more than mu to all but
        `honest` sites, or this noise. SettingError for what cannot be planned."""
        _check_honest(honest, len(sizes))
        moves, longest, weights = _loads(algorithm, bounds, schedule, np.asarray(sizes), rounds)
        noise = noise_multiplier or noise_for(mu, moves, weights, entries, honest)
        plan = cls(moves, weights, entries, honest, noise, longest)
        for round_, most in enumerate(longest, 1):
            plan.grid(round_).check(float(most))
        return plan

    @property
    def sites(self) -> int:
        """N."""
        return self.moves.shape[-1]

    @property
    def rounds(self) -> int:
        """T."""
        return len(self.weights)

    @cached_property
    def sigmas(self) -> Array:
        """The deviation (T,) of the noise of `honest` sites."""
        return self.noise_multiplier * self.moves.max(-1) / np.sqrt(self.weights)

    def grid(self, round_: int) -> Grid:
        """Of a round."""
        return Grid.of_noise(float(self.sigmas[round_ - 1]), self.honest, self.sites)

    @cached_property
    def widths(self) -> tuple[float, ...]:
        """Of the cells, by round."""
        return tuple(self.grid(t).cell for t in range(1, self.rounds + 1))

    @cached_property
    def costs(self) -> Array:
        """mu^2 (T, N) of each round, against the server and all sites but `honest`."""
        return self._costs(spread(self.honest))

    @cached_property
    def costs_alone(self) -> Array:
        """mu^2 (T, N) of each round, against everybody else together."""
        return self._costs(SHARE)

    def _costs(self, deviation: float) -> Array:
        cells = self.moves / np.array(self.widths)[:, None]
        costs: Array = round_mu(cells, self.entries, deviation) ** 2
        return costs

    @property
    def shares(self) -> Array:
        """Each site's own noise (N,), as a multiple of the most that a record moves its value; the least of all
        rounds."""
        largest = self.moves.max(-1, keepdims=True)
        ratios: Array = (largest / self.moves).min(0)
        return self.noise_multiplier / math.sqrt(self.honest) * ratios

    @property
    def factor(self) -> float:
        """By how much mu against everybody else together is larger: sqrt(honest), but for the price of discrete
        noise."""
        one = np.ones(1)
        return float(
            round_mu(one, self.entries, SHARE)[0] / round_mu(one, self.entries, spread(self.honest))[0]
        )

    @property
    def mu(self) -> Array:
        """(N,), of all rounds, against the server and all sites but `honest`."""
        return np.sqrt(self.costs.sum(0))  # type: ignore[no-any-return]

    @property
    def mu_alone(self) -> Array:
        """(N,), of all rounds, against everybody else together."""
        return np.sqrt(self.costs_alone.sum(0))  # type: ignore[no-any-return]

    def epsilon(self, delta: float) -> float:
        """Of the site with the largest, against the server and all sites but `honest`."""
        return sum_epsilon(float(self.mu.max()), delta, self.honest, self.entries * self.rounds)

    def epsilon_alone(self, delta: float) -> float:
        """Of the site with the largest, against everybody else together."""
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
    releases = [
        [algorithm.release(bounds, workload, t) for workload in workloads] for t in range(1, rounds + 1)
    ]
    moves = np.array([[r.sensitivity for r in row] for row in releases])
    require(
        bool(np.isfinite(moves).all() and (moves > 0).all()),
        "the releases of this run have no finite sensitivity, because its local steps stretch every difference: lower "
        "step-size, or local.max-steps",
    )
    rows = np.array([workload.rows for workload in workloads])
    longest = (moves * rows / 2)[
        :, place
    ] * weights  # a mean gradient is no longer than half of what all rows move it
    return moves[:, place] * weights, longest.max(-1), np.array([row[0].weight for row in releases])


def plain_draws(round_: int) -> Draws:
    """For a guard whose noise is discrete."""
    raise AssertionError("a sum's noise is drawn in cells")


@dataclass(frozen=True, kw_only=True)
class SumGuard(Guard):
    """A site's privacy in a run of sums: charges its rounds and hands out its share of the noise.

    plan: the run's. number: of the site. words: fresh random words for a round.
    """

    plan: SumPlan
    number: int
    words: Callable[[int], Words]
    weight: float = 1.0

    def open(self, release: Release, round_: int, run: str = "") -> SumNoise:  # type: ignore[override]
        """Charge the round and return what puts a value on the grid; see `Guard.open`."""
        require(
            1 <= round_ <= self.plan.rounds,
            f"noise was planned for {self.plan.rounds} rounds; got round {round_}",
        )
        place = round_ - 1, self.number
        sigma, cost, alone = (float(x) for x in (self.plan.sigmas[round_ - 1], self.plan.costs[place],
                                                 self.plan.costs_alone[place]))  # fmt: skip
        charge = Charge(
            run or self.run, round_, float(self.plan.moves[place]), sigma, 1, cost, self.config, alone=alone
        )
        self.ledger.charge(charge, self.budget)
        return SumNoise(self.plan.grid(round_), self.weight, [_draw(self.words(round_))])


def _draw(words: Words) -> Draw:
    return lambda count: discrete_gaussian(count, SHARE_BITS, words)


@dataclass(frozen=True)
class SimulatedSums:
    """The noise of all sites of a simulation (`rounds.NoiseOf`), addressed by (seed, client, round): no secret."""

    algorithm: Summed
    plan: SumPlan
    seed: int = 0

    def __call__(self, round_: int, clients: Index) -> SumNoise:
        """Of clients (...,)."""
        draws = [_draw(seeded_words(self.seed, int(client), round_)) for client in clients.flat]
        return SumNoise(self.plan.grid(round_), self.algorithm.weights(clients)[..., None], draws)


def lost_site(plan: SumPlan, delta: float) -> float:
    """What a new cohort costs where a site is lost for good: epsilon, against the server and all sites but `honest`,
    of a client that takes part in the whole run and then in a whole new one without the lost site: mu grows by
    sqrt(2)."""
    mu = math.sqrt(2) * float(plan.mu.max())
    return sum_epsilon(mu, delta, plan.honest, 2 * plan.entries * plan.rounds)
