"""Validation of received arrays, and their conversion to and from bytes.

Received arrays are checked for their number, shape, dtype and finiteness. The byte format is NumPy's .npy format, as in
Flower's NumPyClient; reading and writing it here is much faster than NumPy's own functions.
"""

import io
import math
import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .arrays import all_finite
from .errors import ReplyError


def expect_arrays(arrays: Sequence[NDArray[Any]], count: int) -> None:
    """ReplyError unless there are exactly `count` arrays."""
    if len(arrays) != count:
        raise ReplyError(f"expected {count} arrays, got {len(arrays)}")


def checked(
    name: str, array: NDArray[Any], shape: tuple[int, ...], dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """The array itself; ReplyError unless it has this shape and dtype and all its entries are finite."""
    if array.dtype != np.dtype(dtype):
        raise ReplyError(f"{name} must be {np.dtype(dtype)}, got {array.dtype}")
    if array.shape != shape:
        raise ReplyError(f"{name} must have shape {shape}, got {array.shape}")
    if array.dtype.kind == "f" and not all_finite(array):
        raise ReplyError(f"{name} must be finite; got NaN or infinity")
    return array


def packed(array: NDArray[Any]) -> bytes:
    """An array for the metrics of a reply, as little-endian doubles."""
    return array.astype("<f8").tobytes()


def doubles(content: object, shape: tuple[int, ...], what: str) -> NDArray[np.float64]:
    """The finite numbers in a metric of a reply, in this shape; ReplyError, which names them `what`, for others."""
    if not isinstance(content, bytes) or len(content) != 8 * math.prod(shape):
        raise ReplyError(f"{what} is {math.prod(shape)} doubles; the reply has another content")
    numbers = np.frombuffer(content, "<f8").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ReplyError(f"{what} must be finite")
    return numbers.reshape(shape)


def to_npy(array: NDArray[Any]) -> bytes:
    """The bytes that `np.save` would write for the array in C order; about ten times faster."""
    array = np.asarray(array, order="C")  # a NumPy scalar is a 0-d array
    return b"".join((_header(array.dtype.str, array.shape), array.data))


def from_npy(data: bytes) -> NDArray[Any]:
    """Inverse of `to_npy`, as a read-only view of `data`; ReplyError unless it is one plain numeric array."""
    head, size = data[:_PREAMBLE], int.from_bytes(data[8:_PREAMBLE], "little")
    if len(data) < _PREAMBLE or not head.startswith(_MAGIC) or size > _LONGEST_HEADER:
        raise ReplyError("an array is not in the .npy format, version 1.0")
    shape, fortran, dtype = _parsed(data[: _PREAMBLE + size])
    if len(data) != _PREAMBLE + size + dtype.itemsize * math.prod(shape):
        raise ReplyError(f"an array of shape {shape} and type {dtype} has the wrong number of bytes")
    flat = np.frombuffer(data, dtype, offset=_PREAMBLE + size)
    return flat.reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str:
    """str(dtype), cached because NumPy computes it slowly."""
    return str(dtype)


_MAGIC, _PREAMBLE, _LONGEST_HEADER, _MOST_AXES = b"\x93NUMPY\x01\x00", 10, 1024, 8


@lru_cache(maxsize=256)
def _header(dtype: str, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


@lru_cache(maxsize=256)
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    try:
        with warnings.catch_warnings(action="ignore"):
            np.lib.format.read_magic(stream)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # parsing untrusted bytes may fail in any way
        raise ReplyError("an array's .npy header cannot be read") from error
    sane = all(type(n) is int and 0 <= n < 2**48 for n in shape) and len(shape) <= _MOST_AXES
    if dtype.kind not in "biuf" or not sane:
        raise ReplyError("an array must hold plain numbers in a sensible shape")
    return shape, fortran, dtype
