"""The question for a survival curve: clients count the persons that they train on by intervals of time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from ..arrays import Array, Index, Labels
from ..data.columns import Category
from ..errors import SettingError
from ..known_objectives import SURVIVAL
from ..models.survival import ACTUARIAL, KAPLAN_MEIER, Curve, SurvivalTable, TimeGrid
from ..problems.discrete_cox import INTERVALS, interval_ends
from ..settings import Setting, at_least, one_of
from .columns import check_categories, column_named, column_values, column_variable
from .query import FRACTION_OF_BUDGET, Answers, Histogram, Part, Table

FILE = "survival.csv"
ALL_SITES = "all"  # in the column "client"
COLUMNS = ("client", "site", "group", *Curve._fields, "noise", "estimate")


@dataclass(frozen=True)
class CurveSettings:
    """Settings of [evaluation]."""

    survival_curve: Annotated[
        str,
        Setting(
            "before round 1 clients count the persons that they train on by these intervals of time, for a survival "
            "curve: their ends, such as 365, 730, 1460, or number x length, such as 12 x 30.5; empty: none",
            INTERVALS,
            "that of the times",
            numbers=True,
        ),
    ] = ""
    survival_by: Annotated[
        str,
        Setting(
            "column of categories, such as the arm of a trial, by which persons are counted, for a survival curve of "
            "each and, without privacy, a log-rank test; empty: of all persons only"
        ),
    ] = ""
    survival_estimate: Annotated[
        str,
        Setting(
            "how a survival curve counts those who are censored within an interval: actuarial, for half of it, or "
            "kaplan-meier, for all of it, which is right only if every time is the end of an interval",
            one_of((ACTUARIAL, KAPLAN_MEIER)),
        ),
    ] = ACTUARIAL


@dataclass(frozen=True)
class CurveShare:
    """Settings of [privacy]."""

    survival_share: Annotated[
        float,
        Setting("part for the counts of a survival curve, if there is one", *FRACTION_OF_BUDGET),
    ] = 0.1


@dataclass(frozen=True)
class PersonsPolicy:
    """Keys of a site's node config."""

    survival_rows: Annotated[
        int | None,
        Setting(
            "fewest persons of which it sends the counts for a survival curve; else it sends none",
            at_least(1),
        ),
    ] = None
    survival_cell: Annotated[
        int,
        Setting(
            "fewest persons in every cell of such counts that is not empty",
            at_least(1),
            needs="survival-rows",
        ),
    ] = 5


def check_persons(site: Any, cells: Array, setting: str, groups: str = "") -> None:
    """Raise SettingError unless a site's policy allows that these persons are counted by the cells of a `TimeGrid`;
    groups: the words for those of which each has such cells."""
    what, remedy = f"this site counts no persons for {setting}", f"({setting} empty trains without)"
    least, smallest = site.survival_rows, site.survival_cell
    if least is None:
        raise SettingError(f"{what}: its node config has no survival-rows {remedy}")
    if not (cells.sum() >= least and cells[cells > 0].min(initial=np.inf) >= smallest):
        raise SettingError(
            f"{what} unless there are at least {least} in all, and {smallest} events or none, and {smallest} "
            f"censored or none, in every interval{groups}: choose longer intervals {remedy}"
        )


@dataclass(frozen=True)
class Persons(Part):
    """The persons of one client, with their signed times (rows,) and the numbers of their groups, who are counted by
    the cells of a grid, group by group."""

    labels: Labels
    grid: TimeGrid
    codes: Index
    groups: int = 1

    def counts(self) -> Array:
        """The counts of all cells, (groups * cells,)."""
        cells = self.codes * self.grid.cells + self.grid.cells_of(self.labels)
        return np.bincount(cells, minlength=self.groups * self.grid.cells).astype(np.float64)


class CurveAnswers(Answers):
    """The persons of every client, and the curves that follow."""

    known_files = (FILE,)

    def files(self, found: Mapping[int, SurvivalTable]) -> Iterator[Table]:
        """The curves of all sites together, and those of each client, of all persons and by group, edge by edge."""
        yield FILE, COLUMNS, self._rows(found)

    def _rows(self, persons: Mapping[int, SurvivalTable]) -> Iterator[dict[str, Any]]:
        tables = [
            (ALL_SITES, ALL_SITES, SurvivalTable.together(persons.values())),
            *((*self.site(client), own) for client, own in persons.items()),
        ]
        for client, site, table in tables:
            estimate = ACTUARIAL if table.actuarial else KAPLAN_MEIER
            for group, own in ({"": table} | table.by_group).items():
                for row in zip(*own.curve(), strict=True):
                    yield dict(zip(COLUMNS, (client, site, group, *row, own.sigma, estimate), strict=True))

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, str]]) -> dict[int, SurvivalTable]:
        """The persons of every client by the cells of the curve."""
        found: dict[int, dict[str, list[list[float]]]] = {}
        for row in rows:
            if row["client"] != ALL_SITES:
                numbers = [float(row[key]) for key in ("time", "at_risk", "events", "censored", "noise")]
                groups = found.setdefault(int(row["client"]), {})
                groups.setdefault(row["group"], []).append(numbers)
        actuarial = bool(rows) and rows[-1]["estimate"] == ACTUARIAL
        return {client: _table_of(groups, actuarial) for client, groups in found.items()}

    @classmethod
    def stored(cls, found: Mapping[int, SurvivalTable]) -> Any:
        """See `Answers`."""
        return [
            [
                i,
                own.cells.tolist(),
                own.edges.tolist(),
                *own[2:5],
                {n: g.tolist() for n, g in own.groups.items()},
            ]
            for i, own in found.items()
        ]

    @classmethod
    def restored(cls, stored: Any) -> dict[int, SurvivalTable]:
        """See `Answers`."""
        return {
            i: SurvivalTable(np.array(own), np.array(edges), rows, sigma, actuarial, _arrays(groups))
            for i, own, edges, rows, sigma, actuarial, groups in stored
        }


def _table_of(groups: Mapping[str, Sequence[Sequence[float]]], actuarial: bool) -> SurvivalTable:
    """The table from rows (edges, 5) of the file, of all persons ("") and by group."""
    counted = {}
    for name, rows in groups.items():
        edges, at_risk, events, censored, noise = np.array(rows).T
        beyond = at_risk[-1] - events[-1] - censored[-1]
        cells = np.concatenate([events, censored, [beyond]])
        counted[name] = SurvivalTable(cells, edges, round(at_risk[0]), float(noise[0]), actuarial)
    whole = counted.pop("")
    return whole._replace(groups={name: own.cells for name, own in counted.items()})


def _arrays(groups: Mapping[str, list[float]]) -> dict[str, Array]:
    return {name: np.array(cells) for name, cells in groups.items()}


class SurvivalCurve(Histogram):
    """The numbers of events and of censored persons by intervals of time, at every client."""

    name = "survival"
    what = "counts of persons"
    follows, otherwise = "survival curves", "leave evaluation.survival-curve empty"
    reported = CurveAnswers
    asked_by = "evaluation.survival-curve"
    share_key = "privacy.survival-share"
    squared_move = 2  # a person is in one cell

    @classmethod
    def check_settings(cls, config: Any) -> None:
        """See `SiteQuery`."""
        if config.evaluation.survival_by and not config.evaluation.survival_curve:
            raise SettingError(
                "evaluation.survival-by needs evaluation.survival-curve, the intervals of time"
            )
        if config.evaluation.survival_curve and config.objective.name not in SURVIVAL:
            raise SettingError(
                "evaluation.survival-curve needs times of events as labels: set objective.name to "
                f"{' or '.join(SURVIVAL)}, or leave it empty; got {config.objective.name}"
            )

    @cached_property
    def grid(self) -> TimeGrid:
        """The intervals."""
        return TimeGrid(tuple(interval_ends(self.run.config.evaluation.survival_curve) or ()))

    @cached_property
    def by(self) -> Category | None:
        """The column of evaluation.survival-by; None without one, SettingError for another column."""
        name = self.run.config.evaluation.survival_by
        return column_named(self.run, Category, "evaluation.survival-by", name) if name else None

    @property
    def _groups(self) -> tuple[str, ...]:
        return column_variable(self.by).names if self.by else ("",)

    def check(self) -> None:
        """See `SiteQuery`."""
        if self.by:
            check_categories(column_variable(self.by), "evaluation.survival-by")

    @property
    def entries(self) -> int:
        """See `Histogram`."""
        return len(self._groups) * self.grid.cells

    def part(self, client: int, site: Any = None) -> Persons:
        """See `Histogram`."""
        run, groups = self.run, len(self._groups)
        labels = run.dataset.labels[run.rows_of(client)]
        codes = np.zeros(len(labels), np.int64)
        if self.by:
            codes = np.nan_to_num(column_values(run, self.by, client), nan=groups - 1).astype(np.int64)
        return Persons(labels, self.grid, codes, groups)

    def found(self, counts: Array, clients: Index) -> dict[int, SurvivalTable]:
        """The persons of every client by the cells of the grid."""
        edges, sizes = np.array(self.grid.edges), self.run.partition.sizes
        actuarial = self.run.config.evaluation.survival_estimate == ACTUARIAL
        sigma = self.run.first.sigma
        return {
            int(client): SurvivalTable.of_groups(
                dict(zip(self._groups, own, strict=True)),
                edges,
                int(sizes[client]),
                sigma(int(client)),
                actuarial,
            )
            for client, own in zip(clients, counts.reshape(len(clients), -1, self.grid.cells), strict=True)
        }

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        groups = " of every group" if self.by else ""
        check_persons(site, self.part(client).counts(), "evaluation.survival-curve", groups)

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return {"survival-rows": 1, "survival-cell": 1}

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        groups, cost = len(self._groups), self.run.first.cost(len(self._groups))
        by = f" and {groups} groups" if self.by else ""
        return [("survival curve", f"in {len(self.grid.edges)} intervals{by}, {cost}")]
