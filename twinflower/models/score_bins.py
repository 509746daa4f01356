"""Public bins of scores, and what is counted in them of rows and their labels.

The bins lie around a centre c of the log odds with a width w: with B bins, edge k is where (log odds - c) / w is the
log odds of (1 - cos(pi k / B)) / 2, which are equal steps of arcsin sqrt. So they are narrow near c, and there are some
far away from it. Whoever asks for the counts chooses c and w from public numbers, so that the scores of a weak model or
of a rare outcome do not all lie in one bin. The edge nearest to log odds of 0 is moved there. A bin holds the scores
from its lower edge, exclusive, to its upper edge; the first one holds minus infinity, too.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from .. import special
from ..arrays import Array, Index, Labels
from ..errors import require
from .intervals import Share

MOST_BINS = 1000
ROUNDING = 1e-9
"""Relative error of a sum."""
_WIDTH = 0.6  # of the bins, in standard deviations of the log odds of reference rows
_FARTHEST = 1e6  # the largest centre and width


@runtime_checkable
class Scores(Protocol):
    """An objective whose model has scores, from which probabilities follow."""

    def scores(self, x: Array, features: Array) -> Array:
        """The scores (..., b, outputs)."""


def scores_of(objective: Any, x: Array, features: Array) -> Array:
    """The scores (b, outputs) of rows; SettingError for an objective without `Scores`."""
    require(isinstance(objective, Scores), "this objective has no scores that could be counted by bin")
    with np.errstate(all="ignore"):  # a diverging model
        return objective.scores(x, features).astype(np.float64)  # type: ignore[no-any-return]


def counted(scores: Array) -> Array:
    """The scores, with minus infinity in place of what is not a number."""
    return np.nan_to_num(scores, nan=-np.inf, posinf=np.inf, neginf=-np.inf)


class Counted(Protocol):
    """Rows counted by bin: a table without noise, or with noise of the deviation sigma in every count."""

    @property
    def cells(self) -> Array:
        """The counts and sums by bin, (..., bins)."""

    @property
    def edges(self) -> Array:
        """The edges of the bins, (bins + 1,)."""

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise in every count, 0 without noise."""

    @property
    def rows(self) -> float:
        """The number of rows; with noise, an estimate."""

    @property
    def auc(self) -> Share:
        """An area under the ROC curve with its interval, NaN if there is none."""

    @property
    def brier(self) -> float:
        """The Brier score, NaN if there is none."""


def together(tables: Iterable[Any]) -> Any:
    """The rows of all of these tables, at least one, of one kind and with the same bins; sums run in their order."""
    first, *others = tables
    cells = np.sum([first.cells, *(table.cells for table in others)], axis=0)
    return first._replace(cells=cells, sigma=math.hypot(first.sigma, *(table.sigma for table in others)))


@dataclass(frozen=True)
class ScoreBins(ABC):
    """Public bins: their number, 0 for none, and the centre and the width in log odds."""

    number: int
    centre: float = 0.0
    width: float = 1.0

    def around(self, reference: Array) -> Self:
        """These bins for a model that has these log odds (rows, ...) on public reference rows."""
        known = reference[np.isfinite(reference)]
        if not known.size:
            return self
        centre, width = np.clip([known.mean(), _WIDTH * known.std()], -_FARTHEST, _FARTHEST)
        return replace(self, centre=float(centre), width=max(float(width), 1 / _FARTHEST))

    @property
    def place(self) -> tuple[float, float]:
        """Centre and width."""
        return self.centre, self.width

    @property
    def valid(self) -> bool:
        """Whether centre and width are finite numbers of a size for which no edge is infinite."""
        return abs(self.centre) <= _FARTHEST and 1 / _FARTHEST <= self.width <= _FARTHEST

    @property
    def log_odds(self) -> Array:
        """The edges (number + 1,) in log odds, from minus to plus infinity."""
        steps = (1 - np.cos(np.pi * np.arange(1, self.number) / self.number)) / 2
        inner = self.centre + self.width * special.logit(steps)
        inner[np.abs(inner).argmin()] = 0.0
        return np.concatenate([[-np.inf], inner, [np.inf]])

    @property
    def edges(self) -> Array:
        """The edges (number + 1,) as probabilities, from 0 to 1."""
        return special.expit(self.log_odds)  # type: ignore[no-any-return]

    def bins_of(self, odds: Array) -> Index:
        """The bins of log odds, from 0."""
        return np.clip(np.searchsorted(self.log_odds, odds) - 1, 0, self.number - 1)

    @property
    def weight(self) -> float:
        """By which a sum is multiplied that is released together with the counts.

        Replacing a record moves two counts of every histogram by 1, so all of them by at most sqrt(2 histograms), and
        now the sum as well: each takes half of what the release costs.
        """
        return math.sqrt(2 * self.histograms)

    @property
    def histograms(self) -> int:
        """In how many of the counts a row is."""
        return 1

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the counts."""

    @property
    def exact_shape(self) -> tuple[int, ...]:
        """The shape of the cells of a table without noise; by default that of the counts."""
        return self.shape

    @abstractmethod
    def scores(self, objective: Any, x: Array, features: Array) -> Array:
        """What is counted of rows (b, features) under the model x (d,): log odds (b, ...) or risks (b,)."""

    @abstractmethod
    def counts(self, odds: Array, labels: Labels) -> Array:
        """The numbers of rows with these `scores` (b, ...) and labels (b,), in `shape`."""

    @abstractmethod
    def table(self, odds: Array, labels: Labels) -> Counted:
        """The table of rows with these `scores` (b, ...) and labels (b,)."""

    @abstractmethod
    def noisy(self, counts: Array, sigma: float) -> Counted:
        """The table of counts in `shape` with noise of this deviation."""

    @abstractmethod
    def exact(self, cells: Array, rows: int) -> Counted | None:
        """The table without noise with these cells in `exact_shape`; None if they are not those of so many rows."""
