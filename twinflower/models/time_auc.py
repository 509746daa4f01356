"""The area under the ROC curve at a time: whether those with the event by then had higher risks than those without it.

At a time t a case is a person with the event at T <= t, a control one with T > t (cumulative cases, dynamic controls).
Who was censored by t is neither. A case has the weight 1 / G(T-), G(T-) the probability of not having been censored
before T, so that cases stand for those who were censored. With risks r,

    AUC(t) = sum over cases i and controls j of 1(r_i > r_j) / G(T_i-)  /  (sum over cases of 1 / G(T_i-) * controls)

where equal risks count one half (Uno, Cai, Tian and Wei, "Evaluating prediction rules for t-year survivors with
censored regression models", JASA 2007; Hung and Chiang, "Estimation methods for time-dependent AUC models with survival
data", Canadian Journal of Statistics 2010). G is the Kaplan-Meier curve of the censoring of the same persons, where who
had the event at a time is not at risk of being censored then.

Persons can be known by the cell of a public grid of times (`survival.TimeGrid`) and by the bin of their risk only. Then
every time counts as the end of its interval, and a pair in one bin counts one half. A person is in one cell, from which
the areas at all ends of the grid follow.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Index, Labels, Mask
from .intervals import CANDIDATES, DEVIATIONS, NOTHING, Share, accepted, hanley_mcneil, mean_share
from .score_bins import ScoreBins, counted
from .survival import TimeGrid

_CLEAR = (
    5.0  # cases, controls and persons at risk, in deviations of their noise, below which there is no area
)


@dataclass(frozen=True)
class Persons:
    """Persons, or groups of persons alike; all arrays are (m,).

    numbers: how many each stands for. interval: of a grid of T intervals, T for those beyond it. events: whether the
    event happened in it. ranks: whole numbers from 0 that order the risks. intervals: T. sigma: the standard deviation
    of the noise in the numbers. binned: whether risks with one rank are in a bin, and not equal.
    """

    numbers: Array
    interval: Index
    events: Mask
    ranks: Index
    intervals: int
    sigma: float = 0.0
    binned: bool = False

    def by_interval(self, numbers: Array) -> Array:
        """The sums (T + 1,) of numbers (m,) over the persons of every interval."""
        return np.bincount(self.interval, numbers, self.intervals + 1).astype(np.float64)

    @cached_property
    def _at_risk(self) -> tuple[Array, Array]:
        """Those at risk of censoring in an interval, (T + 1,), and those left after it, (T + 1,)."""
        all_, had = self.by_interval(self.numbers), self.by_interval(self.numbers * self.events)
        reached = np.cumsum(all_[::-1])[::-1]
        return reached - had, np.append(reached[1:], 0.0)

    @cached_property
    def clear(self) -> Mask:
        """Whether in an interval, and all before it, those at risk stand out from the noise, (T + 1,)."""
        at_risk, left = self._at_risk
        noise = self.sigma * math.sqrt(len(self.numbers))
        return np.logical_and.accumulate(np.minimum(at_risk, left) > _CLEAR * noise)

    @cached_property
    def weights(self) -> Array:
        """1 / G at the beginning of every interval, (T + 1,), 0 where nobody is left."""
        at_risk, left = self._at_risk
        kept = np.divide(left, at_risk, out=np.zeros_like(left), where=at_risk > 0)
        before = np.append(1.0, np.cumprod(np.maximum(kept, 0.0))[:-1])
        return np.divide(1.0, before, out=np.zeros_like(before), where=before > 0)

    def area(self, done: int) -> Share:
        """The area at the end of so many intervals with its 95% interval; NaN without cases or without controls."""
        pairs = _Area(self, self.events & (self.interval < done), self.interval >= done)
        return pairs.share() if pairs.known(done) else NOTHING

    def censoring_slopes(self, by_weight: Array) -> Array:
        """The derivatives (m,) by the numbers of a sum that has these derivatives (T + 1,) by the logarithms of the
        weights."""
        at_risk, left = self._at_risk
        later = np.append(np.cumsum(by_weight[::-1])[::-1][1:], 0.0)
        risk, rest = (np.divide(later, n, out=np.zeros_like(n), where=n > 0) for n in (at_risk, left))
        passed = np.append(0.0, np.cumsum(risk - rest)[:-1])
        return passed[self.interval] + np.where(self.events, 0.0, risk[self.interval])


class _Area:
    """The area of these cases and controls among persons; arrays are (m,), or by rank."""

    def __init__(self, persons: Persons, cases: Mask, controls: Mask) -> None:
        self.persons, self.masks = persons, (cases, controls)
        self.weights = persons.weights[persons.interval] * cases
        self.cases, self.controls = self._by_rank(self.weights), self._by_rank(controls.astype(np.float64))
        self.below = np.cumsum(self.controls) - self.controls / 2
        self.above = np.cumsum(self.cases[::-1])[::-1] - self.cases / 2
        self.totals = float(self.cases.sum()), float(self.controls.sum())

    def _by_rank(self, weights: Array) -> Array:
        return np.bincount(self.persons.ranks, weights * self.persons.numbers).astype(np.float64)

    @cached_property
    def _counted(self) -> Array:
        """The numbers of cases and of controls."""
        return np.array([self.persons.numbers[mask].sum() for mask in self.masks])

    def known(self, done: int) -> bool:
        """Whether there are cases and controls, more than noise could be."""
        noise = self.persons.sigma * np.sqrt([mask.sum() for mask in self.masks])
        clear = (self._counted > _CLEAR * noise).all() and self.persons.clear[: done - 1].all()
        return bool(clear and self.totals[0] > 0)

    @cached_property
    def value(self) -> float:
        return float(self.cases @ self.below) / (self.totals[0] * self.totals[1])

    @cached_property
    def slopes(self) -> Array:
        """The derivatives (m,) of the area by the numbers of persons, those of the weights included."""
        p, ranks = self.persons, self.persons.ranks
        of_case = self.weights * (self.below[ranks] / self.totals[1] - self.value) / self.totals[0]
        of_control = self.masks[1] * (self.above[ranks] / self.totals[0] - self.value) / self.totals[1]
        by_weight = p.by_interval(p.numbers * of_case)
        return of_case + of_control + p.censoring_slopes(by_weight)

    def share(self) -> Share:
        """The area and its interval: those areas from which the estimate is at most 1.96 deviations away.

        The variance of the estimate is that of the infinitesimal jackknife, sum of numbers * slopes^2, as a multiple,
        at least 1, of that of Hanley and McNeil for so many cases and controls, which depends on the area; and that
        of the noise.
        """
        sizes = np.maximum(self._counted, 1.0)
        plain = hanley_mcneil(CANDIDATES, *sizes)
        jackknife = float(np.maximum(self.persons.numbers, 0.0) @ self.slopes**2)
        here = float(hanley_mcneil(np.clip(self.value, 0.0, 1.0), *sizes))
        factor = max(jackknife / here, 1.0) if here > 0 else 1.0
        interval = accepted(self.value, factor * plain + self._noise())
        hidden = self._hidden() if self.persons.binned else 0.0
        return Share(interval.value, max(interval.low - hidden, 0.0), min(interval.high + hidden, 1.0))

    @property
    def _pairs(self) -> float:
        return self.totals[0] * self.totals[1]

    @cached_property
    def _variances(self) -> tuple[float, float]:
        """Those of the noise in the weighted numbers of cases and of controls with one rank."""
        weights = float(self.weights @ self.weights), float(self.masks[1].sum())
        first, second = (self.persons.sigma**2 * weight / len(self.cases) for weight in weights)
        return first, second

    def _noise(self) -> float:
        """The variance that the noise adds: its linear part, and the product of the noise of cases and of controls."""
        ranks, a = len(self.cases), self.value
        pairs = ranks * (ranks - 1) / 2 * ((1 - a) ** 2 + a**2) + ranks * (0.5 - a) ** 2
        linear = self.persons.sigma**2 * float(self.slopes @ self.slopes)
        return linear + math.prod(self._variances) * pairs / self._pairs**2

    def _hidden(self) -> float:
        """An estimate of how far the order within bins moves the area, at most, as in `intervals.binned_area`."""
        cases, controls = self._variances
        noise = cases * float(self.controls @ self.controls) + controls * float(self.cases @ self.cases)
        together = float(self.cases @ self.controls) + DEVIATIONS * math.sqrt(noise)
        return min(max(together / (2 * self._pairs), 0.0), 0.5)


def areas(risks: Array, at: Iterable[float], times: Array, events: Mask) -> list[Share]:
    """The areas at the times `at` of persons with these risks, times and events (rows,); NaN where there are no cases
    or no controls."""
    grid, interval = np.unique(times, return_inverse=True)
    ranks = np.unique(risks, return_inverse=True)[1]
    persons = Persons(np.ones(len(times)), interval, events.astype(bool), ranks, len(grid))
    return [persons.area(int(np.searchsorted(grid, time, side="right"))) for time in at]


# ----------------------------------------------- counts by bin of the risk and by cell of a public grid of times


@dataclass(frozen=True)
class TimeBins(ScoreBins):
    """Public bins of the risks of persons, and the ends of a public grid of times.

    A person is in one count, from which the areas at all times follow.
    """

    times: tuple[float, ...] = (1.0,)

    @property
    def shape(self) -> tuple[int, ...]:
        """(2 T + 1, number)."""
        return TimeGrid(self.times).cells, self.number

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
