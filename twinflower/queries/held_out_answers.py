"""What a run keeps and shows of the evaluations on held-out rows: columns of metrics.csv, scores.csv, checkpoints."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ..arrays import Array
from ..data.columns import Target
from ..models.discrimination import ClassTable, ScoreTable
from ..models.evaluation import (
    COLUMNS,
    ERROR_COLUMNS,
    INTERVAL,
    OWN_MODEL,
    SCORE_COLUMNS,
    private_columns,
)
from ..models.score_bins import Counted
from ..models.time_auc import TimeTable
from .held_out_question import Found
from .query import Answers, Table

SCORES_COLUMNS = ("client", "low", "high", "negatives", "positives", "predicted", "squared", "sigma")
CLASS_SCORES_COLUMNS = ("client", "class", *SCORES_COLUMNS[1:])
TIME_SCORES_COLUMNS = ("client", "time", "low", "high", "events", "censored", "sigma")
Rows = Iterator[dict[str, Any]]
FILE = "scores.csv"


class HeldOutAnswers(Answers):
    """The metrics of every evaluation, and the counts of the last one."""

    known_columns = (*COLUMNS, *INTERVAL, *SCORE_COLUMNS, *ERROR_COLUMNS)
    known_files = (FILE,)

    @property
    def columns(self) -> Sequence[str]:
        """See `Answers`."""
        own = self.run.config.evaluation
        scores = SCORE_COLUMNS if own.bins else ()
        if self.run.plan:
            return (*private_columns(own.loss_bound), *scores)
        personal = (OWN_MODEL,) if self.run.method.personal else ()
        return (*COLUMNS, *personal, *scores, *(ERROR_COLUMNS if own.errors else ()))

    def row(self, found: Found | None) -> dict[str, float]:
        """The values of `columns`, NaN without answers; errors in units of the label. The mean of the scores by site is
        that of the sites' own models."""
        known = dict(found.metrics) if found else {}
        if found and found.by_site:
            known[OWN_MODEL] = fmean(found.by_site.values())
        units = dict.fromkeys(ERROR_COLUMNS[1:], self._unit)
        return {name: known.get(name, np.nan) * units.get(name, 1) for name in self.columns}

    @property
    def _unit(self) -> float:
        """What the labels are divided by: half the width of the range in a schema, else 1."""
        schema = self.run.dataset.schema
        return schema.label.range.half if schema and isinstance(schema.label, Target) else 1.0

    def kept(self, before: Found | None, found: Found) -> Found:
        """The counts by bin are those of an earlier round, if there are none now."""
        return found._replace(scores=found.scores or before.scores) if before else found

    def files(self, found: Found) -> Iterator[Table]:
        """The counts of every client by bin."""
        if found.scores:
            yield FILE, *_tabulated(found.scores)

    @classmethod
    def summarised(cls, found: Found | None) -> dict[str, Any]:
        """See `Answers`."""
        scores = found.by_site if found else {}
        return {"held_out_by_site": {f"{site}": own for site, own in scores.items()} or None}

    @classmethod
    def stored(cls, found: Found) -> Any:
        """See `Answers`."""
        return [dict(found.metrics), _to_records(found.scores), list(found.by_site.items())]

    @classmethod
    def restored(cls, stored: Any) -> Found:
        """See `Answers`."""
        metrics, scores, sites = stored
        return Found(metrics, _from_records(scores), dict(sites))


def _tabulated(scores: Mapping[int, Counted]) -> tuple[Sequence[str], Rows]:
    """The columns and the rows of these tables by client, at least one, all of one kind."""
    columns, rows, _ = _FORMS[type(next(iter(scores.values())))]
    return columns, (
        dict(zip(columns, (client, *row), strict=True))
        for client, table in scores.items()
        for row in rows(table)
    )


def tables_of(rows: Sequence[Mapping[str, str]]) -> dict[int, Any]:
    """Inverse of `_tabulated`; KeyError or ValueError for other rows."""
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


def _to_records(scores: Mapping[int, Any]) -> list[Any]:
    """The tables by client as values of JSON."""
    return [
        [client, type(own).__name__, *(np.asarray(part).tolist() for part in own)]
        for client, own in scores.items()
    ]


def _from_records(stored: list[Any]) -> dict[int, Any]:
    """Inverse of `_to_records`."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _FORMS}
    return {client: kinds[kind](*map(np.array, arrays), sigma) for client, kind, *arrays, sigma in stored}
