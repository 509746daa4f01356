"""Read a site's CSV, Parquet or .npz table with named columns as features and labels, using a public `Schema`.

    features, labels = read_rows("site-1.csv", read_schema("schema.toml"))

A table that does not fit the schema raises a `DataError` with file, row and column. Rows are counted from 1, without
the header. CSV is read by `csv_tables` and encoded in pieces, so a table needs little more memory than its features.
Parquet needs pyarrow.
"""

import glob
import io
import math
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError, cause
from .csv_tables import Piece, read_header, read_pieces
from .files import read_bytes
from .schema import (
    INDICATOR,
    MISSING_TEXTS,
    REFUSE,
    Category,
    CellError,
    Cells,
    Classes,
    Column,
    Floats,
    Number,
    Range,
    Schema,
    Target,
    as_text,
    coded,
    expect,
    numbers,
)

_COLUMNS = "the columns of its table are not those of the schema"
_PEOPLE = "the numbers of rows of a person in its table do not fit its group-size"
Finish = Callable[[Floats], Floats]
_ENDINGS = (".csv", ".parquet", ".npz")
_MOST_CATEGORIES = 50  # largest number of categories of a text column in a draft
_FEW_NUMBERS = 6  # in a draft, up to this many distinct integers are treated as categories
_MOST_CLASSES = 20


def read_rows(path: str | Path, schema: Schema, finish: Finish | None = None) -> tuple[Floats, NDArray[Any]]:
    """Features (rows, features) in [-1, 1] and labels (rows,) of a table; DataError if it does not fit.

    finish: computes the final features of some rows, each from its own row alone. It is applied to every piece, which
    needs less memory than applying it to the whole.
    """
    features, labels = [], []
    for part, own in encoded(path, schema, labelled=True):
        features.append(finish(part) if finish else part)
        labels.append(own)
    return _joined(features), np.concatenate(labels)


def read_features(path: str | Path, schema: Schema) -> Floats:
    """Features (rows, features) of a table, with or without a label column; DataError if it does not fit."""
    return _joined([features for features, _ in encoded(path, schema, labelled=False)])


def encoded(path: str | Path, schema: Schema, labelled: bool) -> Iterator[tuple[Floats, NDArray[Any]]]:
    """Yield features and labels piece by piece; DataError if the table does not fit or has no rows."""
    file, row = Path(path).expanduser(), 0
    for piece in _pieces(file, schema, _needed(schema, labelled)):
        try:
            features = schema.encode(piece)
            labels = schema.encode_label(piece) if labelled else np.zeros(len(features))
        except CellError as error:
            raise DataError(f"{file}, row {row + error.row + 1}, {error.text}", error.reason) from None
        row += len(features)
        yield features, labels
    expect(row > 0, f"{file} has a header and no rows", "its table has no rows")


def check_groups(path: str | Path, schema: Schema, most: int) -> None:
    """DataError if a value of the schema's group column has more than `most` rows, or if one is missing.

    Does nothing for a schema without a group column.
    """
    file, seen, row = Path(path).expanduser(), Counter[str](), 0
    for piece in _pieces(file, schema, _needed(schema, labelled=True)) if schema.group else ():
        cells = np.asarray(piece[schema.group]).tolist()
        texts = ["" if cell is None or cell != cell else as_text(cell) for cell in cells]
        seen.update(texts)
        gone = next((place for place, text in enumerate(texts) if text in schema.absent), None)
        if gone is not None:
            raise DataError(
                f"{file}, row {row + gone + 1}, column '{schema.group}': a person must be named",
                _PEOPLE,
            )
        row += len(texts)
    largest = max(seen.values(), default=0)
    expect(
        largest <= most,
        f"{file} has {largest} rows with the same {schema.group}, and group-size is {most}: raise it, or leave "
        "rows out",
        _PEOPLE,
    )


def _joined(parts: list[Floats]) -> Floats:
    """The parts concatenated along the rows; each part is freed as soon as it is copied."""
    rows = sum(map(len, parts))
    whole = np.empty((rows, parts[0].shape[1]))
    parts.reverse()
    first = 0
    while parts:
        part = parts.pop()
        whole[first : first + len(part)] = part
        first += len(part)
    return whole


def read_names(path: str | Path, schema: Schema, column: str) -> list[str]:
    """The canonical texts of a column (rows,) that the schema ignores; DataError if one is missing."""
    file = Path(path).expanduser()
    names: list[str] = []
    for piece in _pieces(file, schema, (column,)):
        names += map(as_text, piece[column])
    absent = next((row for row, name in enumerate(names, 1) if name in schema.absent or name == "None"), 0)
    expect(not absent, f"{file}, row {absent}, column '{column}' is missing, and every row needs its site")
    return names


def table_files(pattern: str) -> list[Path]:
    """The files that match a pattern such as site-*.csv, sorted by name; DataError if there are none."""
    paths = sorted(Path(name) for name in glob.glob(str(Path(pattern).expanduser())))
    expect(bool(paths), f"no file matches {pattern}")
    return paths


def _needed(schema: Schema, labelled: bool) -> tuple[str, ...]:
    """The columns that are read from a table."""
    return (*schema.names, schema.label.column, *filter(None, [schema.group])) if labelled else schema.names


def _pieces(file: Path, schema: Schema, needed: Sequence[str]) -> Iterator[Piece]:
    """Yield the needed columns of a table in pieces of some rows, after checking the header."""
    kind = file.suffix.lower()
    expect(kind in _ENDINGS, f"{file} must be one of {', '.join(_ENDINGS)}, which its name must end with")
    if kind == ".csv":
        names = read_header(file)
        _check_header(file, names, schema, needed)
        return read_pieces(file, names, needed, _numeric(schema))
    header, columns = (_read_npz if kind == ".npz" else _read_parquet)(file)
    _check_header(file, header, schema, needed)
    return iter([{name: columns(name) for name in needed}])


def _numeric(schema: Schema) -> set[str]:
    """The names of the columns that hold numbers."""
    label = [schema.label.column] if isinstance(schema.label, Target) else []
    return {*label, *(column.name for column in schema.columns if isinstance(column, Number))}


def _check_header(file: Path, header: Sequence[str], schema: Schema, needed: Sequence[str]) -> None:
    """DataError unless each needed column occurs once, and all others are the label or ignored columns."""
    absent = [name for name in needed if name not in header]
    expect(
        not len(absent) == len(needed) > 1,
        f"{file} has none of the columns that the schema names, {_quoted(absent)}; is its first line a header?",
        _COLUMNS,
    )
    twice = [name for name, number in Counter(header).items() if number > 1]
    expect(not twice, f"{file} has two columns called {_quoted(twice[:1])}", _COLUMNS)
    who = "data.site-column names" if {*absent} & {*schema.ignore} else "the schema names"
    expect(not absent, f"{file} has no column {_quoted(absent)}, which {who}", _COLUMNS)
    known = {*schema.names, schema.label.column, *schema.ignore, *filter(None, [schema.group])}
    extra = [name for name in header if name not in known]
    expect(
        not extra,
        f"{file} has a column {_quoted(extra)} that the schema does not know: list it under ignore there, or remove it",
        _COLUMNS,
    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:5]) + (" ..." if len(names) > 5 else "")


# ------------------------------------------------------------------------------- Parquet and .npz


def _read_parquet(file: Path) -> tuple[list[str], Any]:
    """The column names, and a function that returns the cells of a column by name."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f'{file}: Parquet needs pyarrow; install it with pip install "twinflower[tables]", or write CSV'
        ) from None
    try:
        table = parquet.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as Parquet: {cause(error)}") from None

    def cells(name: str) -> Cells:
        column = table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        numeric = plain and not column.null_count
        return column.to_numpy() if numeric else column.to_pylist()  # type: ignore[no-any-return]

    return list(table.column_names), cells


def _read_npz(file: Path) -> tuple[list[str], Any]:
    """The column names, and a function that returns the cells of a column by name; every array is a column."""
    content = read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            columns = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, KeyError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{file} must be an .npz file with an array for each column ({cause(error)})"
        ) from None
    _check_arrays(file, columns)
    return list(columns), columns.__getitem__


def _check_arrays(file: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    expect(bool(columns), f"{file} has no arrays; it must have one for each column")
    rows = next(iter(columns.values())).shape[:1]
    for name, cells in columns.items():
        expect(cells.ndim == 1, f"{file}: column '{name}' must have shape (rows,); got {cells.shape}")
        expect(cells.shape == rows, f"{file}: column '{name}' has {len(cells)} rows; another has {rows[0]}")
        expect(
            cells.dtype.kind in "fiubU",
            f"{file}: column '{name}' must be numbers or texts; got {cells.dtype}",
        )


# ------------------------------------------------------------------------------------- a first draft


def draft(paths: Sequence[str | Path], label: str = "", private_ranges: bool = False) -> Schema:
    """A draft schema for these tables, to be reviewed: its ranges and categories are taken from the data.

    label is the name of the label column; by default, the last column of the first table. Numeric columns get the range
    of their values, rounded outwards to two digits, or with private_ranges no range but "private". Text columns, and
    columns with few distinct integers, become categories. A column with missing values gets an indicator. Text columns
    with too many values and columns without a name are ignored.
    """
    tables = [_everything(Path(path).expanduser()) for path in paths]
    names = list(dict.fromkeys(name for table in tables for name in table))
    label = label or list(tables[0])[-1]
    expect(label in names, f"there is no column '{label}' in {', '.join(map(str, paths))}")
    seen = {name: _Seen.of([cell for table in tables for cell in table.get(name, [None])]) for name in names}
    columns = [seen[name].column(name) for name in names if name != label]
    used = tuple(
        replace(own, range=None) if private_ranges and isinstance(own, Number) else own
        for own in columns
        if isinstance(own, Number | Category)
    )
    expect(bool(used), f"no column of {paths[0]} but the label can be used")
    return Schema(used, seen[label].label(label), tuple(name for name in columns if isinstance(name, str)))


_DRAFTED = """\
# A draft, made from all values of {files}. Its ranges and categories are
# data, which no guarantee covers: before a private run, replace them by what is publicly known. Choose what a missing
# value becomes: "refuse", "zero" (the middle of the range, or no category), or "indicator" (and one more feature).
# Columns without a name, and columns of text with more than {most} different values, are listed under ignore. All sites
# must use the same schema.

"""


def drafted(paths: Sequence[str | Path], label: str = "", private_ranges: bool = False) -> str:
    """The text of a draft schema, with a comment at the top that says that it was made from the data."""
    names = ", ".join(Path(path).name for path in paths).encode("ascii", "replace").decode()
    return (
        _DRAFTED.format(files=" ".join(names.split()), most=_MOST_CATEGORIES)
        + draft(paths, label, private_ranges).to_toml()
    )


def _everything(file: Path) -> dict[str, list[Any]]:
    """All columns of a table, by name, read without a schema."""
    kind = file.suffix.lower()
    expect(kind in _ENDINGS, f"{file} must be one of {', '.join(_ENDINGS)}, which its name must end with")
    if kind != ".csv":
        header, columns = (_read_npz if kind == ".npz" else _read_parquet)(file)
        return {name: np.asarray(columns(name)).tolist() for name in header}
    header = read_header(file)
    _check_header(file, header, _any_columns(header), [])
    found: dict[str, list[Any]] = {name: [] for name in header}
    for piece in read_pieces(file, header, header):
        for name, cells in piece.items():
            found[name].extend(cells)
    expect(bool(found[header[0]]), f"{file} has a header and no rows")
    return found


def _any_columns(header: Sequence[str]) -> Schema:
    """A placeholder schema that accepts all of these columns."""
    return Schema((), Target(header[0], Range(0.0, 1.0)), tuple(header))


class _Seen:
    """The distinct values of a column: whether any are missing, the texts, and the numbers if all are numeric."""

    def __init__(self, texts: set[str], missing: bool) -> None:
        self.texts, self.missing = texts, missing
        self.numbers = _all_numbers(texts)

    @classmethod
    def of(cls, cells: Iterable[Any]) -> "_Seen":
        texts = {"" if cell is None or cell != cell else as_text(cell) for cell in set(cells)}
        present = texts - set(MISSING_TEXTS)
        return cls(present, present != texts)

    def column(self, name: str) -> Column | str:
        """The column in the draft, or its name if the draft ignores it."""
        rule = INDICATOR if self.missing else REFUSE
        if not name:
            return name
        if self._are_categories(_FEW_NUMBERS, _MOST_CATEGORIES):
            return Category(name, tuple(self._ordered()), rule)
        range_ = self._range()
        return Number(name, range_, rule) if range_ else name

    def label(self, name: str) -> Classes | Target:
        """The label in the draft; DataError if the column cannot be a label."""
        if len(self.texts) > 1 and self._are_categories(_MOST_CLASSES, _MOST_CLASSES):
            ordered = self._ordered()
            whole = self.numbers is not None
            names = tuple(int(float(text)) if whole else text for text in ordered)
            return Classes(name, names, tuple((text,) for text in ordered))
        range_ = self._range()
        if range_ is None:
            raise DataError(f"column '{name}' cannot be the label: it has {len(self.texts)} different values")
        return Target(name, range_)

    def _are_categories(self, most_numbers: int, most_texts: int) -> bool:
        if self.numbers is None:
            return 1 <= len(self.texts) <= most_texts
        whole = all(value == int(value) for value in self.numbers)
        return 1 <= len(self.numbers) <= most_numbers and whole

    def _ordered(self) -> list[str]:
        return sorted(self.texts, key=float) if self.numbers is not None else sorted(self.texts)

    def _range(self) -> Range | None:
        if not self.numbers:
            return None
        low, high = _rounded(min(self.numbers), math.floor), _rounded(max(self.numbers), math.ceil)
        return Range(low, high) if low < high else Range(low - 1.0, low + 1.0)


def _all_numbers(texts: set[str]) -> list[float] | None:
    """The texts as numbers; None unless all are finite numbers."""
    try:
        values = list(map(float, texts))
    except ValueError:
        return None
    return values if values and all(map(math.isfinite, values)) else None


def _rounded(value: float, direction: Any) -> float:
    """The value rounded to two significant digits with `direction`, math.floor or math.ceil."""
    if not value:
        return 0.0
    digits = math.floor(math.log10(abs(value))) - 1
    return float(f"{direction(float(f'{value / 10.0**digits:.9g}'))}e{digits}")


# ------------------------------------------------------------------------------- what a site can check


def describe_fit(path: str | Path, schema: Schema) -> list[tuple[str, int, int, int]]:
    """Name, rows, missing values and clipped values (outside the public range) of each column used for features.

    Raises DataError for a table that does not fit. These counts are private data, meant only for the site that holds
    the table.
    """
    file, tally = Path(path).expanduser(), {column.name: [0, 0, 0] for column in schema.columns}
    for _ in encoded(file, schema, labelled=True):
        pass
    for piece in _pieces(file, schema, _needed(schema, labelled=True)):
        for column in schema.columns:
            counts = _fit(column, piece[column.name], schema.absent)
            tally[column.name] = [total + own for total, own in zip(tally[column.name], counts, strict=True)]
    return [(name, rows, missing, outside) for name, (rows, missing, outside) in tally.items()]


def _fit(column: Column, cells: Cells, absent: frozenset[str]) -> tuple[int, int, int]:
    """The numbers of rows, missing values and clipped values among cells that have passed the checks."""
    if isinstance(column, Category):
        places = {category: place for place, category in enumerate(column.categories)}
        return len(cells), int((coded(cells, places, absent, "") < 0).sum()), 0
    values = numbers(cells, absent)
    if column.range is None:
        return len(cells), int(np.isnan(values).sum()), 0
    outside = (values < column.range.low) | (values > column.range.high)
    return len(cells), int(np.isnan(values).sum()), int(outside.sum())
