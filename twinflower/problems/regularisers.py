"""The non-smooth part h of every problem: value and proximal map.

    prox(u, step) = argmin_v  h(v) + ||v - u||^2 / (2 step)

Points are flat, (..., d); leading axes are independent problems. An indicator is 0 inside its set and
infinity outside; its prox is the projection onto the set.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..arrays import Array
from .interfaces import Part


def _rounding(x: Array) -> float:
    """Relative tolerance: a projected point may lie outside its set by rounding."""
    return 1e-5 if x.dtype == np.float32 else 1e-9


class Regulariser(Protocol):
    """The convex term h of the problem, with values in (-inf, inf]."""

    def value(self, x: Array) -> Array:
        """h(x), (...,)."""

    def prox(self, u: Array, step: float) -> Array:
        """argmin_v h(v) + ||v - u||^2 / (2 step), (..., d); step >= 0, where 0 is the limit: u, or its projection."""


@runtime_checkable
class Subdifferentiable(Protocol):
    """A regulariser that is finite everywhere, so that it has subgradients."""

    def subgradient(self, x: Array) -> Array:
        """A subgradient of h at x, (..., d); it is 0 for entries (or groups) of x that are 0."""

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """(a, b) such that every subgradient at x (d,) is D x plus a vector of norm at most a, where D is diagonal with
        entries in [0, b]."""


class Separable(ABC):
    """A regulariser that is a sum over the entries of x, so that every entry may have its own step."""

    @abstractmethod
    def value(self, x: Array) -> Array:
        """See `Regulariser`."""

    @abstractmethod
    def prox(self, u: Array, step: float | Array) -> Array:
        """See `Regulariser`; step is a number, or one for each entry, (..., d)."""


def prox_each(h: Regulariser, u: Array, step: Array) -> Array:
    """h.prox of points u (..., d) with steps (...,) that are broadcast to the points; equal steps take one call."""
    first = step.flat[0]
    if (step == first).all():
        return h.prox(u, float(first))
    return np.stack([prox_each(h, v, s) for v, s in zip(u, step, strict=True)])


def soft_threshold(u: Array, threshold: float | Array) -> Array:
    """sign(u) max(|u| - threshold, 0) for every entry of u (..., d)."""
    return np.sign(u) * np.maximum(np.abs(u) - threshold, 0.0)


@dataclass(frozen=True)
class Zero(Separable):
    """h = 0."""

    def value(self, x: Array) -> Array:
        """0 for every point, (...,)."""
        return np.zeros(x.shape[:-1])

    def prox(self, u: Array, step: float | Array) -> Array:
        """u itself."""
        return u

    def subgradient(self, x: Array) -> Array:
        """The zero vector, (..., d)."""
        return np.zeros(x.shape, x.dtype)

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """See `Subdifferentiable`."""
        return 0.0, 0.0


ZERO = Zero()


@dataclass(frozen=True)
class L1(Separable):
    """h(x) = weight * sum |x|."""

    weight: float

    def value(self, x: Array) -> Array:
        """weight * ||x||_1."""
        return self.weight * np.abs(x).sum(-1)

    def prox(self, u: Array, step: float | Array) -> Array:
        """Soft threshold at step * weight."""
        return soft_threshold(u, step * self.weight)

    def subgradient(self, x: Array) -> Array:
        """weight * sign(x), 0 at 0."""
        return self.weight * np.sign(x)

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """See `Subdifferentiable`."""
        return self.weight * math.sqrt(d), 0.0


@dataclass(frozen=True)
class Box(Separable):
    """Indicator of the box lower <= x <= upper; each bound is a number or an array (d,)."""

    lower: float | Array
    upper: float | Array

    def value(self, x: Array) -> Array:
        """0 inside the box, up to rounding, and infinity outside."""
        rounding = _rounding(x)
        below = self.lower - rounding * np.abs(self.lower)
        above = self.upper + rounding * np.abs(self.upper)
        inside = (x >= below) & (x <= above)
        return np.where(inside.all(-1), 0.0, np.inf)

    def prox(self, u: Array, step: float | Array) -> Array:
        """The projection of u onto the box."""
        return np.clip(u, self.lower, self.upper)


@dataclass(frozen=True)
class WeightedL1Box(Separable):
    """h(x) = sum weights |x| on the box lower <= x <= upper, infinite outside (Zhang 2023, section 5).

    weights, lower and upper are numbers or arrays (d,). In one dimension, a convex function's minimiser over an
    interval is its unconstrained minimiser clipped to the interval; hence prox = clip(soft_threshold).
    """

    weights: float | Array
    lower: float | Array
    upper: float | Array

    def value(self, x: Array) -> Array:
        """sum weights |x| inside the box, infinity outside."""
        return (self.weights * np.abs(x)).sum(-1) + Box(self.lower, self.upper).value(x)

    def prox(self, u: Array, step: float | Array) -> Array:
        """Soft threshold at step * weights, then clip to the box."""
        return np.clip(soft_threshold(u, step * self.weights), self.lower, self.upper)


@dataclass(frozen=True)
class ElasticNet(Separable):
    """h(x) = l1 * sum |x| + l2/2 * sum x^2."""

    l1: float
    l2: float

    def value(self, x: Array) -> Array:
        """l1 ||x||_1 + l2/2 ||x||^2."""
        return self.l1 * np.abs(x).sum(-1) + 0.5 * self.l2 * (x * x).sum(-1)

    def prox(self, u: Array, step: float | Array) -> Array:
        """Soft threshold, then shrink by 1 + step * l2."""
        return soft_threshold(u, step * self.l1) / (1.0 + step * self.l2)

    def subgradient(self, x: Array) -> Array:
        """l1 sign(x) + l2 x."""
        return self.l1 * np.sign(x) + self.l2 * x

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """See `Subdifferentiable`."""
        return self.l1 * math.sqrt(d), self.l2


@dataclass(frozen=True)
class GroupL1:
    """h(X) = weight * sum_j ||X[:, j]||_2, with the point reshaped to a matrix X of `rows` rows.

    A column holds one feature's weights for all classes, so h removes whole features from the model.
    """

    weight: float
    rows: int

    def value(self, x: Array) -> Array:
        """weight * sum of the column norms, (...,)."""
        return self.weight * self._norms(x).sum((-2, -1))

    def prox(self, u: Array, step: float) -> Array:
        """Every column scaled so that its norm decreases by step * weight, but not below 0."""
        norms, cut = self._norms(u), step * self.weight
        kept = norms > cut
        shrink = np.where(kept, 1.0 - cut / np.where(kept, norms, 1.0), 0.0)
        return (self._matrix(u) * shrink).reshape(u.shape)

    def subgradient(self, x: Array) -> Array:
        """weight * column / ||column|| for every column, 0 for a column of zeros."""
        norms = self._norms(x)
        return (self._matrix(x) * (self.weight / np.where(norms > 0, norms, np.inf))).reshape(x.shape)

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """See `Subdifferentiable`."""
        return self.weight * math.sqrt(d / self.rows), 0.0

    def _matrix(self, x: Array) -> Array:
        return x.reshape(x.shape[:-1] + (self.rows, -1))

    def _norms(self, x: Array) -> Array:
        return np.sqrt((self._matrix(x) ** 2).sum(-2, keepdims=True))


@dataclass(frozen=True)
class Ball:
    """Indicator of the Euclidean ball ||x|| <= radius."""

    radius: float

    def value(self, x: Array) -> Array:
        """0 inside the ball, up to rounding, and infinity outside."""
        inside = np.sqrt((x * x).sum(-1)) <= self.radius * (1.0 + _rounding(x))
        return np.where(inside, 0.0, np.inf)

    def prox(self, u: Array, step: float) -> Array:
        """The projection of u onto the ball."""
        largest = np.maximum(np.abs(u).max(-1, keepdims=True), np.finfo(u.dtype).tiny)  # squares may overflow
        norm = largest * np.sqrt(((u / largest) ** 2).sum(-1, keepdims=True))
        return u * (self.radius / np.maximum(norm, self.radius))


@dataclass(frozen=True)
class Support(Separable):
    """Indicator of the points whose entries are 0 but for those in `entries`."""

    entries: tuple[int, ...]

    def value(self, x: Array) -> Array:
        """0 if all other entries are 0, and infinity otherwise."""
        return np.where((x == self.prox(x)).all(-1), 0.0, np.inf)

    def prox(self, u: Array, step: float | Array = 1.0) -> Array:
        """The projection of u: its entries, with all others set to 0."""
        point, kept = np.zeros_like(u), list(self.entries)
        point[..., kept] = u[..., kept]
        return point


Span = tuple[int, int]  # (first, end) of a part of a point, end exclusive


@dataclass(frozen=True)
class OnPart:
    """The regulariser `inner` applied to the entries of a point in `spans` (ascending); the others are unpenalised."""

    inner: Regulariser
    spans: tuple[Span, ...]

    def value(self, x: Array) -> Array:
        """inner.value of the entries in `spans`."""
        return self.inner.value(self.part(x))

    def prox(self, u: Array, step: Any) -> Array:
        """inner.prox of the entries in `spans`; all other entries equal those of u. step: a number, or, if inner is
        `Separable`, one for each entry of u."""
        steps: Any = self.part(np.broadcast_to(step, u.shape)) if np.ndim(step) else step
        return self.filled(u.copy(), self.inner.prox(self.part(u), steps))

    def part(self, x: Array) -> Array:
        """The entries of x in `spans`, (..., n)."""
        return np.concatenate([x[..., first:end] for first, end in self.spans], axis=-1)

    def filled(self, x: Array, part: Array) -> Array:
        """Write `part` (..., n) into the entries of x in `spans`, in place, and return x."""
        cuts = np.cumsum([end - first for first, end in self.spans])[:-1]
        for (first, end), entries in zip(self.spans, np.split(part, cuts, axis=-1), strict=True):
            x[..., first:end] = entries
        return x


@dataclass(frozen=True)
class FiniteOnPart(OnPart):
    """`OnPart` for a regulariser with subgradients."""

    inner: Subdifferentiable  # type: ignore[assignment]

    def subgradient(self, x: Array) -> Array:
        """A subgradient of `inner` in the entries in `spans`; 0 in all others."""
        return self.filled(np.zeros_like(x), self.inner.subgradient(self.part(x)))

    def subgradient_bound(self, d: int) -> tuple[float, float]:
        """See `Subdifferentiable`."""
        return self.inner.subgradient_bound(sum(end - first for first, end in self.spans))


@dataclass(frozen=True)
class SeparableOnPart(FiniteOnPart, Separable):  # type: ignore[misc]
    """`FiniteOnPart` for a regulariser that is a sum over entries, and so is one itself."""


def on_part(regulariser: Regulariser, parts: Iterable[Part]) -> OnPart:
    """The regulariser applied only to these parameters of a model (`NamedModel.parts`)."""
    spans = tuple(part.span for part in parts)
    if isinstance(regulariser, Subdifferentiable):
        kind = SeparableOnPart if isinstance(regulariser, Separable) else FiniteOnPart
        return kind(regulariser, spans)
    return OnPart(regulariser, spans)
