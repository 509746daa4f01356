"""What clients count and release before round 1: all histograms of a run together, in one release.

A record is in one cell of every histogram, so replacing it moves all counts together by the root of the sum of the
`Histogram.squared_move`. They are asked for by messages (`strategies.questions`), or computed in one step in a
simulation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Array, Index
from ..privacy.mechanism import GaussianNoise, seeded
from ..privacy.plan import COUNTS
from ..privacy.release import Release, Rounding
from .query import Histogram, Part, Run

COUNTS_ROUND = 0
"""The round in which counts are released, before the first of the training."""
_TOO_NOISY = 0.1  # standard deviation of a total count, as a share of the rows


@dataclass(frozen=True)
class FirstCounts:
    """The counts that one client releases before round 1.

    release: of all counts together. rows: the number of rows that are counted. entries: the number of counts. parts:
    what is counted.
    """

    release: Release
    rows: int
    entries: int
    parts: Sequence[Part]

    @property
    def rounding(self) -> Rounding:
        """A bound on the rounding errors of the counts."""
        return Rounding(self.rows * math.sqrt(sum(part.histograms for part in self.parts)), 0.0)

    @property
    def bytes(self) -> int:
        """The size of the counts."""
        return 8 * self.entries

    def counts(self) -> Array:
        """The counts (entries,) of all parts."""
        return np.concatenate([part.counts() for part in self.parts])

    @property
    def scales(self) -> bool:
        """Whether what follows from the counts of all clients changes the rows."""
        return any(part.scales for part in self.parts)

    def features(self, agreed: object) -> Array | None:
        """The rows as they are trained on; agreed: what a request carries of the counts of all clients."""
        found = [part.features(agreed) for part in self.parts if part.scales]
        return found[0] if found else None


@dataclass(frozen=True)
class First:
    """The histograms of a run, at least one."""

    run: Run
    queries: Sequence[Histogram]

    @cached_property
    def entries(self) -> int:
        """The number of counts of a client."""
        return sum(query.entries for query in self.queries)

    def release(self, client: int) -> Release:
        """The release of a client's counts, whose sensitivity is that of all records that are protected together."""
        run = self.run
        replaced = run.schedule.workload(int(run.partition.sizes[client])).replaced
        moved = replaced * math.sqrt(sum(query.squared_move for query in self.queries))
        return run.plan.release_of(COUNTS, client, moved) if run.plan else Release(moved)

    def sigma(self, client: int) -> float:
        """The standard deviation of the noise in a client's counts, 0 without privacy."""
        plan = self.run.plan
        return float(plan.multipliers[client]) * self.release(client).spread if plan else 0.0

    def deviation(self, clients: Sequence[int] | Index) -> float:
        """The standard deviation of the noise in the sum of a count of these clients."""
        return math.hypot(*(self.sigma(int(client)) for client in clients))

    @property
    def total_sigma(self) -> float:
        """The standard deviation of the noise in a sum of all clients' counts."""
        return self.deviation(range(self.run.config.clients.count))

    def counts_of(self, client: int, site: Any = None) -> FirstCounts:
        """What a client counts; site: the policy of a deployed site."""
        parts = [query.part(client, site) for query in self.queries]
        rows = int(self.run.partition.sizes[client])
        return FirstCounts(self.release(client), rows, self.entries, parts)

    def cost(self, groups: int = 1) -> str:
        """What the counts of a private run cost, as text; groups: how many counts a total adds up at each client."""
        plan, rows = self.run.plan, self.run.partition.sizes.sum()
        assert plan
        noise = f"a total count of {rows} rows has noise of {self.total_sigma * math.sqrt(groups):.4g}"
        return f"for {plan.share(COUNTS):.3g} of the budget; {noise}"

    def advice(self, what: str, remedy: str, groups: int = 1) -> list[str]:
        """A warning if the noise of a private run hides most of what follows from these counts; groups: see `cost`."""
        rows, sigma = int(self.run.partition.sizes.sum()), self.total_sigma * math.sqrt(groups)
        if sigma <= _TOO_NOISY * rows:
            return []
        return [f"the counts for {what} have noise of {sigma:.3g}, with {rows} rows in total{remedy}"]

    def agreed(self, counts: Array, clients: Index) -> Any:
        """The run with what follows from the counts (K, entries) of these clients (K,)."""
        return self.applied({query.name: query.found(own, clients) for query, own in self._split(counts)})

    def applied(self, answers: Mapping[str, Any]) -> Any:
        """The run with these answers (`Histogram.found`), by the names of the questions."""
        run: Any = replace(self.run, answers={**self.run.answers, **answers})  # type: ignore[type-var]
        for query in self.queries:
            run = query.applied(run, answers[query.name])
        return run

    def taken_up(self, answers: dict[str, Any]) -> Any:
        """The run with those of these answers that were given before round 1, which are removed from `answers`."""
        return self.applied({query.name: answers.pop(query.name) for query in self.queries})

    def content(self, counts: Array, clients: Index) -> bytes:
        """What all further requests carry of these counts."""
        return b"".join(query.content(own, clients) for query, own in self._split(counts))

    def _split(self, counts: Array) -> list[tuple[Histogram, Array]]:
        ends = np.cumsum([query.entries for query in self.queries])[:-1]
        return list(zip(self.queries, np.split(counts, ends, axis=1), strict=True))

    def simulated(self) -> Any:
        """The run with what follows from its clients' counts in a simulation."""
        clients = np.arange(self.run.config.clients.count)
        return self.agreed(np.stack([self._noisy(int(client)) for client in clients]), clients)

    def _noisy(self, client: int) -> Array:
        counts = self.counts_of(client).counts()
        if self.run.plan is None:
            return counts
        draws = seeded(self.run.config.seed, client, COUNTS_ROUND)
        return GaussianNoise(self.sigma(client), draws)(counts)

    def noise_rows(self) -> list[tuple[str, ...]]:
        """The release of counts with the largest noise (`SiteQuery.noise_rows`)."""
        if self.run.plan is None:
            return []
        return [noisiest(self.run, self.queries[0].what, COUNTS_ROUND, self.release, self.sigma)]


def noisiest(
    run: Run, what: str, round_: int, release: Callable[[int], Release], sigma: Callable[[int], float]
) -> tuple[str, ...]:
    """The row of the client whose release besides the rounds has most noise (`SiteQuery.noise_rows`)."""
    assert run.plan
    client = max(range(run.config.clients.count), key=sigma)
    own = release(client)
    numbers = run.plan.multipliers[client], own.sensitivity, own.weight, sigma(client)
    return what, str(round_), str(client), *(f"{number:.6g}" for number in numbers)
