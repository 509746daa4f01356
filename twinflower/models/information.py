"""What sites send about the likelihood of a linear model at its final point, from which standard errors follow.

For rows a with labels y and scores s = X a, the loss is minus a log likelihood (up to constants, and for least squares
with variance 1). A site sends sums over its rows: the observed information matrix, the Hessian of the loss in x; the
outer products of the gradients; the gradient; the loss; and whether the maximum of the likelihood is finite. Nothing is
averaged, so the sums of several sites add up. They are exact numbers about the rows and have no place in a private run.

The weight w of a row is that of a variance: its gradient and its term of the information matrix are w times those
without, and its outer product is w^2 times that (`var_weights` of statsmodels). The number of rows stays the same.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.discrete_cox import DiscreteCox
from ..problems.interfaces import Batch
from ..problems.losses import Poisson, unpacked
from ..problems.objectives import LinearModel
from ..problems.stratified_cox import StratifiedCox
from ..survival_labels import unsigned

MOST_PARAMETERS = 1000
_SCALARS = 3


class Information(NamedTuple):
    """Sums over rows at a point x (d,): their number, the losses, `bounding`, the gradient (d,), the information matrix
    (d, d), and the outer products of the rows' gradients (d, d).

    bounding: 0 if the maximum of the likelihood does not exist. Of a classification the number of wrong predictions; of
    counts and of survival 1 if there is an event, for each site; else the number of rows.
    """

    rows: float
    loss: float
    bounding: float
    gradient: Array
    matrix: Array
    outer: Array

    @classmethod
    def of(cls, objective: LinearModel, x: Array, rows: Batch) -> "Information":
        """The sums over these rows (b, features), without the penalty."""
        x, rows = x.astype(np.float64), rows._replace(features=rows.features.astype(np.float64))
        scores = objective.scores(x, rows.features)
        slopes = objective.loss.slopes(scores, rows.labels)
        if rows.row_weights is not None:
            slopes = slopes * rows.row_weights[:, None]
        return cls(
            float(len(slopes)), float(objective.losses(x, rows).sum()), _bounding(objective, x, rows),
            objective.summed(objective.parts(slopes), rows.features), objective.information(scores, rows),
            objective.outer(slopes, rows.features),
        )  # fmt: skip

    @classmethod
    def together(cls, sites: Iterable["Information"]) -> "Information":
        """The sums over the rows of all of these sites, at least one, in their order."""
        return cls(*(sum(parts[1:], parts[0]) for parts in zip(*sites, strict=True)))

    def at(self, entries: Sequence[int]) -> "Information":
        """The sums for a model of which only these entries are free."""
        square = np.ix_(entries, entries)
        return self._replace(
            gradient=self.gradient[entries], matrix=self.matrix[square], outer=self.outer[square]
        )

    @property
    def packed(self) -> Array:
        """All numbers in one array, (3 + d + 2 d^2,)."""
        return np.concatenate([np.ravel(part) for part in self])

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a file, by name."""
        return {"information": self.packed}

    def compact(self, outer: bool) -> Array:
        """The numbers in one array, (`compact_size`,), of symmetric matrices only the entries on and above the
        diagonal. outer: with the outer products."""
        above = np.triu_indices(len(self.gradient))
        parts = [self.matrix[above], *([self.outer[above]] if outer else [])]
        return np.concatenate([self[:_SCALARS], self.gradient, *parts])

    @classmethod
    def expanded(cls, numbers: Array, d: int) -> "Information":
        """Inverse of `compact`; outer products that are not there are NaN."""
        scalars, gradient, *triangles = np.split(numbers, np.cumsum([_SCALARS, d, d * (d + 1) // 2]))
        return cls._make([*scalars.tolist(), gradient, *(symmetric(own, d) for own in triangles)])

    @classmethod
    def unpacked(cls, numbers: Array, d: int) -> "Information":
        """Inverse of `packed`; ValueError for another number of numbers."""
        rows, loss, bounding = numbers[:_SCALARS].tolist()
        gradient, *others = np.split(numbers[_SCALARS:], [d, d + d * d])
        matrix, outer = (part.reshape(d, d) for part in others)
        return cls(rows, loss, bounding, gradient, matrix, outer)


def symmetric(above: Array, d: int) -> Array:
    """The symmetric matrix (d, d) with these entries on and above the diagonal; NaN for none."""
    matrix = np.full((d, d), np.nan)
    if above.size:
        places = np.triu_indices(d)
        matrix[places] = matrix.T[places] = above
    return matrix


def _bounding(objective: LinearModel, x: Array, rows: Batch) -> float:
    """See `Information`; a row of weight 0 does not count."""
    known: Any = True if rows.row_weights is None else rows.row_weights > 0
    if objective.loss.classifies:
        return float(((objective.predict(x, rows.features) != rows.labels) & known).sum())
    if isinstance(objective.loss, Poisson):
        return float(((unpacked(rows.labels)[0] > 0) & known).any())
    if isinstance(objective, DiscreteCox | StratifiedCox):
        return float((unsigned(rows.labels)[1] & known).any())
    return float(len(rows.labels))


def packed_size(d: int) -> int:
    """The number of numbers in `Information.packed`."""
    return _SCALARS + d + 2 * d * d


def compact_size(d: int, outer: bool) -> int:
    """The number of numbers in `Information.compact`."""
    return _SCALARS + d + (1 + outer) * (d * (d + 1) // 2)
