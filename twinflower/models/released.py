"""What private sites release about a model after training, from which estimates with intervals follow.

At the final model x, a public number, every site releases once the sums over its rows of the gradients g and of the
information matrices H, both with Gaussian noise. They are one vector v in which the noise has the same deviation in
every entry,

    v = ( g / (2 C),  kappa svec(H) / (sqrt 2 B) ),

where svec(H) holds the diagonal of a symmetric matrix and sqrt 2 times the entries above it, so that its norm is the
Frobenius norm of H. C and B bound the norms of a row's gradient g_j and information matrix H_j (`LinearModel.bounds`,
`information_bounds`), and kappa is such that for every row and every x

    |g_j|^2 / C^2  +  kappa^2 |H_j|^2 / B^2  <=  1.

Sensitivity. If row a is replaced by b, v moves by at most 1:

    |g_a - g_b|^2 <= (|g_a| + |g_b|)^2 <= 2 |g_a|^2 + 2 |g_b|^2
    |H_a - H_b|^2 <= |H_a|^2 + |H_b|^2,   because <H_a, H_b> >= 0 for matrices without negative eigenvalues,

so the squared move is at most the mean of the left sides above for a and b. It is attained by rows whose gradients are
as long as possible and opposite. Replacing k rows moves v by at most k.

kappa. Where a gradient is long, the information is small. A score with a logistic loss has the slope s and the second
derivative |s| (1 - |s|). With t = |s|, C = R and B = R^2 / 4 for rows of norm R, the condition is

    t^2 + 16 kappa^2 t^2 (1 - t)^2 <= 1,   that is   kappa^2 <= (1 + t) / (16 t^2 (1 - t)) for all t in (0, 1),

whose right side is least, .693, at the root t = .618 of t^2 + t = 1; we use 2/3. The discrete-time Cox model with the
link logit has T such scores. Its C^2 = T + T^2 R^2 and 16 B^2 = T + 2 T R^2 + T^2 R^4 belong to scores of the same
size, and the condition follows for the same kappa from (sum t)^2 <= T sum t^2.

For softmax with probabilities p, C^2 = 2 R^2 and B = R^2 / 2, the condition is kappa^2 <= 1/4, attained at
p = (0, 1/2, 1/2) for the label 0. With q = sum p^2 and c = sum p^3, |H|^2 = q - 2 c + q^2 and |g|^2 <= 1 + q for rows
of norm 1, so it is

    |H|^2 + q / 2 <= 1 / 2

This holds for q <= 1/2 because c >= q^2, and else because 2 c >= 3 q - 1, which is sum_k f(p_k) >= 0 with
f(p) = p (1/2 - p) (1 - p): only one p_k can be above 1/2, where f(p_k) = -f(1 - p_k), and below, f is subadditive, so
that the others' terms make up for it. With two classes, softmax is the logistic loss, and kappa^2 = 2/3 holds.

Shares. As |H_j|^2 <= B^2, a share s of the condition and 1 - s of this bound give

    s |g_j|^2 / C^2  +  (1 - s + s kappa^2) |H_j|^2 / B^2  <=  1   for all s in [0, 1],

so that sqrt s g / (2 C) and sqrt(1 - s + s kappa^2) svec(H) / (sqrt 2 B) have the same sensitivity together: a smaller
share makes the matrix more precise and the gradient less. v has s = 1. With weights of rows up to W, C and B are W
times as large, and the conditions are those above.

For least squares, whose gradients -y a are clipped to C and matrices are a a^T, kappa is 0, s is below 1, and the move
is bounded more closely. Let c be the cosine between the rows of a and b. Then |g_a - g_b|^2 <= 2 (1 + c) C^2, and
|H_a - H_b|^2 is convex in the squared lengths of the rows, hence at most max(1, 2 (1 - c^2)) B^2. So the squared move
of both is at most

    m^2 = max over c of  s (1 + c) / 2 + (1 - s) max(1, 2 (1 - c^2)) / 2
        = (1 + s) / 2,  or if s < .8 and that is larger,  s / 2 + (1 - s) + s^2 / (16 (1 - s)),

and both units are m times as large.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError, require
from ..problems.interfaces import Batch
from ..problems.losses import UNBOUNDED
from ..problems.objectives import LinearModel
from .information import symmetric


class Units(NamedTuple):
    """What the gradient and the information matrix are divided by in a release: 2 C, and sqrt 2 B / kappa."""

    gradient: float
    matrix: float

    @classmethod
    def of(cls, objective: LinearModel, row_norm: float) -> "Units":
        """The units of v for rows of norm at most row_norm; SettingError for an objective without public bounds or
        reference rows, and for one of rows with weights, whose errors need the robust form."""
        require(
            objective.heaviest is None,
            "there are no standard errors in a private run with weights of rows, because they need the robust form: "
            "leave the weights out, train without privacy, or set evaluation.standard-errors to false",
        )
        require(hasattr(objective.loss, "public_label"), UNBOUNDED)
        return cls.sharing(objective, row_norm, 1.0)

    @classmethod
    def sharing(cls, objective: LinearModel, row_norm: float, share: float) -> "Units":
        """The units with which the gradient has the share s, and rows may have weights; SettingError for an objective
        without public bounds."""
        bound, kappa = objective.information_bounds(row_norm)
        if not kappa and not share < 1:
            raise SettingError(f"the share of the score must be below 1 for least squares; got {share:g}")
        most = 1.0 if kappa else _most_moved(share)
        gradient = 2 * objective.bounds(row_norm).gradient / math.sqrt(share)
        matrix = math.sqrt(2) * bound / math.hypot(kappa * math.sqrt(share), math.sqrt(1 - share))
        return cls(most * gradient, most * matrix)

    def released(self, objective: LinearModel, x: Array, rows: Batch) -> Array:
        """The vector v (`released_size`,) of these rows at x (d,), before noise; it moves by at most 1 with a row."""
        scores = objective.scores(x, rows.features)
        slopes = objective.loss.slopes(scores, rows.labels)
        gradient = objective.summed(objective.parts(slopes), rows.features)
        return self.packed(gradient, objective.information(scores, rows))

    def packed(self, gradient: Array, matrix: Array) -> Array:
        """A gradient (d,) and a symmetric matrix (d, d) as v."""
        above, twice = _above(len(gradient))
        return np.concatenate([gradient / self.gradient, matrix[above] * twice / self.matrix])

    def unpacked(self, v: Array, d: int, sigma: float) -> "Released":
        """What a released v says, given the deviation of the noise in its entries; inverse of `packed`."""
        matrix = symmetric(v[d:] / _above(d)[1] * self.matrix, d)
        return Released(v[:d] * self.gradient, matrix, sigma * self.gradient, sigma * self.matrix)


class Released(NamedTuple):
    """Noisy sums over the rows of sites at a model x (d,): the gradient (d,) and the information matrix (d, d).

    gradient_noise: the deviation of the noise in every entry of the gradient. matrix_noise: that in the diagonal of the
    matrix; beside it, the deviation is 1 / sqrt 2 of that, so that the noise is the same in every orthonormal basis.
    base: the point x (d,) if it is not that of the model to which these numbers belong.
    """

    gradient: Array
    matrix: Array
    gradient_noise: float
    matrix_noise: float
    base: Array | None = None

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays of a file, by name; inverse of `read`."""
        base = {} if self.base is None else {"base": self.base}
        noise = np.array([self.gradient_noise, self.matrix_noise])
        return {"gradient": self.gradient, "matrix": self.matrix, "noise": noise, **base}

    @classmethod
    def read(cls, arrays: Mapping[str, Any], d: int) -> "Released":
        """What was released about a model of d entries; ValueError for other arrays."""
        gradient, matrix = (np.reshape(arrays["gradient"], d), np.reshape(arrays["matrix"], (d, d)))
        gradient_noise, matrix_noise = map(float, arrays["noise"])
        base = np.reshape(arrays["base"], d) if "base" in arrays else None
        return cls(gradient, matrix, gradient_noise, matrix_noise, base)

    def of_rows(self, rows: int, base: Array) -> "Released":
        """The sums over so many rows, given their means, and the point (d,) where they are."""
        noises = rows * self.gradient_noise, rows * self.matrix_noise
        return Released(rows * self.gradient, rows * self.matrix, *noises, base)

    @classmethod
    def together(cls, sites: Iterable["Released"]) -> "Released":
        """The sums over the rows of all of these sites."""
        gradients, matrices, *noises, _ = zip(*sites, strict=True)
        of_gradient, of_matrix = (math.hypot(*noise) for noise in noises)
        return cls(np.sum(gradients, 0), np.sum(matrices, 0), of_gradient, of_matrix)


def released_size(d: int) -> int:
    """The number of entries of v."""
    return d + d * (d + 1) // 2


def _most_moved(share: float) -> float:
    """m of least squares."""
    inner = share / 2 + (1 - share) + share**2 / (16 * (1 - share)) if share < 0.8 else 0.0
    return math.sqrt(max((1 + share) / 2, inner))


def _above(d: int) -> tuple[tuple[Index, ...], Array]:
    """The indices of the entries of a matrix (d, d) on and above its diagonal, and their factors in svec."""
    indices = np.triu_indices(d)
    return indices, np.where(indices[0] == indices[1], 1.0, math.sqrt(2))
