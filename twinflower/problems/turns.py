"""Which rounds of a run are a client's, and which batches it takes in each of them.

Both follow from public numbers, so a client needs no state for them, and every runtime agrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock
from typing import NamedTuple

import numpy as np

from ..arrays import Index
from ..randomness import participants

MOST_ROUNDS = 100_000
"""The largest number of rounds of a run."""


class Span(NamedTuple):
    """The batches of one round: first, ..., first + steps - 1 of a permutation of the rows, counted from 0.

    order: the number of the permutation, from 0. per_epoch: how many batches a permutation has; after the last one the
    first one follows. most: how many batches of a permutation the replaced rows can fill (`privacy.participation`).
    bandwidth: of the noise of the steps, which are counted by `first`; 1: independent noise.
    """

    order: int
    first: int
    steps: int
    per_epoch: int
    most: int = 1
    bandwidth: int = 1

    @property
    def last(self) -> int:
        """The batch after the last one."""
        return self.first + self.steps


def span_of(turn: int, steps: int, per_epoch: int, fixed: bool) -> Span:
    """The span of a client's turn-th round, from 1, of so many steps.

    A fixed order goes on and on, across the ends of its epochs: no batch is left out, and in a round of at most an
    epoch no row comes twice. With new permutations a round that crossed the end of one could contain a row twice, which
    would double the sensitivity of its end point. So a permutation serves as many whole rounds as fit, and the
    batches that are left are skipped in that epoch. A round of more than half an epoch begins a new permutation, and
    one of more than an epoch takes several.
    """
    if fixed:
        return Span(0, (turn - 1) * steps, steps, per_epoch)
    order, round_ = divmod(turn - 1, max(1, per_epoch // steps))
    return Span(order, round_ * steps, steps, per_epoch)


@dataclass(frozen=True)
class Turns:
    """Counts the rounds in which clients take part, by the public sampling (`randomness.participants`).

    Of num_clients clients, per_round are sampled. If these are equal, every round is every client's.
    """

    num_clients: int = 0
    per_round: int = 0
    first_round: str = "sampled"

    def of(self, seeds: Sequence[int], clients: Sequence[int] | Index, round_: int) -> list[int]:
        """For each client, the how manieth of its rounds `round_` is, from 1; seeds: of each client's run.

        Replies that were lost, and rounds for which the server asked somebody else, change nothing. After the longest
        run that there can be, every round counts: a server may request any.
        """
        if self.num_clients == self.per_round:
            return [round_] * len(clients)
        last = min(round_, MOST_ROUNDS)
        before = {seed: _counted(self, seed).before(last) for seed in set(seeds)}
        more = 1 + round_ - last
        return [more + int(before[seed][client]) for seed, client in zip(seeds, clients, strict=True)]


EVERY_ROUND = Turns()
"""Those of clients that take part in every round."""


class _Counted:
    """The number of rounds of every client before a round, which is counted on from the last round asked for."""

    def __init__(self, sampling: Turns, seed: int) -> None:
        self.sampling, self.seed, self.lock = sampling, seed, Lock()
        self.round, self.counts = 1, np.zeros(sampling.num_clients, dtype=np.int64)

    def before(self, round_: int) -> Index:
        """The numbers of rounds (N,) before this one."""
        with self.lock:
            if round_ < self.round:
                self.round, self.counts = 1, np.zeros_like(self.counts)
            counts = self.counts.copy()
            for t in range(self.round, round_):
                s = self.sampling
                counts[participants(self.seed, t, s.num_clients, s.per_round, s.first_round)] += 1
            self.round, self.counts = round_, counts
            return counts


@lru_cache(maxsize=64)
def _counted(sampling: Turns, seed: int) -> _Counted:
    return _Counted(sampling, seed)
