"""How well a trained model predicts the rows of a table with labels; the rows are read where the model is."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index, Labels
from ..concordance import concordance
from ..known_objectives import PROBABILISTIC
from ..survival_labels import unsigned
from .brier import integrated_brier
from .discrimination import Bins, ScoreTable, ranked
from .intervals import Share, share
from .model import scored
from .risk_model import TrainedRisk
from .trained import Trained, TrainedClassifier, TrainedRegressor, TrainedSurvival

_BINS = 100


class Measure(NamedTuple):
    """A measure, and the ends of its 95% interval, NaN if it has none."""

    name: str
    value: float
    low: float = np.nan
    high: float = np.nan


class Assessment(NamedTuple):
    """The measures of a model; of a classifier also the numbers of rows by true and by predicted class (classes,
    classes); and of one with two classes and probabilities the rows by the bin of their score."""

    measures: list[Measure]
    confusion: Index | None = None
    scores: ScoreTable | None = None


def assess(model: Trained, path: str | Path) -> Assessment:
    """Measure a model with a schema on a table; numeric labels are clipped to the schema's range, as in training.

    DataError for a model without a schema, and for a table that does not fit it.
    """
    scores, predicted, labels = scored(model, path)
    if isinstance(model, TrainedRisk):
        return Assessment(_of_survival(predicted, labels, ", if all rows are of one site"))
    if isinstance(model, TrainedSurvival):
        curves = model.hazards.survival(scores), model.times
        score = Measure("integrated Brier score", integrated_brier(*curves, *unsigned(labels)))
        return Assessment([*_of_survival(predicted, labels), score])
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


def _of_survival(risks: Array, labels: Array, where: str = "") -> list[Measure]:
    """The concordance index, NaN if no two persons can be compared; where: what it needs to be one."""
    times, events = unsigned(labels)
    index = concordance(risks, times, events).share
    return [
        Measure("rows", len(labels)),
        Measure("events", events.sum()),
        Measure(f"concordance index{where}", index),
    ]


def _of_classes(model: TrainedClassifier, scores: Array, predicted: Labels, labels: Labels) -> Assessment:
    classes = len(model.classes)
    right = int((predicted == labels).sum())
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)
    measures = [Measure("rows", len(labels)), _named("accuracy", share(right, len(labels) - right))]
    if classes != 2 or model.objective not in PROBABILISTIC:
        return Assessment(measures, confusion)
    odds = scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0]
    table = Bins.around(_BINS, odds).table(odds, labels)
    own = [_named("area under the ROC curve", ranked(odds, labels)), Measure("Brier score", table.brier)]
    return Assessment([*measures, *own], confusion, table)


def _named(name: str, own: Share) -> Measure:
    return Measure(name, *own)
