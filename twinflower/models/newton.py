"""Estimates with their covariance from what private sites release about a model: one noisy step of Newton's method.

With the released sums H~ = H + N and g~ = g + n at the model x (`models.released`), the estimate is

    x^ = x + s,   s = -H~^-1 g~.

If the log likelihood is quadratic between x and its maximum x*, g = H (x - x*) = H e, so that

    x^ - x* = H~^-1 (N e - n).

The maximum itself deviates from the truth with covariance H^-1, and these are independent. N is symmetric with the
variance nu^2 in the diagonal and nu^2 / 2 beside it, so N e has the covariance nu^2 (|e|^2 I + e e^T) / 2. With s for -e
and gamma^2 for the variance of n, the covariance of x^ is

    H~^-1 + H~^-1 ( gamma^2 I + nu^2 (|s|^2 I + s s^T) / 2 ) H~^-1.

x^ does not depend on how x was found. Directions of x that change no score, such as that of one-hot features against a
column of ones, have no information. They are known from public reference rows (`spanned`), and all of this happens in an
orthonormal basis of the others, in which the noise is the same.

Two things can go wrong, and both show in what was released. H~ can be too noisy to be inverted: `clear` is its smallest
eigenvalue in deviations of its noise. And the likelihood may not be quadratic as far as the maximum: the error of the
step in a score grows with the square of the score's change, so `bent` is the largest square of a change in standard
errors of the score, over reference rows. The limits of both were found by simulation (`benchmarks/coverage.py`).
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.interfaces import Batch
from ..problems.objectives import LinearModel
from .released import Released

LEAST_CLEAR = 5.0
MOST_BENT = 4.0
_EMPTY = (
    1e-9  # an eigenvalue of the information of reference rows, relative to the largest, which is rounding
)


class Step(NamedTuple):
    """The step s (d,), and a root (d, k) of its covariance root root^T."""

    step: Array
    root: Array

    @classmethod
    def of(cls, released: Released, basis: Array) -> "Step":
        """The step in the directions of the columns of basis (d, r); the matrix must have an inverse there."""
        values, vectors = np.linalg.eigh(basis.T @ released.matrix @ basis)
        own = basis @ vectors
        inverse = (own / values) @ own.T
        step = -inverse @ released.gradient
        nu = released.matrix_noise / np.sqrt(2)
        length = np.hypot(released.gradient_noise, nu * np.linalg.norm(step))
        moved = nu * (inverse @ step)
        return cls(step, np.column_stack([own / np.sqrt(values), length * own / values, moved]))

    def errors(self, rows: Array) -> Array:
        """The standard errors (terms,) of rows (terms, d) of numbers times x."""
        return np.linalg.norm(rows @ self.root, axis=1)

    def bent(self, objective: LinearModel, features: Array) -> float:
        """The largest (change of a score)^2 / (its standard error) by the step, over rows with these features."""
        change, *parts = _scores(objective, np.vstack([self.step, self.root.T]), features)
        return float((change**2 / np.sqrt(sum(part**2 for part in parts))).max())


def _scores(objective: LinearModel, points: Array, features: Array) -> Array:
    """The scores (points, rows * outputs) of points (points, d)."""
    return objective.scores(points, features).reshape(len(points), -1)


def clearness(released: Released, basis: Array) -> float:
    """The smallest eigenvalue of the matrix in this basis (d, r), in deviations of its noise."""
    return float(np.linalg.eigvalsh(basis.T @ released.matrix @ basis)[0]) / released.matrix_noise


def spanned(objective: LinearModel, features: Array) -> Array:
    """An orthonormal basis (d, r) of the directions of x in which the likelihood of rows with these features depends on
    x."""
    values, vectors = np.linalg.eigh(reference_information(objective, np.zeros(objective.d), features))
    return vectors[:, values > _EMPTY * values[-1]]  # type: ignore[no-any-return]


def reference_information(objective: LinearModel, x: Array, features: Array) -> Array:
    """The information matrix (d, d) of rows with these features at x, whose labels leave no score out."""
    labels = np.full(len(features), objective.loss.public_label)  # type: ignore[attr-defined]
    return objective.information(objective.scores(x, features), Batch(features, labels))
