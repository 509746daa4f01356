"""Huber regression, written against `twinflower.problems.interfaces.Objective`."""

from dataclasses import dataclass

import numpy as np

from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import mean_over


@dataclass(frozen=True)
class Huber:
    """f_i(x) = mean_j huber(<x, a_j> - y_j), quadratic up to `width` and linear beyond."""

    d: int
    width: float = 0.5

    def value(self, x, rows: Batch):
        """(...,) for points x (..., d)."""
        wrong = self.predict(x, rows.features) - rows.labels
        inner = np.clip(wrong, -self.width, self.width)
        return mean_over(inner * (wrong - inner / 2), rows)

    def grad(self, x, rows: Batch):
        """(..., d): the weighted mean of the rows' gradients, each of norm at most width ||a||."""
        slopes = np.clip(self.predict(x, rows.features) - rows.labels, -self.width, self.width)
        slopes = slopes / slopes.shape[-1] if rows.weights is None else slopes * rows.weights
        return (slopes[..., None, :] @ rows.features)[..., 0, :]

    def predict(self, x, features):
        """<x, a> for every row, (..., b)."""
        return (features @ x[..., None])[..., 0]

    def score(self, x, rows: Batch):
        """Minus the mean absolute error, (...,)."""
        return -mean_over(np.abs(self.predict(x, rows.features) - rows.labels), rows)

    def bounds(self, row_norm: float) -> Bounds:
        """What privacy rests on: a row's gradient has norm <= width row_norm, its curvature is <= row_norm^2."""
        return Bounds(gradient=self.width * row_norm, curvature=row_norm**2)
