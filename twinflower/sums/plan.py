"""The plan of a run in which the server sees only sums, with the interface of `privacy.plan.Plan`, and its guard."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..privacy.charges import Charge, Ledger
from ..privacy.guard import Guard, Seeds
from ..privacy.participation import Participation
from ..privacy.plan import ROUND, Plan, PlannedRelease, Releases
from ..privacy.release import Release
from ..privacy.target import Target
from ..problems.batches import LocalSchedule
from ..problems.interfaces import Bounds
from ..problems.turns import Span
from .discrete import Words, secret_words, seeded_words
from .grid import SumNoise
from .noise import Sums, share_of, sum_epsilon
from .summed import check_sums, weights_of


@dataclass(frozen=True, kw_only=True)
class SumGuard(Guard):
    """The guard of a site whose server sees only sums: it charges each round and returns the site's share of the noise.

    sums: those of the run. number: the number of the site. words(round): the source of random 64-bit words for a
    round. weight: the weight of the site's values in the sum.
    """

    sums: Sums
    number: int
    words: Callable[[int], Words]
    weight: float = 1.0

    def open(  # type: ignore[override]
        self,
        release: Release,
        round_: int,
        run: str = "",
        span: Span | None = None,
        seeds: Seeds | None = None,
    ) -> SumNoise:
        """Charge the round and return the function that encodes a value and adds noise; see `Guard.open`. The noise was
        planned as if a record were in every round."""
        if not 1 <= round_ <= self.sums.rounds:
            raise SettingError(f"noise was planned for {self.sums.rounds} rounds; got round {round_}")
        place = round_ - 1, self.number
        sigma, cost, alone = (float(x) for x in (self.sums.sigmas[round_ - 1], self.sums.costs[place],
                                                 self.sums.costs_alone[place]))  # fmt: skip
        charge = Charge(
            run or self.run, round_, float(self.sums.moves[place]), sigma, 1, cost, self.config, alone=alone,
            split=self.split, flower_run=self.run if run else "",
        )  # fmt: skip
        self.ledger.charge(charge, self.budget)
        return SumNoise(self.sums.grid(round_), self.weight, [share_of(self.words(round_))])


@dataclass(frozen=True)
class SumPlan(Plan):
    """A `Plan` whose noise and costs come from its `Sums`.

    multipliers (N,): noise multipliers of each client's own noise. `mu` and `mu_limit` hold against the `attacker`: the
    server together with any sites, except that at least `sums.honest` sites are honest. counts (N,): N p_i, the weight
    of a client's values in the sum.
    """

    sums: Sums = field(kw_only=True)
    counts: Array = field(kw_only=True)

    @classmethod
    def of_sums(
        cls, algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Sequence[int] | Index, rounds: int,
        entries: int, honest: int, target: Target, lost: int = 0,
    ) -> "SumPlan":  # fmt: skip
        """Plan a run of clients with these numbers of rows (N,), of which up to `lost` may be missing in a round.

        Raises SettingError for a method or settings that are not known to work with sums alone (`check_sums`), and for
        a target that cannot be met.
        """
        check_sums(algorithm, int(schedule.steps(np.asarray(sizes)).max()), lost)
        mu = target.mu if target.epsilon else 0.0
        noise = mu, target.noise_multiplier, lost
        sums = Sums.of(algorithm, bounds, schedule, sizes, rounds, entries, honest, *noise)
        sites = np.arange(sums.sites)
        listed = tuple(PlannedRelease(ROUND, t, sites, float(w)) for t, w in enumerate(sums.weights, 1))
        return cls(
            algorithm.privacy, target.delta, sums.shares, bounds, Releases(sums.sites, listed),
            Participation(np.ones(sums.sites, dtype=np.int64)), float(sums.mu.max()), unit=target.unit, sums=sums,
            counts=weights_of(algorithm, sites),
        )  # fmt: skip

    def resized(self, algorithm: Any, schedule: LocalSchedule, sizes: Sequence[int] | Index) -> "SumPlan":
        """The plan for clients with other numbers of rows, at the same noise multiplier."""
        target = Target(0.0, self.delta, self.sums.noise_multiplier, unit=self.unit)
        sums = self.sums
        planned = sums.rounds, sums.entries, sums.honest, target, sums.lost
        return self.of_sums(algorithm, self.bounds, schedule, sizes, *planned)

    def cost(self, kind: str) -> Array:
        """See `Plan`; that of the rounds follows from the sums."""
        if kind != ROUND:
            return super().cost(kind)
        rounds, costs = self.releases.of_kind(ROUND), self.sums.costs
        return self.releases.total((own.clients, costs[own.round - 1, own.clients]) for own in rounds)

    @property
    def mu_trained(self) -> Array:
        """See `Plan`."""
        return np.sqrt(self.cost(ROUND))  # type: ignore[no-any-return]

    @property
    def mu_alone(self) -> Array:
        """`Plan.mu` (N,) against all other parties together, who know all noise but the client's own."""
        return np.sqrt(self._with_evaluations((self.mu_trained * self.sums.factor) ** 2))  # type: ignore[no-any-return]

    @property
    def mu_limit_alone(self) -> float:
        """See `Plan.mu_limit_alone`; here it exceeds `mu_limit`, which relies on the noise of other clients."""
        return self._largest(self.sums.mu_alone)

    def _largest(self, mu: Array) -> float:
        """The largest mu that a site can reach in a run whose sums cost mu (N,), evaluations included. These are not
        summed; a site's own noise protects them, so they cost the same against every attacker."""
        return math.sqrt(self._with_evaluations(mu.max(keepdims=True) ** 2).max())

    @property
    def epsilons_after_a_loss(self) -> tuple[float, float]:
        """The total epsilons of a client if a site is lost permanently and the run is repeated without it.

        The client takes part in at most one whole run and then in a second one, planned for the same target, at most as
        many honest sites and the same evaluations, so mu grows by at most sqrt(2). The two runs may divide the rows
        differently, but a record costs at most the larger of training and evaluation in each. The first epsilon holds
        against the `attacker`, the second against all other parties together.
        """
        sums, numbers = self.sums, 2 * self.sums.entries * self.sums.rounds
        mu, alone = (math.sqrt(2) * self._largest(each) for each in (sums.mu, sums.mu_alone))
        return sum_epsilon(mu, self.delta, sums.counted, numbers), sum_epsilon(alone, self.delta, 1, numbers)

    @property
    def attacker(self) -> str:
        """A phrase for the attacker against whom `mu` and `mu_limit` hold."""
        others = self.sums.sites - self.sums.honest
        if others < 2:
            return "the server together with one other client" if others else "the server alone"
        return f"the server together with up to {others} other clients"

    def guard(self, client: int, ledger: Ledger, *, seed: int | None = None, **more: Any) -> SumGuard:
        """See `Plan.guard`."""
        plain = super().guard(client, ledger, seed=seed, **more)

        def words(round_: int) -> Words:
            return secret_words() if seed is None else seeded_words(seed, client, round_)

        return SumGuard(
            **vars(plain), sums=self.sums, number=client, words=words, weight=float(self.counts[client])
        )
