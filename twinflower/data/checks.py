"""What a site can find out about its own table: how it fits the schema, and every reason why it does not.

All of this is private data, meant only for the site that holds the table.
"""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..errors import DataError, advised
from .cells import CellError, Cells, numbers
from .columns import Category, Column, Number
from .csv_tables import Piece
from .schema import Schema
from .tables import header_problems, numeric_columns, opened

# Rows and texts of faults, by the words for a column and the remedy
Faults = dict[tuple[str, str], list[tuple[int, str]]]


def describe_fit(path: str | Path, schema: Schema) -> list[tuple[str, int, int, int]]:
    """Name, rows, missing values and clipped values (outside the public range) of each column used for features, of the
    times of a survival label, and of a label, exposures and weights with a public range.

    The table must be one without `problems`.
    """
    schema = schema.at(Path(path).expanduser())
    columns = list(schema.columns)
    columns += [Number(name, limit) for name, limit in schema.limits.items()]
    tally, names = {column.name: np.zeros(3, int) for column in columns}, [column.name for column in columns]
    for piece in opened(Path(path).expanduser(), schema.dialect)[1](names, numeric_columns(schema)):
        for column in columns:
            cells = schema.measured(column.name, piece[column.name])
            tally[column.name] += _fit(column, cells, schema.absent)
    return [(name, *map(int, counts)) for name, counts in tally.items()]  # type: ignore[misc]


def _fit(column: Column, cells: Cells, absent: frozenset[str]) -> tuple[int, int, int]:
    """The numbers of rows, missing values and clipped values among cells that have passed the checks."""
    if isinstance(column, Category):
        return len(cells), int((column.codes(cells, absent) < 0).sum()), 0
    values = numbers(cells, absent)
    low, high = (column.range.low, column.range.high) if column.range else (-np.inf, np.inf)
    return len(cells), int(np.isnan(values).sum()), int(((values < low) | (values > high)).sum())


def problems(path: str | Path, schema: Schema) -> list[str]:
    """Every reason why a table does not fit the schema, a sentence for each kind of fault in a column or in the rows;
    empty if the table fits."""
    file = Path(path).expanduser()
    schema = schema.at(file)
    faults: Faults = {}
    messages: list[str] = []
    uneven: dict[int, str] = {}
    try:
        header, pieces = opened(file, schema.dialect, uneven)
        messages += [advised(*problem) for problem in header_problems(file, header, schema, schema.used)]
        times = Counter(header)
        present = [name for name in schema.used if times[name] == 1]
        rows = _collect(faults, uneven, schema, pieces(present, numeric_columns(schema))) if present else 1
        messages += [] if rows or uneven else [f"{file} has a header and no rows"]
    except DataError as error:  # what follows in this file cannot be read
        messages.append(str(error))
    for row, text in uneven.items():  # each number of fields by itself
        faults.setdefault(("", text), []).append((row, text))
    for (where, _), cells in faults.items():
        messages.append(_sentence(f"{file}, row {cells[0][0]}{where}", cells))
    return messages


def _sentence(where: str, faults: Sequence[tuple[int, str]]) -> str:
    """The first of some faults of one kind, and how many more there are."""
    more = len(faults) - 1
    return f"{where} {faults[0][1]}" + (f" (and {more:,} more row{'s' * (more > 1)})" if more else "")


def _collect(faults: Faults, uneven: Collection[int], schema: Schema, pieces: Iterable[Piece]) -> int:
    """Add row and fault of every cell that does not fit; return the number of rows.

    uneven: the numbers of rows that the pieces leave out; it grows while these are read.
    """
    rows = 0
    numbers = (row for row in itertools.count(1) if row not in uneven)
    for piece in pieces:
        row_numbers = list(itertools.islice(numbers, len(next(iter(piece.values())))))
        for name, cells in piece.items():
            for index, error in _faults(schema, name, cells):
                text = advised(error.cell, error.remedy)
                where = f", column '{name}':", error.remedy
                faults.setdefault(where, []).append((row_numbers[index], text))
        rows += len(row_numbers)
    return rows


def _faults(schema: Schema, name: str, cells: Cells) -> Iterator[tuple[int, CellError]]:
    """Yield the place of every cell of a column that does not fit, and why it does not."""
    try:
        schema.check(name, cells)
    except CellError:
        for index in range(len(cells)):
            try:
                schema.check(name, cells[index : index + 1])
            except CellError as error:
                yield index, error
