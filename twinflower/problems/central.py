"""Minima with all rows in one place: the optimum over all clients' rows, as the reference for federated methods; and
those of quadratic functions, alone and with a regulariser, the models that Newton's method minimises."""

from typing import Any

import numpy as np

from ..arrays import Array, Mask
from ..errors import SettingError, require
from .interfaces import Batch, Model
from .losses import Absolute
from .objectives import LinearModel
from .regularisers import L1, OnPart, Regulariser, Separable, Support, Zero

_MOST_STEPS = 100_000
_SMALLEST_STEP = 1e-12
_EMPTY = 1e-10  # an eigenvalue of the scaled matrix, relative to the largest, below which a direction has no curvature
_SAME = 1e-13  # the same, where a direction is none of a matrix without rounding
_TINY = 3e-7  # a root of the diagonal, relative to the largest, that is rounding of sums over rows
_MOST_CHANGES = 20_000
_POLISHED_EVERY = 50
_KINK = 1e-7  # relative change of a point by which the slope of a prox is found
_EXACT = 1e-14


def minimise(f: Model, h: Regulariser, rows: Batch, start: Array, tolerance: float = 1e-12) -> Array:
    """argmin f(x; rows) + h(x), (d,), by accelerated proximal gradient steps with adaptive restart from start (d,).

    Only gradients of f are used; with clipping, the result is therefore the point where the clipped gradients are
    stationary. The iteration stops when a step moves x by less than tolerance * max(1, ||x||) * step. Raises
    SettingError if f is not convex or if 100,000 steps do not suffice. The loss "absolute" is solved as a linear
    programme. Source: O'Donoghue and Candes, Adaptive restart for accelerated gradient schemes, 2015.
    """
    require(f.convex, "reference needs a convex objective: descent may miss the optimum of this one")
    if isinstance(f, LinearModel) and isinstance(f.loss, Absolute):
        return _least_absolute(f, h, rows)
    x, y, momentum, step = start, start, 1.0, 1.0
    for _ in range(_MOST_STEPS):
        x_next, step = _step(f, h, rows, y, step)
        if np.linalg.norm(x_next - y) <= tolerance * step * max(1.0, float(np.linalg.norm(x_next))):
            return x_next
        if (y - x_next) @ (x_next - x) > 0:  # the momentum points uphill
            momentum = 1.0
        following = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        x, y = x_next, x_next + (momentum - 1.0) / following * (x_next - x)
        momentum = following
    raise SettingError(
        f"reference: no optimum to {tolerance:g} within {_MOST_STEPS:,} steps: give the objective some l2"
    )


def _least_absolute(f: Any, h: Regulariser, rows: Batch) -> Array:
    """argmin sum_j c_j |<a_j, x> - y_j| + l1 ||x||_1 as a linear programme.

    x = p - q and A (p - q) + u - v = y with p, q, u, v >= 0. Clipping a row's gradient scales its c_j.
    """
    from scipy.optimize import linprog  # slow to import, and needed for this loss only
    from scipy.sparse import diags_array, hstack

    require(
        isinstance(h, L1 | Zero) and not f.l2,
        "reference for the loss 'absolute' needs regulariser l1 or none, and l2 = 0",
    )
    count, d = rows.features.shape
    weights = np.full(count, 1.0 / count) if rows.weights is None else rows.weights
    if rows.row_weights is not None:
        weights = weights * rows.row_weights
    if f.clip_norm:
        weights = weights * np.minimum(1.0, f.clip_norm / np.linalg.norm(rows.features, axis=1))
    l1 = np.full(2 * d, h.weight if isinstance(h, L1) else 0.0)
    one = diags_array(np.ones(count))
    solution = linprog(
        np.concatenate([l1, weights, weights]),
        A_eq=hstack([rows.features, -rows.features, one, -one]).tocsc(),
        b_eq=rows.labels,
    )
    if not solution.success:
        raise SettingError(f"reference: the linear programme has no solution ({solution.message})")
    return solution.x[:d] - solution.x[d : 2 * d]  # type: ignore[no-any-return]


def _step(f: Model, h: Regulariser, rows: Batch, y: Array, step: float) -> tuple[Array, float]:
    """A proximal gradient step from y and its step size, halved until step ||grad f(x) - grad f(y)|| <= ||x - y||."""
    slope = f.grad(y, rows)
    while True:
        x = h.prox(y - step * slope, step)
        change, moved = np.linalg.norm(f.grad(x, rows) - slope), np.linalg.norm(x - y)
        if step * change <= moved or step < _SMALLEST_STEP:
            return x, step
        step /= 2.0


# --- quadratic functions


def lowest_quadratic(matrix: Array, gradient: Array) -> Array:
    """argmin_s <gradient, s> + s^T matrix s / 2, (d,), for a symmetric matrix (d, d) without negative eigenvalues.

    Of all minima it is the one without a component in the directions that have no curvature, where the matrix is scaled
    to a unit diagonal.
    """
    scale, values, vectors = spectrum(matrix)
    good = values > _EMPTY * max(values[-1], 0.0)
    root = vectors[:, good] / np.sqrt(values[good]) / scale[:, None]
    return -root @ (root.T @ gradient)  # type: ignore[no-any-return]


def lowest_composite(matrix: Array, gradient: Array, x: Array, h: Regulariser) -> Array:
    """argmin_v <gradient, v - x> + (v - x)^T matrix (v - x) / 2 + h(v), (d,), for a matrix as above.

    Where h is 0, or fixes entries at 0, in closed form. Else by accelerated proximal gradient steps with adaptive
    restart (O'Donoghue and Candes 2015), in the metric of the matrix's diagonal if h is a sum over entries. Such an h
    is piecewise quadratic here, and semismooth Newton steps end the search (Hintermueller, Ito and Kunisch 2002). An l1
    norm has several minima if columns are redundant, such as those of all categories: see `_vertex`.
    """
    h = h.inner if isinstance(h, OnPart) and isinstance(h.inner, Zero) else h
    free = list(h.entries) if isinstance(h, Support) else None
    if isinstance(h, Zero | Support):
        free = list(range(len(x))) if free is None else free
        start = np.array(h.prox(x, 1.0))
        slope = gradient + matrix @ (start - x)
        start[free] = start[free] + lowest_quadratic(matrix[np.ix_(free, free)], slope[free])
        return start
    v, inner = _Search(matrix, matrix @ x - gradient, h).run(x), h.inner if isinstance(h, OnPart) else h
    if not (isinstance(inner, L1) and inner.weight):
        return v
    part = h.filled(np.zeros(len(v)), np.ones(len(h.part(v)))) if isinstance(h, OnPart) else np.ones(len(v))
    return _vertex(matrix, v, part > 0)


def _vertex(matrix: Array, v: Array, penalised: Mask) -> Array:
    """From a minimum v (d,) with an l1 norm of the entries `penalised` (d,), one without redundant entries.

    As long as the entries that are not 0 have a direction in which neither the quadratic function nor the norm changes,
    v moves along it: the first entry that it changes becomes smaller, until one is 0. So of two categories beside a
    free intercept the first one ends at 0, as a reference.
    """
    v = v.copy()
    while True:
        free = np.flatnonzero((v != 0) | ~penalised)
        signs, x = np.where(penalised, np.sign(v), 0.0)[free], v[free]
        still, scale = _still(matrix[np.ix_(free, free)], signs)
        changed = np.flatnonzero((signs != 0) & (np.diag(still) > _SAME**0.5))
        if not len(changed):
            return v
        step = -signs[changed[0]] * still[:, changed[0]] / scale
        until = np.divide(-x, step, out=np.full_like(x, np.inf), where=signs * step < 0)
        v[free] += until.min() * step
        v[free[until.argmin()]] = 0.0


def _still(matrix: Array, signs: Array) -> tuple[Array, Array]:
    """The sum of b b^T (d, d) over an orthonormal basis b, where the diagonal of the matrix is scaled to 1, of the
    directions that are orthogonal to `signs` and without curvature; and the scale (d,). With sums in single precision a
    curvature that should be 0 is not: no direction is then without it."""
    scale, values, vectors = spectrum(matrix)
    flat = vectors[:, np.abs(values) <= _SAME * values[-1:]]
    slope = flat.T @ (signs / scale)
    length = np.linalg.norm(slope)
    if length > _SAME**0.5 * np.linalg.norm(signs / scale):
        flat = flat - np.outer(flat @ slope, slope / length**2)
    return flat @ flat.T, scale


def spectrum(matrix: Array) -> tuple[Array, Array, Array]:
    """The roots of the diagonal (d,), and the eigenvalues (d,), ascending, and eigenvectors (d, d) of the matrix that
    is scaled to a unit diagonal. An entry of the diagonal that is rounding beside the largest counts as 0, with root 1.
    """
    scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    empty = scale <= _TINY * scale.max(initial=0.0)
    scale[empty] = 1.0
    kept = np.where(empty[:, None] | empty, 0.0, matrix / np.outer(scale, scale))
    return scale, *np.linalg.eigh(kept)


class _Search:
    """The search for argmin_v v^T matrix v / 2 - <target, v> + h(v)."""

    def __init__(self, matrix: Array, target: Array, h: Regulariser) -> None:
        scale = np.sqrt(np.maximum(np.diag(matrix), 0.0))
        scale = np.where(scale > 1e-8 * scale.max(initial=1e-300), scale, max(scale.max(initial=0.0), 1e-300))
        scale = scale if isinstance(h, Separable) else np.ones_like(scale)
        steepest = float(np.linalg.eigvalsh(matrix / np.outer(scale, scale))[-1])
        self.matrix, self.target, self.h = matrix, target, h
        self.steps, self.sizes = 1.0 / (max(steepest, 1e-300) * scale**2), 1.0 / scale

    def run(self, x: Array) -> Array:
        """The minimum (d,), from x (d,)."""
        x = y = self._moved(x)
        momentum = 1.0
        for place in range(_MOST_CHANGES):
            following = self._moved(y)
            if place % _POLISHED_EVERY == 0:
                polished = self._polished(following)
                if self._miss(polished) <= _EXACT * float(np.abs(polished / self.sizes).max()):
                    return self._moved(polished)
            if (y - following) @ ((following - x) / self.steps) > 0:  # the momentum points uphill
                momentum = 1.0
            later = (1.0 + np.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            x, y, momentum = following, following + (momentum - 1.0) / later * (following - x), later
        return x

    def _inner(self, v: Array) -> Array:
        """What the prox of a step from v is taken of."""
        return v - self.steps * (self.matrix @ v - self.target)

    def _prox(self, u: Array) -> Array:
        separable = isinstance(self.h, Separable)
        return self.h.prox(u, self.steps if separable else float(self.steps[0]))  # type: ignore[arg-type]

    def _moved(self, v: Array) -> Array:
        """v after a proximal gradient step."""
        return self._prox(self._inner(v))

    def _miss(self, v: Array) -> float:
        """The largest change of a scaled entry by a proximal gradient step, 0 at the minimum."""
        return float(np.abs((self._moved(v) - v) / self.sizes).max())

    def _polished(self, v: Array) -> Array:
        """v after semismooth Newton steps on v = prox(...), as long as they come nearer to it; v itself for an h that
        is no sum over entries."""
        if not isinstance(self.h, Separable):
            return v
        miss = self._miss(v)
        for _ in range(20):
            better = self._newton(v)
            new = self._miss(better)
            if not new < miss:
                break
            v, miss = better, new
        return v

    def _newton(self, v: Array) -> Array:
        """The solution of the equation v = prox(...) with the prox replaced by its tangent at v."""
        u = self._inner(v)
        near, image = _KINK * self.sizes * np.abs(u / self.sizes).max(initial=1e-300), self._prox(u)
        bends = (self._prox(u + near) - image) / near
        free = np.flatnonzero(bends > 0)
        system = bends[free, None] * self.steps[free, None] * self.matrix[np.ix_(free, free)]
        system[np.diag_indices(len(free))] += 1.0 - bends[free]
        fixed = np.where(bends > 0, 0.0, image)
        right = image[free] - bends[free] * (u[free] - self.steps[free] * self.target[free])
        right -= bends[free] * self.steps[free] * (self.matrix[free] @ fixed)
        found = fixed.copy()
        found[free] = np.linalg.lstsq(system, right, rcond=None)[0]
        return self._moved(found)
