"""The clients' held-out rows, counted by the bin of their score, as rows of scores.csv and as values of JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays import Array
from ..models.class_scores import ClassTable
from ..models.discrimination import ScoreTable
from ..models.score_bins import Counted
from ..models.time_scores import TimeTable

SCORES_COLUMNS = ("client", "low", "high", "negatives", "positives", "predicted", "squared", "sigma")
CLASS_SCORES_COLUMNS = ("client", "class", *SCORES_COLUMNS[1:])
TIME_SCORES_COLUMNS = ("client", "time", "low", "high", "events", "censored", "sigma")
Rows = Iterator[dict[str, Any]]


def tabulated(scores: Mapping[int, Counted]) -> tuple[Sequence[str], Rows]:
    """The columns and the rows of these tables by client, at least one, all of one kind."""
    columns, rows, _ = _FORMS[type(next(iter(scores.values())))]
    return columns, (
        dict(zip(columns, (client, *row), strict=True))
        for client, table in scores.items()
        for row in rows(table)
    )


def tables_of(rows: Sequence[Mapping[str, str]]) -> dict[int, Any]:
    """Inverse of `tabulated`; KeyError or ValueError for other rows."""
    if not rows:
        return {}
    columns, read = {frozenset(own): (own, read) for own, _, read in _FORMS.values()}[frozenset(rows[0])]
    found: dict[int, list[list[float]]] = {}
    for row in rows:
        found.setdefault(int(row["client"]), []).append([float(row[key]) for key in columns[1:]])
    return {client: read(np.array(own)) for client, own in found.items()}


def _by_bin(table: ScoreTable) -> Iterator[tuple[float, ...]]:
    for low, high, cells in zip(table.edges[:-1], table.edges[1:], table.cells.T, strict=True):
        yield low, high, *cells, table.sigma


def _by_class(table: ClassTable) -> Iterator[tuple[float, ...]]:
    for place, own in enumerate(table.classes):
        for row in _by_bin(own):
            yield place, *row


def _by_time(table: TimeTable) -> Iterator[tuple[float, ...]]:
    """By interval of time and bin; those beyond the last time are censored in an interval without an end."""
    number, bins = len(table.times), table.cells.shape[1]
    events = np.vstack([table.cells[:number], np.zeros((1, bins))])
    for time, had, lost in zip([*table.times, np.inf], events, table.cells[number:], strict=True):
        for low, high, *counts in zip(table.edges[:-1], table.edges[1:], had, lost, strict=True):
            yield time, low, high, *counts, table.sigma


def _of_two(rows: Array) -> ScoreTable:
    """The table from the rows (bins, 7)."""
    return ScoreTable(rows.T[2:6], np.append(rows[:, 0], rows[-1, 1]), float(rows[0, 6]))


def _of_classes(rows: Array) -> ClassTable:
    """The table from the rows (classes * bins, 8)."""
    parts = [_of_two(own[:, 1:]) for own in np.split(rows, int(rows[-1, 0]) + 1)]
    return ClassTable(np.stack([own.cells for own in parts]), *parts[0][1:])


def _of_times(rows: Array) -> TimeTable:
    """The table from the rows ((T + 1) * bins, 6)."""
    times = np.unique(rows[:, 0])
    parts = rows.reshape(len(times), -1, 6)
    cells = np.vstack([parts[:-1, :, 3], parts[:, :, 4]])
    return TimeTable(cells, np.append(parts[0, :, 1], parts[0, -1, 2]), times[:-1], float(rows[0, 5]))


_FORMS: dict[Any, tuple[Sequence[str], Any, Any]] = {  # table -> columns, its rows, and the table from rows
    ScoreTable: (SCORES_COLUMNS, _by_bin, _of_two),
    ClassTable: (CLASS_SCORES_COLUMNS, _by_class, _of_classes),
    TimeTable: (TIME_SCORES_COLUMNS, _by_time, _of_times),
}


def to_records(scores: Mapping[int, Any]) -> list[Any]:
    """The tables by client as values of JSON."""
    return [
        [client, type(own).__name__, *(np.asarray(part).tolist() for part in own)]
        for client, own in scores.items()
    ]


def from_records(stored: list[Any]) -> dict[int, Any]:
    """Inverse of `records`."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _FORMS}
    return {client: kinds[kind](*map(np.array, arrays), sigma) for client, kind, *arrays, sigma in stored}
