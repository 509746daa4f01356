"""Discrimination of a model of survival, from counts of its risks by bin and by the cell of a public grid of times."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Labels
from .intervals import Share, mean_share
from .score_bins import ScoreBins, counted
from .survival import TimeGrid
from .time_auc import Persons


@dataclass(frozen=True)
class TimeBins(ScoreBins):
    """Public bins of the risks of persons, and the ends of a public grid of times."""

    times: tuple[float, ...] = (1.0,)

    @property
    def histograms(self) -> int:
        """One: a person is in one count, from which the areas at all times follow."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """(2 T + 1, number)."""
        return TimeGrid(self.times).cells, self.number

    @property
    def exact_shape(self) -> tuple[int, ...]:
        """That of the counts."""
        return self.shape

    def scores(self, objective: Any, x: Array, features: Array) -> Array:
        """The risks (b,) of rows (b, features) under the model x (d,)."""
        with np.errstate(all="ignore"):  # a diverging model
            return counted(objective.predict(x, features).astype(np.float64))

    def counts(self, odds: Array, labels: Labels) -> Array:
        """The numbers of persons (2 T + 1, number) by the cell of their signed times (b,) and the bin of their risks
        (b,); a person is in one cell."""
        cells = TimeGrid(self.times).cells_of(labels) * self.number + self.bins_of(odds)
        return np.bincount(cells, minlength=math.prod(self.shape)).reshape(self.shape).astype(np.float64)

    def table(self, odds: Array, labels: Labels) -> "TimeTable":
        """The table of persons with these risks (b,) and signed times (b,)."""
        return self.noisy(self.counts(odds, labels), 0.0)

    def noisy(self, counts: Array, sigma: float) -> "TimeTable":
        """The table of noisy counts (2 T + 1, number)."""
        return TimeTable(counts, self.log_odds, np.array(self.times), sigma)

    def exact(self, cells: Array, rows: int) -> "TimeTable | None":
        """See `ScoreBins.exact`."""
        fits = cells.min() >= 0 and (cells == cells.round()).all() and cells.sum() == rows
        return self.noisy(cells, 0.0) if fits else None


class TimeTable(NamedTuple):
    """Persons counted by the cell of a grid of times and by the bin of their risk.

    cells (2 T + 1, bins): the cells of the grid are those of `survival.TimeGrid`. edges (bins + 1,): of the bins of
    risks, from minus to plus infinity. times (T,): the ends of the grid. sigma: the standard deviation of the noise in
    every count.
    """

    cells: Array
    edges: Array
    times: Array
    sigma: float = 0.0

    @classmethod
    def together(cls, tables: Iterable["TimeTable"]) -> "TimeTable":
        """The persons of all of these tables, at least one, with the same edges and times; sums run in their order."""
        cells, edges, times, sigmas = zip(*tables, strict=True)
        return cls(np.sum(cells, axis=0), edges[0], times[0], math.hypot(*sigmas))

    @property
    def areas(self) -> list[Share]:
        """The area under the ROC curve at each of the times (T,), see `time_auc`."""
        intervals, (kinds, bins) = len(self.times), self.cells.shape
        kind = np.repeat(np.arange(kinds), bins)
        interval = np.where(kind < 2 * intervals, kind % intervals, intervals)
        ranks = np.tile(np.arange(bins), kinds)
        events = kind < intervals
        persons = Persons(self.cells.ravel(), interval, events, ranks, intervals, self.sigma, binned=True)
        return [persons.area(done + 1) for done in range(intervals)]

    @property
    def rows(self) -> float:
        """The number of rows; with noise, an estimate."""
        return float(self.cells.sum())

    @property
    def auc(self) -> Share:
        """The mean of the areas over the times (`intervals.mean_share`), NaN if there is none at one of them."""
        return mean_share(self.areas)

    @property
    def brier(self) -> float:
        """NaN: these counts hold no probabilities."""
        return math.nan
