"""The multipliers of constrained SSCA: Problem 5 of Ye 2021 with (19), solved to rounding.

    minimise  ||x||^2 + c sum s     subject to     <S_m, x> + k ||x||^2 + A_m <= s_m,   s >= 0,   m = 1..M

For multipliers nu (M,) the Lagrangian is lowest at x = -S'nu / (2 w), w = 1 + k sum nu, so that the dual

    D(nu) = <A, nu> - nu'G nu / (4 w)     over [0, c]^M,     G = S S'

needs the Gram matrix of the slopes only. D is concave, and with p = G nu its derivatives are

    slope_m = A_m - p_m / (2 w) + k nu'p / (4 w^2)              the excess over bound m at that x
    -hessian = B'G B / (2 w),   B = I - (k / w) nu 1'           semidefinite, singular where G is

For one bound, nu has the closed form (23). For several bounds, nu is found by an active-set method. Each Newton step
moves the free multipliers to the exact maximum along its line, or to the first limit (0 or c) that a multiplier
reaches, which then becomes active. Once all free slopes are 0, the active limit with the largest slope pointing away
from it is released. Every step increases D, so no active set occurs twice. A slope or a curvature counts as 0 if it is
below the rounding error of its own terms, independent of their scale.
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Array, Mask
from ..errors import RunError

_ROUNDING = 32 * np.finfo(float).eps
_STEPS = 100  # per bound


def multipliers(slopes: Array, constants: Array, curvature: Array, penalty: Array) -> Array:
    """nu (..., M) for slopes S (..., M, d), constants A (..., M), curvature k and penalty c (...,), both above 0.

    Raises RunError if they are not found to rounding accuracy.
    """
    gram = slopes @ slopes.swapaxes(-1, -2)
    if slopes.shape[-2] == 1:
        return _one(gram[..., 0, 0], constants[..., 0], curvature, penalty)[..., None]
    lead = constants.shape[:-1]
    cases = zip(
        gram.reshape(-1, *gram.shape[-2:]), constants.reshape(-1, constants.shape[-1]), curvature.flat, penalty.flat,
        strict=True,
    )
    return np.array([_many(*case) for case in cases]).reshape(*lead, -1)


def _one(b: Array, a: Array, curvature: Array, penalty: Array) -> Array:
    """(23), rewritten without the difference of nearly equal numbers; c if the quadratic is positive even at its
    minimum."""
    room = b - 4 * curvature * a
    root = np.sqrt(np.where(room > 0, room, 1.0))
    return np.where(room > 0, np.clip(4 * a / (root * (np.sqrt(b) + root)), 0, penalty), penalty)


class _Dual(NamedTuple):
    """The dual function D: Gram matrix G (M, M), constants A (M,), curvature k and penalty c."""

    gram: Array
    constants: Array
    curvature: float
    penalty: float

    def slope(self, nu: Array) -> Array:
        """The gradient of D (M,), with entries set to 0 if they could be rounding errors."""
        width = 1 + self.curvature * nu.sum()
        pulled, size = self.gram @ nu / (2 * width), abs(self.gram) @ nu / (2 * width)
        share = self.curvature * nu / (2 * width)
        slope = self.constants - pulled + share @ pulled
        size = abs(self.constants) + size + share @ size
        return np.where(abs(slope) > _ROUNDING * size, slope, 0.0)

    def newton(self, nu: Array, slope: Array, free: Mask) -> Array:
        """A direction of ascent (M,) in the free multipliers; it is very long where D has no curvature."""
        width = 1 + self.curvature * nu.sum()
        turned = np.eye(len(nu)) - self.curvature / width * nu[:, None]
        hessian = (turned.T @ self.gram @ turned)[np.ix_(free, free)] / (2 * width)
        unit = 1 / np.sqrt(np.where(hessian.diagonal() > 0, hessian.diagonal(), 1.0))
        values, vectors = np.linalg.eigh(unit[:, None] * hessian * unit)
        step = np.zeros_like(nu)
        step[free] = unit * (vectors @ (vectors.T @ (unit * slope[free]) / np.maximum(values, _ROUNDING)))
        return step

    def along(self, nu: Array, step: Array, slope: Array) -> float:
        """The t >= 0 that maximises D(nu + t step), or infinity if D increases without limit.

        With r = k sum step / w and h the curvature at t = 0, the slope at t is <slope, step> - h t (2 + r t) / (2 (1 +
        r t)^2). Its zero is the analogue of (23) on that line.
        """
        width = 1 + self.curvature * nu.sum()
        r = self.curvature * step.sum() / width
        turned = step - r * nu
        h = turned @ self.gram @ turned / (2 * width)
        if h <= _ROUNDING * (abs(turned) @ abs(self.gram) @ abs(turned)) / (2 * width):
            return np.inf
        newton = slope @ step / h
        room = 1 - 2 * r * newton
        return float(2 * newton / (np.sqrt(room) * (1 + np.sqrt(room)))) if room > 0 else np.inf


def _many(gram: Array, constants: Array, curvature: float, penalty: float) -> Array:
    """nu (M,) by the active-set method; c for every multiplier if the inputs are not finite, because the run has
    diverged."""
    if not np.isfinite(gram.sum() + constants.sum()):
        return np.full_like(constants, penalty)
    dual = _Dual(gram, constants, curvature, penalty)
    nu, free = np.zeros_like(constants), np.zeros(len(constants), dtype=bool)
    for _ in range(_STEPS * len(nu)):
        slope = dual.slope(nu)
        if not slope[free].any():
            pull = np.where(free, 0.0, np.where(nu > 0, -slope, slope))
            if pull.max() <= 0:
                return nu
            free[pull.argmax()] = True
        nu, free = _move(dual, nu, np.where(free, slope, 0.0), free)
    raise RunError(f"the multipliers of {len(nu)} bounds were not found: largest slope left {abs(slope).max():.3g}")


def _move(dual: _Dual, nu: Array, slope: Array, free: Mask) -> tuple[Array, Mask]:
    """Take one Newton step. A multiplier that reaches a limit is fixed there and no longer free."""
    step = dual.newton(nu, slope, free)
    with np.errstate(divide="ignore", invalid="ignore"):
        step_to_bound = np.where(step, np.where(step > 0, dual.penalty - nu, nu) / abs(step), np.inf)
    first, t = step_to_bound.argmin(), dual.along(nu, step, slope)
    moved = np.clip(nu + min(t, step_to_bound[first]) * step, 0, dual.penalty)
    if t >= step_to_bound[first]:
        moved[first] = dual.penalty if step[first] > 0 else 0.0
        free = free & (np.arange(len(nu)) != first)
    return moved, free
