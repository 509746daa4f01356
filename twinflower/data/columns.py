"""The columns of a table: how the cells of one column become features or labels.

A number becomes one feature, (value - middle) / half the width of its range, clipped to [-1, 1]. A category becomes one
feature of 0 or 1 for each of its categories. What a missing value becomes is the column's `missing`; see `schema`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from numbers import Real
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..count_labels import packed
from ..decimals import decimal, decimals
from ..errors import DataError
from ..settings import LARGEST
from ..survival_labels import signed
from .span import Floats as Floats
from .span import Range as Range

Cells = Sequence[Any] | NDArray[Any]  # the cells of a column: text as in the file, or numbers

UNFIT = "a value in its table does not fit the schema"
_INTEGER = re.compile(r"(?:-?(0)|(-?[1-9][0-9]*))(?:\.0*)?")
_NUMERIC = (Real, Decimal, np.bool_)
_TIMES = (date, time, timedelta, np.datetime64, np.timedelta64)
HAPPENED, CENSORED = ["1", "true"], ["0", "false"]  # values of an event, unless a schema has others
REFUSE, ZERO, INDICATOR = MISSING = ("refuse", "zero", "indicator")


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
    return np.array(names)


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


@dataclass(frozen=True)
class Number:
    """A column of numbers with a public range; None: the range is private, and not known yet. unit, below,
    above: how they are written (`units`)."""

    name: str
    range: Range | None
    missing: str = REFUSE
    unit: str = ""
    below: str = ""
    above: str = ""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that encode the column."""
        return (self.name, *_indicator(self))

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> NDArray[np.bool_]:
        """Write the features of these cells to `out` (rows, features), and return which are clipped to the range
        (rows,); CellError for an invalid cell.

        Without a range the numbers themselves are written, NaN where they are missing.
        """
        values = numbers(cells, absent)
        out[:, 0] = values if self.range is None else self.range.features(values)
        _note_missing(self, np.isnan(values), out)
        return self.range.excludes(values) if self.range else np.zeros(len(values), bool)


@dataclass(frozen=True)
class Category:
    """A column with a public list of categories. values: those of each category; empty: its name."""

    name: str
    categories: tuple[str, ...]
    missing: str = REFUSE
    values: tuple[tuple[str, ...], ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that encode the column."""
        return (*(f"{self.name}={category}" for category in self.categories), *_indicator(self))

    def codes(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """The index of each cell's category (rows,), -1 for missing cells; CellError for an invalid cell."""
        named = self.values or [(category,) for category in self.categories]
        known = {value: code for code, values in enumerate(named) for value in values}
        return _coded(cells, known, absent, f"one of the categories, which are {_few(known)}")

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> NDArray[np.bool_]:
        """Write the features of these cells to `out` (rows, features), of which none is clipped; CellError for an
        invalid cell."""
        codes, size = self.codes(cells, absent), len(self.categories)
        out[:, :size] = codes[:, None] == np.arange(size)
        _note_missing(self, codes < 0, out)
        return np.zeros(len(codes), bool)


Column = Number | Category


def _indicator(column: Column) -> tuple[str, ...]:
    return (f"{column.name} is missing",) if column.missing == INDICATOR else ()


def _note_missing(column: Column, gone: NDArray[np.bool_], out: Floats) -> None:
    """Write the column's indicator, its last feature, if it has one; CellError if no value may be missing."""
    if column.missing == REFUSE:
        refuse(
            gone,
            "the value is missing",
            'give the column missing = "zero" or "indicator", or leave the row out',
        )
    if column.missing == INDICATOR:
        out[:, -1] = gone


def refuse(gone: NDArray[np.bool_], text: str, remedy: str) -> None:
    """CellError for the first of these cells (rows,), if there is one."""
    if gone.any():
        raise CellError(int(gone.argmax()), text, remedy)


Encoder = Callable[[Cells, frozenset[str]], Any]
_UNIT = Range(1.0, 1.0)
_NO_LABEL = ("the label is missing", "leave the row out")


@dataclass(frozen=True)
class Classes:
    """A class label; each class stands for one or more values of the column."""

    column: str
    names: tuple[str | int, ...]
    values: tuple[tuple[str, ...], ...]

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """See `Label`."""
        return {self.column: self.encode}

    def encode(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """The index of each cell's class, (rows,)."""
        known = {value: code for code, values in enumerate(self.values) for value in values}
        codes = _coded(cells, known, absent, f"a value of one of the classes, which are {_few(known)}")
        refuse(codes < 0, *_NO_LABEL)
        return codes

    def joined(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Label`."""
        return codes


@dataclass(frozen=True)
class Target:
    """A numeric label with a public range."""

    column: str
    range: Range

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """See `Label`."""
        return {self.column: self.encode}

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The numbers, scaled to [-1, 1] and clipped (rows,)."""
        values = self.range.scaled(numbers(cells, absent))
        refuse(np.isnan(values), *_NO_LABEL)
        return values

    def joined(self, values: Floats) -> Floats:
        """See `Label`."""
        return values


@dataclass(frozen=True)
class Counts:
    """A label that is a count from 0 to `most`; with an exposure its column and public range, else an empty name."""

    column: str
    most: int
    exposure: str = ""
    exposures: Range = _UNIT

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """See `Label`."""
        return {self.column: self.encode, **({self.exposure: self.offsets} if self.exposure else {})}

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The counts (rows,), at most `most`."""
        values = numbers(cells, absent)
        refuse(np.isnan(values), *_NO_LABEL)
        refuse(
            (values < 0) | (values != np.rint(values)),
            "a count must be a whole number from 0 on",
            "correct it",
        )
        return np.minimum(values, self.most)

    def offsets(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The logarithms of the exposures (rows,), which are clipped to their range."""
        values = numbers(cells, absent)
        refuse(np.isnan(values) | (values <= 0), "an exposure must be a number above 0", "leave the row out")
        return np.log(np.clip(values, self.exposures.low, self.exposures.high))

    def joined(self, counts: Floats, *offsets: Floats) -> Floats:
        """The labels (rows,) of counts, with offsets if there are any (`count_labels`)."""
        return packed(counts, *offsets) if offsets else counts


@dataclass(frozen=True)
class Survival:
    """A label that is a time and whether the event happened then; otherwise the person was censored at that time.

    times: the public range of the times, above 0. A shorter time, also 0, is moved to its lower end, and a longer one
    is censored at its upper end. event: the column of the events; happened, censored: its values. one_row: whether
    every row is another person, followed from time 0, as the models take it; None where nothing says otherwise.
    """

    column: str
    times: Range
    event: str
    happened: tuple[str, ...]
    censored: tuple[str, ...]
    one_row: bool | None = None

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """See `Label`."""
        return {self.column: self.encode, self.event: self.events}

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The times (rows,)."""
        values = numbers(cells, absent)
        refuse(np.isnan(values), *_NO_LABEL)
        refuse(values < 0, "a time must not be negative", "correct it, or leave the row out")
        return np.maximum(values, self.times.low)

    def events(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """1 for the event and 0 for censoring, (rows,)."""
        known = dict.fromkeys(self.censored, 0) | dict.fromkeys(self.happened, 1)
        what = f"a value of event-values ({_few(self.happened)}) or censored-values ({_few(self.censored)})"
        codes = _coded(cells, known, absent, what)
        refuse(codes < 0, "it is not known whether the event happened", "leave the row out")
        return codes

    def joined(self, times: Floats, events: NDArray[np.int64]) -> Floats:
        """The signed times (rows,), see `survival_labels`."""
        return signed(np.minimum(times, self.times.high), (events > 0) & (times <= self.times.high))


Label = Classes | Target | Counts | Survival
"""Columns that make up the label. encoders: for each column a function of its cells and of the texts that mark a
missing value; it raises CellError for an invalid cell. joined: the labels (rows,), given what these return."""


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


def _coded(cells: Cells, known: Mapping[str, int], absent: frozenset[str], what: str) -> NDArray[np.int64]:
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


def _few(words: Iterable[str]) -> str:
    words = list(words)
    return ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
