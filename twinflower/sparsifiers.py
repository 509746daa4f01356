"""Sparsifiers of messages: top-k by magnitude and rand-k (Li 2024, Definition 3, (16)-(17)).

A sparse vector is a `Code`: the indices of its entries, ascending, and their values. On the wire, indices
are packed with ceil(log2 d) bits each. A message of all d entries needs no indices, and neither does rand-k:
both sides derive its indices from one 64-bit seed.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import DTypeLike, NDArray

from .arrays import DOUBLE, Array, Index, Mask, Seeds
from .errors import ReplyError, SettingError
from .settings import check_choice
from .wire import checked, expect_arrays


class Code(NamedTuple):
    """A sparse vector with k of d entries: indices (..., k), ascending, and values (..., k)."""

    indices: Index
    values: Array


def kept_entries(ratio: float, d: int, key: str = "uplink-ratio") -> int:
    """k = round(ratio * d); SettingError, naming the setting `key`, unless 1 <= k <= d."""
    k = round(ratio * d)
    if not 1 <= k <= d:
        raise SettingError(f"{key} must keep between 1 and all of the {d} entries; {ratio} keeps {k}")
    return k


def top_k(y: Array, k: int) -> Index:
    """Indices (..., k), ascending, of the k entries of y (..., d) largest in magnitude (16a).

    Ties go to the lowest index. NaN counts as infinite.
    """
    size = np.abs(y)
    size = np.where(np.isnan(size), np.inf, size)  # so that a diverged model is reported as such later
    smallest_kept = np.partition(size, -k, axis=-1)[..., -k, None]
    above, ties = size > smallest_kept, size == smallest_kept
    room = k - above.sum(-1, keepdims=True)
    keep = above | (ties & (ties.cumsum(-1) <= room))
    return np.nonzero(keep)[-1].reshape(y.shape[:-1] + (k,))


def rand_k(seeds: Seeds, d: int, k: int) -> Index:
    """k distinct indices below d for every seed (...,), ascending, (..., k); independent of the data (16b)."""
    drawn = [
        np.sort(Generator(Philox(key=int(s))).choice(d, k, replace=False)) for s in np.atleast_1d(seeds).flat
    ]
    return np.array(drawn, dtype=np.int64).reshape(np.shape(seeds) + (k,))


def scatter(code: Code, d: int) -> tuple[Array, Mask]:
    """The dense vector (..., d), with 0 for entries that were not sent, and the mask (..., d) of sent entries."""
    dense = np.zeros(code.values.shape[:-1] + (d,), code.values.dtype)
    sent = np.zeros(dense.shape, dtype=bool)
    np.put_along_axis(dense, code.indices, code.values, -1)
    np.put_along_axis(sent, code.indices, True, -1)
    return dense, sent


def value_bits(dtype: DTypeLike) -> int:
    """Number of bits of a number of this type."""
    return 8 * np.dtype(dtype).itemsize


def index_bits(d: int) -> int:
    """Number of bits of an index below d, ceil(log2 d)."""
    return (d - 1).bit_length()


def pack_indices(indices: Index, d: int) -> NDArray[np.uint8]:
    """Indices (k,) below d as k * ceil(log2 d) bits, padded with 0 to whole bytes."""
    shifts = np.arange(index_bits(d))[::-1]
    return np.packbits((indices[:, None] >> shifts & 1).astype(np.uint8))


def unpack_indices(packed: NDArray[np.uint8], d: int, k: int) -> Index:
    """Inverse of `pack_indices`; ReplyError unless they are k ascending, distinct indices below d."""
    width = index_bits(d)
    checked("indices", packed, (-(-k * width // 8),), np.uint8)
    if np.unpackbits(packed)[k * width :].any():
        raise ReplyError("the bits that fill up the last byte of the indices must be 0")
    bits = np.unpackbits(packed, count=k * width).reshape(k, width)
    indices = bits.astype(np.int64) @ (1 << np.arange(width)[::-1])
    if indices.max() >= d or not (np.diff(indices) > 0).all():
        raise ReplyError(f"indices must be distinct, ascending and below {d}")
    return indices


@dataclass(frozen=True)
class TopK:
    """Keep the round(ratio * d) entries that are largest in magnitude."""

    ratio: float

    def encode(self, y: Array, seeds: Seeds) -> Code:
        """The k entries of y (..., d) largest in magnitude; seeds are ignored."""
        indices = top_k(y, kept_entries(self.ratio, y.shape[-1]))
        return Code(indices, np.take_along_axis(y, indices, -1))

    def bits(self, d: int, dtype: DTypeLike = DOUBLE) -> int:
        """Number of bits of one message on the wire, without padding to whole bytes."""
        k = kept_entries(self.ratio, d)
        return k * (value_bits(dtype) + (index_bits(d) if k < d else 0))

    def arrays(self, d: int) -> int:
        """Number of arrays on the wire: the values, and the packed indices unless all entries are sent."""
        return 1 if kept_entries(self.ratio, d) == d else 2

    def pack(self, code: Code, d: int) -> list[NDArray[Any]]:
        """The arrays on the wire for one sparse vector of dimension d."""
        return [code.values] if len(code.values) == d else [code.values, pack_indices(code.indices, d)]

    def unpack(self, arrays: list[NDArray[Any]], d: int, seed: Seeds, dtype: DTypeLike = DOUBLE) -> Code:
        """Inverse of `pack`; ReplyError for arrays that `pack` cannot produce. seed is ignored."""
        k = kept_entries(self.ratio, d)
        expect_arrays(arrays, 1 if k == d else 2)
        indices = np.arange(d) if k == d else unpack_indices(arrays[1], d, k)
        return Code(indices, checked("values", arrays[0], (k,), dtype))


@dataclass(frozen=True)
class RandK:
    """Keep round(ratio * d) entries at random; both sides draw the same indices from a public seed."""

    ratio: float

    def encode(self, y: Array, seeds: Seeds) -> Code:
        """The entries of y (..., d) chosen by seeds (...,)."""
        indices = rand_k(seeds, y.shape[-1], kept_entries(self.ratio, y.shape[-1]))
        return Code(indices, np.take_along_axis(y, indices, -1))

    def bits(self, d: int, dtype: DTypeLike = DOUBLE) -> int:
        """Number of bits of one message: the values only, since the seed was sent with the request."""
        return kept_entries(self.ratio, d) * value_bits(dtype)

    def arrays(self, d: int) -> int:
        """Number of arrays on the wire: 1, the values."""
        return 1

    def pack(self, code: Code, d: int) -> list[NDArray[Any]]:
        """The arrays on the wire for one sparse vector of dimension d."""
        return [code.values]

    def unpack(self, arrays: list[NDArray[Any]], d: int, seed: Seeds, dtype: DTypeLike = DOUBLE) -> Code:
        """Inverse of `pack`, given the seed of the request; ReplyError for arrays that `pack` cannot produce."""
        k = kept_entries(self.ratio, d)
        expect_arrays(arrays, 1)
        return Code(rand_k(seed, d, k), checked("values", arrays[0], (k,), dtype))


SPARSIFIERS: dict[str, type[TopK] | type[RandK]] = {"top-k": TopK, "rand-k": RandK}


def make_sparsifier(name: str, ratio: float) -> TopK | RandK:
    """The sparsifier called `name`; SettingError for an unknown name or a ratio outside (0, 1]."""
    check_choice("uplink", name, SPARSIFIERS)
    if not 0 < ratio <= 1:
        raise SettingError(f"uplink-ratio must be above 0 and at most 1; got {ratio}")
    return SPARSIFIERS[name](ratio)
