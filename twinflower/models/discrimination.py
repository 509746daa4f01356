"""Discrimination and calibration of a classifier, from counts of its scores by class and by bin.

The score p of a row is the predicted probability of the second of two classes, the positive one; the bins are those of
`score_bins`.

From the counts follow the ROC curve and its area, the confusion matrix at every edge, the calibration curve and the
Brier score. A pair of rows in one bin counts one half in the area, as ties do, and widens its interval. Sites count
without noise, or with Gaussian noise of a known deviation in every cell.
"""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Labels
from .intervals import Share, area, binned_area, mean_share, share
from .score_bins import ROUNDING, ScoreBins, counted, scores_of

GROUPS = 10  # of the calibration curve


def log_odds(scores: Array) -> Array:
    """The log odds (rows,) of the second of two classes, given their scores (rows, 1 or 2)."""
    return scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]


@dataclass(frozen=True)
class Bins(ScoreBins):
    """Public bins of the log odds of the second of two classes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(2, number)."""
        return 2, self.number

    @property
    def exact_shape(self) -> tuple[int, ...]:
        """(4, number)."""
        return 4, self.number

    def scores(self, objective: Any, x: Array, features: Array) -> Array:
        """The log odds (b,) of rows (b, features) under the model x (d,); minus infinity where they are not a number.

        SettingError for an objective without `Scores`.
        """
        with np.errstate(all="ignore"):  # a diverging model
            return counted(log_odds(scores_of(objective, x, features)))

    def counts(self, odds: Array, labels: Labels) -> Array:
        """The numbers of rows (2, number) with labels 0 and 1 by bin of their log odds (b,); a row is in one cell."""
        return self._sums(np.ones((1, len(odds))), odds, labels)[0]  # type: ignore[no-any-return]

    def table(self, odds: Array, labels: Labels) -> "ScoreTable":
        """The table of rows with these log odds (b,) and labels 0 or 1 (b,)."""
        scores = special.expit(odds)
        sums = self._sums(np.stack([scores, (scores - labels) ** 2]), odds, labels)
        return ScoreTable(np.concatenate([self.counts(odds, labels), sums.sum(1)]), self.edges)

    def noisy(self, counts: Array, sigma: float) -> "ScoreTable":
        """The table of noisy counts (2, number)."""
        return ScoreTable.noisy(counts, self.edges, sigma)

    def exact(self, cells: Array, rows: int) -> "ScoreTable | None":
        """See `ScoreBins.exact`."""
        table = ScoreTable(cells, self.edges)
        return table if table.fits(rows) else None

    def _sums(self, weights: Array, odds: Array, labels: Labels) -> Array:
        """The sums of each of the weights (k, b) over the rows of every class and bin, (k, 2, number)."""
        cells = self.bins_of(odds) + self.number * (labels == 1)
        sums = [np.bincount(cells, weight, 2 * self.number).astype(np.float64) for weight in weights]
        return np.stack(sums).reshape(len(weights), 2, self.number)


class Calibration(NamedTuple):
    """A group of neighbouring bins: its ends, the mean score, and the share of positives with its interval."""

    low: float
    high: float
    rows: float
    predicted: float
    observed: Share


class Point(NamedTuple):
    """The confusion matrix of predicting "positive" above a threshold, as numbers of rows and as shares."""

    threshold: float
    true_positives: float
    false_positives: float
    false_negatives: float
    true_negatives: float
    sensitivity: Share
    specificity: Share
    precision: Share
    negative_value: Share


class ScoreTable(NamedTuple):
    """Rows counted by the bin of their score.

    cells (4, bins): the numbers of negatives and of positives, the sum of the scores, and the sum of the squared errors
    (p - y)^2. edges (bins + 1,): of the bins, from 0 to 1. sigma: the standard deviation of the noise in every count.
    With noise the two sums follow from the counts and the middles of the bins.
    """

    cells: Array
    edges: Array
    sigma: float = 0.0

    @classmethod
    def noisy(cls, counts: Array, edges: Array, sigma: float) -> "ScoreTable":
        """The table of noisy counts (2, bins)."""
        middle = (edges[:-1] + edges[1:]) / 2
        negatives, positives = counts
        squared = negatives * middle**2 + positives * (1 - middle) ** 2
        return cls(np.stack([negatives, positives, counts.sum(0) * middle, squared]), edges, sigma)

    @property
    def counts(self) -> Array:
        """The numbers of negatives and of positives, (2, bins)."""
        return self.cells[:2]

    def fits(self, rows: int) -> bool:
        """Whether these can be exact numbers of so many rows."""
        whole = bool((self.counts == self.counts.round()).all()) and self.counts.sum() == rows
        most = self.counts.sum(0) * (1 + ROUNDING)
        return bool(self.cells.min() >= 0 and whole and (self.cells[2:] <= most).all())

    @property
    def rows(self) -> float:
        """The number of rows; with noise, an estimate."""
        return float(self.counts.sum())

    @property
    def bins(self) -> int:
        """The number of bins."""
        return int(self.cells.shape[1])

    @property
    def auc(self) -> Share:
        """The area under the ROC curve, NaN without one of the classes, with its interval (`intervals.binned_area`)."""
        return binned_area(self.counts[0], self.counts[1], self.sigma)

    @property
    def brier(self) -> float:
        """The mean of (p - y)^2, in [0, 1]; NaN without rows."""
        rows = float(self.counts.sum())
        return min(max(float(self.cells[3].sum()) / rows, 0.0), 1.0) if rows > 0 else math.nan

    def roc(self) -> tuple[Array, Array]:
        """The false and the true positive rates (bins + 1,) at all edges, from the lowest to the highest."""
        above = np.cumsum(np.hstack([self.counts, np.zeros((2, 1))])[:, ::-1], axis=1)[:, ::-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = np.clip(above / above[:, :1], 0.0, 1.0)
        return rates[0], rates[1]

    def at(self, threshold: float) -> Point:
        """The confusion matrix at the edge that is nearest to the threshold."""
        (negatives, positives), s = self.counts, self.sigma
        k = int(np.abs(self.edges - threshold).argmin())
        below, above = k, self.bins - k
        tn, fn, fp, tp = (
            float(counts.sum()) for counts in (negatives[:k], positives[:k], negatives[k:], positives[k:])
        )
        return Point(
            float(self.edges[k]), tp, fp, fn, tn,
            share(tp, fn, s, above, below), share(tn, fp, s, below, above),
            share(tp, fp, s, above, above), share(tn, fn, s, below, below),
        )  # fmt: skip

    def calibration(self) -> list[Calibration]:
        """The mean score and the share of positives in `GROUPS` groups of neighbouring bins, or fewer."""
        ends = np.unique(np.linspace(0, self.bins, GROUPS + 1).round().astype(int))
        return [self._group(a, b) for a, b in pairwise(ends.tolist())]

    def _group(self, a: int, b: int) -> Calibration:
        negatives, positives, predicted, _ = (float(total) for total in self.cells[:, a:b].sum(1))
        rows, low, high = negatives + positives, float(self.edges[a]), float(self.edges[b])
        mean = min(max(predicted / rows, low), high) if rows > 0 else math.nan
        return Calibration(low, high, rows, mean, share(positives, negatives, self.sigma, b - a, b - a))


def ranked(scores: Array, labels: Labels) -> Share:
    """The exact area under the ROC curve of rows with these scores (b,) and labels 0 or 1 (b,), as in `ScoreTable`."""
    values, ranks = np.unique(scores, return_inverse=True)
    negatives, positives = (np.bincount(ranks[labels == label], minlength=len(values)) for label in (0, 1))
    return area(negatives.astype(float), positives.astype(float))


# ------------------------------------------------------------------------------------- more than two classes


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
