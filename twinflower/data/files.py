"""Find and decompress data files, and read the IDX, comma-separated and LIBSVM formats.

A missing or damaged file raises a `DataError` that names the file and what was expected, never an error
of gzip, NumPy or scikit-learn. Memory use depends on a file's actual content, never on the size that its
header claims.
"""

import bz2
import gzip
import io
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, cause

Floats = NDArray[np.float64]

PACKED = (".gz", ".bz2")
_OPENERS: dict[str, Callable[..., IO[Any]]] = {".gz": gzip.open, ".bz2": bz2.open}
_LARGEST_BYTES = 2**30  # decompressed; far above every data set here, far below a laptop's memory
_LARGEST_TABLE = 2**29  # numbers in a dense table, 4 GiB
_PIECE = 2**20


class MissingFileError(DataError):
    """The file is in none of the folders; a loader may then get the data in another way."""


class FormatError(DataError):
    """The file is not in the expected format."""


def look_for(folders: Iterable[Path], *bases: str) -> Path | None:
    """The first existing file among the folders and base names, plain, .gz or .bz2; None if there is none."""
    paths = (folder / (base + ending) for folder in folders for base in bases for ending in ("", *PACKED))
    return next((path for path in paths if os.path.isfile(path)), None)


def find(folders: Iterable[Path], *bases: str) -> Path:
    """Like `look_for`, but raises `MissingFileError` if there is no such file."""
    searched = list(folders)
    path = look_for(searched, *bases)
    if path is None:
        names, where = " or ".join(bases), " or ".join(map(str, searched))
        raise MissingFileError(
            f"no file {names} (plain, .gz or .bz2) in {where}; set data.dir (--data-dir) to its folder"
        )
    return path


def read_bytes(path: Path) -> bytes:
    """The whole content, decompressed according to the file's extension; DataError if this fails or is too large."""
    pieces, size = [], 0
    for piece in stream_bytes(path):
        size += len(piece)
        if size > _LARGEST_BYTES:
            raise DataError(f"{path} unpacks to more than the {_LARGEST_BYTES} bytes a data file may have")
        pieces.append(piece)
    return b"".join(pieces)


def stream_bytes(path: Path) -> Iterator[bytes]:
    """Yield the content in pieces, decompressed according to the file's extension; DataError if this fails."""
    try:
        with _OPENERS.get(path.suffix, open)(path, "rb") as stream:
            while piece := stream.read(_PIECE):
                yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read or unpacked: {cause(error)}") from error


def read_arrays(path: Path, expected: str, names: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file with these names, all without names; DataError(expected) for any other file."""
    content = read_bytes(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names or arrays.files}
    except (ValueError, OSError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(f"{expected} ({cause(error)})") from error


def read_idx(path: Path, item_shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Read an IDX file of bytes, (items, *item_shape); item_shape is () for labels and (28, 28) for images.

    The header is big endian: the magic number 0x0800 + number of axes, then the length of every axis.
    Raises DataError if the header or the size does not match. Source: http://yann.lecun.com/exdb/mnist.
    """
    content = read_bytes(path)
    axes = 1 + len(item_shape)
    magic, start = struct.pack(">I", 0x0800 + axes), 4 * (1 + axes)
    if content[:4] != magic:
        text = f"{path} must begin with the IDX magic number 0x{magic.hex()}"
        raise DataError(f"{text}; its first bytes are 0x{content[:4].hex()}")
    if len(content) < start:
        raise DataError(f"{path} must begin with an IDX header of {start} bytes; it has {len(content)} bytes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if shape[1:] != item_shape:
        raise DataError(f"{path} must hold items of shape {item_shape}; its header says {shape[1:]}")
    expected, got = prod(shape), len(content) - start
    if got != expected or not expected:
        raise DataError(f"{path} must hold at least one item and, by its header, {expected} bytes; got {got}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_fields(path: Path, columns: int) -> list[list[str]]:
    """The rows of a comma-separated text file without a header; blank lines and lines starting with '|' are skipped."""
    try:
        lines = read_bytes(path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} must be comma-separated text; byte {error.start} is not text") from error
    kept = ((i, line) for i, line in enumerate(lines, 1) if line.strip() and line[0] != "|")
    rows = [_fields(path, i, line, columns) for i, line in kept]
    if not rows:
        raise DataError(f"{path} must hold at least one row of {columns} columns; it is empty")
    return rows


def _fields(path: Path, line_number: int, line: str, columns: int) -> list[str]:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != columns:
        raise DataError(f"{path} must have {columns} columns; line {line_number} has {len(fields)}")
    return fields


def read_libsvm(
    paths: Sequence[Path], num_features: int = 0, first: int | None = None
) -> list[tuple[Floats, Floats]]:
    """Features (rows, n) and labels (rows,) of each LIBSVM file, 'label index:value ...', of one data set.

    n is num_features or, if that is 0, the largest number of columns in any of the files. Indices start at `first`; if
    that is None, they start at 1 as in LIBSVM itself, or at 0 in all files if any file has an index 0, since copies of
    published sets differ. For private rows fix `first`: otherwise a single record could shift everybody's columns.
    """
    tables = [_read_sparse(path, first or 0) for path in paths]
    if first is None:
        first = min(1, *(int(table.indices.min()) for table, _ in tables))
    columns = num_features or max(table.shape[1] for table, _ in tables) - first
    return [
        (_dense(path, table[:, first:], columns), labels)
        for path, (table, labels) in zip(paths, tables, strict=True)
    ]


def _read_sparse(path: Path, least: int) -> tuple[Any, Floats]:
    """A sparse table (rows, largest index + 1) and labels (rows,); DataError for an index below `least`."""
    from sklearn.datasets import load_svmlight_file  # type: ignore[import-untyped]  # takes a second to import; most data sets do not need it

    content = read_bytes(path)
    lines = content.split(b"\n") if b"_" in content else []
    if row := next((row for row, line in enumerate(lines, 1) if b"_" in line.partition(b"#")[0]), 0):
        raise FormatError(  # scikit-learn would read 1_2 as 12
            f"{path} must have lines 'label index:value ...'; line {row} has an underscore, which no number has"
        )
    try:
        table, labels = load_svmlight_file(io.BytesIO(content), zero_based=True)
    except (ValueError, OverflowError) as error:
        raise FormatError(f"{path} must have lines 'label index:value ...': {cause(error)}") from error
    if not table.nnz:
        raise DataError(f"{path} must hold at least one row with a feature; it has none")
    if not (np.isfinite(table.data).all() and np.isfinite(labels).all()):
        raise DataError(f"{path} must hold finite numbers; it has NaN or infinity")
    if table.indices.min() < least:
        raise DataError(
            f"{path} must have indices from {least}; line {_first_line(content, least)} has a lower one"
        )
    return table, labels


def _first_line(content: bytes, least: int) -> int:
    """The number of the first line with an index below `least`, in content that has been parsed successfully."""
    lines = (line.partition(b"#")[0].split()[1:] for line in content.split(b"\n"))
    return next(i for i, words in enumerate(lines, 1) if any(_index(w) < least for w in words))


def _index(word: bytes) -> float:
    """The index of 'index:value'; infinity for a query id ('qid:value'), which has none."""
    index = word.partition(b":")[0]
    return math.inf if index == b"qid" else int(index)


def _dense(path: Path, table: Any, columns: int) -> Floats:
    rows, width = table.shape
    if width > columns:
        raise DataError(f"{path} must have at most {columns} features; it has {width}")
    if rows * columns > _LARGEST_TABLE:
        size = f"{rows} rows of {columns} features"
        raise DataError(f"{path} must fit into a dense table of {_LARGEST_TABLE} numbers; it has {size}")
    table.resize((rows, columns))
    dense: Floats = table.toarray()
    return dense
