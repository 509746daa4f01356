"""Trained models of survival: the discrete-time Cox model (`problems.discrete_cox`), and Cox's model stratified by site
(`problems.stratified_cox`), which has no baseline."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..concordance import concordance
from ..data.columns import Survival
from ..errors import SettingError
from ..problems.discrete_cox import IntervalHazards
from ..problems.interfaces import Batch
from ..survival_labels import unsigned
from .coefficients import BASELINE, Coefficient, table
from .model import TrainedModel, labelled


class RiskModel(TrainedModel):
    """A trained model of survival."""

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,): logarithms of ratios of hazards, or of their odds with link logit."""
        return super().coef_[0]

    @abstractmethod
    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,), higher for an earlier event."""

    def score(self, rows: Any, labels: Any = None) -> float:
        """The concordance index. labels (rows,): signed times; for a table file they are read from the file. Rows of a
        model without a baseline must be of one site: between sites its risks are not comparable."""
        if labels is None:
            features, labels = labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, labels)))
        return concordance(self.predict(rows), *unsigned(np.asarray(labels, float))).share

    def _pipeline(self) -> Any:
        raise SettingError("scikit-learn has no models of survival: use predict of this object")

    @property
    def _event(self) -> str:
        """The name of the event."""
        label = self.inputs.schema.label if self.inputs.schema else None
        return label.event if isinstance(label, Survival) else "event"


class TrainedRisk(RiskModel):
    """A trained model of the hazard ratios of persons of one site; their baseline is not known."""

    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,): logarithms of hazard ratios, whose differences mean something within one site."""
        return self.scores(rows)[:, 0]  # type: ignore[no-any-return]

    def columns(self, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
        """Column names and rows of a table of predictions: risks."""
        return ["risk"], self.predict(rows)[:, None].tolist()

    def _table(self) -> list[Coefficient]:
        """The coefficients; there is no intercept, because the baseline is not known."""
        return table(self.inputs, self._matrix[0], self._event, effect="hazard")[1:]


class TrainedSurvival(RiskModel):
    """A trained model of the time until an event."""

    @property
    def hazards(self) -> IntervalHazards:
        """How hazards follow from scores."""
        return self._model.loss  # type: ignore[no-any-return]

    @property
    def times(self) -> Array:
        """The ends of the intervals (T,), in the unit of the times."""
        return self.hazards.ends

    @property
    def _matrix(self) -> Array:
        return self.x[None, : self._model.num_features]

    @property
    def intercept_(self) -> Array:
        """The scores of the intervals of a row whose features are 0, (T,)."""
        return super().intercept_ + self.x[self._model.num_features :]

    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,): the logarithm of the hazard in the first interval, or of its odds with link logit. Their
        differences between rows are the same in all intervals."""
        return self.hazards.predict(self.scores(rows))

    def predict_survival(self, rows: Any) -> Array:
        """The probabilities (rows, T) that the event has not happened by the end of each interval."""
        return self.hazards.survival(self.scores(rows))

    def columns(self, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
        """Column names and rows of a table of predictions: risks, and probabilities of survival."""
        names = ["risk", *(f"survival to {end:g}" for end in self.times)]
        return names, np.column_stack([self.predict(rows), self.predict_survival(rows)]).tolist()

    def _table(self) -> list[Coefficient]:
        """The coefficients, after the baseline of every interval, which includes the weight of the column of ones."""
        level, *terms = table(self.inputs, self._matrix[0], self._event, effect=self.hazards.link.ratio)
        alphas = self.x[self._model.num_features :].astype(np.float64)
        return [*map(lambda end, alpha: _baseline(level, end, alpha), self.times, alphas), *terms]


def _baseline(level: Coefficient, end: float, alpha: float) -> Coefficient:
    """The row of the interval up to `end`, given that of the intercept."""
    estimate = level.estimate + float(alpha)
    return level._replace(
        column=BASELINE, term=f"to {end:g}", estimate=estimate, ratio=float(np.exp(estimate)),
        selected=level.selected or bool(alpha),
    )  # fmt: skip
