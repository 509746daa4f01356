"""The question how good a model is on the rows that clients hold out, with counts of their scores by bin.

A private client releases a noisy sum. A row that is predicted correctly counts 1, any other row 0; or a row counts its
loss, clipped to [0, bound] and divided by the bound. Replacing k records changes the sum by at most k. The rows can
also be counted by class and by bin of their score (`models.discrimination`), or by time and by bin of their risk
(`models.time_auc`). A row is in one cell of one histogram, or of each of h histograms where there is one for each of h
> 2 classes (`models.discrimination`), so replacing k records moves all counts together by at most k sqrt(2 h). They are
released together with the sum, which is multiplied by sqrt(2 h): all these numbers together move by at most 2 k sqrt h.
`privacy.plan` says what this costs.

Without privacy a client sends the numbers themselves, of one model after each round.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, within
from ..errors import ReplyError, WithheldError, require
from ..models.evaluation import (
    NO_BINS,
    Errors,
    Evaluation,
    Released,
    by_site,
    estimated,
    evaluate,
    pooled,
)
from ..models.score_bins import Counted, ScoreBins
from ..models.time_auc import TimeTable
from ..privacy.release import Release
from ..privacy.unit import Unit
from ..problems.interfaces import Batch, Objective, RowLosses
from ..wire import doubles, packed
from .model_question import ModelQuestion, Sent

_PLACE = ("centre", "width")  # fields of a request: where the bins of the score lie
_MOST_ROWS = 2**27  # of more, an interval takes minutes


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


def most_moved(bins: ScoreBins) -> float:
    """How far the replacement of one record can move `summed`."""
    return 2 * math.sqrt(bins.histograms) if bins.number else 1.0


@dataclass(frozen=True)
class HeldOutQuestion(ModelQuestion):
    """How good the model is on held-out rows.

    bins: those of the score, by default none; odds: the scores of public reference rows under a model, around which the
    bins lie. errors: whether an exact answer has sums of a regression's errors. bound: of a clipped loss in an answer
    with noise, 0 for counts of correct predictions. sizes: how many rows each client holds out, if this is known.
    least_cell: fewest persons in every exact count by risk and time that is not 0; a model for which there are fewer is
    not evaluated.
    """

    name = "evaluation"
    store = "evaluation"
    what = "evaluation"
    absent = "this client holds out no rows to evaluate on"
    default = True
    of_held_out = True

    bins: ScoreBins = NO_BINS
    odds: Callable[[Array], Array] | None = None
    errors: bool = False
    bound: float = 0.0
    sizes: Sequence[int] = ()
    least_cell: int = 0

    # --- the server

    def at(self, x: Array) -> "HeldOutQuestion":
        """The question with the bins where they lie for this model."""
        return replace(self, bins=self.bins.around(self.odds(x))) if self.bins.number and self.odds else self

    @property
    def fields(self) -> Mapping[str, Any]:
        """Where the bins lie."""
        return dict(zip(_PLACE, self.bins.place, strict=True)) if self.bins.number else {}

    def read(self, client: int, sent: Sent, private: bool) -> Evaluation | Released:
        """See `ModelQuestion`."""
        if type(sent.rows) is not int or not 0 <= sent.rows < _MOST_ROWS:
            raise ReplyError(f"the number of rows must be a whole number from 0 to 2^27; got {sent.rows!r}")
        if len(self.sizes) and sent.rows != self.sizes[client]:
            raise ReplyError(f"the client must hold out {self.sizes[client]} rows; it reports {sent.rows}")
        return _read_noisy(sent, self.bins) if private else _read_exact(sent, self.bins)

    def found(self, answers: Mapping[int, Any], private: bool) -> "Found":
        """See `ModelQuestion`."""
        scores = {client: own.scores for client, own in answers.items() if own.scores is not None}
        if private:
            return Found(estimated(list(answers.values()), self.bound), scores)
        return Found(pooled(list(answers.values())), scores, by_site(answers))

    def metrics(self, found: "Found") -> Mapping[str, float]:
        """See `ModelQuestion`."""
        return found.metrics

    # --- a site

    def as_asked(self, config: Mapping[str, Any]) -> "HeldOutQuestion":
        """The question with the bins where a request says; ReplyError for numbers that are no place."""
        place = {key: config.get(key, default) for key, default in zip(_PLACE, self.bins.place, strict=True)}
        bins = replace(self.bins, **place)
        if not (all(type(number) is float for number in place.values()) and bins.valid):
            raise ReplyError(
                f"the request's bins must have a finite centre and a width above 0; got {list(place.values())}"
            )
        return replace(self, bins=bins)

    def asked_about(self, x: Array) -> bytes:
        """See `ModelQuestion`."""
        return x.tobytes() + repr(self.bins).encode() * bool(self.bins.number)

    def exact(self, objective: Any, x: Array, rows: Batch) -> Evaluation:
        """See `ModelQuestion`; WithheldError for counts of persons below `least_cell`."""
        found = evaluate(objective, x, rows, self.bins, self.errors)
        cells = found.scores.cells if isinstance(found.scores, TimeTable) else np.empty(0)
        if cells[cells > 0].min(initial=np.inf) < self.least_cell:
            raise WithheldError(
                f"this site counts no persons for evaluation.auc-times unless there are {self.least_cell} or none in "
                "every bin of risks and interval, with the event and censored: choose fewer bins or times"
            )
        return found

    def packed(self, answer: Evaluation) -> tuple[float, dict[str, Any]]:
        """See `ModelQuestion`."""
        count, loss, right, scores, errors = answer
        metrics: dict[str, Any] = {"correct": right, "accuracy": right / max(count, 1)}
        metrics |= {"scores": packed(scores.cells)} if scores else {}
        return loss, metrics | ({"errors": packed(np.array(errors))} if errors else {})

    def release(self, rows: int, unit: Unit) -> Release:
        """An answer with noise about so many rows, which all records that are protected together can move."""
        return Release(float(min(unit.rows or rows, rows)) * most_moved(self.bins))

    def released(self, objective: Any, x: Array, rows: Batch) -> Array:
        """See `ModelQuestion`."""
        return summed(objective, x, rows, self.bound, self.bins)

    def noisy(self, values: Array, rows: int, sigma: float) -> Released:
        """See `ModelQuestion`."""
        return Released.of(values, rows, sigma, self.bins)

    def packed_noisy(self, values: Array, rows: int, sigma: float) -> tuple[float, dict[str, Any]]:
        """The loss is clipped, or the share of wrong predictions."""
        answer = self.noisy(values, rows, sigma)
        share = answer.value / rows
        loss, accuracy = (self.bound * share, float("nan")) if self.bound else (1 - share, share)
        metrics = {"value": answer.value, "sigma": answer.sigma, "accuracy": accuracy}
        return loss, metrics | ({"scores": packed(values[1:])} if self.bins.number else {})

    def size(self, d: int) -> int:
        """See `ModelQuestion`."""
        return 1 + math.prod(self.bins.shape)

    def largest(self, rows: int) -> float:
        """See `ModelQuestion`."""
        return rows * (self.bins.histograms + self.bins.weight) if self.bins.number else float(rows)

    def known(self, x: Array) -> list[Array]:
        """Nothing: a sum of numbers from 0 to 1 is exact whatever the model."""
        return []

    def charged_as(self, round_: int) -> int:
        """Negative (`charges.Charge`)."""
        return -round_

    def stored_as(self, round_: int) -> int:
        """See `ModelQuestion`."""
        return round_


def _read_noisy(sent: Sent, bins: ScoreBins) -> Released:
    value, sigma, rows = sent.metrics.get("value"), sent.metrics.get("sigma"), sent.rows
    if type(value) is not float or not math.isfinite(value):
        raise ReplyError(f"the noisy sum must be a finite number; got {value!r}")
    if type(sigma) is not float or not 0 < sigma < math.inf or not rows:
        raise ReplyError(f"a noisy sum needs rows and a finite deviation above 0; got {rows} and {sigma!r}")
    if not bins.number:
        return Released(rows, value, sigma)
    return Released.with_scores(rows, value, sigma, _scores(sent, bins.shape), bins)


def _read_exact(sent: Sent, bins: ScoreBins) -> Evaluation:
    loss, right, metrics = sent.loss, sent.metrics.get("correct"), sent.metrics
    if "sigma" in metrics:
        raise ReplyError("the reply has noise, and this run has no privacy")
    if type(loss) is not float or not math.isfinite(loss):
        raise ReplyError(f"the loss must be a finite number; got {loss!r}")
    if type(right) is not float or right > sent.rows or right == -math.inf:
        raise ReplyError(f"the number of correct rows must be at most {sent.rows}; got {right!r}")
    table = _table(sent, bins) if bins.number else None
    return Evaluation(sent.rows, loss, right, table, _errors(metrics) if "errors" in metrics else None)


def _table(sent: Sent, bins: ScoreBins) -> Counted:
    """The table without noise in a reply; ReplyError unless it is one of so many rows."""
    table = bins.exact(_scores(sent, bins.exact_shape), sent.rows)
    if table is None:
        raise ReplyError(f"the counts by bin are not those of {sent.rows} rows")
    return table


def _scores(sent: Sent, shape: tuple[int, ...]) -> Array:
    """The counts by bin in a reply, in this shape; ReplyError if there are others."""
    return doubles(sent.metrics.get("scores"), shape, "its table of scores for this number of bins")


def _errors(metrics: Mapping[str, Any]) -> Errors:
    """The sums of a regression's errors in a reply."""
    found = Errors(*doubles(metrics["errors"], (len(Errors._fields),), "its list of errors"))
    if min(found.absolute, found.squared, found.squares) < 0:
        raise ReplyError("sums of errors must not be negative")
    return found


class Found(NamedTuple):
    """What the clients found about a model: the metrics, with bins the counts of every client, and without privacy the
    score on every client's rows."""

    metrics: Mapping[str, float]
    scores: Mapping[int, Counted] = {}
    by_site: Mapping[int, float] = {}
