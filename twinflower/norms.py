"""Euclidean norms that are safe from underflow and overflow, and as fast as the plain formula where neither occurs.

If the squared norm underflows to 0 or overflows to infinity, the computed norm may be wrong by any factor, and clipping
based on it guarantees no bound. Such vectors are first scaled by a power of two, which is exact; for all others the
result is bit for bit that of the plain formula.
"""

import math
from functools import reduce
from typing import Any

import numpy as np

from .arrays import DOUBLE, SINGLE, Array, Mask

# range of reliable squared norms
_SURE = {DOUBLE: (2.0**-500, 2.0**500), SINGLE: (2.0**-60, 2.0**60)}
_EPS = {DOUBLE: 2.0**-52, SINGLE: 2.0**-23}
_LONGEST = {DOUBLE: 2.0**900, SINGLE: 2.0**100}  # the norm of a longer gradient counts as infinite
_STEEPEST = {DOUBLE: 2.0**1000, SINGLE: 2.0**120}  # 1 / a factor that is not subnormal, with all its digits


def clippable(bound: float, dtype: np.dtype[Any]) -> float:
    """The largest norm of a gradient that can be clipped to `bound` > 0 in this precision, or be used at all (0).

    For a longer one the factor bound / norm may be subnormal, and so imprecise that the clipped gradient is longer than
    the bound.
    """
    return min(_LONGEST[dtype], bound * _STEEPEST[dtype]) if bound else _LONGEST[dtype]


def squared_norms(vectors: Array) -> Array:
    """||vector||^2 (...,) along the last axis of (..., n)."""
    return vectors[..., 0] * vectors[..., 0] if vectors.shape[-1] == 1 else np.vecdot(vectors, vectors)


def norms(vectors: Array) -> Array:
    """||vector|| (...,) along the last axis of (..., n)."""
    return corrected(np.sqrt(squared_norms(vectors)), vectors)


def corrected(lengths: Array, vectors: Array) -> Array:
    """The norms `lengths` (...,) of vectors (..., n), recomputed with scaling where their squares are unreliable."""
    squares = lengths * lengths
    if not squares.size or _sure(squares):
        return lengths
    doubtful, lengths = _doubtful(squares), np.array(lengths)
    lengths[doubtful] = _scaled_norms(vectors[doubtful])
    return lengths


def outer_norms(*layers: tuple[Array, Array], bound: float = 0.0) -> Array:
    """Norms (..., b) of the rows' gradients, sqrt(sum over layers of ||slope||^2 ||input||^2).

    A row's gradient in each layer is the outer product of its slope and its input. A layer is given by its slopes
    (..., b, o) and the norms (..., b) of its inputs. Norms above `clippable(bound)`, and NaN, are returned as infinity.
    If only norms above `bound` > 0 matter, as for clipping, norms far below it may be returned as any number that is
    also far below.
    """
    factors = [(_slope_norms(slopes, inputs, bound), inputs) for slopes, inputs in layers]
    lengths: Array = reduce(np.hypot, (slope * length for slope, length in factors))
    longest = clippable(bound, lengths.dtype)
    if np.maximum.reduce(lengths, axis=None) <= longest:
        return lengths
    # a zero slope times an infinite norm is a zero gradient; any other NaN bounds nothing
    lengths = reduce(np.hypot, (np.where(slope == 0, 0.0, slope * length) for slope, length in factors))
    return np.where(lengths <= longest, lengths, np.inf)


def _slope_norms(slopes: Array, inputs: Array, bound: float) -> Array:
    """The norms (..., b) of slopes (..., b, o), exact unless the product with the norm of the input is negligible."""
    if slopes.shape[-1] == 1:
        return np.abs(slopes[..., 0])
    squares = squared_norms(slopes)
    (low, high), eps = _SURE[squares.dtype], _EPS[squares.dtype]
    lengths = np.sqrt(squares)
    if np.maximum.reduce(squares, axis=None) < high and math.sqrt(low) * inputs.max() <= eps * bound:
        return lengths
    return corrected(lengths, slopes)


def _sure(squares: Array) -> bool:
    """Whether all squared norms are in the reliable range; False if one is NaN."""
    low, high = _SURE[squares.dtype]
    return bool(low < np.minimum.reduce(squares, axis=None) and np.maximum.reduce(squares, axis=None) < high)


def _doubtful(squares: Array) -> Mask:
    low, high = _SURE[squares.dtype]
    return ~((low < squares) & (squares < high))


def _scaled_norms(vectors: Array) -> Array:
    """Norms (k,) of vectors (k, n), computed without underflow or overflow: each vector is scaled by a power of two
    until its largest entry is between 1/2 and 1, and its norm is scaled back."""
    _, powers = np.frexp(np.abs(vectors).max(-1, initial=0.0))
    return np.ldexp(np.linalg.norm(np.ldexp(vectors, -powers[:, None]), axis=-1), powers)


def clipping(bound: float, lengths: Array) -> Array:
    """Factors (..., 1) that clip gradients with norms `lengths` (...) to `bound`, for rows or for batches.

    An infinite norm gives 0, and NaN, the norm of a batch that is not finite, gives 1; for rows see `forget`.
    """
    return (bound / np.fmax(lengths, bound))[..., None]  # fmax ignores NaN


def forget(lengths: Array, *parts: Array) -> None:
    """Set the parts (..., b, n) of clipped rows' gradients to 0 in place where the norms `lengths` (..., b) are not
    finite.

    Such a row raises no error, because an error would reveal information about the row.
    """
    if not math.isfinite(np.maximum.reduce(lengths, axis=None)):  # NaN, if there is one
        gone = ~np.isfinite(lengths)
        for part in parts:
            part[gone] = 0.0
