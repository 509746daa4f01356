"""Noisy counts of correct predictions, by which a client says how good a model is on rows of its own.

A row that is predicted correctly counts 1, any other row 0. Replacing a record therefore changes a client's count by at
most 1, and replacing k records by at most k. With Gaussian noise of deviation sigma, the count costs (k / sigma)^2 in
mu^2. The numbers of rows are public, so the accuracy on all clients' rows follows from the counts without further cost.
The same holds for any numbers of the rows from 0 to 1.

Other numbers of the same rows can be released together with it (`queries.held_out`); then replacing a record moves all
of them by more than 1.

Which rows are counted depends on the seed and on public numbers only. A record is therefore either trained on or
counted. If it is trained on, it affects the counts only through what training releases, which pays for that; if it is
counted, it does not affect training. So the costs of training and counting do not add up, and a record pays the larger
one (parallel composition). Without a group column a group of records can be partly trained on and partly
counted, and pays for both.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index
from .release import Release
from .unit import Unit


def paid_twice(unit: Unit) -> int:
    """2 if what is protected can be partly trained on and partly counted, so that both costs add up; 1 for a record."""
    return 1 if unit.rows == 1 else 2


def count_release(replaced: int, affected_releases: int = 1, moved: float = 1.0) -> Release:
    """The release of a client's numbers, of whose rows so many are replaced together; each moves them by `moved`."""
    return Release(float(replaced) * moved, affected_releases)


class Accuracy(NamedTuple):
    """An estimated accuracy and the standard deviation of its noise; the rows themselves are not sampled anew."""

    value: float
    deviation: float

    @classmethod
    def of(cls, counts: Array, sigmas: Array, rows: Index) -> "Accuracy":
        """The accuracy from the noisy counts (N,) with deviations sigmas (N,) of clients with these numbers of rows."""
        total = int(rows.sum())
        return cls(float(counts.sum()) / total, math.sqrt(float((sigmas**2).sum())) / total)


@dataclass(frozen=True)
class CountPlan:
    """The evaluations of a private run on the clients' held-out rows, planned before the run starts.

    rounds: after which the model is evaluated, ascending. sizes (N,): the numbers of held-out rows. mu: what all
    evaluations together cost a client that holds out rows. unit: what is protected. moved: how far the replacement of
    one record can move the numbers of a client.
    """

    rounds: tuple[int, ...]
    sizes: Index
    mu: float
    unit: Unit
    moved: float = 1.0

    @property
    def multiplier(self) -> float:
        """sigma / sensitivity of every count."""
        return math.sqrt(len(self.rounds)) / self.mu

    def release(self, client: int) -> Release:
        """The release of a client's count after a round."""
        rows = int(self.sizes[client])
        return count_release(min(self.unit.rows or rows, rows), moved=self.moved)

    def noise(self, client: int) -> float:
        """The standard deviation of the noise in every number of a client's release."""
        return self.multiplier * self.release(client).spread

    def costs(self, last: int | None = None) -> Array:
        """mu^2 (N,) of the evaluations up to round `last`, by default of all."""
        done = sum(last is None or round_ <= last for round_ in self.rounds)
        return np.where(self.sizes > 0, done / self.multiplier**2, 0.0)

    def with_training(self, costs: Array, last: int | None = None) -> Array:
        """mu^2 (N,) of training, which has these costs, and evaluation together."""
        own = self.costs(last)
        return np.maximum(costs, own) if paid_twice(self.unit) == 1 else costs + own
