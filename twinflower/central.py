"""The optimum of all rows together, to compare federated methods with."""

import numpy as np

from .arrays import Array
from .errors import require
from .objectives import Batch, Model
from .regularisers import Regulariser

_MOST_STEPS = 100_000
_SMALLEST_STEP = 1e-12


def minimise(f: Model, h: Regulariser, rows: Batch, start: Array, tolerance: float = 1e-12) -> Array:
    """argmin f(x; rows) + h(x) from start (d,), by accelerated proximal gradient steps with adaptive restart.

    Only gradients of f are used, so that a clipped loss gives the point where its clipped gradients balance. It
    ends where a step moves x by less than tolerance * max(1, ||x||) * step. Raises SettingError for an objective that
    is not convex, and where 100,000 steps are not enough.
    (O'Donoghue and Candes, Adaptive restart for accelerated gradient schemes, 2015.)
    """
    require(f.convex, "reference needs a convex objective: this one has no optimum that descent surely finds")
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
    require(
        False,
        f"reference: no optimum to {tolerance:g} within {_MOST_STEPS:,} steps: give the objective some l2",
    )
    return x


def _step(f: Model, h: Regulariser, rows: Batch, y: Array, step: float) -> tuple[Array, float]:
    """A proximal gradient step from y, shortened until the gradient is Lipschitz along it; and its length."""
    slope = f.grad(y, rows)
    while True:
        x = h.prox(y - step * slope, step)
        change, moved = np.linalg.norm(f.grad(x, rows) - slope), np.linalg.norm(x - y)
        if step * change <= moved or step < _SMALLEST_STEP:
            return x, step
        step /= 2.0
