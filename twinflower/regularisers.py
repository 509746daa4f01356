"""The non-smooth part h of every problem: value and proximal map.

    prox(u, step) = argmin_v  h(v) + ||v - u||^2 / (2 step)

Points are flat, (..., d); leading axes are independent problems. Indicators have value 0 inside and
infinity outside their set, and their prox is the projection.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from .arrays import Array
from .errors import require

_ROUNDING = 1e-9  # a projected point may miss its set by this share of its size


class Regulariser(Protocol):
    """h of the problem; convex, possibly infinite."""

    def value(self, x: Array) -> Array:
        """h(x), (...,)."""

    def prox(self, u: Array, step: float) -> Array:
        """argmin_v h(v) + ||v - u||^2 / (2 step), (..., d); step > 0."""


@runtime_checkable
class Subdifferentiable(Protocol):
    """A regulariser that is finite everywhere, so that it has subgradients."""

    def subgradient(self, x: Array) -> Array:
        """A subgradient (..., d), 0 for entries (or groups) at 0."""


def soft_threshold(u: Array, threshold: float | Array) -> Array:
    """Shrink every entry towards 0 by the threshold."""
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0.0)


@dataclass(frozen=True)
class Zero:
    """h = 0."""

    def value(self, x: Array) -> Array:
        """0."""
        return np.zeros(x.shape[:-1])

    def prox(self, u: Array, step: float) -> Array:
        """u."""
        return u

    def subgradient(self, x: Array) -> Array:
        """0."""
        return np.zeros_like(x)


ZERO = Zero()


@dataclass(frozen=True)
class L1:
    """h(x) = weight * sum |x|."""

    weight: float

    def value(self, x: Array) -> Array:
        """weight * ||x||_1."""
        return self.weight * np.abs(x).sum(-1)

    def prox(self, u: Array, step: float) -> Array:
        """Soft threshold at step * weight."""
        return soft_threshold(u, step * self.weight)

    def subgradient(self, x: Array) -> Array:
        """weight * sign(x), 0 at 0."""
        return self.weight * np.sign(x)


@dataclass(frozen=True)
class Box:
    """Indicator of lower <= x <= upper; bounds are numbers or (d,)."""

    lower: float | Array
    upper: float | Array

    def value(self, x: Array) -> Array:
        """0 inside, infinity outside."""
        below = self.lower - _ROUNDING * np.abs(self.lower)
        above = self.upper + _ROUNDING * np.abs(self.upper)
        inside = (x >= below) & (x <= above)
        return np.where(inside.all(-1), 0.0, np.inf)

    def prox(self, u: Array, step: float) -> Array:
        """Nearest point of the box."""
        return np.clip(u, self.lower, self.upper)


@dataclass(frozen=True)
class WeightedL1Box:
    """h(x) = sum weights |x| over the box lower <= x <= upper (Zhang 2023, section 5); weights number or (d,).

    In one dimension the minimiser over an interval is the clipped free minimiser, hence
    clip(soft_threshold).
    """

    weights: float | Array
    lower: float | Array
    upper: float | Array

    def value(self, x: Array) -> Array:
        """sum weights |x|, infinite outside the box."""
        return (self.weights * np.abs(x)).sum(-1) + Box(self.lower, self.upper).value(x)

    def prox(self, u: Array, step: float) -> Array:
        """Soft threshold, then clip."""
        return np.clip(soft_threshold(u, step * self.weights), self.lower, self.upper)


@dataclass(frozen=True)
class ElasticNet:
    """h(x) = l1 * sum |x| + l2/2 * sum x^2."""

    l1: float
    l2: float

    def value(self, x: Array) -> Array:
        """l1 ||x||_1 + l2/2 ||x||^2."""
        return self.l1 * np.abs(x).sum(-1) + 0.5 * self.l2 * (x * x).sum(-1)

    def prox(self, u: Array, step: float) -> Array:
        """Soft threshold, then shrink by 1 + step * l2."""
        return soft_threshold(u, step * self.l1) / (1.0 + step * self.l2)

    def subgradient(self, x: Array) -> Array:
        """l1 sign(x) + l2 x."""
        return self.l1 * np.sign(x) + self.l2 * x


@dataclass(frozen=True)
class GroupL1:
    """h(X) = weight * sum over columns of ||X[:, j]||_2 for a point seen as a matrix of `rows` rows.

    A column holds what one feature does for all classes, so whole features are switched off.
    """

    weight: float
    rows: int

    def value(self, x: Array) -> Array:
        """weight * sum of column norms."""
        return self.weight * self._norms(x).sum((-2, -1))

    def prox(self, u: Array, step: float) -> Array:
        """Every column shrunk towards 0 by step * weight."""
        norms = self._norms(u)
        shrink = 1.0 - step * self.weight / np.maximum(norms, step * self.weight)
        return (self._matrix(u) * shrink).reshape(u.shape) if self.weight else u

    def subgradient(self, x: Array) -> Array:
        """weight * column / norm of column, 0 for a column of zeros."""
        norms = self._norms(x)
        return (self._matrix(x) * (self.weight / np.where(norms > 0, norms, np.inf))).reshape(x.shape)

    def _matrix(self, x: Array) -> Array:
        return x.reshape(x.shape[:-1] + (self.rows, -1))

    def _norms(self, x: Array) -> Array:
        return np.sqrt((self._matrix(x) ** 2).sum(-2, keepdims=True))


@dataclass(frozen=True)
class Ball:
    """Indicator of ||x|| <= radius."""

    radius: float

    def value(self, x: Array) -> Array:
        """0 inside, infinity outside."""
        inside = np.sqrt((x * x).sum(-1)) <= self.radius * (1.0 + _ROUNDING)
        return np.where(inside, 0.0, np.inf)

    def prox(self, u: Array, step: float) -> Array:
        """Nearest point of the ball."""
        largest = np.maximum(np.abs(u).max(-1, keepdims=True), np.finfo(float).tiny)  # squares may overflow
        norm = largest * np.sqrt(((u / largest) ** 2).sum(-1, keepdims=True))
        return u * (self.radius / np.maximum(norm, self.radius))


Span = tuple[int, int]  # first entry of a part of a point, and the one after its last


@dataclass(frozen=True)
class OnPart:
    """h of some entries of a point; the others are free. spans, ascending, say which."""

    inner: Regulariser
    spans: tuple[Span, ...]

    def value(self, x: Array) -> Array:
        """h of the part."""
        return self.inner.value(self.part(x))

    def prox(self, u: Array, step: float) -> Array:
        """prox of the part; u elsewhere."""
        return self.filled(u.copy(), self.inner.prox(self.part(u), step))

    def part(self, x: Array) -> Array:
        """The entries (..., n) that h sees."""
        return np.concatenate([x[..., first:end] for first, end in self.spans], axis=-1)

    def filled(self, x: Array, part: Array) -> Array:
        """x with these entries in place of its own, which are overwritten."""
        cuts = np.cumsum([end - first for first, end in self.spans])[:-1]
        for (first, end), entries in zip(self.spans, np.split(part, cuts, axis=-1), strict=True):
            x[..., first:end] = entries
        return x


@dataclass(frozen=True)
class FiniteOnPart(OnPart):
    """The same for a regulariser with subgradients."""

    inner: Subdifferentiable  # type: ignore[assignment]

    def subgradient(self, x: Array) -> Array:
        """That of the part; 0 elsewhere."""
        return self.filled(np.zeros_like(x), self.inner.subgradient(self.part(x)))


def on_part(regulariser: Regulariser, spans: Iterable[Span]) -> OnPart:
    """The regulariser of the entries in these spans alone."""
    places = tuple(spans)
    if isinstance(regulariser, Subdifferentiable):
        return FiniteOnPart(regulariser, places)
    return OnPart(regulariser, places)


_MAKERS: dict[str, Callable[[float, float, float, float, int], Regulariser]] = {
    "none": lambda l1, l2, bound, radius, rows: Zero(),
    "l1": lambda l1, l2, bound, radius, rows: L1(l1),
    "l1-box": lambda l1, l2, bound, radius, rows: WeightedL1Box(l1, -bound, bound),
    "elastic-net": lambda l1, l2, bound, radius, rows: ElasticNet(l1, l2),
    "group-l1": lambda l1, l2, bound, radius, rows: GroupL1(l1, rows),
    "box": lambda l1, l2, bound, radius, rows: Box(-bound, bound),
    "ball": lambda l1, l2, bound, radius, rows: Ball(radius),
}
REGULARISERS = tuple(_MAKERS)


def make_regulariser(
    name: str, l1: float = 0.0, l2: float = 0.0, bound: float = 1.0, radius: float = 1.0, rows: int = 1
) -> Regulariser:
    """The regulariser called `name` (one of REGULARISERS).

    l1, l2 >= 0 are weights, bound > 0 gives the box [-bound, bound], radius > 0 the ball, rows the
    number of matrix rows for group-l1. Raises SettingError for an unknown name or a bad number.
    """
    require(name in _MAKERS, f"regulariser must be one of {', '.join(_MAKERS)}; got '{name}'")
    for key, number in (("l1", l1), ("l2", l2)):
        require(np.isfinite(number) and number >= 0, f"regulariser-{key} must be at least 0; got {number}")
    for key, number in (("bound", bound), ("radius", radius)):
        require(0 < number < np.inf, f"regulariser-{key} must be finite and above 0; got {number}")
    return _MAKERS[name](l1, l2, bound, radius, rows)
