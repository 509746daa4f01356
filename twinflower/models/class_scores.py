"""Discrimination and calibration of a classifier with more than two classes, from counts of its scores by bin.

Each class against all others is a problem of two classes: the score of a row is the predicted probability of the class,
and the row is a positive if the class is its own. So every row is in one histogram for each class, over the same public
bins as in `discrimination`. The area under the ROC curve is the mean of those of the classes ("macro"), and the Brier
score the mean over rows of the sum over classes of (p - y)^2, from 0 to 2 (Brier, Monthly Weather Review 1950).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Labels
from .discrimination import Bins, ScoreTable
from .intervals import Share, mean_share
from .score_bins import ScoreBins, counted, scores_of


def one_against_rest(scores: Array) -> Array:
    """The log odds (rows, classes) of every class against all others; minus infinity where they are not a number."""
    with np.errstate(all="ignore"):  # a diverging model
        rest = [special.logsumexp(np.delete(scores, k, axis=1), axis=1) for k in range(scores.shape[1])]
        odds = scores - np.stack(rest, axis=1)
    return counted(odds)


@dataclass(frozen=True)
class ClassBins(ScoreBins):
    """Public bins of the log odds of every one of more than two classes against the others."""

    classes: int = 3

    @property
    def histograms(self) -> int:
        """One for each class."""
        return self.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """(classes, 2, number)."""
        return self.classes, 2, self.number

    @property
    def exact_shape(self) -> tuple[int, ...]:
        """(classes, 4, number)."""
        return self.classes, 4, self.number

    @property
    def _one(self) -> Bins:
        return Bins(self.number, *self.place)

    def scores(self, objective: Any, x: Array, features: Array) -> Array:
        """The log odds (b, classes) of rows (b, features) under the model x (d,)."""
        return one_against_rest(scores_of(objective, x, features))

    def counts(self, odds: Array, labels: Labels) -> Array:
        """The numbers of rows (classes, 2, number) that are of another class and of the class, by bin of their log odds
        (b, classes); a row is in one cell for each class."""
        return np.stack([self._one.counts(class_odds, labels == k) for k, class_odds in enumerate(odds.T)])

    def table(self, odds: Array, labels: Labels) -> "ClassTable":
        """The table of rows with these log odds (b, classes) and labels (b,)."""
        tables = [self._one.table(class_odds, labels == k) for k, class_odds in enumerate(odds.T)]
        return ClassTable(np.stack([table.cells for table in tables]), self.edges)

    def noisy(self, counts: Array, sigma: float) -> "ClassTable":
        """The table of noisy counts (classes, 2, number)."""
        cells = [self._one.noisy(class_counts, sigma).cells for class_counts in counts]
        return ClassTable(np.stack(cells), self.edges, sigma)

    def exact(self, cells: Array, rows: int) -> "ClassTable | None":
        """See `ScoreBins.exact`."""
        table = ClassTable(cells, self.edges)
        fits = all(table.fits(rows) for table in table.classes) and cells[:, 1].sum() == rows
        return table if fits else None


class ClassTable(NamedTuple):
    """Rows counted, for every class, by the bin of their score.

    cells (classes, 4, bins): those of the `ScoreTable` of each class against the others. edges, sigma: as there.
    """

    cells: Array
    edges: Array
    sigma: float = 0.0

    @classmethod
    def together(cls, tables: Iterable["ClassTable"]) -> "ClassTable":
        """The rows of all of these tables, at least one, with the same edges; sums run in their order."""
        cells, edges, sigmas = zip(*tables, strict=True)
        return cls(np.sum(cells, axis=0), edges[0], math.hypot(*sigmas))

    @property
    def classes(self) -> list[ScoreTable]:
        """The table of each class against the others."""
        return [ScoreTable(cells, self.edges, self.sigma) for cells in self.cells]

    @property
    def rows(self) -> float:
        """The number of rows; with noise, an estimate."""
        return float(self.cells[:, :2].sum() / len(self.cells))

    @property
    def auc(self) -> Share:
        """The mean of the areas of the classes (`intervals.mean_share`), NaN if one of them has none."""
        return mean_share([table.auc for table in self.classes])

    @property
    def brier(self) -> float:
        """The mean over rows of the sum over classes of (p - y)^2, in [0, 2]; NaN without rows."""
        rows = self.rows
        return min(max(float(self.cells[:, 3].sum()) / rows, 0.0), 2.0) if rows > 0 else math.nan
