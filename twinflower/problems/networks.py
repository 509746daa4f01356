"""Neural networks with one hidden layer and no biases; points are flat, as for every objective.

    f_i(W1, W2) = mean_j loss( W2 act(W1 a_j), y_j ) + l2/2 ||W||^2 + nonconvex sum W^2 / (1 + W^2)

A flat point is W1 (hidden, features) followed by W2 (outputs, hidden). Zhang 2023 uses sigmoid units and Ye 2021
swish units.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from .. import special
from ..arrays import Array
from ..errors import require
from ..norms import clipping, forget, norms, outer_norms
from ..settings import Setting, between
from .interfaces import Batch, Bounds, Model
from .losses import Loss
from .objectives import (
    LOSSES,
    LinearObjective,
    Penalised,
    check_classes,
    mean_over,
)

Activation = Callable[[Array], tuple[Array, Array]]


def sigmoid(z: Array) -> tuple[Array, Array]:
    """1 / (1 + e^-z) and its derivative, elementwise."""
    s = special.expit(z)
    return s, s * (1.0 - s)


def swish(z: Array) -> tuple[Array, Array]:
    """z / (1 + e^-z) and its derivative, elementwise."""
    s = special.expit(z)
    return z * s, s * (1.0 + z * (1.0 - s))


class _Passed(NamedTuple):
    """Of every row: hidden units (..., b, hidden), scores (..., b, outputs), and the slopes of the loss with respect to
    the scores and to the hidden units before activation, out and back; and the factors (..., b, 1) that clip its
    gradient."""

    hidden: Array
    scores: Array
    out: Array
    back: Array
    clipped: Array | float = 1.0


def matrices(x: Array, shapes: Sequence[tuple[int, int]]) -> list[Array]:
    """The matrices in points (..., d), each (..., rows, columns)."""
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    parts = np.split(x, ends[:-1], axis=-1)
    return [part.reshape(x.shape[:-1] + shape) for part, shape in zip(parts, shapes, strict=True)]


@dataclass(frozen=True)
class Network(Penalised):
    """f_i of a network with one hidden layer (formula in the module's docstring).

    clip_norm > 0 clips the data gradient of every row (or of the batch), to that norm, taken over both layers.
    """

    loss: Loss
    activation: Activation
    outputs: int
    hidden: int
    num_features: int

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shapes of W1 and W2."""
        return (self.hidden, self.num_features), (self.outputs, self.hidden)

    @property
    def d(self) -> int:
        """Number of weights, hidden * (num_features + outputs)."""
        return self.hidden * (self.num_features + self.outputs)

    @property
    def convex(self) -> bool:
        """False: a network's loss is not convex in its weights."""
        return False

    def start(self, draw: np.random.Generator) -> Array:
        """Initial weights (d,), uniform as in Glorot and Bengio 2010; the zero point would be (nearly) stationary."""
        limits = [math.sqrt(6.0 / sum(shape)) for shape in self.shapes]
        return np.concatenate(
            [draw.uniform(-a, a, size=shape).ravel() for a, shape in zip(limits, self.shapes, strict=True)]
        )

    def scores(self, x: Array, features: Array) -> Array:
        """W2 act(W1 a) for every row, (..., b, outputs)."""
        w1, w2 = matrices(x, self.shapes)
        return self.activation(features @ w1.swapaxes(-1, -2))[0] @ w2.swapaxes(-1, -2)

    def check_rows(self, rows: Batch) -> None:
        """See `objectives.ChecksRows`."""
        check_classes(self.loss, self.outputs, rows)

    def losses(self, x: Array, rows: Batch) -> Array:
        """Loss of each row, (..., b), without the penalty."""
        return self.loss.values(self.scores(x, rows.features), rows.labels)

    def value(self, x: Array, rows: Batch) -> Array:
        """Mean loss of the rows plus the smooth penalty, (...,)."""
        return mean_over(self.losses(x, rows), rows) + self.penalty(x)

    def grad(self, x: Array, rows: Batch) -> Array:
        """Gradient of `value` by back-propagation, (..., d)."""
        share = 1.0 / rows.labels.shape[-1] if rows.weights is None else rows.weights[..., None]
        return self._grad(x, rows, self._passed(x, rows), share)

    def losses_and_grads(
        self, x: Array, rows: Batch, weightings: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """See `objectives.WeightedGrads`: the network runs forward once."""
        passed = self._passed(x, rows)
        grads = [self._grad(x, rows, passed, weights[..., None]) for weights in weightings]
        return self.loss.values(passed.scores, rows.labels), grads

    def _passed(self, x: Array, rows: Batch) -> "_Passed":
        """The network's values at x, forward and backward."""
        w1, w2 = matrices(x, self.shapes)
        hidden, bend = self.activation(rows.features @ w1.swapaxes(-1, -2))
        scores = hidden @ w2.swapaxes(-1, -2)
        out = self.loss.slopes(scores, rows.labels)
        back = (out @ w2) * bend
        if not self.clips_rows:
            return _Passed(hidden, scores, out, back)
        lengths = outer_norms((out, norms(hidden)), (back, rows.norms()), bound=self.clip_norm)
        forget(lengths, out, back, hidden)
        return _Passed(hidden, scores, out, back, clipping(self.clip_norm, lengths))

    def _grad(self, x: Array, rows: Batch, passed: "_Passed", share: Array | float) -> Array:
        """Gradient (..., d) with weights `share` (..., b, 1) of the rows."""
        share, hidden = share * passed.clipped, passed.hidden
        g1, g2 = (
            (share * passed.back).swapaxes(-1, -2) @ rows.features,
            (share * passed.out).swapaxes(-1, -2) @ hidden,
        )
        lead = np.broadcast_shapes(g1.shape[:-2], x.shape[:-1])
        flat = [np.broadcast_to(g, lead + g.shape[-2:]).reshape((*lead, -1)) for g in (g1, g2)]
        return self.full_grad(np.concatenate(flat, axis=-1), x)

    def predict(self, x: Array, features: Array) -> Array:
        """Predicted class of each row, (..., b)."""
        return self.loss.predict(self.scores(x, features))

    def score(self, x: Array, rows: Batch) -> Array:
        """Accuracy, (...,): the fraction of rows predicted correctly, weighted like the batch."""
        return mean_over((self.predict(x, rows.features) == rows.labels).astype(float), rows)

    def bounds(self, row_norm: float) -> Bounds:
        """Public bounds from clip_norm, the only gradient bound of a network; SettingError without clipping."""
        require(
            self.clip_norm > 0,
            "a network's gradients have no public bound: set clip-norm above 0 for a private run",
        )
        return Bounds(self.clip_norm, math.inf, self.penalty_curvature)


_MOST_WEIGHTS = 50_000_000
NETWORKS: dict[str, Activation] = {"sigmoid-network": sigmoid, "swish-network": swish}


@dataclass(frozen=True)
class NetworkObjective(LinearObjective):
    """The settings of a network objective."""

    name: str = "sigmoid-network"
    hidden_units: Annotated[int, Setting("units of the hidden layer", between(1, 100_000))] = 32

    @property
    def form(self) -> dict[str, Any]:
        """See `Penalties.form`."""
        return {"hidden_units": self.hidden_units}

    def build(self, num_features: int, num_classes: int) -> Model:
        """The network for rows of num_features entries, with softmax loss; SettingError for regression labels, and for
        more than 50 million weights of the hidden layer."""
        require(
            self.hidden_units * num_features <= _MOST_WEIGHTS,
            f"hidden-units times the number of features must be at most {_MOST_WEIGHTS:,}; got {self.hidden_units} and "
            f"{num_features}: lower hidden-units",
        )
        linear = self.linear(self.weighted(LOSSES["softmax"]), num_features, num_classes)
        return Network(
            linear.loss, NETWORKS[self.name], linear.outputs, self.hidden_units, num_features,
            l2=self.l2, nonconvex=self.nonconvex, clip_norm=self.clip_norm, clip=self.clip,
        )  # fmt: skip
