"""Evaluation of a model at the sites, on rows that never enter training, and the weighted mean over the sites."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.interfaces import Batch, Compares, Objective
from .discrimination import Bins
from .intervals import share_interval
from .score_bins import Counted, ScoreBins, together

COLUMNS = ("held_out_loss", "held_out_accuracy", "held_out_rows")
INTERVAL = ("held_out_low", "held_out_high")
SCORE_COLUMNS = ("held_out_auc", "held_out_auc_low", "held_out_auc_high", "held_out_brier")
ERROR_COLUMNS = ("held_out_r2", "held_out_mae", "held_out_rmse")
OWN_MODEL = "own_model_accuracy"
"""The mean over the sites of the score of each site's own model, where a method gives every site one
(a `personal` method)."""
NO_BINS: ScoreBins = Bins(0)
_ROUNDING = 1e-12  # of a sum of squares, relative


class Errors(NamedTuple):
    """Sums over the rows of a regression: of |error|, error^2, label, and label^2."""

    absolute: float
    squared: float
    labels: float
    squares: float

    @classmethod
    def of(cls, predicted: Array, observed: Array) -> "Errors":
        """The sums of rows with these predictions and labels (b,)."""
        errors = predicted.astype(np.float64) - observed
        return cls(*(float(part.sum()) for part in (np.abs(errors), errors**2, observed, observed**2)))


class Evaluation(NamedTuple):
    """What a site reports about a model on its m held-out rows.

    rows: m. loss: the mean loss, f_i of these rows. correct: for a classification, the number of correctly predicted
    rows, from 0 to m; replacing a record changes it by at most 1. For a regression it is m R^2, NaN where the labels
    do not vary. scores: these rows by the bin of their score, None if they are not counted by bin. errors: of a
    regression, None for a classification.
    """

    rows: int
    loss: float
    correct: float
    scores: Counted | None = None
    errors: Errors | None = None


class Released(NamedTuple):
    """What a private site reports: the sum of a number from 0 to 1 for each of m held-out rows, with noise.

    rows: m. value: the noisy sum. sigma: the standard deviation of its noise, which is public. scores: the noisy counts
    by bin of the score, None without them.
    """

    rows: int
    value: float
    sigma: float
    scores: Counted | None = None

    @classmethod
    def of(cls, values: Array, rows: int, sigma: float, bins: ScoreBins) -> "Released":
        """What the values of `held_out_question.summed` say, whose noise has this deviation."""
        if not bins.number:
            return cls(rows, float(values[0]), sigma)
        return cls.with_scores(rows, float(values[0]) / bins.weight, sigma / bins.weight, values[1:], bins)

    @classmethod
    def with_scores(cls, rows: int, value: float, sigma: float, counts: Array, bins: ScoreBins) -> "Released":
        """A sum that was released together with counts by bin of all cells (number,)."""
        return cls(rows, value, sigma, bins.noisy(counts.reshape(bins.shape), sigma * bins.weight))


def evaluate(
    objective: Objective, x: Array, rows: Batch, bins: ScoreBins = NO_BINS, errors: bool = False
) -> Evaluation:
    """Evaluate the model x (d,) on a site's held-out rows, which may be none, with counts by bin if there are bins.

    errors: with sums of errors; the model is that of a regression.
    """
    size = len(rows.labels)
    scores = bins.table(bins.scores(objective, x, rows.features), rows.labels) if bins.number else None
    with np.errstate(all="ignore"):  # a diverging model has an infinite loss
        sums = _errors(objective, x, rows) if errors else None
        if not size:
            return Evaluation(0, 0.0, 0.0, scores, sums)
        loss, score = float(objective.value(x, rows)), float(objective.score(x, rows))
    return Evaluation(size, loss, size * score, scores, sums)


def _errors(objective: Objective, x: Array, rows: Batch) -> Errors:
    if isinstance(objective, Compares):
        return Errors.of(*objective.compared(x, rows))
    return Errors.of(objective.predict(x, rows.features), rows.labels)


def by_site(sites: Mapping[int, Evaluation]) -> dict[int, float]:
    """The score of the model on the held-out rows of every site that has one: accuracy, R^2 or concordance index."""
    return {
        site: evaluation.correct / evaluation.rows
        for site, evaluation in sites.items()
        if evaluation.rows and evaluation.correct == evaluation.correct
    }


def error_columns(sites: Sequence[Evaluation]) -> dict[str, float]:
    """The `ERROR_COLUMNS` of the rows of all sites together, in units of the labels as the objective has them; empty
    unless every site has sums of errors. R^2 is NaN where the labels do not vary."""
    known = [site.errors for site in sites if site.errors is not None]
    if not known or len(known) < len(sites):
        return {}
    rows = sum(site.rows for site in sites)
    absolute, squared, labels, squares = np.array(known).sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = squares - labels**2 / rows
        r2 = 1 - squared / spread if spread > _ROUNDING * squares else np.nan
        values = float(r2), float(absolute / rows), float(np.sqrt(squared / rows))
    return dict(zip(ERROR_COLUMNS, values, strict=True))


def score_columns(sites: Sequence[Evaluation] | Sequence[Released]) -> dict[str, float]:
    """The `SCORE_COLUMNS` of all sites together; empty if they do not count by bin."""
    tables = [site.scores for site in sites if site.scores is not None]
    if not tables:
        return {}
    table = together(tables)
    return dict(zip(SCORE_COLUMNS, (*table.auc, table.brier), strict=True))


def pooled(sites: Sequence[Evaluation]) -> dict[str, float]:
    """The `COLUMNS` of a round: means over the sites, weighted by their numbers of held-out rows, and all these rows.

    The accuracy leaves out sites where it is NaN; a mean over no rows is NaN. Sums run in the order of the sites.
    """
    rows, loss, correct = np.array([site[:3] for site in sites], dtype=float).reshape(-1, 3).T
    scored = ~np.isnan(correct)
    with np.errstate(invalid="ignore"):
        means = (rows @ loss) / rows.sum(), correct[scored].sum() / rows[scored].sum()
    values = dict(zip(COLUMNS, (*map(float, means), int(rows.sum())), strict=True))
    return values | score_columns(sites) | error_columns(sites)


def private_columns(bound: float = 0.0) -> tuple[str, ...]:
    """The columns of `estimated`."""
    return ("held_out_loss" if bound else "held_out_accuracy", *INTERVAL, "held_out_rows")


def estimated(sites: Sequence[Released], bound: float = 0.0) -> dict[str, float]:
    """The estimate from the noisy sums of the sites, and its interval at 95% (`share_interval`).

    Without a bound a row counts 1 if it is predicted correctly, and the result is an accuracy. With one it counts
    loss / bound, at most 1, and the result is the mean of these clipped losses; NaN without any site. The estimate is
    for new rows of the sites, in the proportions of their held-out rows. The interval's level is proven for independent
    rows that are all predicted correctly with the same probability. Where sites differ, and for clipped losses, the sum
    varies less than a binomial number; then simulations support it (docs/guarantee.md), but no proof.
    """
    if not sites:
        return dict(zip(private_columns(bound), (np.nan, np.nan, np.nan, 0), strict=True))
    rows = sum(site.rows for site in sites)
    value, sigma = sum(site.value for site in sites), float(np.hypot.reduce([s.sigma for s in sites]))
    numbers = np.clip([value / rows, *share_interval(value, rows, sigma)], 0.0, 1.0) * (bound or 1.0)
    return dict(zip(private_columns(bound), (*map(float, numbers), rows), strict=True)) | score_columns(sites)
