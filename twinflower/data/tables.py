"""Read a site's CSV, Parquet or .npz table with named columns as features and labels, using a public `Schema`.

    features, labels = read_rows("site-1.csv", read_schema("schema.toml"))

A table that does not fit the schema raises a `DataError` with file, row and column. Rows are counted from 1, without
the header. CSV is read by `csv_tables` and encoded in pieces, so a table needs little more memory than its features.
Parquet needs pyarrow.
"""

import glob
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import UNUSABLE, DataError, cause
from .cells import CellError, Cells, Floats, listed, texts
from .columns import Classes, Marks, Number, Survival
from .csv_tables import Dialect, Piece, read_header, read_pieces
from .files import read_arrays
from .schema import Schema

_COLUMNS = "the columns of its table are not those of the schema"
_PEOPLE = "the numbers of rows of a person in its table do not fit its group-size"
_FEW = 5  # names in an error message
Finish = Callable[[Floats], Floats]


class Rows(NamedTuple):
    """Features (rows, features), labels (rows,), the marks of values that are clipped or missing (rows, columns), and
    weights and names of groups (rows,), None for a schema without."""

    features: Floats
    labels: NDArray[Any]
    marks: Marks
    weights: Floats | None = None
    groups: NDArray[Any] | None = None

    def taken(self, rows: NDArray[Any]) -> "Rows":
        """The rows that a mask or an array of numbers selects."""
        return Rows(self.features[rows], *(None if array is None else array[rows] for array in self[1:]))  # type: ignore[arg-type]

    @classmethod
    def stacked(cls, tables: Sequence["Rows"]) -> "Rows":
        """The rows of all of these tables of one schema, at least one, in their order."""
        features, labels, marks, *others = zip(*tables, strict=True)
        whole = map(np.concatenate, (features, labels, marks))
        return cls(*whole, *map(_all, others))


def read_rows(path: str | Path, schema: Schema, finish: Finish | None = None) -> tuple[Floats, NDArray[Any]]:
    """Features and labels as of `read_weighted`, of a table with or without weights."""
    return read_weighted(path, schema.unweighted, finish)[:2]


def read_weighted(path: str | Path, schema: Schema, finish: Finish | None = None) -> Rows:
    """Features (rows, features) in [-1, 1], labels (rows,) and weights of a table; DataError if it does not fit.

    finish: computes the final features of some rows, each from its own row alone. It is applied to every piece, which
    needs less memory than applying it to the whole.
    """
    features, others = [], []
    for piece in encoded(path, schema, labelled=True):
        features.append(finish(piece.features) if finish else piece.features)
        others.append(piece[1:])
    labels, marks, weights, groups = zip(*others, strict=True)
    return Rows(_joined(features), np.concatenate(labels), np.concatenate(marks), _all(weights), _all(groups))


def read_features(path: str | Path, schema: Schema) -> Floats:
    """Features (rows, features) of a table, with or without a label column; DataError if it does not fit."""
    return _joined([piece.features for piece in encoded(path, schema, labelled=False)])


def encoded(path: str | Path, schema: Schema, labelled: bool) -> Iterator[Rows]:
    """Yield the rows piece by piece, all labels 0 without `labelled`; DataError if the table does not fit or has no
    rows."""
    file, row = Path(path).expanduser(), 0
    schema = schema.at(file)
    for piece in _pieces(file, schema, schema.used if labelled else schema.names):
        try:
            rows = encoded_cells(piece, schema, labelled)
        except CellError as error:
            text = f"{file}, row {row + error.row + 1}, {error.cell}"
            raise DataError(text, error.reason, error.remedy) from None
        row += len(rows.features)
        yield rows
    if not row > 0:
        raise DataError(f"{file} has a header and no rows", "its table has no rows")


def encoded_cells(cells: Mapping[str, Cells], schema: Schema, labelled: bool = True) -> Rows:
    """The rows of a table given by columns, all labels 0 without `labelled`; CellError for an invalid cell."""
    features, marks = schema.encode_marked(cells)
    if not labelled:
        return Rows(features, np.zeros(len(features)), marks)
    labels, weights = schema.encode_label(cells), schema.encode_weights(cells)
    groups = schema.encode_groups(cells)
    return Rows(features, labels, np.hstack([marks, schema.limit_marks(cells)]), weights, groups)


def check_groups(path: str | Path, schema: Schema, most: int) -> None:
    """DataError if a value of the schema's group column has more than `most` rows, or if one is missing.

    Does nothing for a schema without a group column.
    """
    if not schema.group:
        return
    file = Path(path).expanduser()
    people = _present(file, schema, schema.used, schema.group, ": a person must be named", _PEOPLE)
    largest = max(Counter(people).values(), default=0)
    if not largest <= most:
        raise DataError(
            f"{file} has {largest} rows with the same {schema.group}, and group-size is {most}: raise it, or leave "
            "rows out",
            _PEOPLE,
        )


def read_names(path: str | Path, schema: Schema, column: str) -> list[str]:
    """The canonical texts of a column (rows,) that the schema ignores; DataError if one is missing."""
    file = Path(path).expanduser()
    return _present(file, schema, (column,), column, " is missing, and every row needs its site")


def _present(
    file: Path, schema: Schema, needed: Sequence[str], column: str, fault: str, reason: str = UNUSABLE
) -> list[str]:
    """The canonical texts of one of the needed columns (rows,); DataError(fault, reason) where one is missing."""
    names = [text for piece in _pieces(file, schema, needed) for text in texts(listed(piece[column]))]
    for row, text in enumerate(names, 1):
        if not text or text in schema.absent:
            raise DataError(f"{file}, row {row}, column '{column}'{fault}", reason)
    return names


def _all(parts: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    """The weights, or the groups, of all parts of a table, None if the parts have none."""
    known = [part for part in parts if part is not None]
    return np.concatenate(known) if known else None


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


def table_files(pattern: str) -> list[Path]:
    """The file with this path, or the files that match a pattern such as site-*.csv, sorted by name; DataError if there
    are none. Folders at the beginning that exist are no pattern, even if they have brackets."""
    path = Path(pattern).expanduser()
    literal = next(parent for parent in (path, *path.parents) if parent.exists())
    if literal == path:
        return [path]
    rest = str(path.relative_to(literal))
    paths = sorted(Path(name) for name in glob.glob(f"{glob.escape(str(literal))}/{rest}"))
    if not paths:
        raise DataError(
            f"no file matches {pattern}"
            + ("; name several files by a pattern such as site-*.csv" if "," in rest else "")
        )
    return paths


def _pieces(file: Path, schema: Schema, needed: Sequence[str]) -> Iterator[Piece]:
    """Yield the needed columns of a table in pieces of some rows; DataError unless each of them occurs once, and all
    others are the label or ignored columns."""
    header, pieces = opened(file, schema.dialect)
    for text, remedy in header_problems(file, header, schema, needed):
        raise DataError(text, _COLUMNS, remedy)
    return pieces(needed, numeric_columns(schema))


def numeric_columns(schema: Schema) -> set[str]:
    """The names of the columns that hold numbers."""
    label = schema.label
    event = {label.event} if isinstance(label, Survival) else set()
    classes = {label.column} if isinstance(label, Classes) else set()
    weight = {schema.weight.column} if schema.weight else set()
    features = {column.name for column in schema.columns if isinstance(column, Number)}
    return {*label.encoders} - event - classes | features | weight


def header_problems(
    file: Path, header: Sequence[str], schema: Schema, needed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield text and remedy for every way in which the names of a table's columns differ from what is needed."""
    there = {*header}
    absent = [name for name in needed if name not in there]
    if len(absent) == len(needed) > 1:
        text = f"{file} has none of the columns that the schema names, {_quoted(absent)}; is its first line a header?"
        yield text, ""
        return
    yield from _repeated(file, header)
    known = {*schema.used, *schema.ignore}
    extra = [name for name in dict.fromkeys(header) if name not in known]
    if absent:
        who = "data.site-column names" if {*absent} & {*schema.ignore} else "the schema names"
        yield f"{file} has no column {_quoted(absent)}, which {who}{similar(absent, extra)}", ""
    if extra:
        text = f"{file} has a column {_quoted(extra)} that the schema does not know"
        yield text, "list it under ignore there, or remove it"


def check_names(file: Path, header: Sequence[str]) -> None:
    """DataError if two columns have the same name."""
    for text, _ in _repeated(file, header):
        raise DataError(text, _COLUMNS)


def _repeated(file: Path, header: Sequence[str]) -> Iterator[tuple[str, str]]:
    twice = [name for name, count in Counter(header).items() if count > 1]
    if twice:
        yield f"{file} has two columns called {_quoted(twice[:1])}", ""


def similar(absent: Sequence[str], extra: Sequence[str]) -> str:
    """The extra columns of a table whose names are close to absent ones, as a question; empty if there are none."""
    folded = {name.casefold(): name for name in extra}
    near = [get_close_matches(name.casefold(), folded, 1) for name in absent[:_FEW]]
    matches = [folded[names[0]] for names in near if names]
    return f"; did you mean {_quoted(matches)}?" if matches else ""


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:_FEW]) + (" ..." if len(names) > _FEW else "")


# --------------------------------------------------------------------------------------- file formats


class Pieces(Protocol):
    """A table that has been opened; a call yields the cells of some of its columns, for some rows at a time."""

    def __call__(self, needed: Sequence[str], numeric: Collection[str] = ()) -> Iterator[Piece]:
        """See `read_pieces`; `numeric` has no effect on formats in which columns have types."""


def opened(file: Path, dialect: Dialect, uneven: dict[int, str] | None = None) -> tuple[list[str], Pieces]:
    """The column names and the content of a table; DataError if the file cannot be read.

    dialect: how the file is written if it is CSV. uneven: see `read_pieces`.
    """
    kind = file.suffix.lower()
    known = (CSV, *_TYPED)
    if kind not in known:
        raise DataError(f"{file} must be one of {', '.join(known)}, which its name must end with")
    if kind != CSV:
        return _TYPED[kind](file)
    header = read_header(file, dialect)
    return header, partial(read_pieces, file, dialect, header, uneven=uneven)


def _whole(cells: Callable[[str], Cells]) -> Pieces:
    """All rows in a single piece; cells: returns a column by its name."""
    return lambda needed, numeric=(): iter([{name: cells(name) for name in needed}])


def _read_parquet(file: Path) -> tuple[list[str], Pieces]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise DataError(
            f"{file}: Parquet needs pyarrow; install it with pip install pyarrow, or write CSV"
        ) from None
    try:
        table = parquet.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as Parquet: {cause(error)}") from None

    def cells(name: str) -> Cells:
        column = table.column(name)
        if _is_nested(column.type):
            raise DataError(
                f"{file}: column '{name}' holds values of type {column.type}, not numbers or texts: write its parts as "
                "columns of their own, or list it under ignore in the schema"
            )
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        plain = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
        numeric = plain and not column.null_count
        return column.to_numpy() if numeric else column.to_pylist()  # type: ignore[no-any-return]

    return list(table.column_names), _whole(cells)


def _is_nested(kind: Any) -> bool:
    """Whether this type of a Parquet column is no number, text or time: lists, structs, maps, bytes."""
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    return types.is_nested(value) or any(
        is_type(value) for is_type in (types.is_binary, types.is_large_binary, types.is_fixed_size_binary)
    )


def nested_columns(file: Path) -> set[str]:
    """The columns of a table whose values are no numbers, texts or times, which only a schema that ignores them can
    have."""
    if file.suffix.lower() != PARQUET:
        return set()
    from pyarrow import parquet

    return {column.name for column in parquet.read_schema(file) if _is_nested(column.type)}


def _read_npz(file: Path) -> tuple[list[str], Pieces]:
    columns = read_arrays(file, f"{file} must be an .npz file with an array for each column")
    _check_arrays(file, columns)
    return list(columns), _whole(columns.__getitem__)


def _check_arrays(file: Path, columns: Mapping[str, NDArray[Any]]) -> None:
    if not columns:
        raise DataError(f"{file} has no arrays; it must have one for each column")
    rows = next(iter(columns.values())).shape[:1]
    for name, cells in columns.items():
        if cells.ndim != 1:
            raise DataError(f"{file}: column '{name}' must have shape (rows,); got {cells.shape}")
        if cells.shape != rows:
            raise DataError(f"{file}: column '{name}' has {len(cells)} rows; another has {rows[0]}")
        if cells.dtype.kind not in "fiubU":
            raise DataError(f"{file}: column '{name}' must be numbers or texts; got {cells.dtype}")


CSV, PARQUET = ".csv", ".parquet"
_TYPED = {PARQUET: _read_parquet, ".npz": _read_npz}
