"""Objectives of linear models on flat points: value and gradient on given rows, and predictions.

A point is flat, x (..., d), with any number of leading axes (clients, seeds); rows are a `Batch` whose leading axes
broadcast against the point's. All objectives here are linear models: the point is a matrix X (outputs, features), and
the scores of a row a are X a. They differ in the loss of the scores, and in the smooth penalty, part of every f_i:

    f_i(X) = mean_j loss(X a_j, y_j) + l2/2 ||X||^2 + nonconvex sum X^2 / (1 + X^2)

Rows with weights w_j >= 0 (`Batch.row_weights`) have the mean (1/m) sum_j w_j loss(X a_j, y_j) over the m rows, not
divided by the sum of the weights, which is private. The gradient g_j of a row is clipped before it is multiplied by
w_j, so a row of weight 2 is the same as two rows up to the factor m / (m + 1). With weights up to W and |g_j| <= C, w_j
g_j is not longer than W C, and its curvature is at most W times that without a weight. Replacing a row and its weight
moves the sum by ||w g - w' g'|| <= 2 W C, attained by opposite gradients of length C with w = w' = W.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from ..arrays import Array, Labels
from ..decimals import decimal
from ..errors import SettingError, require
from ..norms import clipping, forget, outer_norms
from ..settings import Rule, Setting, check_choice
from .interfaces import Batch, Bounds, Model, Part, ScaledGrads, check_weights
from .losses import (
    UNBOUNDED,
    Absolute,
    BoundedHessians,
    ClassWeighted,
    Huber,
    Likelihood,
    Logistic,
    Loss,
    Poisson,
    RowwiseLogistic,
    Softmax,
    Squared,
)
from .penalised import Penalised, Penalties

LOSSES: dict[str, Loss] = {
    "softmax": Softmax(),
    "rowwise-logistic": RowwiseLogistic(),
    "logistic": Logistic(),
    "least-squares": Squared(),
    "huber": Huber(),
    "absolute": Absolute(),
    "poisson": Poisson(),
}


@dataclass(frozen=True)
class LinearModel(Penalised, ScaledGrads):
    """f_i of a linear model with a loss and a smooth penalty (formula in the module's docstring). A flat point is a
    matrix (outputs, num_features), stored row by row. heaviest: the largest weight of a row, which is public; None:
    rows have no weights."""

    loss: Loss
    outputs: int
    num_features: int
    heaviest: float | None = None

    @property
    def convex(self) -> bool:
        """True without the non-convex penalty, unless clipping destroys convexity: clipped slopes in several scores are
        not the gradient of a convex loss, and clipped means are not the gradient of any loss."""
        return not self.nonconvex and not (
            self.clip_norm and (self.loss.vector_slopes or self.clip == "batch")
        )

    @cached_property
    def d(self) -> int:
        """Number of weights, outputs * num_features."""
        return self.outputs * self.num_features

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of the single matrix, (outputs, num_features)."""
        return ((self.outputs, self.num_features),)

    def columns(self, bias: bool) -> list[Part]:
        """The entries that are weights of columns of the data. bias: whether the last feature is a column of ones."""
        n = self.num_features
        return [Part((row * n, (row + 1) * n - bias), 1) for row in range(self.outputs)]

    def start(self, draw: np.random.Generator) -> Array:
        """The zero point (d,)."""
        return np.zeros(self.d)

    def scores(self, x: Array, features: Array) -> Array:
        """X a for every row, (..., b, outputs)."""
        matrix = x.reshape(x.shape[:-1] + (self.outputs, self.num_features))
        return features @ matrix.swapaxes(-1, -2)

    def losses(self, x: Array, rows: Batch) -> Array:
        """Loss of each row, (..., b), times its weight if it has one, without the penalty."""
        losses = self.loss.values(self.scores(x, rows.features), rows.labels)
        return losses if rows.row_weights is None else losses * rows.row_weights

    def value(self, x: Array, rows: Batch) -> Array:
        """Mean loss of the rows plus the smooth penalty, (...,)."""
        return mean_over(self.losses(x, rows), rows) + self.penalty(x)

    def grad(self, x: Array, rows: Batch, scale: float = 1.0) -> Array:
        """scale times the gradient of `value`, (..., d)."""
        parts = self.parts(self.loss.slopes(self.scores(x, rows.features), rows.labels))
        if self.clips_rows:
            lengths = outer_norms(*zip(parts, self.part_norms(rows), strict=True), bound=self.clip_norm)
            factors = clipping(self.clip_norm, lengths)
            for part in parts:
                part *= factors
            forget(lengths, *parts)
        share = scale / parts[0].shape[-2] if rows.weights is None else scale * rows.weights[..., None]
        if self.heaviest is not None or rows.row_weights is not None:
            check_weights(self, rows.row_weights)
            share = share * rows.row_weights[..., None]  # type: ignore[index]
        for part in parts:
            part *= share
        return self.full_grad(self.summed(parts, rows.features), x, scale)

    def parts(self, slopes: Array) -> list[Array]:
        """The slopes (..., b, k) of all that enters a row's scores, given those of the scores (..., b, outputs). A
        row's gradient consists of the outer products of its part and what it enters with, of norms `part_norms`."""
        return [slopes]

    def part_norms(self, rows: Batch) -> list[Array]:
        """The norms (..., b) of what each of the `parts` is multiplied by in a row's gradient."""
        return [rows.norms()]

    def summed(self, parts: Sequence[Array], features: Array) -> Array:
        """The sum of the rows' gradients, (..., d), given their parts."""
        matrix = parts[0].swapaxes(-1, -2) @ features
        return matrix.reshape(matrix.shape[:-2] + (self.d,))

    def information(self, scores: Array, rows: Batch) -> Array:
        """The sum of the rows' Hessians of a `Likelihood`, (d, d), given their scores (b, outputs)."""
        assert isinstance(self.loss, Likelihood)  # checked where the run is configured
        matrices = self.loss.hessians(scores, rows.labels)
        if rows.row_weights is not None:
            matrices = matrices * rows.row_weights[:, None, None]
        return self._sandwich(rows.features, matrices)

    def information_bounds(self, row_norm: float) -> tuple[float, float]:
        """A bound on the Frobenius norm of the `information` of one row of norm at most row_norm and the heaviest
        weight, and kappa, which bounds it together with the gradient (`models.released`); SettingError if there are
        none."""
        require(isinstance(self.loss, BoundedHessians), UNBOUNDED)
        bound, kappa = self.loss.hessian_bounds(self.outputs)  # type: ignore[attr-defined]
        return self._most * bound * self.stretch(row_norm**2), kappa

    def gradients(self, x: Array, rows: Batch) -> Array:
        """The gradient of each row's loss without the penalty, (b, d), at x (d,)."""
        slopes = self.loss.slopes(self.scores(x, rows.features), rows.labels)
        if rows.row_weights is not None:
            slopes = slopes * rows.row_weights[:, None]
        return self.summed([part[:, None] for part in self.parts(slopes)], rows.features[:, None])

    def _sandwich(self, features: Array, matrices: Array) -> Array:
        """The sum of matrices (b, outputs, outputs) times a a^T over rows a (b, n), by output, (d, d)."""
        columns = self.num_features
        blocks = np.empty((self.outputs, columns, self.outputs, columns))
        for k in range(self.outputs):
            for other in range(k + 1):
                block = (features * matrices[:, k, other, None]).T @ features
                blocks[k, :, other], blocks[other, :, k] = block, block.T
        return blocks.reshape(self.d, self.d)

    def stretch(self, squares: Any) -> Any:
        """The squared norm of J, the derivative of a row's scores in the point, given the row's squared norm."""
        return squares

    def check_rows(self, rows: Batch) -> None:
        """See `ChecksRows`."""
        check_classes(self.loss, self.outputs, rows)

    def predict(self, x: Array, features: Array) -> Array:
        """Predicted labels (..., b)."""
        return self.loss.predict(self.scores(x, features))

    def compared(self, x: Array, rows: Batch) -> tuple[Array, Labels]:
        """See `Compares`."""
        return self.loss.compared(self.scores(x, rows.features), rows.labels)

    def score(self, x: Array, rows: Batch) -> Array:
        """Accuracy, or R^2 for regression, (...,); see `score_of`."""
        predicted, observed = self.compared(x, rows)
        return score_of(predicted, rows._replace(labels=observed), self.loss.classifies)

    def bounds(self, row_norm: float) -> Bounds:
        """Public bounds for rows of norm at most row_norm, 0 for rows of any norm; SettingError if there are none."""
        weight = self._most
        slope = (
            weight * self.loss.slope_bound * math.sqrt(self.stretch(row_norm**2)) if row_norm else math.inf
        )
        clipped = self.clip_norm * (weight if self.clips_rows else 1.0)
        gradient = min(slope, clipped or math.inf)
        bounded = math.isfinite(self.loss.slope_bound)
        other = "row-norm" if bounded else "choose a loss with bounded slopes, such as huber"
        if not math.isfinite(gradient):
            raise SettingError(
                f"this objective's gradients have no public bound: set clip-norm above 0, or {other}"
            )
        # a clipped slope in one score is the derivative of a Huber-like convex loss; a clipped vector is not
        smooth = row_norm and (gradient == slope or not (self.loss.vector_slopes or self.clip == "batch"))
        curvature = self.curvature(row_norm) if smooth else math.inf
        return Bounds(gradient, curvature, self.penalty_curvature, weight)

    def curvature(self, longest: Any) -> Any:
        """A bound on the curvature of a record's data loss for rows of norm at most `longest` and the heaviest weight:
        the only place where it is stated. It is used by itself where clients use their own rows' norms, without
        privacy."""
        return self._most * self.loss.curvature_bound * self.stretch(longest**2)

    @property
    def _most(self) -> float:
        """The largest factor of a row's loss."""
        return self.heaviest or 1.0


def check_classes(loss: Loss, outputs: int, rows: Batch) -> None:
    """SettingError unless the labels of a classification are whole numbers from 0 to the number of classes less 1.

    The message names no value, because it may leave the site.
    """
    most, labels = max(outputs, 2) - 1, rows.labels
    whole = labels.dtype.kind in "iu" and (not labels.size or (labels.min() >= 0 and labels.max() <= most))
    if loss.classifies and not whole:
        raise SettingError(f"labels must be whole numbers of type int64 from 0 to {most}")


def mean_over(values: Array, rows: Batch) -> Array:
    """Mean of values (..., b) over a batch's rows, (...,); weighted if the batch has weights. Always a double."""
    if rows.weights is None:
        return values.mean(-1, dtype=np.float64)
    return (values * rows.weights).sum(-1, dtype=np.float64)


def score_of(predicted: Labels, rows: Batch, classifies: bool) -> Array:
    """Accuracy of predictions (..., b), or for regression R^2 = 1 - residual / variance; (...,).

    R^2 is NaN where the labels do not vary.
    """
    if classifies:
        return mean_over((predicted == rows.labels).astype(float), rows)
    residual = mean_over((predicted - rows.labels) ** 2, rows)
    centre = mean_over(np.asarray(rows.labels, float), rows)
    variance = mean_over((rows.labels - centre[..., None]) ** 2, rows)
    return 1.0 - residual / np.where(variance > 0, variance, np.nan)


def _weights(text: str) -> list[float] | None:
    """The comma-separated numbers in a text; None unless all are from 1e-6 to 1e6."""
    try:
        weights = [decimal(word) for word in text.split(",")]
    except ValueError:
        return None
    return weights if all(1e-6 <= weight <= 1e6 for weight in weights) else None


@dataclass(frozen=True)
class LinearObjective(Penalties):
    """The settings of a linear model's objective."""

    name: str = "softmax"
    class_weights: Annotated[
        str,
        Setting(
            "weights of the rows' losses by class, comma-separated, such as 1,4; empty: all 1",
            Rule("numbers from 1e-6 to 1e6", lambda text: not text or _weights(text) is not None),
        ),
    ] = ""

    @property
    def form(self) -> dict[str, Any]:
        """See `Penalties.form`: with weights of classes, on which the errors of a point depend."""
        return {"class_weights": self.class_weights} if self.class_weights else {}

    def build(self, num_features: int, num_classes: int) -> Model:
        """The objective for rows of num_features entries; SettingError for labels that the loss does not accept."""
        return self.linear(self.weighted(LOSSES[self.name]), num_features, num_classes)

    def weighted(self, loss: Loss) -> Loss:
        """The loss with `class_weights`, if there are any; SettingError for those of a regression."""
        weights = _weights(self.class_weights) if self.class_weights else None
        if weights is None:
            return loss
        if not loss.classifies:
            raise SettingError(
                f"objective.class-weights needs classes, and objective '{self.name}' has none: leave it out"
            )
        return ClassWeighted(loss, weights)

    def linear(self, loss: Loss, num_features: int, num_classes: int) -> LinearModel:
        """The linear model with this loss and these settings; SettingError if the labels do not fit the loss."""
        if loss.classifies and not num_classes >= 2:
            raise SettingError(
                f"objective '{self.name}' needs classes; this data set has real labels: use 'least-squares'"
            )
        return LinearModel(
            loss, loss.outputs(num_classes), num_features,
            l2=self.l2, nonconvex=self.nonconvex, clip_norm=self.clip_norm, clip=self.clip,
        )  # fmt: skip


def make_objective(
    name: str,
    num_features: int,
    num_classes: int,
    l2: float = 0.0,
    nonconvex: float = 0.0,
    clip_norm: float = 0.0,
    clip: str = "rows",
) -> LinearModel:
    """The objective called `name` (a key of LOSSES) for rows of num_features entries.

    Raises SettingError for an unknown name, a negative weight, clipping without a norm, or labels that the
    loss does not accept.
    """
    check_choice("objective", name, LOSSES)
    settings = LinearObjective(name, l2, nonconvex, clip_norm, clip)
    settings.check()
    return settings.linear(LOSSES[name], num_features, num_classes)


def majority_baseline(train_labels: Labels, test_labels: Labels) -> float:
    """Test accuracy of always predicting the most frequent training label."""
    values, counts = np.unique(train_labels, return_counts=True)
    return float(np.mean(test_labels == values[counts.argmax()]))
