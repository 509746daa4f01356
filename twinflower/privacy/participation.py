"""In how many of a client's releases the protected records can be, at most: what a run costs in units of one release.

A record is in one batch of each permutation (`turns.Span`), and a release that the replaced records are not in does
not move. So the releases of one permutation cost together what the worst batch costs:

1. Let y_s be the part of the full sensitivity S that the k_s replaced records in batch s can move a release:
   y_s = min(1, k_s S_1 / S), where S_1 is the sensitivity for one record (replace them one by one). If the round
   matters, it is the one with the largest S_1 / S.
2. sum k_s <= k, so sum y_s <= k S_1 / S, and with `Span.most` the next whole number, sum y_s <= most; y_s <= 1.
3. A release moves by at most S min(1, sum of y_s over its batches), which costs at most its amount times sum y_s.
4. So all releases together cost at most sum_s y_s load_s, with load_s the amounts of all releases with batch s in them,
   which is at most the sum of the `most` largest loads. For one record this is the largest load, and it is attained.
5. Different permutations are independent of each other, so their worst cases add up.

With noise that is correlated over the steps of a fixed order, the sensitivity of the whole run takes the place of such
sums (`correlated`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np

from ..arrays import Array, Index
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.turns import Span
from .correlated import Window, best_bandwidth, squared_sensitivity
from .release import Planned


class Visit(NamedTuple):
    """The releases of a round that goes on in a permutation.

    amount: the cost of one release that moves by its full sensitivity. touched: how many of the round's releases the
    replaced records can affect at most.
    """

    span: Span
    amount: float
    touched: int


def worst_cost(visits: Iterable[Visit]) -> float:
    """The cost of these rounds of a client together, for the records that cost most."""
    orders: dict[tuple[int, int], list[Visit]] = {}
    for visit in visits:
        orders.setdefault((visit.span.order, visit.span.per_epoch), []).append(visit)
    return math.fsum(map(_of_one_order, orders.values()))


def _of_one_order(visits: Sequence[Visit]) -> float:
    """The same for rounds of one permutation."""
    bandwidth = max(visit.span.bandwidth for visit in visits)
    if bandwidth > 1:
        return _correlated(visits, bandwidth)
    loads, everything = np.zeros(visits[0].span.per_epoch), 0.0
    for span, amount, touched in visits:
        batches = (span.first + np.arange(span.steps)) % span.per_epoch
        loads += amount * np.minimum(np.bincount(batches, minlength=span.per_epoch), touched)
        everything += amount * touched
    most = max(visit.span.most for visit in visits)
    return min(everything, float(np.sort(loads)[-most:].sum()))


def _correlated(visits: Sequence[Visit], bandwidth: int) -> float:
    """The same for steps whose noise is correlated: the squared sensitivity of what was released so far.

    If nothing was left out and all steps move alike, the records of the first batch cost most: those of a later one
    take part as often or less, in columns of C that are the same but end earlier.
    """
    per_epoch, most = visits[0].span.per_epoch, max(visit.span.most for visit in visits)
    moves = np.zeros(max(visit.span.last for visit in visits))
    for span, amount, _ in visits:
        moves[span.first : span.last] += math.sqrt(amount)
    batch = np.arange(moves.size) % per_epoch
    batches = 1 if most == 1 and moves.min() == moves[0] == moves.max() else per_epoch
    patterns = np.where(batch == np.arange(batches)[:, None], moves, 0.0)
    return squared_sensitivity(patterns, bandwidth, min(most, per_epoch))


def most_batches(algorithm: Planned, bounds: Bounds, workload: Workload, rounds: Iterable[int]) -> int:
    """`Span.most` of a client with this workload in these rounds; 0 if a record can be in all of its rounds.

    With noise as published a client keeps private values, so that every later round depends on the record, too.
    """
    if not workload.goes_on or algorithm.privacy == "as-published":
        return 0
    if workload.replaced == 1:
        return 1
    parts = (
        algorithm.release(bounds, workload.for_one_row, t).sensitivity
        / algorithm.release(bounds, workload, t).sensitivity
        for t in rounds
    )
    return math.ceil(workload.replaced * max(parts) * (1 - 1e-9))


class CountsTurns(Protocol):
    """How the rounds of clients are counted, such as `Turns.of` for the seed of a run."""

    def __call__(self, clients: Index, round_: int) -> Sequence[int]:
        """For each client, the how manieth of its rounds this is."""


def every_round(clients: Index, round_: int) -> Sequence[int]:
    """The turns of clients that take part in every round."""
    return [round_] * len(clients)


@dataclass(frozen=True)
class Participation:
    """How the records of N clients take part in their releases.

    affected (N,): how many releases of one round the replaced records can affect. workloads: of each client; without
    them a record can be in every round. most: for each workload (`most_batches`). turns: as in the clients'
    `LocalSchedule`. bandwidths (N,): of the clients' noise, None if it is independent.
    """

    affected: Index
    workloads: Sequence[Workload] = ()
    most: Mapping[Workload, int] = field(default_factory=dict)
    turns: CountsTurns = every_round
    bandwidths: Index | None = None

    def bandwidth(self, client: int) -> int:
        """That of a client's noise."""
        return 1 if self.bandwidths is None else int(self.bandwidths[client])

    def window(self, client: int) -> Window | None:
        """An empty one for a client's noise; None if it is independent."""
        return Window(self.bandwidth(client)) if self.bandwidth(client) > 1 else None

    def correlated(self, rounds_in: Array) -> "Participation":
        """The same with noise that is correlated over the steps; rounds_in (N,): how often each client takes part."""
        each = [
            best_bandwidth(load.per_epoch, max(1, int(n) * load.steps)) if self.most[load] else 1
            for n, load in zip(rounds_in, self.workloads, strict=True)
        ]
        return replace(self, bandwidths=np.array(each))

    def units(self, rounds: Sequence[tuple[int, Index, float]]) -> Array:
        """The cost (N,) of these rounds, each (round, clients, weight), in units of a release of weight 1."""
        total = np.zeros(len(self.affected))
        for _, clients, weight in rounds:
            total[clients] += weight
        total *= self.affected
        if any(self.most.values()):
            self._put_worst(total, rounds)
        return total

    def _put_worst(self, total: Array, rounds: Sequence[tuple[int, Index, float]]) -> None:
        """Replace the units of all clients whose rounds go on in a permutation."""
        turns = np.zeros((len(rounds), len(total)), dtype=np.int64)
        for row, (round_, clients, _) in zip(turns, rounds, strict=True):
            row[clients] = self.turns(clients, round_)
        for client, alike in self._alike(turns):
            total[alike] = worst_cost(
                Visit(self._span(client, int(turn)), weight, int(self.affected[client]))
                for turn, (_, _, weight) in zip(turns[:, client], rounds, strict=True)
                if turn
            )

    def _span(self, client: int, turn: int) -> Span:
        load = self.workloads[client]
        return load.span(turn)._replace(most=self.most[load], bandwidth=self.bandwidth(client))

    def _alike(self, turns: Index) -> Iterable[tuple[int, Index]]:
        """Clients whose rounds go on, grouped by workload and by their rows of turns (T, N): one of each, and all."""
        kinds = {load: kind for kind, load in enumerate(self.most)}
        labels = np.array([kinds[load] for load in self.workloads])
        if self.bandwidths is not None:
            labels = labels * (self.bandwidths.max() + 1) + self.bandwidths
        for row in turns:
            labels = np.unique(labels * (row.max() + 1) + row, return_inverse=True)[1].reshape(-1)
        _, first = np.unique(labels, return_index=True)
        for client in first.tolist():
            if self.most[self.workloads[client]]:
                yield client, np.flatnonzero(labels == labels[client])
