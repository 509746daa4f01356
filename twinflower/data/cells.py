"""The cells of a column: as texts, as numbers, and among known values."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..decimals import decimal, decimals
from ..errors import DataError
from ..settings import LARGEST

Cells = Sequence[Any] | NDArray[Any]  # the cells of a column: text as in the file, or numbers
Floats = NDArray[np.float64]

UNFIT = "a value in its table does not fit the schema"
_INTEGER = re.compile(r"(?:-?(0)|(-?[1-9][0-9]*))(?:\.0*)?")
_NUMERIC = (Real, Decimal, np.bool_)
_TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)


class CellError(DataError):
    """A value that does not fit its column. row: from 0 in the given cells. cell: what is wrong, without the row."""

    def __init__(self, row: int, cell: str, remedy: str = "") -> None:
        super().__init__(f"row {row + 1}: {cell}", UNFIT, remedy)
        self.row, self.cell = row, cell

    def in_column(self, column: str) -> Self:
        """The same error with the name of the column."""
        return type(self)(self.row, f"column '{column}': {self.cell}", self.remedy)


class Measured(NDArray[np.float64]):  # type: ignore[misc]
    """Cells that are numbers in the unit of the schema already, NaN where they are missing."""


@dataclass(frozen=True)
class Ambiguous:
    """A number with a point in a file with decimal commas: 1.234 could also be one thousand two hundred thirty-four."""

    text: str

    def __str__(self) -> str:
        return self.text


def as_text(value: Any) -> str:
    """The canonical text by which categories and classes are compared: "1" for 1, 1.0 and "1.0", "true" for True.

    Other texts that could be the same number, such as 01, 1_0 or 1e1, stay as they are, because they may be codes.
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    text = str(value).strip()
    integer = _INTEGER.fullmatch(text)
    return integer[1] or integer[2] if integer else text


def texts(cells: Iterable[Any]) -> list[str]:
    """The canonical texts of some cells, empty for None and NaN."""
    return ["" if is_missing(cell) else as_text(cell) for cell in cells]


def people(cells: Cells, absent: frozenset[str]) -> NDArray[np.str_]:
    """The names of a group column (rows,), such as those of patients; CellError for a missing one."""
    names = texts(listed(cells))
    for row, text in enumerate(names):
        if not text or text in absent:
            raise CellError(row, "a person must be named")
    return np.array(names, np.str_)


def listed(cells: Cells) -> Sequence[Any]:
    """The cells as plain Python values."""
    if (
        isinstance(cells, np.ndarray) and cells.dtype.kind in "mM"
    ):  # which would become numbers of nanoseconds
        cells = cells.astype(str)
    return cells.tolist() if isinstance(cells, np.ndarray) else cells  # type: ignore[no-any-return]


def is_missing(cell: Any) -> bool:
    """Whether a cell is None, NaN, or a missing value of pandas, NA or NaT."""
    return cell is None or (not isinstance(cell, str) and str(cell) in ("nan", "<NA>", "NaT"))


def refuse(gone: NDArray[np.bool_], text: str, remedy: str) -> None:
    """CellError for the first of these cells (rows,), if there is one."""
    if gone.any():
        raise CellError(int(gone.argmax()), text, remedy)


# ------------------------------------------------------------------------------------ cells as numbers


def numbers(cells: Cells, absent: frozenset[str]) -> Floats:
    """The cells as numbers (rows,), NaN for missing cells; CellError for any other cell."""
    if isinstance(cells, Measured):
        return np.asarray(cells)
    numeric = isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub"
    try:
        values = np.array(cells if numeric else decimals(listed(cells)), dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        return _one_by_one(cells, absent)
    if not ((np.abs(values) <= LARGEST) | (numeric & np.isnan(values))).all():
        return _one_by_one(cells, absent)
    codes = _codes(absent)
    return np.where(np.isin(values, codes), np.nan, values) if codes else values


@lru_cache(maxsize=8)
def _codes(absent: frozenset[str]) -> list[float]:
    """The numbers among the texts that mark a missing value, such as -9."""
    return [number for number in map(_parsed, absent) if number is not None and math.isfinite(number)]


def _one_by_one(cells: Cells, absent: frozenset[str]) -> Floats:
    return np.array([_number(row, cell, absent) for row, cell in enumerate(cells)])


def _number(row: int, cell: Any, absent: frozenset[str]) -> float:
    if _absent(cell, absent):
        return math.nan
    if isinstance(cell, Ambiguous):
        text = f'{_shown(cell)} has a decimal point, and the schema says decimal = ","'
        raise CellError(row, text, "write it with a comma, or without the point if that separates thousands")
    value = _parsed(cell)
    if value is None:
        comma = _parsed(str(cell).replace(",", ".", 1)) is not None
        remedy = 'for decimal commas in a CSV file set decimal = "," in the schema' if comma else ""
        hint = "; convert dates and durations to numbers in one unit, such as days" * isinstance(cell, _TIMES)
        raise CellError(row, f"{_shown(cell)} is not a number{hint}", remedy)
    if value in _codes(absent):
        return math.nan
    if not abs(value) <= LARGEST:
        raise CellError(row, f"{_shown(cell)} is not a number of at most {LARGEST:g} in size")
    return value


def _parsed(cell: Any) -> float | None:
    """The cell as a number; None if it is not one."""
    try:
        if isinstance(cell, str):
            return decimal(cell)
        return float(cell) if isinstance(cell, _NUMERIC) and not isinstance(cell, _TIMES) else None
    except (ValueError, OverflowError):
        return None


def _absent(cell: Any, absent: frozenset[str]) -> bool:
    return is_missing(cell) or as_text(cell) in absent


def _shown(cell: Any) -> str:
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:40] + "…")


# ---------------------------------------------------------------------------------- cells among known values


def coded(cells: Cells, known: Mapping[str, int], absent: frozenset[str], what: str) -> NDArray[np.int64]:
    """The index of each cell among the known values (rows,), -1 for missing cells; CellError for unknown values."""
    cache = dict(known)  # and a cache of every other cell that was looked up
    codes = np.empty(len(cells), dtype=np.int64)
    for row, cell in enumerate(listed(cells)):
        code = cache.get(cell)
        if code is None:
            code = cache[cell] = _code(row, cell, known, absent, what)
        codes[row] = code
    return codes


def _code(row: int, cell: Any, known: Mapping[str, int], absent: frozenset[str], what: str) -> int:
    code = known.get(as_text(cell))
    if code is None and not _absent(cell, absent):
        raise CellError(row, f"{_shown(cell)} is not {what}")
    return -1 if code is None else code


def few(words: Iterable[str], most: int = 10) -> str:
    """The first `most` words, and how many more there are."""
    words = list(words)
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")
