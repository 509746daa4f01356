"""Trained models of risk; Cox's model stratified by site (`problems.stratified_cox`) is one without a baseline."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..concordance import concordance
from ..data.columns import Survival
from ..errors import SettingError
from ..problems.interfaces import Batch
from ..survival_labels import unsigned
from .coefficients import Coefficient, table
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
