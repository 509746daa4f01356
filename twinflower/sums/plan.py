"""The plan of a run in which the server sees only sums, with the interface of `privacy.plan.Plan`."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..arrays import Array, Index
from ..privacy.charges import Ledger
from ..privacy.plan import Plan, Target
from ..problems.batches import LocalSchedule
from ..problems.interfaces import Bounds
from .discrete import Words, secret_words, seeded_words
from .guard import SumGuard
from .noise import Sums, largest_mu
from .summed import check_sums, weights_of


@dataclass(frozen=True)
class SumPlan(Plan):
    """A `Plan` whose noise and costs come from its `Sums`.

    multipliers (N,): noise multipliers of each client's own noise. shares (N,): the cost mu^2 of all rounds. It holds
    against the `attacker`: the server together with any sites, except that at least `sums.honest` sites are honest;
    `mu_limit` refers to the same attacker. counts (N,): N p_i, the weight of a client's values in the sum.
    """

    sums: Sums = field(kw_only=True)
    counts: Array = field(kw_only=True)

    @classmethod
    def of_sums(
        cls, algorithm: Any, bounds: Bounds, schedule: LocalSchedule, sizes: Sequence[int] | Index, rounds: int,
        entries: int, honest: int, target: Target,
    ) -> "SumPlan":  # fmt: skip
        """Plan a run of clients with these numbers of rows (N,).

        Raises SettingError for a method or settings that are not known to work with sums alone (`check_sums`), and for
        a target that cannot be met.
        """
        check_sums(algorithm, int(schedule.steps(np.asarray(sizes)).max()))
        mu = target.mu if target.epsilon else 0.0
        sums = Sums.of(
            algorithm, bounds, schedule, sizes, rounds, entries, honest, mu, target.noise_multiplier
        )
        return cls(
            algorithm.privacy, target.delta, sums.shares, bounds, np.array([0.0, *sums.weights]),
            np.full(sums.sites, float(rounds)), sums.costs.sum(0), np.ones(sums.sites, dtype=np.int64),
            np.zeros(sums.sites), np.zeros(sums.sites), float(sums.mu.max()), unit=target.unit, sums=sums,
            counts=weights_of(algorithm, np.arange(sums.sites)),
        )  # fmt: skip

    def resized(self, algorithm: Any, schedule: LocalSchedule, sizes: Sequence[int] | Index) -> "SumPlan":
        """The plan for clients with other numbers of rows, at the same noise multiplier."""
        target = Target(0.0, self.delta, self.sums.noise_multiplier, unit=self.unit)
        sums = self.sums
        return self.of_sums(
            algorithm, self.bounds, schedule, sizes, sums.rounds, sums.entries, sums.honest, target
        )

    def _own_mu(self, shares: Array) -> Array:
        """mu (N,) of clients whose costs mu^2 (N,) are given as shares."""
        return np.sqrt(shares)  # type: ignore[no-any-return]

    def shares_of(self, asked: Iterable[tuple[int, Sequence[int]]]) -> Array:
        """The cost mu^2 (N,) of the rounds in which each client was sampled; asked: (round, clients) pairs."""
        costs = np.zeros_like(self.shares)
        for round_, clients in asked:
            costs[np.asarray(clients)] += self.sums.costs[round_ - 1, clients]
        return costs

    @property
    def mu_limit_alone(self) -> float:
        """See `Plan.mu_limit_alone`; here it exceeds `mu_limit`, which relies on the noise of other clients."""
        return largest_mu(self.sums.mu_alone, self.evaluation)

    def mu_alone(self, shares: Array, last: int | None = None) -> Array:
        """`Plan.mu` (N,) against all other parties together, who know all noise but the client's own."""
        own = self._own_mu(shares) * self.sums.factor
        return np.sqrt(self.evaluation.with_training(own**2, last)) if self.evaluation else own

    @property
    def attacker(self) -> str:
        """A phrase for the attacker against whom `shares` and `mu_limit` hold."""
        others = self.sums.sites - self.sums.honest
        if others < 2:
            return "the server together with one other client" if others else "the server alone"
        return f"the server together with up to {others} other clients"

    def guard(
        self, client: int, ledger: Ledger, *, seed: int | None = None, run: str = "", config: str = "",
        row_norm: float = math.inf, split: str = "",
    ) -> SumGuard:  # fmt: skip
        """See `Plan.guard`."""
        plain = super().guard(
            client, ledger, seed=seed, run=run, config=config, row_norm=row_norm, split=split
        )

        def words(round_: int) -> Words:
            return secret_words() if seed is None else seeded_words(seed, client, round_)

        return SumGuard(
            **vars(plain), sums=self.sums, number=client, words=words, weight=float(self.counts[client])
        )
