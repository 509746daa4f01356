"""Read a CSV table in pieces of rows: UTF-8 as in RFC 4180, with or without a byte order mark, with any line endings,
and separated by commas or as its `Dialect` says. A first line such as `sep=;`, which Excel needs, is skipped.

    header = read_header(file, dialect)
    for piece in read_pieces(file, dialect, header, ["age", "sex"], numeric={"age"}):
        piece["age"], piece["sex"]

NumPy's `loadtxt` is the fast reader; it reads plain lines of numbers and texts. Lines with quotes, and lines that
`loadtxt` refuses, are read with Python's csv module. Both give the same cells, and all error messages come from the
latter. Rows are counted from 1, without the header.
"""

import csv
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TextIO

import numpy as np

from ..decimals import is_decimal
from ..errors import DataError
from ..settings import LARGEST
from .cells import Ambiguous, Cells, listed

Piece = Mapping[str, Cells]
_ROWS = 4096  # rows that are read together
_NUMBER, _TEXT = "f8", "O"  # types of columns that loadtxt reads
_NOT_CSV = "its table is not valid CSV in UTF-8"
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
DECIMALS = (".", ",")
_EXCEL_MARK = re.compile(r'"?sep=.?"?\s*')
# Marks without a meaning: byte order marks of joined files, zero-width spaces, marks of direction; joiners at an end
_INVISIBLE = re.compile(
    "[\ufeff\u200b\u200e\u200f\u2060]|(?<![^\x00-\x7f])[\u200c\u200d]|[\u200c\u200d](?![^\x00-\x7f])"
)
_THOUSANDS = re.compile(r"\s*[+-]?\d{1,3}(\.\d{3})+,\d+\s*")  # with points, such as 1.234,5


class Dialect(NamedTuple):
    """How a CSV file is written: what separates its fields (a key of `DELIMITERS`), and the decimal mark of its numbers
    (one of `DECIMALS`). If both are commas, numbers with decimals must be in quotes."""

    delimiter: str = ","
    decimal: str = "."


PLAIN = Dialect()


def read_header(file: Path, dialect: Dialect) -> list[str]:
    """The column names in the first line that is not blank; DataError if there is none."""
    with opened_text(file) as stream:
        first = next(_records(file, stream, dialect), None)
    if first is None:
        raise DataError(f"{file} is empty; it must begin with a line of column names", _NOT_CSV)
    header = [name.strip() for name in first]
    others = [mark for mark in DELIMITERS if len(header) == 1 and mark in header[0]]
    if others:
        raise DataError(
            f"{file} must be separated by {DELIMITERS[dialect.delimiter]}; its header is separated by "
            f"{DELIMITERS[others[0]]}",
            _NOT_CSV,
            f"set delimiter = {json.dumps(others[0])} in the schema, or, if other tables are separated by "
            f"{DELIMITERS[dialect.delimiter]}, save this one so, too",
        )
    return header


def read_pieces(
    file: Path, dialect: Dialect, header: Sequence[str], needed: Sequence[str], numeric: Collection[str] = (),
    uneven: dict[int, str] | None = None,
) -> Iterator[Piece]:  # fmt: skip
    """Yield the cells of the needed columns for some rows at a time.

    The cells are texts as in the file, but numbers with decimal commas have points. Cells of `numeric` columns are
    numbers in a piece in which all of them are numbers of at most LARGEST in magnitude; one with a point in a file with
    decimal commas is `Ambiguous`. Raises DataError for a line with more or fewer fields than the header.

    uneven: gets the numbers of the rows with more or fewer fields, each with what is wrong; these are then left out.
    """
    first = {name: index for index, name in reversed(list(enumerate(header)))}
    indices = {name: first[name] for name in needed}
    commas = dialect.decimal == ","
    kinds = [_NUMBER if name in numeric and not commas else _TEXT for name in header]
    row = 0
    with opened_text(file) as stream:
        next(_records(file, stream, dialect))
        while lines := list(itertools.islice(stream, _ROWS)):
            for columns, read in _columns(file, dialect, lines, stream, kinds, row, uneven):
                _check_joined(file, header, columns, row)
                piece = {name: columns[index] for name, index in indices.items()}
                yield _with_points(piece, numeric) if commas else piece
                row += read


def _check_joined(file: Path, header: Sequence[str], columns: Sequence[Cells], row: int) -> None:
    """DataError if a row, of which `row` come before, is the header again."""
    first = listed(columns[0])
    for index in [index for index, cell in enumerate(first) if cell == header[0]]:
        if all(str(column[index]).strip() == name for name, column in zip(header, columns, strict=True)):
            raise DataError(
                f"{file}, row {row + index + 1} is the header again, as where files were joined",
                _NOT_CSV,
                "remove it, or give the files one by one",
            )


def _with_points(piece: Piece, numeric: Collection[str]) -> Piece:
    """The cells with decimal points in place of decimal commas; ambiguous ones only in `numeric` columns."""
    return {
        name: [
            Ambiguous(cell) if name in numeric and "." in cell and is_decimal(cell) else with_point(cell)
            for cell in cells
        ]
        for name, cells in piece.items()
    }


def with_point(cell: str) -> str:
    """A number with a decimal comma, written with a decimal point; any other text as it is.

    Points between thousands are left out if there is a comma, too: 1.234,5 becomes 1234.5.
    """
    plain = cell.replace(".", "") if has_thousands(cell) else cell
    changed = plain.replace(",", ".")
    return changed if changed != plain and "." not in plain and is_decimal(changed) else cell


def has_thousands(cell: str) -> bool:
    """Whether a number has points between thousands and a decimal comma, such as 1.027,5."""
    return bool(_THOUSANDS.fullmatch(cell))


def _columns(
    file: Path, dialect: Dialect, lines: list[str], rest: Iterable[str], kinds: Sequence[str], row: int,
    uneven: dict[int, str] | None,
) -> Iterator[tuple[Sequence[Cells], int]]:  # fmt: skip
    """Yield the columns of these lines, which follow `row` rows, in pieces, each with the number of rows read for it.

    With a quote in them also those of the rest of the file, because a quoted field may continue on the next line.
    """
    quoted = any('"' in line for line in lines)
    filled = [line for line in lines if line.strip("\r\n")]
    plain = _plain(filled, kinds, dialect.delimiter) if filled and not quoted else None
    if plain is not None:
        yield plain, len(plain[0])
    else:
        whole = itertools.chain(lines, rest) if quoted else filled
        yield from _exact(file, dialect, whole, len(kinds), row, uneven)


def _plain(lines: list[str], kinds: Sequence[str], delimiter: str) -> Sequence[Cells] | None:
    """The columns of these lines, all as texts unless those of kind number are numbers; None if loadtxt refuses."""
    for column_types in (kinds, [_TEXT] * len(kinds)):
        types = np.dtype([(f"column {index}", kind) for index, kind in enumerate(column_types)])
        try:
            table = np.loadtxt(lines, types, comments=None, delimiter=delimiter, ndmin=1)
        except ValueError:
            continue
        columns = [table[name] for name in types.names or ()]
        if all((np.abs(column) <= LARGEST).all() for column in columns if column.dtype.kind == "f"):
            return columns
    return None


def _exact(
    file: Path, dialect: Dialect, lines: Iterable[str], width: int, row: int, uneven: dict[int, str] | None
) -> Iterator[tuple[Sequence[Cells], int]]:
    """As `_columns`, with all cells as texts; DataError for a line that is not one of the table."""
    records = _records(file, lines, dialect, row)
    while part := list(itertools.islice(records, _ROWS)):
        wrong = {
            row_number: f"has {len(fields)} fields; the header has {width}"
            for row_number, fields in enumerate(part, row + 1)
            if len(fields) != width
        }
        if uneven is None:
            for row_number, text in wrong.items():
                raise DataError(f"{file}, row {row_number} {text}", _NOT_CSV)
        else:
            uneven |= wrong
        kept = [fields for fields in part if len(fields) == width]
        yield list(zip(*kept, strict=True)) if kept else [()] * width, len(part)
        row += len(part)


def fields_of(lines: Iterable[str], delimiter: str, strict: bool = False) -> Iterator[list[str]]:
    """Yield the fields of every line; spaces before a field, or before its quote, are left out. csv.Error if a line is
    malformed, of some kinds only if strict."""
    return csv.reader(lines, strict=strict, delimiter=delimiter, skipinitialspace=True)


def _records(file: Path, lines: Iterable[str], dialect: Dialect, row: int = -1) -> Iterator[list[str]]:
    """Yield the fields of every line that is not blank; `row` rows come before, -1: the first line is the header."""
    try:
        for fields in fields_of(lines, dialect.delimiter, strict=True):
            if fields:
                yield fields
                row += 1
    except csv.Error as error:
        raise DataError(f"{file}, row {row + 1}: not a line of CSV ({error})", _NOT_CSV) from None


@contextmanager
def opened_text(file: Path) -> Iterator[Iterator[str]]:
    """The lines of a file, without Excel's line `sep=;` and invisible marks; DataError if it cannot be read, or is not
    UTF-8."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            _skip_mark(stream)
            yield map(_visible, stream)
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror or error}", "its table cannot be read"
        ) from None
    except UnicodeDecodeError:
        raise DataError(
            f"{file}{_undecodable(file)} is not UTF-8 text: save the table as CSV UTF-8", _NOT_CSV
        ) from None


def _visible(line: str) -> str:
    return line if line.isascii() else _INVISIBLE.sub("", line)


def _skip_mark(stream: TextIO) -> None:
    if not _EXCEL_MARK.fullmatch(stream.readline()):
        stream.seek(0)


def _undecodable(file: Path) -> str:
    """The first place in the file that is not UTF-8, as text that follows the file's name."""
    with file.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream, suppress(csv.Error):
        _skip_mark(stream)
        rows = filter(None, csv.reader(stream))
        header = next(rows, [])
        if any(map(_undecoded, header)):
            return ": the header"
        for row, fields in enumerate(rows, 1):
            for name, field in zip(header, fields, strict=False):
                if _undecoded(field):
                    return f", row {row}, column '{name}'"
    return ""


def _undecoded(field: str) -> bool:
    """Whether the field has bytes that are not UTF-8, which are now surrogates."""
    try:
        field.encode()
        return False
    except UnicodeEncodeError:
        return True


# --------------------------------------------- how a file is written, which only a draft takes from its content

_LINES = 100  # from which the delimiter is recognised
# 1,234 in a file whose fields are separated by commas, as English ones are; 1.234 in any other file
_THOUSAND_BY_MARK = {mark: re.compile(rf"\s*[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}\s*") for mark in ",."}


def recognised(file: Path) -> Dialect:
    """The dialect of a CSV file; DataError if it cannot be read.

    The delimiter is the one that divides the first lines into the same number of fields, as many as possible. Decimals
    have commas if no number has a decimal point and some have a comma; numbers with a mark that may separate thousands
    do not count (`_THOUSAND_BY_MARK`).
    """
    with opened_text(file) as stream:
        lines = [line for line in itertools.islice(stream, _LINES) if line.strip()]
        delimiter = max(DELIMITERS, key=lambda mark: _width(lines, mark))
    with opened_text(file) as stream:
        commas = _has_commas(
            fields_of(stream, delimiter), _THOUSAND_BY_MARK["," if delimiter == "," else "."]
        )
        return Dialect(delimiter, "," if commas else ".")


def _width(lines: list[str], mark: str) -> tuple[bool, int]:
    """Whether all lines have as many fields as the header, and more than one; and the number of these."""
    reader, width, same = fields_of(lines, mark), 0, False
    with suppress(csv.Error):  # whoever reads the table says where
        width = len(next(reader, []))
        same = all(len(fields) == width for fields in reader)
    return same and width > 1, width


def _has_commas(rows: Iterable[list[str]], thousand: re.Pattern[str]) -> bool:
    commas = False
    with suppress(csv.Error):
        for field in (field for fields in rows for field in fields if not thousand.fullmatch(field)):
            if "." in field and is_decimal(field):
                return False
            commas = commas or with_point(field) != field
    return commas
