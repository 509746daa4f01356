"""The centralised optimum over all clients' rows, as the reference for federated methods."""

from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import SettingError, require
from .interfaces import Batch, Model
from .losses import Absolute
from .objectives import LinearModel
from .regularisers import L1, Regulariser, Zero

_MOST_STEPS = 100_000
_SMALLEST_STEP = 1e-12


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
