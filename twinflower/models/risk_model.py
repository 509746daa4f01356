"""Trained models of risk without a baseline: Cox's model stratified by site (`problems.stratified_cox`)."""

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


class TrainedRisk(TrainedModel):
    """A trained model of the hazard ratios of persons of one site; their baseline is not known."""

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,), logarithms of hazard ratios."""
        return super().coef_[0]

    def predict(self, rows: Any) -> Array:
        """Risk scores (rows,): logarithms of hazard ratios, whose differences mean something within one site."""
        return self.scores(rows)[:, 0]  # type: ignore[no-any-return]

    def score(self, rows: Any, labels: Any = None) -> float:
        """The concordance index of rows of one site; between sites, whose baselines differ, risks are not comparable.
        labels (rows,): signed times; for a table file they are read from the file."""
        if labels is None:
            features, labels = labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, labels)))
        return concordance(self.predict(rows), *unsigned(np.asarray(labels, float))).share

    def columns(self, rows: Any) -> tuple[list[str], Sequence[Sequence[Any]]]:
        """Column names and rows of a table of predictions: risks."""
        return ["risk"], self.predict(rows)[:, None].tolist()

    def _pipeline(self) -> Any:
        raise SettingError("scikit-learn has no models of survival: use predict of this object")

    def _table(self) -> list[Coefficient]:
        """The coefficients; there is no intercept, because the baseline is not known."""
        label = self.inputs.schema.label if self.inputs.schema else None
        event = label.event if isinstance(label, Survival) else "event"
        return table(self.inputs, self._matrix[0], event, effect="hazard")[1:]
