"""Losses of linear scores: values, slopes and predictions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .. import special
from ..arrays import Array, Labels
from ..errors import SettingError, require

KAPPA = math.sqrt(2 / 3)
"""That of the logistic loss; see `models.released`."""

UNBOUNDED = (
    "intervals with privacy need a likelihood whose gradients and information matrices have public bounds, because "
    "clipping would move the maximum: set objective.name to logistic or softmax, or to discrete-cox with "
    "objective.link = logit"
)


class Loss(Protocol):
    """A loss of scores (..., b, outputs) against labels (..., b)."""

    classifies: bool
    slope_bound: float  # bound on the norm of a row's `slopes`
    curvature_bound: float  # bound on the curvature of the loss in the scores
    vector_slopes: bool  # whether a row's slope can have more than one nonzero entry

    def outputs(self, num_classes: int) -> int:
        """Number of scores per row; SettingError if the loss does not fit num_classes (0: regression)."""

    def values(self, scores: Array, labels: Labels) -> Array:
        """Loss of each row, (..., b)."""

    def slopes(self, scores: Array, labels: Labels) -> Array:
        """Derivative of the loss with respect to the scores, (..., b, outputs)."""

    def predict(self, scores: Array) -> Array:
        """Predicted labels (..., b) from scores (..., b, outputs)."""

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        """What is predicted and what is observed (..., b), in the same unit."""


class _Compares(ABC):
    """A loss whose labels are what it predicts."""

    @abstractmethod
    def predict(self, scores: Array) -> Array:
        """See `Loss`."""

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        return self.predict(scores), labels


@runtime_checkable
class Likelihood(Protocol):
    """A loss that is minus a log likelihood, up to constants."""

    def hessians(self, scores: Array, labels: Labels) -> Array:
        """Second derivatives of the loss with respect to the scores, (b, outputs, outputs)."""


@runtime_checkable
class BoundedHessians(Likelihood, Protocol):
    """A `Likelihood` whose second derivatives have a public bound (`models.released`)."""

    def hessian_bounds(self, outputs: int) -> tuple[float, float]:
        """A bound on the Frobenius norm of a row's `hessians`, and kappa, 0 if slopes can be longest where the second
        derivatives are largest."""


@runtime_checkable
class BoundedLikelihood(BoundedHessians, Protocol):
    """One whose slopes have a public bound, too.

    public_label: a label with which a row has information about all of its scores.
    """

    public_label: float


@lru_cache
def _identity(outputs: int, dtype: np.dtype[Any]) -> Array:
    return np.eye(outputs, dtype=dtype)


@lru_cache
def _minus_signs(dtype: np.dtype[Any]) -> Array:
    """-s for the labels 0 and 1 of binary classification."""
    return np.array([1.0, -1.0], dtype=dtype)


def _one_hot(labels: Labels, scores: Array) -> Array:
    """1.0 at each label and 0.0 elsewhere, like the scores (..., outputs); a look-up is several times faster than a
    comparison."""
    return _identity(scores.shape[-1], scores.dtype).take(labels, axis=0)


def probabilities(scores: Array) -> Array:
    """The probabilities of the classes (..., classes) by a logistic model, with one score, or by softmax scores."""
    if scores.shape[-1] == 1:
        return np.concatenate([special.expit(-scores), special.expit(scores)], axis=-1)
    return special.softmax(scores, axis=-1)  # type: ignore[no-any-return]


class RowwiseLogistic(_Compares):
    """ln(1 + exp(-<X[y], a>)): each row of X is trained on its own class only (Li 2024 (41), Li 2023 (25)).

    The papers call it logistic regression and predict the argmax of X a. Nothing decreases the scores of the
    other classes, so a lower loss often comes with a lower accuracy; `Softmax` is the usual loss.
    """

    classifies = True
    slope_bound, curvature_bound, vector_slopes = 1.0, 0.25, False

    def outputs(self, num_classes: int) -> int:
        return num_classes

    def values(self, scores: Array, labels: Labels) -> Array:
        return (np.logaddexp(0.0, -scores) * _one_hot(labels, scores)).sum(-1)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        return -special.expit(-scores) * _one_hot(labels, scores)

    def predict(self, scores: Array) -> Array:
        return scores.argmax(-1)


class Softmax(_Compares):
    """Multinomial logistic regression: logsumexp(X a) - <X[y], a>."""

    classifies = True
    slope_bound, curvature_bound, vector_slopes = math.sqrt(2.0), 0.5, True
    public_label = 0

    def outputs(self, num_classes: int) -> int:
        return num_classes

    def values(self, scores: Array, labels: Labels) -> Array:
        return special.logsumexp(scores, axis=-1) - (scores * _one_hot(labels, scores)).sum(-1)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        slopes = scores - np.maximum.reduce(scores, -1, keepdims=True)
        np.exp(slopes, out=slopes)
        slopes /= np.add.reduce(slopes, -1, keepdims=True)
        slopes -= _one_hot(labels, scores)
        return slopes

    def hessians(self, scores: Array, labels: Labels) -> Array:
        shares = probabilities(scores)
        return shares[:, :, None] * (np.eye(scores.shape[-1]) - shares[:, None, :])

    def hessian_bounds(self, outputs: int) -> tuple[float, float]:
        return 0.5, KAPPA if outputs == 2 else 0.5

    def predict(self, scores: Array) -> Array:
        return scores.argmax(-1)


class Logistic(_Compares):
    """Binary logistic regression ln(1 + exp(-s <x, a>)) with s = +1 for label 1 and -1 for label 0."""

    classifies = True
    slope_bound, curvature_bound, vector_slopes = 1.0, 0.25, False
    public_label = 0

    def outputs(self, num_classes: int) -> int:
        if num_classes != 2:
            raise SettingError(f"objective 'logistic' needs 2 classes; got {num_classes}: try 'softmax'")
        return 1

    def values(self, scores: Array, labels: Labels) -> Array:
        return np.logaddexp(0.0, _minus_signs(scores.dtype).take(labels) * scores[..., 0])

    def slopes(self, scores: Array, labels: Labels) -> Array:
        flip = _minus_signs(scores.dtype).take(labels)[..., None]
        slopes = flip * scores
        special.expit(slopes, out=slopes)
        slopes *= flip
        return slopes

    def hessians(self, scores: Array, labels: Labels) -> Array:
        return (special.expit(scores) * special.expit(-scores))[..., None]

    def hessian_bounds(self, outputs: int) -> tuple[float, float]:
        return 0.25, KAPPA

    def predict(self, scores: Array) -> Array:
        return (scores[..., 0] > 0).astype(np.int64)


class _Real(_Compares):
    """A loss of one score, which predicts a real label."""

    name: str
    classifies = False
    vector_slopes = False

    def outputs(self, num_classes: int) -> int:
        require(num_classes == 0, f"objective '{self.name}' needs real labels; this data set has classes")
        return 1

    def predict(self, scores: Array) -> Array:
        return scores[..., 0]


class Squared(_Real):
    """Least squares (<x, a> - y)^2 / 2 for real labels."""

    name = "least-squares"
    slope_bound, curvature_bound = math.inf, 1.0

    def values(self, scores: Array, labels: Labels) -> Array:
        return 0.5 * (scores[..., 0] - labels) ** 2

    def slopes(self, scores: Array, labels: Labels) -> Array:
        return scores - labels[..., None]

    def hessians(self, scores: Array, labels: Labels) -> Array:
        return np.ones((*scores.shape, 1))

    def hessian_bounds(self, outputs: int) -> tuple[float, float]:
        return 1.0, 0.0


class Absolute(_Real):
    """Least absolute deviation |<x, a> - y| for real labels; its slope at the kink is 0."""

    name = "absolute"
    slope_bound, curvature_bound = 1.0, math.inf

    def values(self, scores: Array, labels: Labels) -> Array:
        return np.abs(scores[..., 0] - labels)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        return np.sign(scores - labels[..., None])


class Huber(_Real):
    """r^2 / 2 up to |r| = 1 and |r| - 1/2 beyond, r = <x, a> - y, for real labels."""

    name = "huber"
    slope_bound, curvature_bound = 1.0, 1.0

    def values(self, scores: Array, labels: Labels) -> Array:
        return special.huber(1.0, scores[..., 0] - labels)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        return np.clip(scores - labels[..., None], -1.0, 1.0)


class Poisson:
    """Poisson regression exp(t) - y t - (y - y ln y), t = <x, a> + o, for counts y with offsets o (`packed`).

    This is half the deviance, which is at least 0, so that it can be clipped to a bound. Above t = 20, a rate of 5e8,
    the loss continues linearly, so that nothing overflows. Its slope has no bound below that; a private run clips the
    gradients.
    """

    classifies = False
    slope_bound, curvature_bound, vector_slopes = math.inf, math.inf, False
    _highest = 20.0

    def outputs(self, num_classes: int) -> int:
        require(num_classes == 0, "objective 'poisson' needs counts; this data set has classes")
        return 1

    def values(self, scores: Array, labels: Labels) -> Array:
        counts, offsets = unpacked(labels)
        t = scores[..., 0] + offsets
        low = np.minimum(t, self._highest)
        least = counts - special.xlogy(counts, counts)
        return np.exp(low) * (1.0 + t - low) - counts * t - least  # type: ignore[no-any-return]

    def slopes(self, scores: Array, labels: Labels) -> Array:
        counts, offsets = unpacked(labels)
        return (self._rates(scores, offsets) - counts)[..., None]

    def hessians(self, scores: Array, labels: Labels) -> Array:
        _, offsets = unpacked(labels)
        return self._rates(scores, offsets)[..., None, None]

    def predict(self, scores: Array) -> Array:
        """The expected counts of rows with offset 0."""
        return self._rates(scores, np.zeros(()))

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        counts, offsets = unpacked(labels)
        return self._rates(scores, offsets), counts

    def _rates(self, scores: Array, offsets: Array) -> Array:
        rates: Array = np.exp(np.minimum(scores[..., 0] + offsets, self._highest))
        return rates


class ClassWeighted:
    """The loss of a classification in which a row counts with the weight of its class, weights (classes,) above 0.

    A row's gradient is at most the largest weight times as long as without, so this weight is in the bounds.
    """

    classifies = True

    def __init__(self, loss: Loss, weights: Sequence[float]) -> None:
        self.loss, self.weights, most = loss, np.array(weights, dtype=np.float64), max(weights)
        self.slope_bound, self.curvature_bound = most * loss.slope_bound, most * loss.curvature_bound
        self.vector_slopes = loss.vector_slopes

    def outputs(self, num_classes: int) -> int:
        known = len(self.weights)
        if known != num_classes:
            raise SettingError(f"objective.class-weights needs {num_classes} numbers; got {known}")
        return self.loss.outputs(num_classes)

    def values(self, scores: Array, labels: Labels) -> Array:
        return self.loss.values(scores, labels) * self._of(labels, scores)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        return self.loss.slopes(scores, labels) * self._of(labels, scores)[..., None]

    def hessians(self, scores: Array, labels: Labels) -> Array:
        """See `Likelihood`, of which the loss must be one; minus a weighted log likelihood has robust errors only."""
        return self.loss.hessians(scores, labels) * self._of(labels, scores)[:, None, None]  # type: ignore[attr-defined, no-any-return]

    def hessian_bounds(self, outputs: int) -> tuple[float, float]:
        """See `BoundedHessians`, one of which the loss must be."""
        require(isinstance(self.loss, BoundedHessians), UNBOUNDED)
        bound, kappa = self.loss.hessian_bounds(outputs)  # type: ignore[attr-defined]
        return float(self.weights.max()) * bound, kappa

    def predict(self, scores: Array) -> Array:
        return self.loss.predict(scores)

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        return self.loss.compared(scores, labels)

    def _of(self, labels: Labels, scores: Array) -> Array:
        """The weights of rows with these labels, in the precision of the scores."""
        return self.weights.astype(scores.dtype).take(labels)


FARTHEST = 16.0  # bound on the size of an offset
_STEP = 64.0


def packed(counts: Array, offsets: Array) -> Array:
    """The labels (...), one number each, of counts (...), whole numbers from 0 on, with offsets (...) in (-16, 16).

    The offset is the logarithm of a row's exposure, by which its expected count is multiplied. An offset o is stored as
    (o / 64) modulo 1/2 behind the count, so a whole number is a count with offset 0. Counts below 2^16 leave the offset
    an absolute error of at most 2^-31.
    """
    return counts + (offsets / _STEP) % 0.5


def unpacked(labels: Array) -> tuple[Array, Array]:
    """The counts and the offsets (...) of any labels (...): a negative one is a count of 0 with offset 0, and an offset
    beyond `FARTHEST` is clipped to it."""
    labels = np.maximum(labels, 0.0)
    counts = np.floor(labels)
    shares = labels - counts
    return counts, np.clip(_STEP * np.where(shares > 0.25, shares - 0.5, shares), -FARTHEST, FARTHEST)
