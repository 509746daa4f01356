"""How well a trained model predicts the rows of a table with labels; the rows are read where the model is."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index, Labels, Mask
from ..concordance import concordance, integrated_brier
from ..errors import SettingError, require
from ..known_objectives import PROBABILISTIC
from ..survival_labels import unsigned
from .discrimination import Bins, ClassBins, ClassTable, ScoreTable, log_odds, one_against_rest, ranked
from .intervals import Share, mean_share, share
from .model import scored
from .time_auc import areas
from .trained import RiskModel, Trained, TrainedClassifier, TrainedRegressor, TrainedSurvival

_BINS = 100
_MOST_TIMES = 10


class Measure(NamedTuple):
    """A measure, and the ends of its 95% interval, NaN if it has none."""

    name: str
    value: float
    low: float = np.nan
    high: float = np.nan


class Assessment(NamedTuple):
    """The measures of a model; of a classifier also the numbers of rows by true and by predicted class (classes,
    classes); and of one with probabilities the rows by the bin of their score, if it has two classes or more (scores,
    classes). remarks: why a measure is not known."""

    measures: list[Measure]
    confusion: Index | None = None
    scores: ScoreTable | None = None
    classes: ClassTable | None = None
    remarks: Sequence[str] = ()


def assess(model: Trained, path: str | Path, times: Sequence[float] = ()) -> Assessment:
    """Measure a model with a schema on a table; numeric labels are clipped to the schema's range, as in training.

    times: of the areas under the ROC curve of a model of survival; by default up to ten of the ends of its intervals,
    if it has any. SettingError for times with a model that is not one of survival, and for times of 0 or below.
    DataError for a model without a schema, and for a table that does not fit it.
    """
    scores, predicted, labels = scored(model, path)
    if isinstance(model, RiskModel):
        return _of_survival(model, scores, predicted, labels, times)
    require(not times, "times are those of a model of survival, and this model has classes or numbers")
    if isinstance(model, TrainedRegressor):
        return Assessment(_of_regression(model.half * predicted, model.half * labels))
    return _of_classes(model, scores, predicted, labels)


def _of_regression(predicted: Array, labels: Array) -> list[Measure]:
    """R^2 (NaN if the labels do not vary), and the mean absolute and the root mean squared error."""
    errors, spread = predicted - labels, float(((labels - labels.mean()) ** 2).sum())
    r2 = 1 - float((errors**2).sum()) / spread if spread else np.nan
    mae, rmse = float(np.abs(errors).mean()), float(np.sqrt((errors**2).mean()))
    return [
        Measure("rows", len(labels)), Measure("R^2", r2), Measure("mean absolute error", mae),
        Measure("root mean squared error", rmse),
    ]  # fmt: skip


def _of_survival(
    model: RiskModel, scores: Array, risks: Array, labels: Labels, at: Sequence[float]
) -> Assessment:
    """The concordance index, NaN if no two persons can be compared; the integrated Brier score of a model that predicts
    probabilities; and the areas under the ROC curve at some times."""
    times, events = unsigned(labels)
    where, brier = ", if all rows are of one site", list[Measure]()
    if isinstance(model, TrainedSurvival):
        where, curves = "", (model.hazards.survival(scores), model.times)
        brier = [Measure("integrated Brier score", integrated_brier(*curves, times, events))]
        at = at or _some(model.times)
    if not all(time > 0 for time in at):
        raise SettingError(f"times must be above 0; got {', '.join(f'{t:g}' for t in at)}")
    index = Measure(f"concordance index{where}", concordance(risks, times, events).share)
    shares = areas(risks, at, times, events)
    named = [
        _named(f"area under the ROC curve at {t:g}{where}", area) for t, area in zip(at, shares, strict=True)
    ]
    measures = [Measure("rows", len(labels)), Measure("events", events.sum()), index, *brier, *named]
    remarks = [_without(t, times, events) for t, area in zip(at, shares, strict=True) if np.isnan(area.value)]
    return Assessment(measures, remarks=remarks)


def _some(times: Array) -> list[float]:
    """Up to `_MOST_TIMES` of the times, the last one included."""
    indices = np.linspace(0, len(times), min(_MOST_TIMES, len(times)) + 1).round().astype(int)[1:] - 1
    return times[indices].tolist()  # type: ignore[no-any-return]


def _without(time: float, times: Array, events: Mask) -> str:
    """Why there is no area under the ROC curve at this time."""
    what = (
        "nobody had the event by then"
        if not (events & (times <= time)).any()
        else "nobody was observed beyond it"
    )
    return f"There is no area under the ROC curve at {time:g}: {what}."


def _of_classes(model: TrainedClassifier, scores: Array, predicted: Labels, labels: Labels) -> Assessment:
    classes = len(model.classes)
    right = int((predicted == labels).sum())
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    measures = [Measure("rows", len(labels)), _named("accuracy", share(right, len(labels) - right))]
    if model.objective not in PROBABILISTIC:
        return Assessment(measures, confusion)
    if classes > 2:
        return _of_many(model, scores, labels, Assessment(measures, confusion))
    odds = log_odds(scores)
    table = Bins(_BINS).around(odds).table(odds, labels)
    further = [_named("area under the ROC curve", ranked(odds, labels)), Measure("Brier score", table.brier)]
    return Assessment([*measures, *further], confusion, table)


def _of_many(model: TrainedClassifier, scores: Array, labels: Labels, overall: Assessment) -> Assessment:
    """What is found of a classifier, with the area of every class, their mean and the Brier score."""
    odds = one_against_rest(scores)
    table = ClassBins(_BINS, classes=len(model.classes)).around(odds).table(odds, labels)
    shares = [ranked(odds[:, k], labels == k) for k in range(len(model.classes))]
    names = [f"area under the ROC curve, {name} against the rest" for name in model.classes]
    measures = [
        *overall.measures, *map(_named, names, shares), _named("mean area under the ROC curve", mean_share(shares)),
        Measure("Brier score", table.brier),
    ]  # fmt: skip
    remarks = [
        f"There is no area under the ROC curve of {name}: no row, or every row, is of it."
        for name, area in zip(model.classes, shares, strict=True)
        if np.isnan(area.value)
    ]
    return Assessment(measures, overall.confusion, classes=table, remarks=remarks)


def _named(name: str, share: Share) -> Measure:
    return Measure(name, *share)
