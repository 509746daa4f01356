"""A schema: what the columns of a table mean, in a small public file that all sites share.

    version = 1
    ignore = ["ward"]                                      # columns that are not used
    group = "patient"                                      # optional: the column that says whose record a row is

    [label]
    column = "num"
    classes = { healthy = ["0"], ill = ["1", "2", "3"] }   # or a list of values, or range = [0, 90] for a number

    [columns]
    age = { range = [20, 80] }
    dose = { range = "private" }
    pain = { categories = ["none", "mild", "severe"], missing = "indicator" }

A number becomes one feature, (value - middle) / half the width of its range, clipped to [-1, 1]. A range is public, or
"private": then the clients of a run release noisy counts first, from which its range follows (`ranges`). A category
becomes one feature of 0 or 1 for each of its categories. What a missing value becomes is the column's `missing`:
"refuse" (the default), "zero" (all of the column's features are 0, which is the middle of a range), or "indicator",
which also appends a feature that is 1 where the value is missing.

The features of a row therefore depend only on this row, the public schema and released ranges, not on statistics of
other rows, and a privacy guarantee for the features holds for the table as well. This module validates schemas and
encodes columns; `tables` reads the files.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UNUSABLE, DataError
from ..settings import LARGEST, nearest

Floats = NDArray[np.float64]
Cells = Sequence[Any] | NDArray[Any]  # the cells of a column: text as in the file, or numbers

VERSION = 1
PRIVATE = "private"  # in place of a range: not known, and computed from noisy counts
REFUSE, ZERO, INDICATOR = MISSING = ("refuse", "zero", "indicator")
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "?")
_KEYS = ("version", "label", "columns", "ignore", "group", "missing-values")


class CellError(DataError):
    """A value that does not fit its column; `row` counts from 0 in the given cells, `text` completes the message."""

    def __init__(self, row: int, text: str) -> None:
        super().__init__(f"row {row + 1}: {text}", "a value in its table does not fit the schema")
        self.row, self.text = row, text


def expect(condition: bool, text: str, reason: str = UNUSABLE) -> None:
    """Raise `DataError(text, reason)` unless the condition holds."""
    if not condition:
        raise DataError(text, reason)


def as_text(value: Any) -> str:
    """The canonical text by which categories and classes are compared: "1" for 1, 1.0 and "1.0", "true" for True."""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return text
    return (
        str(int(number)) if math.isfinite(number) and number == int(number) and abs(number) < 2**53 else text
    )


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


@dataclass(frozen=True)
class Number:
    """A column of numbers with a public range; None: the range is private, and not known yet."""

    name: str
    range: Range | None
    missing: str = REFUSE

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that encode the column."""
        return (self.name, *_indicator(self))

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> None:
        """Write the features of these cells to `out` (rows, features); CellError for an invalid cell.

        Without a range the numbers themselves are written, NaN where they are missing.
        """
        values = numbers(cells, absent)
        gone = np.isnan(values)
        _check_missing(self.missing, gone)
        out[:, 0] = values if self.range is None else self.range.features(values)
        if self.missing == INDICATOR:
            out[:, 1] = gone


@dataclass(frozen=True)
class Category:
    """A column with a public list of categories."""

    name: str
    categories: tuple[str, ...]
    missing: str = REFUSE

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features that encode the column."""
        return (*(f"{self.name}={category}" for category in self.categories), *_indicator(self))

    def encode(self, cells: Cells, absent: frozenset[str], out: Floats) -> None:
        """Write the features of these cells to `out` (rows, features); CellError for an invalid cell."""
        places = {category: place for place, category in enumerate(self.categories)}
        codes = coded(cells, places, absent, "one of the categories")
        gone = codes < 0
        _check_missing(self.missing, gone)
        out[:, : len(places)] = codes[:, None] == np.arange(len(places))
        if self.missing == INDICATOR:
            out[:, len(places)] = gone


Column = Number | Category


def _indicator(column: Column) -> tuple[str, ...]:
    return (f"{column.name} is missing",) if column.missing == INDICATOR else ()


def _check_missing(rule: str, gone: NDArray[np.bool_]) -> None:
    if rule == REFUSE and gone.any():
        raise CellError(
            int(gone.argmax()),
            'the value is missing: give the column missing = "zero" or "indicator" in the schema, or leave the row out',
        )


def _check_labels(gone: NDArray[np.bool_]) -> None:
    if gone.any():
        raise CellError(int(gone.argmax()), "the label is missing: leave the row out")


@dataclass(frozen=True)
class Classes:
    """A class label; each class stands for one or more values of the column."""

    column: str
    names: tuple[str | int, ...]
    values: tuple[tuple[str, ...], ...]

    def encode(self, cells: Cells, absent: frozenset[str]) -> NDArray[np.int64]:
        """The index of each cell's class, (rows,)."""
        places = {value: place for place, own in enumerate(self.values) for value in own}
        codes = coded(cells, places, absent, "a value of one of the classes")
        _check_labels(codes < 0)
        return codes

    @property
    def array(self) -> NDArray[Any]:
        """The class names, as predictions return them."""
        return np.array(self.names)


@dataclass(frozen=True)
class Target:
    """A numeric label with a public range."""

    column: str
    range: Range

    def encode(self, cells: Cells, absent: frozenset[str]) -> Floats:
        """The numbers, scaled to [-1, 1] and clipped (rows,)."""
        values = self.range.scaled(numbers(cells, absent))
        _check_labels(np.isnan(values))
        return values


def numbers(cells: Cells, absent: frozenset[str]) -> Floats:
    """The cells as numbers (rows,), NaN for missing cells; CellError for any other cell."""
    try:
        values = np.array(cells, dtype=np.float64) if _numeric(cells) else np.array(list(map(float, cells)))
    except (ValueError, TypeError, OverflowError):
        return _one_by_one(cells, absent)
    fine = np.abs(values) <= LARGEST
    if _numeric(cells):
        fine |= np.isnan(values)
    if not fine.all():
        return _one_by_one(cells, absent)
    codes = _codes(absent)
    return np.where(np.isin(values, codes), np.nan, values) if codes else values


@lru_cache(maxsize=8)
def _codes(absent: frozenset[str]) -> list[float]:
    """The numbers among the texts that mark a missing value, such as -9."""
    return [float(text) for text in absent if _finite(text)]


def _finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _numeric(cells: Cells) -> bool:
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "fiub"


def _one_by_one(cells: Cells, absent: frozenset[str]) -> Floats:
    return np.array([_number(row, cell, absent) for row, cell in enumerate(cells)])


def _number(row: int, cell: Any, absent: frozenset[str]) -> float:
    if _absent(cell, absent):
        return math.nan
    try:
        value = float(cell)
    except (ValueError, TypeError, OverflowError):
        raise CellError(row, f"{_shown(cell)} is not a number") from None
    if value in _codes(absent):
        return math.nan
    if not abs(value) <= LARGEST:
        raise CellError(row, f"{_shown(cell)} is not a number of at most {LARGEST:g} in size")
    return value


def _absent(cell: Any, absent: frozenset[str]) -> bool:
    return cell is None or (isinstance(cell, float) and cell != cell) or as_text(cell) in absent


def _shown(cell: Any) -> str:
    text = str(cell)
    return repr(text if len(text) <= 40 else text[:40] + "…")


def coded(cells: Cells, places: Mapping[str, int], absent: frozenset[str], what: str) -> NDArray[np.int64]:
    """The index of each cell among the known values (rows,), -1 for missing cells; CellError for unknown values."""
    found = dict(places)  # and a cache of every other cell that was looked up
    codes = np.empty(len(cells), dtype=np.int64)
    for row, cell in enumerate(cells.tolist() if isinstance(cells, np.ndarray) else cells):
        place = found.get(cell)
        if place is None:
            place = found[cell] = _place(row, cell, places, absent, what)
        codes[row] = place
    return codes


def _place(row: int, cell: Any, places: Mapping[str, int], absent: frozenset[str], what: str) -> int:
    place = places.get(as_text(cell))
    if place is None and not _absent(cell, absent):
        raise CellError(row, f"{_shown(cell)} is not {what}, which are {_listed(places)}")
    return -1 if place is None else place


def _listed(words: Iterable[str]) -> str:
    words = list(words)
    return ", ".join(words[:10]) + (f" and {len(words) - 10} more" if len(words) > 10 else "")


@dataclass(frozen=True)
class Schema:
    """A validated schema; see the module's docstring. group: the column that says whose record a row is, or empty."""

    columns: tuple[Column, ...]
    label: Classes | Target
    ignore: tuple[str, ...] = ()
    missing_texts: tuple[str, ...] = MISSING_TEXTS
    version: ClassVar[int] = VERSION
    source: str = field(default="", compare=False)  # the file that it was read from
    group: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are encoded as features."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in order."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def private(self) -> tuple[str, ...]:
        """Names of the columns with private ranges."""
        return tuple(
            column.name for column in self.columns if isinstance(column, Number) and column.range is None
        )

    @cached_property
    def private_places(self) -> list[int]:
        """The indices of the features of these columns."""
        return [self.features.index(name) for name in self.private]

    def with_ranges(self, ranges: Sequence[Range]) -> "Schema":
        """The schema with these ranges in place of the private ones."""
        found = dict(zip(self.private, ranges, strict=True))
        columns = tuple(
            replace(own, range=found[own.name]) if isinstance(own, Number) and own.range is None else own
            for own in self.columns
        )
        return replace(self, columns=columns)

    @property
    def num_classes(self) -> int:
        """Number of classes of the label; 0 for a numeric label."""
        return len(self.label.names) if isinstance(self.label, Classes) else 0

    @cached_property
    def absent(self) -> frozenset[str]:
        """The texts that mark a missing value, in canonical form, so "-9" is also -9.0."""
        return frozenset(map(as_text, self.missing_texts))

    def encode(self, cells: Mapping[str, Cells]) -> Floats:
        """The features (rows, features) of a table given by columns; DataError names the row and column.

        Columns with private ranges are not scaled, and are NaN where a value is missing.
        """
        out = np.empty((_rows(cells[self.names[0]]), len(self.features)))
        first = 0
        for column in self.columns:
            last = first + len(column.features)
            with _named(column.name):
                column.encode(cells[column.name], self.absent, out[:, first:last])
            first = last
        return out

    def encode_label(self, cells: Mapping[str, Cells]) -> NDArray[Any]:
        """The labels (rows,): class indices, or numbers scaled to [-1, 1]."""
        with _named(self.label.column):
            return self.label.encode(cells[self.label.column], self.absent)

    @cached_property
    def digest(self) -> str:
        """A hash of the schema's content (32 hex digits), independent of how its file is formatted."""
        return hashlib.sha256(json.dumps(self.document(), sort_keys=False).encode()).hexdigest()[:32]

    def document(self) -> dict[str, Any]:
        """The schema as a nested dictionary, with the structure of its TOML file."""
        return {
            "version": VERSION,
            "missing-values": list(self.missing_texts),
            "ignore": list(self.ignore),
            **({"group": self.group} if self.group else {}),
            "label": _label_table(self.label),
            "columns": {column.name: _column_table(column) for column in self.columns},
        }

    def to_toml(self) -> str:
        """The schema as the text of a TOML file."""
        document = self.document()
        tables = document.pop("label"), document.pop("columns")
        lines = [f"{key} = {_toml(value)}" for key, value in document.items()]
        for heading, table in zip(("label", "columns"), tables, strict=True):
            lines += ["", f"[{heading}]", *(f"{_key(key)} = {_toml(value)}" for key, value in table.items())]
        return "\n".join(lines) + "\n"


class _named:
    """A context that adds the column's name to errors about one of its cells."""

    def __init__(self, column: str) -> None:
        self.column = column

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, CellError):
            raise CellError(error.row, f"column '{self.column}': {error.text}") from None


def _rows(cells: Cells) -> int:
    return len(cells)


def _label_table(label: Classes | Target) -> dict[str, Any]:
    if isinstance(label, Target):
        return {"column": label.column, "range": [label.range.low, label.range.high]}
    plain = all((as_text(name),) == own for name, own in zip(label.names, label.values, strict=True))
    names = dict(zip(map(str, label.names), map(list, label.values), strict=True))
    return {"column": label.column, "classes": list(label.names) if plain else names}


def _column_table(column: Column) -> dict[str, Any]:
    kind: dict[str, Any] = (
        {"range": PRIVATE if column.range is None else [column.range.low, column.range.high]}
        if isinstance(column, Number)
        else {"categories": list(column.categories)}
    )
    return kind | ({} if column.missing == REFUSE else {"missing": column.missing})


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_toml(own)}" for key, own in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return (
        repr(value)
        if isinstance(value, float)
        else json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    )


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _toml(name)


# ----------------------------------------------------------------------------------------- reading


def read_schema(path: str | Path) -> Schema:
    """Read a schema file; DataError with the file and the position for an invalid one."""
    file = Path(path).expanduser()
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"schema {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"schema {file} must be UTF-8 text; byte {error.start} is not") from None
    return parse_schema(text, str(file))


def parse_schema(text: str, source: str = "") -> Schema:
    """Parse the text of a schema; `source` is its name in error messages."""
    where = f"schema {source}".rstrip()
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{where} is not TOML: {error}") from None
    return _Reader(where).schema(document, source)


@dataclass(frozen=True)
class _Reader:
    """Validates a document; `where` is the prefix of every error message."""

    where: str

    def schema(self, document: Mapping[str, Any], source: str) -> Schema:
        self._keys("", document, _KEYS)
        version = document.get("version", VERSION)
        self._need(version == VERSION, f"version must be {VERSION}; got {version!r}")
        tables = document.get("columns", {})
        self._need(
            isinstance(tables, dict) and bool(tables), "needs a table [columns] with at least one column"
        )
        columns = tuple(self._column(name, table) for name, table in tables.items())
        schema = Schema(
            columns,
            self._label(document.get("label")),
            tuple(self._texts("ignore", document.get("ignore", []))),
            tuple(self._texts("missing-values", document.get("missing-values", list(MISSING_TEXTS)))),
            source,
            self._group(document.get("group", "")),
        )
        named = [*schema.names, schema.label.column, *schema.ignore, *filter(None, [schema.group])]
        self._distinct("columns, label, ignore and group", named)
        self._distinct("names of features", schema.features)
        return schema

    def _group(self, name: Any) -> str:
        self._need(isinstance(name, str), f"group must be the name of a column; got {name!r}")
        return str(name)

    def _column(self, name: str, table: Any) -> Column:
        place = f"column '{name}'"
        self._need(
            isinstance(table, dict), f"{place} must be a table such as {{ range = [0, 1] }}; got {table!r}"
        )
        self._keys(place, table, ("range", "categories", "missing"))
        self._need(name == name.strip() != "", f"{place} must have a name without spaces around it")
        self._need(("range" in table) != ("categories" in table), f"{place} needs either range or categories")
        missing = table.get("missing", REFUSE)
        self._need(
            missing in MISSING, f"{place}: missing must be one of {', '.join(MISSING)}; got {missing!r}"
        )
        if "range" in table:
            private = table["range"] == PRIVATE
            return Number(name, None if private else self._range(place, table["range"]), missing)
        return Category(name, tuple(self._values(f"{place}: categories", table["categories"])), missing)

    def _label(self, table: Any) -> Classes | Target:
        self._need(isinstance(table, dict), "needs a table [label] with column and either classes or range")
        self._keys("label", table, ("column", "classes", "range"))
        column = table.get("column")
        self._need(
            isinstance(column, str) and bool(column), f"label needs the name of its column; got {column!r}"
        )
        self._need(("range" in table) != ("classes" in table), "label needs either classes or range")
        if "range" in table:
            self._need(
                table["range"] != PRIVATE,
                "the range of a label must be public, [low, high]; it has no counts",
            )
            return Target(column, self._range("label", table["range"]))
        return self._classes(column, table["classes"])

    def _classes(self, column: str, classes: Any) -> Classes:
        if isinstance(classes, dict):
            names: tuple[str | int, ...] = tuple(classes)
            values = [self._values(f"class '{name}'", own) for name, own in classes.items()]
        else:
            texts = self._values("label: classes", classes)
            whole = all(type(value) is int for value in classes)
            names, values = tuple(map(int, texts) if whole else texts), [[text] for text in texts]
        self._need(len(names) > 1, f"label needs at least two classes; got {len(names)}")
        self._distinct("values of classes", [value for own in values for value in own])
        return Classes(column, names, tuple(map(tuple, values)))

    def _range(self, place: str, given: Any) -> Range:
        good = isinstance(given, list) and len(given) == 2 and all(type(v) in (int, float) for v in given)
        low, high = map(float, given) if good else (0.0, 0.0)
        good = -LARGEST <= low < high <= LARGEST and Range(low, high).half > 0
        self._need(
            good, f"{place}: range must be [low, high], two finite numbers with low < high; got {given!r}"
        )
        return Range(low, high)

    def _values(self, place: str, given: Any) -> list[str]:
        good = (
            isinstance(given, list) and bool(given) and all(isinstance(v, str | int | float) for v in given)
        )
        self._need(good, f"{place} must be a list of texts or numbers; got {given!r}")
        texts = list(map(as_text, given))
        self._distinct(place, texts)
        return texts

    def _texts(self, place: str, given: Any) -> list[str]:
        good = isinstance(given, list) and all(isinstance(value, str) for value in given)
        self._need(good, f"{place} must be a list of texts; got {given!r}")
        return list(given)

    def _distinct(self, place: str, words: Sequence[str]) -> None:
        twice = [word for place, word in enumerate(words) if word in words[:place]]
        self._need(not twice, f"{place} must differ; '{twice[0] if twice else ''}' is there twice")

    def _keys(self, place: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in table:
            text = f"{place}: " if place else ""
            self._need(key in known, f"{text}there is no key '{key}'; {nearest(key, known)}")

    def _need(self, condition: bool, text: str) -> None:
        expect(condition, f"{self.where}: {text}")
