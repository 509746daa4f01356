"""The columns of a table: how the cells of one column become features or labels.

A number becomes one feature, (value - middle) / half the width of its range, clipped to [-1, 1]. A category becomes one
feature of 0 or 1 for each of its categories. What a missing value becomes is the column's `missing`; see `schema`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..decimals import decimal, is_decimal
from ..problems.losses import packed
from ..survival_labels import signed
from .cells import Ambiguous, Cells, Floats, coded, few, listed, numbers, refuse
from .csv_tables import with_point

HAPPENED, CENSORED = ["1", "true"], ["0", "false"]  # values of an event, unless a schema has others
REFUSE, ZERO, INDICATOR = MISSING = ("refuse", "zero", "indicator")
ROUNDING = 1e-6  # of a value at an end of its range, relative to half the range; also in single precision
CLIPPED, ABSENT = 1, 2  # marks of a value that was clipped to its range, or that is missing; 0 for all others
Marks = NDArray[np.int8]


@dataclass(frozen=True)
class Range:
    """The public range of a number."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """The middle of the range."""
        return self.low / 2 + self.high / 2

    @property
    def half(self) -> float:
        """Half the width of the range."""
        return self.high / 2 - self.low / 2

    def scaled(self, values: Floats) -> Floats:
        """The values scaled from the range to [-1, 1] and clipped; NaN stays NaN."""
        with np.errstate(over="ignore"):  # far outside a narrow range
            return np.clip((values - self.middle) / self.half, -1.0, 1.0)

    def features(self, values: Floats) -> Floats:
        """The scaled values with 0 in place of NaN."""
        return np.nan_to_num(self.scaled(values))

    def follows(self, values: Floats) -> NDArray[np.bool_]:
        """Which values are below the range by more than their rounding; not NaN."""
        return values < self.low - ROUNDING * self.half

    def excludes(self, values: Floats) -> NDArray[np.bool_]:
        """Which values are outside of the range by more than their rounding, and are clipped; not NaN."""
        return self.follows(values) | (values > self.high + ROUNDING * self.half)


@dataclass(frozen=True)
class Number:
    """A column of numbers with a public range; None: the range is private, and not known yet. unit, below,
    above: how they are written (`plain`)."""

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

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> Marks:
        """Write the features of these cells to `out` (rows, features), and return their marks (rows,); CellError for an
        invalid cell.

        Without a range the numbers themselves are written, NaN where they are missing.
        """
        values = numbers(cells, absent)
        out[:, 0] = values if self.range is None else self.range.features(values)
        outside = self.range.excludes(values) if self.range else np.zeros(len(values), bool)
        return _marked(self, np.isnan(values), out) + CLIPPED * outside.astype(np.int8)


@dataclass(frozen=True)
class Category:
    """A column with a public list of categories. values: those of each category; empty: its name. base: the place of
    the reference, with which coefficients compare the others."""

    name: str
    categories: tuple[str, ...]
    missing: str = REFUSE
    values: tuple[tuple[str, ...], ...] = ()
    base: int = 0

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that encode the column."""
        return (*(f"{self.name}={category}" for category in self.categories), *_indicator(self))

    def codes(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """The index of each cell's category (rows,), -1 for missing cells; CellError for an invalid cell."""
        named = self.values or [(category,) for category in self.categories]
        known = {value: code for code, values in enumerate(named) for value in values}
        return coded(cells, known, absent, f"one of the categories, which are {few(known)}")

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> Marks:
        """Write the features of these cells to `out` (rows, features), and return their marks (rows,); CellError for an
        invalid cell."""
        codes, size = self.codes(cells, absent), len(self.categories)
        out[:, :size] = codes[:, None] == np.arange(size)
        return _marked(self, codes < 0, out)


Column = Number | Category


def _indicator(column: Column) -> tuple[str, ...]:
    return (f"{column.name} is missing",) if column.missing == INDICATOR else ()


def _marked(column: Column, gone: NDArray[np.bool_], out: Floats) -> Marks:
    """The marks of the missing values; write the column's indicator, its last feature, if it has one. CellError if no
    value may be missing."""
    if column.missing == REFUSE:
        refuse(
            gone,
            "the value is missing",
            'give the column missing = "zero" or "indicator", or leave the row out',
        )
    if column.missing == INDICATOR:
        out[:, -1] = gone
    return ABSENT * gone.astype(np.int8)


Encoder = Callable[[Cells, frozenset[str]], Any]
_UNIT = Range(1.0, 1.0)
_NO_LABEL = ("the label is missing", "leave the row out")


@dataclass(frozen=True)
class Classes:
    """A class label; each class stands for one or more values of the column."""

    column: str
    names: tuple[str | int, ...]
    values: tuple[tuple[str, ...], ...]

    ranges: ClassVar[Mapping[str, Range]] = {}

    @property
    def encoders(self) -> Mapping[str, Encoder]:
        """See `Label`."""
        return {self.column: self.encode}

    def encode(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """The index of each cell's class, (rows,)."""
        known = {value: code for code, values in enumerate(self.values) for value in values}
        codes = coded(cells, known, absent, f"a value of one of the classes, which are {few(known)}")
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

    @property
    def ranges(self) -> Mapping[str, Range]:
        """See `Label`."""
        return {self.column: self.range}

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

    @property
    def ranges(self) -> Mapping[str, Range]:
        """See `Label`."""
        exposures = {self.exposure: self.exposures} if self.exposure else {}
        return {self.column: Range(0.0, float(self.most)), **exposures}

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
        """The labels (rows,) of counts, with offsets if there are any (`losses.packed`)."""
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
    def ranges(self) -> Mapping[str, Range]:
        """See `Label`."""
        return {self.column: self.times}

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
        what = f"a value of event-values ({few(self.happened)}) or censored-values ({few(self.censored)})"
        codes = coded(cells, known, absent, what)
        refuse(codes < 0, "it is not known whether the event happened", "leave the row out")
        return codes

    def joined(self, times: Floats, events: NDArray[np.int64]) -> Floats:
        """The signed times (rows,), see `survival_labels`."""
        return signed(np.minimum(times, self.times.high), (events > 0) & (times <= self.times.high))


Label = Classes | Target | Counts | Survival
"""Columns that make up the label. encoders: for each column a function of its cells and of the texts that mark a
missing value; it raises CellError for an invalid cell. joined: the labels (rows,), given what these return. ranges: for
some of the columns the range to which their values are clipped."""


@dataclass(frozen=True)
class Weight:
    """The column of the rows' weights, which multiply the losses of the rows, and their public range, from 0 on.

    Weights are clipped to the range.
    """

    column: str
    range: Range

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The weights (rows,); CellError for an invalid cell."""
        values = numbers(cells, absent)
        refuse(np.isnan(values), "the weight is missing", "leave the row out")
        refuse(values < 0, "a weight must not be negative", "correct it, or leave the row out")
        return np.clip(values, self.range.low, self.range.high)


# ------------------------------------------------------------------------- numbers as sites write them

LIMIT, HALF = "limit", "half"  # <0.5 stands for 0.5 or for 0.25
LIMITS = {"censored-below": (LIMIT, HALF), "censored-above": (LIMIT,)}


def has_signs(column: Number) -> bool:
    """Whether the column's numbers may be written with a unit, or with limits of detection such as <0.5."""
    return bool(column.unit or column.below or column.above)


def plain(column: Number, cells: Cells, commas: bool) -> Cells:
    """The cells without the column's unit, and with numbers in place of <0.5 and >500; others as they are.

    commas: whether their decimals have commas; a number with a point, which may be that of thousands, is then refused.
    """
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub":
        return cells
    return [_plain(column, cell, commas) if isinstance(cell, str) else cell for cell in listed(cells)]


def _plain(column: Number, cell: str, commas: bool) -> str | Ambiguous:
    text = cell.strip()
    size = len(column.unit)
    if size and text[-size:].casefold() == column.unit.casefold():
        text = text[:-size].strip()
    sign = text[:1] if (column.below and text[:1] == "<") or (column.above and text[:1] == ">") else ""
    number = text[len(sign) :].strip()
    if commas and "." in number and is_decimal(number):
        return Ambiguous(cell)
    number = with_point(number) if commas else number
    return _halved(number) if sign == "<" and column.below == HALF else number


def _halved(text: str) -> str:
    try:
        return repr(decimal(text) / 2)
    except ValueError:
        return text
