"""Estimates with their covariance from what private sites release about a model: one noisy step of Newton's method.

With the released sums H~ = H + N and g~ = g + n at the model x (`models.released`), the estimate is

    x^ = x + s - m,   s = -H~^-1 g~,

where m is 0 for a quadratic log likelihood (below).

If the log likelihood is quadratic between x and its maximum x*, g = H (x - x*) = H e, so that

    x^ - x* = H~^-1 (N e - n).

The maximum itself deviates from the truth with covariance H^-1, and these are independent. N is symmetric with the
variance nu^2 in the diagonal and nu^2 / 2 beside it, so N e has the covariance nu^2 (|e|^2 I + e e^T) / 2. With s for
-e and gamma^2 for the variance of n, the covariance of x^ is

    H~^-1 + H~^-1 ( gamma^2 I + nu^2 (|s|^2 I + s s^T) / 2 ) H~^-1 + m m^T.

The last term is for a likelihood that is not quadratic. If x + s were the maximum, a step from x would go beyond it by

    m = H_0^-1 (g_0(x + s) - g_0(x)) - s

with gradient and information matrix of the sites' rows. These are not known there, and public reference rows take their
place, on which the labels cancel. So m is subtracted from the step, and counted as an error at the same time.

x^ does not depend on how x was found. Directions of x that change no score, such as that of one-hot features against a
column of ones, have no information. They are known from the reference rows (`spanned`), and all of this happens in an
orthonormal basis of the others, in which the noise is the same.

Two things can go wrong, and both show in what was released. H~ can be too noisy to be inverted: `clearness` is its
smallest eigenvalue in deviations of its noise. And x can be too far from the maximum for one step: `missed` is the
largest size of m in a score, in errors of that score without it. The limits of both were found by simulation
(`benchmarks/coverage.py`). A lower limit of the second would not be safer: it would let through the data sets in which
noise hides the distance.

The coefficients that are reported are those of x^, so they differ from the model's own weights. With private rounds of
Newton's method x^ is the step of the last round, from the point before it. Where the step is not to be trusted, there
are no intervals, and the coefficients are the model's own.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.interfaces import Batch
from ..problems.objectives import LinearModel
from .coefficients import Coefficient
from .inference import Inference, with_error
from .released import Released

LEAST_CLEAR = 5.0
MOST_MISSED = 3.0
MOST_MISSED_IN_ROUNDS = 1.0
"""If x is a point of Newton's method: there m is alike in all data sets, so what reference rows get wrong is a bias."""
_EMPTY = 1e-9  # an eigenvalue of the information of reference rows, relative to the largest: rounding
_DETERMINED = 1e-6  # share of a row of T outside the basis, up to which it is rounding
_STEPPED = (
    "the estimates are one step of Newton's method from the model, with noisy sums that the sites released after the "
    "last round, so they differ from the model's own weights, with which it predicts; the intervals include the noise "
    "and the sampling of rows"
)
_LAST_ROUND = (
    "the estimates are the last round's step of Newton's method without its limits for noise, so they differ from the "
    "model's own weights, with which it predicts; the intervals include the noise and the sampling of rows"
)


class Reference(NamedTuple):
    """Public rows of which all possible rows are linear combinations, with labels that leave no score out.

    basis (d, r): orthonormal, of the directions of x on which the likelihood of the rows depends.
    """

    objective: LinearModel
    rows: Batch
    basis: Array

    @classmethod
    def of(cls, objective: LinearModel, features: Array) -> "Reference":
        """The rows with these features (rows, n)."""
        label = objective.loss.public_label  # type: ignore[attr-defined]  # of a BoundedLikelihood
        reference = cls(objective, Batch(features, np.full(len(features), label)), np.eye(objective.d))
        values, vectors = np.linalg.eigh(reference.information(np.zeros(objective.d)))
        return reference._replace(basis=vectors[:, values > _EMPTY * values[-1]])

    def information(self, x: Array) -> Array:
        """The information matrix (d, d) of the rows at x."""
        return self.objective.information(self.objective.scores(x, self.rows.features), self.rows)

    def missed(self, x: Array, step: Array) -> Array:
        """m (d,), by which a step of Newton's method from x would miss the maximum x + step of the rows."""
        change = self.objective.grad(x + step, self.rows) - self.objective.grad(x, self.rows)
        projected = self.basis.T @ self.information(x) @ self.basis
        try:
            gradient = self.basis.T @ change * len(self.rows.labels)
            return self.basis @ np.linalg.solve(projected, gradient) - step
        except np.linalg.LinAlgError:  # at x all rows have no information
            return np.full_like(step, np.inf)

    def clearness(self, released: Released) -> float:
        """The smallest eigenvalue of the released matrix, in deviations of its noise."""
        return (
            float(np.linalg.eigvalsh(self.basis.T @ released.matrix @ self.basis)[0]) / released.matrix_noise
        )


class Step(NamedTuple):
    """The step s - m (d,), m (d,), and a root (d, k) of the covariance without m: root root^T."""

    step: Array
    miss: Array
    root: Array

    @classmethod
    def of(cls, x: Array, released: Released, reference: Reference) -> "Step":
        """The step from x; the released matrix must have an inverse in the basis."""
        basis = reference.basis
        values, vectors = np.linalg.eigh(basis.T @ released.matrix @ basis)
        vectors = basis @ vectors
        inverse = (vectors / values) @ vectors.T
        step = -inverse @ released.gradient
        nu = released.matrix_noise / np.sqrt(2)
        length = np.hypot(released.gradient_noise, nu * np.linalg.norm(step))
        root = np.column_stack([vectors / np.sqrt(values), length * vectors / values, nu * (inverse @ step)])
        miss = reference.missed(x, step)
        return cls(step - miss, miss, root)

    def errors(self, rows: Array) -> Array:
        """The standard errors (terms,) of rows (terms, d) of numbers times x."""
        return np.hypot(np.linalg.norm(rows @ self.root, axis=1), rows @ self.miss)  # type: ignore[no-any-return]

    def missed(self, reference: Reference) -> float:
        """The largest size of m in a score of the reference rows, in standard errors of the score without m."""
        miss, *root = reference.objective.scores(np.vstack([self.miss, self.root.T]), reference.rows.features)
        return float((np.abs(miss) / np.linalg.norm(root, axis=0)).max())


def privately_inferred(
    x: Array,
    table: Callable[[Array], list[Coefficient]],
    rows: Array,
    released: Released,
    reference: Reference,
) -> Inference:
    """The coefficients of the stepped model with their errors.

    table: the coefficients of a point. rows (terms, d): T, as in `models.inference`.
    """
    clear = reference.clearness(released)
    if not clear >= LEAST_CLEAR:
        return Inference(table(x), [_too_noisy(clear, released.base is None)], private=True)
    at = x if released.base is None else released.base
    step = Step.of(at, released, reference)
    missed = step.missed(reference)
    most = MOST_MISSED if released.base is None else MOST_MISSED_IN_ROUNDS
    if not missed <= most:
        return Inference(table(x), [_too_far(missed, most)], private=True)
    errors = step.errors(rows)
    errors[(errors == 0) | _loose(rows, reference.basis)] = np.nan  # a reference is no estimate
    pairs = zip(table(at + step.step), errors, strict=True)
    remark = _STEPPED if released.base is None else _LAST_ROUND
    return Inference([with_error(row, error) for row, error in pairs], [remark], private=True)


def _loose(rows: Array, basis: Array) -> Array:
    """Which rows (terms, d) have a part outside the basis, (terms,), so that nothing determines what they say of x."""
    outside = np.linalg.norm(rows - (rows @ basis) @ basis.T, axis=1)
    return outside > _DETERMINED * np.linalg.norm(rows, axis=1)  # type: ignore[no-any-return]


def _too_noisy(clear: float, after_training: bool) -> str:
    share = " or privacy.interval-share" if after_training else ""
    return (
        "there are no intervals, because the released information matrix is too noisy: its smallest eigenvalue is "
        f"{clear:.3g} deviations of its noise, and at least {LEAST_CLEAR:g} are needed; a larger privacy.epsilon"
        f"{share}, fewer columns, no rare categories, or more rows help"
    )


def _too_far(missed: float, most: float) -> str:
    return (
        "there are no intervals, because the model is too far from the maximum of the likelihood: one step of Newton's "
        f"method would miss it by {missed:.2g} standard errors of a score, and at most {most:g} are allowed; "
        "more rounds help if the training had not converged, and else a larger privacy.epsilon"
    )
