"""What sites send about the likelihood of a linear model at its final point, from which standard errors follow.

For rows a with labels y and scores s = X a, the loss is minus a log likelihood (up to constants, and for least squares
with variance 1). A site sends sums over its rows: the observed information matrix, the Hessian of the loss in x; the
outer products of the gradients; the gradient; the loss; and whether the maximum of the likelihood is finite. Nothing is
averaged, so the sums of several sites add up. They are exact numbers about the rows and have no place in a private run.

If rows belong to groups, such as persons with several rows, gradients are summed over a group before their outer
product, and the groups are counted. Groups of two sites are never the same.

The weight w of a row is that of a variance: its gradient and its term of the information matrix are w times those
without, and its outer product is w^2 times that (`var_weights` of statsmodels). The number of rows stays the same, but
rows of weight 0 are no observations.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Mask
from ..problems.discrete_cox import DiscreteCox
from ..problems.interfaces import Batch
from ..problems.losses import Poisson, unpacked
from ..problems.objectives import LinearModel
from ..problems.stratified_cox import StratifiedCox
from ..survival_labels import unsigned

MOST_PARAMETERS = 1000
_SCALARS = 4


class Information(NamedTuple):
    """Sums over rows at a point x (d,): their number, the losses, `bounding`, the gradient (d,), the information matrix
    (d, d), and the outer products of the gradients of rows, or of groups of rows (d, d).

    observations: the number of rows with a weight above 0, all without weights. clusters: the number of their groups; 0
    for rows without groups.
    bounding: 0 if the maximum of the likelihood does not exist. Of a classification the number of wrong predictions; of
    counts and of survival 1 if there is an event, for each site; else the number of rows.
    """

    rows: float
    loss: float
    bounding: float
    observations: float
    gradient: Array
    matrix: Array
    outer: Array
    clusters: float = 0.0

    @classmethod
    def of(cls, objective: LinearModel, x: Array, rows: Batch, outer: bool = True) -> "Information":
        """The sums over these rows (b, features), without the penalty; outer: with the outer products, else NaN."""
        x, rows = x.astype(np.float64), rows._replace(features=rows.features.astype(np.float64))
        scores = objective.scores(x, rows.features)
        slopes = objective.loss.slopes(scores, rows.labels)
        if rows.row_weights is not None:
            slopes = slopes * rows.row_weights[:, None]
        known = np.ones(len(slopes), bool) if rows.row_weights is None else rows.row_weights > 0
        return cls(
            float(len(slopes)), float(objective.losses(x, rows).sum()), _bounding(objective, x, rows, known),
            float(known.sum()), objective.summed(objective.parts(slopes), rows.features),
            objective.information(scores, rows), *_outer(objective, x, rows, known, outer),
        )  # fmt: skip

    @classmethod
    def together(cls, sites: Iterable["Information"]) -> "Information":
        """The sums over the rows of all of these sites, at least one, in their order."""
        return cls(*(sum(parts[1:], parts[0]) for parts in zip(*sites, strict=True)))

    def moved(self, step: Array) -> "Information":
        """The sums after a step (d,) if they are quadratic in x; the outer products are those before it."""
        change = self.matrix @ step
        loss = self.loss + float(self.gradient @ step + 0.5 * step @ change)
        return self._replace(loss=loss, gradient=self.gradient + change)

    def at(self, entries: Sequence[int]) -> "Information":
        """The sums for a model of which only these entries are free."""
        square = np.ix_(entries, entries)
        return self._replace(
            gradient=self.gradient[entries], matrix=self.matrix[square], outer=self.outer[square]
        )

    @property
    def packed(self) -> Array:
        """All numbers in one array, (`packed_size`,)."""
        return np.concatenate([np.ravel(part) for part in self])

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a file, by name."""
        return {"information": self.packed}

    def compact(self, outer: bool) -> Array:
        """The numbers in one array, (`compact_size`,), of symmetric matrices only the entries on and above the
        diagonal. outer: with the outer products."""
        above = np.triu_indices(len(self.gradient))
        parts = [self.matrix[above], *([self.outer[above], [self.clusters]] if outer else [])]
        return np.concatenate([self[:_SCALARS], self.gradient, *parts])

    @classmethod
    def expanded(cls, numbers: Array, d: int) -> "Information":
        """Inverse of `compact`; outer products that are not there are NaN."""
        half = d * (d + 1) // 2
        scalars, gradient, matrix, outer, clusters = np.split(numbers, np.cumsum([_SCALARS, d, half, half]))
        matrices = symmetric(matrix, d), symmetric(outer, d)
        return cls._make([*scalars.tolist(), gradient, *matrices, float(clusters.sum())])

    @classmethod
    def unpacked(cls, numbers: Array, d: int) -> "Information":
        """Inverse of `packed`, also of what 0.2 wrote, without observations and clusters; ValueError for another number
        of numbers."""
        if len(numbers) == packed_size(d) - 2:
            numbers = np.append(np.insert(numbers, _SCALARS - 1, numbers[0]), 0.0)
        gradient, matrix, outer, (clusters,) = np.split(numbers[_SCALARS:], np.cumsum([d, d * d, d * d]))
        scalars, matrices = numbers[:_SCALARS].tolist(), (matrix.reshape(d, d), outer.reshape(d, d))
        return cls._make([*scalars, gradient, *matrices, float(clusters)])


def symmetric(above: Array, d: int) -> Array:
    """The symmetric matrix (d, d) with these entries on and above the diagonal; NaN for none."""
    matrix = np.full((d, d), np.nan)
    if above.size:
        places = np.triu_indices(d)
        matrix[places] = matrix.T[places] = above
    return matrix


def _outer(objective: LinearModel, x: Array, rows: Batch, known: Mask, wanted: bool) -> tuple[Array, float]:
    """The outer products of the gradients of rows or groups, and the number of groups of the known rows; NaN unless
    they are wanted."""
    if not wanted:
        return np.full((x.size, x.size), np.nan), 0.0
    gradients, clusters = objective.gradients(x, rows), 0
    if rows.groups is not None:
        order = np.argsort(rows.groups, kind="stable")
        firsts = np.unique(rows.groups[order], return_index=True)[1]
        gradients, clusters = np.add.reduceat(gradients[order], firsts), len(np.unique(rows.groups[known]))
    return gradients.T @ gradients, float(clusters)


def _bounding(objective: LinearModel, x: Array, rows: Batch, known: Mask) -> float:
    """See `Information`; a row that is not known, of weight 0, does not count."""
    if objective.loss.classifies:
        return float(((objective.predict(x, rows.features) != rows.labels) & known).sum())
    if isinstance(objective.loss, Poisson):
        return float(((unpacked(rows.labels)[0] > 0) & known).any())
    if isinstance(objective, DiscreteCox | StratifiedCox):
        return float((unsigned(rows.labels)[1] & known).any())
    return float(len(rows.labels))


def packed_size(d: int) -> int:
    """The number of numbers in `Information.packed`."""
    return _SCALARS + d + 2 * d * d + 1


def compact_size(d: int, outer: bool) -> int:
    """The number of numbers in `Information.compact`."""
    return _SCALARS + d + (1 + outer) * (d * (d + 1) // 2) + outer
