"""Noisy counts of correct predictions, by which a client says how good a model is on rows of its own.

A row that is predicted correctly counts 1, any other row 0. Replacing a record therefore changes a client's count by at
most 1, and replacing k records by at most k. With Gaussian noise of deviation sigma, the count costs (k / sigma)^2 in
mu^2. The numbers of rows are public, so the accuracy on all clients' rows follows from the counts without further cost.
The same holds if a row counts its loss, clipped to [0, bound] and divided by the bound.

The rows can also be counted by class and by bin of their score (`models.discrimination`), or by time and by bin of
their risk (`models.time_scores`). A row is in one cell of one histogram, or of each of h histograms where there is one
for each of h > 2 classes (`models.class_scores`). So replacing a record moves at most two counts in each by 1, all of
them by at most sqrt(2 h), and replacing k records by k sqrt(2 h). They are released together with the sum, which is
multiplied by sqrt(2 h): all these numbers together move by at most 2 k sqrt h.

Which rows are counted depends on the seed and on public numbers only. A record is therefore either trained on or
counted. If it is trained on, it affects the counts only through what training releases, which pays for that; if it is
counted, it does not affect training. So the costs of training and counting do not add up, and a record pays the larger
one (parallel composition). Without a group column a group of records can be partly trained on and partly
counted, and pays for both.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Index, within
from ..errors import require
from ..models.evaluation import NO_BINS
from ..models.score_bins import ScoreBins
from ..problems.interfaces import Batch, Objective, RowLosses
from .release import Release
from .unit import Unit


def correct(objective: Objective, x: Array, rows: Batch) -> Array:
    """How many rows the model x predicts correctly, (1,)."""
    return np.array([float((objective.predict(x, rows.features) == rows.labels).sum())])


def summed(objective: Any, x: Array, rows: Batch, bound: float = 0.0, bins: ScoreBins = NO_BINS) -> Array:
    """The sum over the rows (1,) of numbers from 0 to 1: those of `correct`, or with a bound min(loss, bound) / bound.

    With bins (1 + cells,): the sum times their weight, and the counts of all cells. A loss that is not a number counts
    1. Raises SettingError if a bound is given and the objective has no `losses`, and if bins are given and it has no
    scores.
    """
    total = _total(objective, x, rows, bound)
    if not bins.number:
        return total
    counts = bins.counts(bins.scores(objective, x, rows.features), rows.labels)
    return np.concatenate([bins.weight * total, counts.ravel()])


def _total(objective: Any, x: Array, rows: Batch, bound: float) -> Array:
    with np.errstate(all="ignore"):  # a diverging model has infinite losses
        if not bound:
            return correct(objective, x, rows)
        require(
            isinstance(objective, RowLosses), "this objective has no loss of each row that could be clipped"
        )
        return np.array([(within(objective.losses(x, rows), 0.0, bound) / bound).sum()])


def paid_twice(unit: Unit) -> int:
    """2 if what is protected can be partly trained on and partly counted, so that both costs add up; 1 for a record."""
    return 1 if unit.rows == 1 else 2


def count_release(replaced: int, affected_releases: int = 1, bins: ScoreBins = NO_BINS) -> Release:
    """The release of a client's `summed` numbers, of whose rows so many are replaced together."""
    return Release(
        float(replaced) * (2 * math.sqrt(bins.histograms) if bins.number else 1.0), affected_releases
    )


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
    evaluations together cost a client that holds out rows. unit: what is protected. bound: of a clipped loss, 0 for
    counts of correct predictions. bins: those of the score, wherever they lie; by default none.
    """

    rounds: tuple[int, ...]
    sizes: Index
    mu: float
    unit: Unit
    bound: float = 0.0
    bins: ScoreBins = NO_BINS

    @property
    def multiplier(self) -> float:
        """sigma / sensitivity of every count."""
        return math.sqrt(len(self.rounds)) / self.mu

    def release(self, client: int) -> Release:
        """The release of a client's count after a round."""
        rows = int(self.sizes[client])
        return count_release(min(self.unit.rows or rows, rows), bins=self.bins)

    def noise(self, client: int) -> float:
        """The standard deviation of the noise in every number of a client's release."""
        return self.multiplier * self.release(client).spread

    def sigma(self, client: int) -> float:
        """The standard deviation of the noise in a client's count."""
        return self.noise(client) / (self.bins.weight if self.bins.number else 1.0)

    def costs(self, last: int | None = None) -> Array:
        """mu^2 (N,) of the evaluations up to round `last`, by default of all."""
        done = sum(last is None or round_ <= last for round_ in self.rounds)
        return np.where(self.sizes > 0, done / self.multiplier**2, 0.0)

    def with_training(self, costs: Array, last: int | None = None) -> Array:
        """mu^2 (N,) of training, which has these costs, and evaluation together."""
        own = self.costs(last)
        return np.maximum(costs, own) if paid_twice(self.unit) == 1 else costs + own
