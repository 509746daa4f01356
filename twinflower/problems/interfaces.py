"""What an algorithm may ask of an objective, and the rows it is computed on."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from ..arrays import Array, Index, Labels
from ..errors import require
from ..norms import norms


class Batch(NamedTuple):
    """Rows of one or many clients: features (..., b, n), labels (..., b).

    weights (..., b) sum to 1 over the rows of a client, or to less in a batch that is a row short, and replace the
    plain mean where numbers of rows differ; padding rows have weight 0. Never divide by their sum, which would make a
    record move a short batch by more than the others. lengths (..., b) are the rows' norms
    if they have been computed before, else None. row_weights (..., b), at least 0, multiply the losses of the rows,
    whose mean is still taken over the number of rows; None if rows have no weights of their own. groups (..., b) number
    the persons, or other clusters, of a client to whom the rows belong; None if every row is another one. folds
    (..., b) are the numbers, from 0 on, of their folds in a cross-validation, None without one.
    """

    features: Array
    labels: Labels
    weights: Array | None = None
    lengths: Array | None = None
    row_weights: Array | None = None
    groups: Index | None = None
    folds: Index | None = None

    def kept(self, which: Any) -> "Batch":
        """These rows of one client, by their numbers or as a mask, without `weights` and `lengths`."""
        columns = self.row_weights, self.groups, self.folds
        others = (None if part is None else part[which] for part in columns)
        return Batch(self.features[which], self.labels[which], None, None, *others)

    def norms(self) -> Array:
        """Euclidean norms of the rows, (..., b)."""
        return norms(self.features) if self.lengths is None else self.lengths


class Bounds(NamedTuple):
    """Public bounds on an objective that hold for every admissible row.

    gradient: C, a bound on the norm of one record's data gradient. curvature: the curvature of any record's
    data loss is in [0, curvature]; infinity if no bound is known. penalty: an interval that contains the
    curvature of the smooth penalty, which does not depend on the data. weight: the largest weight of a record
    (`Batch.row_weights`), which is a factor of the first two.
    """

    gradient: float
    curvature: float
    penalty: tuple[float, float] = (0.0, 0.0)
    weight: float = 1.0

    @property
    def steepest(self) -> float:
        """The factor c in ||gradient of the penalty at x|| <= c ||x||."""
        return max(map(abs, self.penalty))


class Objective(Protocol):
    """The interface of a client's f_i that algorithms use. Leading axes are clients."""

    @property
    def d(self) -> int:
        """Number of entries of a point."""

    def value(self, x: Array, rows: Batch) -> Array:
        """f_i(x) on the rows, (...,)."""

    def grad(self, x: Array, rows: Batch) -> Array:
        """Gradient of `value`, (..., d), a new array."""

    def predict(self, x: Array, features: Array) -> Array:
        """Predicted labels (..., b)."""

    def score(self, x: Array, rows: Batch) -> Array:
        """Accuracy of a classifier, R^2 of a regression, (...,)."""


@runtime_checkable
class RowLosses(Protocol):
    """An objective that returns the loss of each row separately."""

    def losses(self, x: Array, rows: Batch) -> Array:
        """Data loss of each row, (..., b); `value` is their mean plus the penalty."""


@runtime_checkable
class Compares(Protocol):
    """An objective whose labels hold more than what it predicts."""

    def compared(self, x: Array, rows: Batch) -> tuple[Array, Labels]:
        """What is predicted and what is observed (..., b), in the same unit."""


class ScaledGrads(ABC):
    """An objective whose `grad` can return a multiple of the gradient, which saves a pass over (..., d) in every local
    step: up to 3 % of a round of `benchmarks/yardstick.py`. It stays because results depend on it in their last bit."""

    @abstractmethod
    def grad(self, x: Array, rows: Batch, scale: float = 1.0) -> Array:
        """scale times the gradient of `value`, (..., d), a new array."""


@runtime_checkable
class WeightedGrads(RowLosses, Protocol):
    """An objective that evaluates the model once for the losses and for gradients under several weightings."""

    def losses_and_grads(
        self, x: Array, rows: Batch, weightings: Sequence[Array]
    ) -> tuple[Array, list[Array]]:
        """`losses` (..., b), and `grad` (..., d) with each of the weightings (..., b) in place of the rows' weights."""


def losses_and_grads(
    objective: Any, x: Array, rows: Batch, weightings: Sequence[Array]
) -> tuple[Array, list[Array]]:
    """See `WeightedGrads`; for other objectives with `losses`, the model is evaluated for each result."""
    if isinstance(objective, WeightedGrads):
        return objective.losses_and_grads(x, rows, weightings)
    return objective.losses(x, rows), [objective.grad(x, rows._replace(weights=w)) for w in weightings]


@runtime_checkable
class ChecksRows(Protocol):
    """An objective that checks its rows before a run."""

    def check_rows(self, rows: Batch) -> None:
        """SettingError for rows that the objective does not accept."""


@runtime_checkable
class WeighsRows(Protocol):
    """An objective of rows that may have weights of their own (`Batch.row_weights`)."""

    @property
    def heaviest(self) -> float | None:
        """The largest weight, which is public; None: rows have no weights."""


def check_weights(objective: Any, row_weights: Array | None) -> None:
    """SettingError if only the objective or only the rows have weights, so that training never ignores any."""
    expected = isinstance(objective, WeighsRows) and objective.heaviest is not None
    require(
        expected == (row_weights is not None),
        "rows with weights need an objective with their largest weight, heaviest, and such an objective needs rows "
        "with weights",
    )


class Part(NamedTuple):
    """A named parameter in a flat point: span (first, end), end exclusive, and its number of rows as a matrix."""

    span: tuple[int, int]
    rows: int


@runtime_checkable
class NamedModel(Protocol):
    """A model with named parameters and its own file format."""

    def parts(self, patterns: str) -> list[Part]:
        """The parameters that match patterns such as "*.weight, head.bias"; SettingError if a pattern matches none."""

    def save(self, x: Array, path: Path) -> None:
        """Write the point x (d,) to a file in the model's own format."""


class Model(Objective, RowLosses, Protocol):
    """An objective with everything that is needed to configure a run."""

    @property
    def convex(self) -> bool:
        """Whether the objective is convex, so that every stationary point is a minimiser."""

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shapes of the matrices in a flat point, in order; the last matrix has one row per output."""

    def bounds(self, row_norm: float) -> Bounds:
        """Public bounds for rows of norm at most row_norm, 0 for rows of any norm; SettingError if there are none."""

    def start(self, draw: np.random.Generator) -> Array:
        """A public starting point (d,); `draw` is used by models for which zero is not a suitable start."""
