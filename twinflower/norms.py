"""Euclidean norms of vectors of any size, as fast as plain ones where no square under- or overflows.

A norm whose square came out as 0 or infinite is wrong by any factor, and clipping that rests on it bounds nothing. Such
vectors are scaled by a power of two first, which changes no digit; all others keep their plain norms, to the bit.
"""

from functools import reduce

import numpy as np

from .arrays import Array, Mask

# squared norms to be trusted; products of two, and their sums, stay far inside the range of floats
_SURE = 2.0**-500, 2.0**500
_LONGEST = 2.0**900  # a factor that clips what is longer may have lost digits


def squared_norms(vectors: Array) -> Array:
    """||vector||^2 along the last axis."""
    return vectors[..., 0] * vectors[..., 0] if vectors.shape[-1] == 1 else np.vecdot(vectors, vectors)


def norms(vectors: Array) -> Array:
    """||vector|| (...,) along the last axis of (..., n)."""
    return corrected(np.sqrt(squared_norms(vectors)), vectors)


def corrected(lengths: Array, vectors: Array) -> Array:
    """Plain norms (...,) of vectors (..., n), computed anew where their squares are not to be trusted."""
    squares = lengths * lengths
    if _sure(squares):
        return lengths
    doubtful, lengths = _doubtful(squares), np.array(lengths)
    lengths[doubtful] = _scaled_norms(vectors[doubtful])
    return lengths


def outer_norms(*layers: tuple[Array, Array, Array | None]) -> Array:
    """sqrt(sum ||slope||^2 ||input||^2) (..., b): norms of rows' gradients whose layers are outer products.

    A layer is its slopes (..., b, o), its inputs (..., b, n), and the inputs' squared norms (..., b) if they are known.
    Infinite above `_LONGEST`.
    """
    factors = [
        (s, i, squared_norms(s), squared_norms(i) if known is None else known) for s, i, known in layers
    ]
    plain: Array = np.sqrt(reduce(np.add, (a * b for *_, a, b in factors)))
    squares = [square for *_, a, b in factors for square in (a, b)]
    if all(map(_sure, squares)):
        return plain
    exact = reduce(np.hypot, (corrected(np.sqrt(a), s) * corrected(np.sqrt(b), i) for s, i, a, b in factors))
    exact = np.where(exact > _LONGEST, np.inf, exact)
    return np.where(reduce(np.logical_or, map(_doubtful, squares)), exact, plain)


def _sure(squares: Array) -> bool:
    """Whether these squared norms are all to be trusted; NaN is not."""
    least, most = np.minimum.reduce(squares, axis=None), np.maximum.reduce(squares, axis=None)
    return bool(_SURE[0] < least and most < _SURE[1])


def _doubtful(squares: Array) -> Mask:
    return ~((_SURE[0] < squares) & (squares < _SURE[1]))


def _scaled_norms(vectors: Array) -> Array:
    """Norms (k,) of vectors (k, n), each scaled until its largest entry is between 1/2 and 1."""
    _, powers = np.frexp(np.abs(vectors).max(-1, initial=0.0))
    return np.ldexp(np.linalg.norm(np.ldexp(vectors, -powers[:, None]), axis=-1), powers)
