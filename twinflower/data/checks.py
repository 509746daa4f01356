"""What a site can find out about its own table: how it fits the schema, and every reason why it does not.

All of this is private data, meant only for the site that holds the table.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .columns import Category, CellError, Cells, Column, Counts, listed, numbers, texts
from .csv_tables import Piece
from .schema import Schema
from .tables import header_problems, numeric_columns, opened


def describe_fit(path: str | Path, schema: Schema) -> list[tuple[str, int, int, int]]:
    """Name, rows, missing values and clipped values (outside the public range) of each column used for features.

    The table must be one without `problems`.
    """
    tally = {column.name: np.zeros(3, int) for column in schema.columns}
    for piece in opened(Path(path).expanduser(), schema.dialect)[1](schema.names, numeric_columns(schema)):
        for column in schema.columns:
            tally[column.name] += _fit(column, piece[column.name], schema.absent)
    return [(name, *map(int, counts)) for name, counts in tally.items()]  # type: ignore[misc]


def _fit(column: Column, cells: Cells, absent: frozenset[str]) -> tuple[int, int, int]:
    """The numbers of rows, missing values and clipped values among cells that have passed the checks."""
    if isinstance(column, Category):
        return len(cells), int((column.codes(cells, absent) < 0).sum()), 0
    values = numbers(cells, absent)
    low, high = (column.range.low, column.range.high) if column.range else (-np.inf, np.inf)
    return len(cells), int(np.isnan(values).sum()), int(((values < low) | (values > high)).sum())


def problems(path: str | Path, schema: Schema) -> list[str]:
    """Every reason why a table does not fit the schema, one sentence for a column; empty if the table fits."""
    file = Path(path).expanduser()
    faults: dict[str, list[tuple[int, str]]] = {}
    found: list[str] = []
    try:
        header, pieces = opened(file, schema.dialect)
        found += header_problems(file, header, schema, schema.used)
        present = [name for name in schema.used if header.count(name) == 1]
        rows = _collect(faults, schema, pieces(present, numeric_columns(schema))) if present else 1
        found += [] if rows else [f"{file} has a header and no rows"]
    except DataError as error:  # what follows in this file cannot be read
        found.append(str(error))
    return found + [
        _sentence(f"{file}, row {own[0][0]}, column '{name}'", own) for name, own in faults.items()
    ]


def _sentence(where: str, faults: Sequence[tuple[int, str]]) -> str:
    """The first fault of a column, and how many more there are."""
    more = len(faults) - 1
    return f"{where}: {faults[0][1]}" + (f" (and {more:,} more row{'s' * (more > 1)})" if more else "")


def _collect(faults: dict[str, list[tuple[int, str]]], schema: Schema, pieces: Iterable[Piece]) -> int:
    """Add row and fault of every cell that does not fit, by column; return the number of rows."""
    checks, row = _checks(schema), 0
    for piece in pieces:
        for name, cells in piece.items():
            for place, text in _faults(checks[name], cells):
                faults.setdefault(name, []).append((row + place + 1, text))
        row += len(next(iter(piece.values())))
    return row


def _checks(schema: Schema) -> dict[str, Callable[[Cells], Any]]:
    """For every column that is read, a function of its cells that raises CellError if one does not fit."""

    def of_column(column: Column) -> Callable[[Cells], Any]:
        return lambda cells: column.encode(cells, schema.absent, np.empty((len(cells), len(column.features))))

    checks = {column.name: of_column(column) for column in schema.columns}
    checks[schema.label.column] = lambda cells: schema.label.encode(cells, schema.absent)
    if isinstance(schema.label, Counts):
        offsets = schema.label.offsets
        checks[schema.exposure] = lambda cells: offsets(cells, schema.absent)
    checks[schema.group] = lambda cells: _check_people(cells, schema.absent)
    return checks


def _check_people(cells: Cells, absent: frozenset[str]) -> None:
    for row, text in enumerate(texts(listed(cells))):
        if not text or text in absent:
            raise CellError(row, "a person must be named")


def _faults(check: Callable[[Cells], Any], cells: Cells) -> Iterator[tuple[int, str]]:
    """Yield the place and the fault of every cell that does not fit."""
    try:
        check(cells)
    except CellError:
        for place in range(len(cells)):
            try:
                check(cells[place : place + 1])
            except CellError as error:
                yield place, error.text
