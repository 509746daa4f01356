"""The question for a survival curve: clients count the persons that they train on by intervals of time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from ..arrays import Array, Index, Labels
from ..errors import SettingError
from ..known_objectives import SURVIVAL
from ..models.survival import ACTUARIAL, KAPLAN_MEIER, Curve, SurvivalTable, TimeGrid
from ..problems.discrete_cox import INTERVALS, interval_ends
from ..settings import Setting, at_least, one_of
from .query import FRACTION_OF_BUDGET, Answers, Histogram, Run, Table

FILE = "survival.csv"
ALL_SITES = "all"  # in the column "client"
COLUMNS = ("client", "site", *Curve._fields, "noise", "estimate")


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


def check_persons(site: Any, cells: Array, setting: str) -> None:
    """Raise SettingError unless a site's policy allows that these persons are counted by the cells of a `TimeGrid`."""
    what, remedy = f"this site counts no persons for {setting}", f"({setting} empty trains without)"
    least, smallest = site.survival_rows, site.survival_cell
    if least is None:
        raise SettingError(f"{what}: its node config has no survival-rows {remedy}")
    if not (cells.sum() >= least and cells[cells > 0].min(initial=np.inf) >= smallest):
        raise SettingError(
            f"{what} unless there are at least {least} in all, and {smallest} events or none, and {smallest} "
            f"censored or none, in every interval: choose longer intervals {remedy}"
        )


@dataclass(frozen=True)
class Persons:
    """The persons of one client, with their signed times (rows,), who are counted by the cells of a grid."""

    labels: Labels
    grid: TimeGrid
    histograms = 1
    scales = False

    @property
    def entries(self) -> int:
        """See `Part`."""
        return self.grid.cells

    def counts(self) -> Array:
        """The counts of all cells, (cells,)."""
        return self.grid.counts(self.labels)

    def features(self, agreed: object) -> None:
        """See `Part`."""


class CurveAnswers(Answers):
    """The persons of every client, and the curves that follow."""

    known_files = (FILE,)

    def files(self, found: Mapping[int, SurvivalTable]) -> Iterator[Table]:
        """The curve of all sites together, and that of each client, edge by edge."""
        yield FILE, COLUMNS, self._rows(found)

    def _rows(self, persons: Mapping[int, SurvivalTable]) -> Iterator[dict[str, Any]]:
        sites = self.run.dataset.site_names
        tables = [
            (ALL_SITES, ALL_SITES, SurvivalTable.together(persons.values())),
            *((f"{i}", sites[i] if sites else "", own) for i, own in persons.items()),
        ]
        for client, site, table in tables:
            estimate = ACTUARIAL if table.actuarial else KAPLAN_MEIER
            for row in zip(*table.curve(), strict=True):
                yield dict(zip(COLUMNS, (client, site, *row, table.sigma, estimate), strict=True))

    @classmethod
    def stored(cls, found: Mapping[int, SurvivalTable]) -> Any:
        """See `Answers`."""
        return [[i, own.cells.tolist(), own.edges.tolist(), *own[2:]] for i, own in found.items()]

    @classmethod
    def restored(cls, stored: Any) -> dict[int, SurvivalTable]:
        """See `Answers`."""
        return {
            i: SurvivalTable(np.array(cells), np.array(edges), *others) for i, cells, edges, *others in stored
        }


class SurvivalCurve(Histogram):
    """The numbers of events and of censored persons by intervals of time, at every client."""

    name = "survival"
    what = "counts of persons"
    follows, otherwise = "survival curves", "leave evaluation.survival-curve empty"
    reported = CurveAnswers
    share_key = "privacy.survival-share"
    squared_move = 2  # a person is in one cell

    @classmethod
    def of(cls, run: Run) -> "SurvivalCurve | None":
        """See `SiteQuery`."""
        return cls(run) if run.config.evaluation.survival_curve else None

    @classmethod
    def check_settings(cls, config: Any) -> None:
        """See `SiteQuery`."""
        if config.evaluation.survival_curve and config.objective.name not in SURVIVAL:
            raise SettingError(
                "evaluation.survival-curve needs times of events as labels: set objective.name to "
                f"{' or '.join(SURVIVAL)}, or leave it empty; got {config.objective.name}"
            )

    @cached_property
    def grid(self) -> TimeGrid:
        """The intervals."""
        return TimeGrid(tuple(interval_ends(self.run.config.evaluation.survival_curve) or ()))

    @property
    def share(self) -> float:
        """See `SiteQuery`."""
        return self.run.config.privacy.shares.survival_share  # type: ignore[no-any-return]

    @property
    def entries(self) -> int:
        """See `Histogram`."""
        return self.grid.cells

    def part(self, client: int, site: Any = None) -> Persons:
        """See `Histogram`."""
        return Persons(self.run.dataset.labels[self.run.rows_of(client)], self.grid)

    def found(self, counts: Array, clients: Index) -> dict[int, SurvivalTable]:
        """The persons of every client by the cells of the grid."""
        edges, sizes = np.array(self.grid.edges), self.run.partition.sizes
        actuarial = self.run.config.evaluation.survival_estimate == ACTUARIAL
        sigma = self.run.first.sigma
        return {
            int(client): SurvivalTable(own, edges, int(sizes[client]), sigma(int(client)), actuarial)
            for client, own in zip(clients, counts, strict=True)
        }

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        check_persons(site, self.part(client).counts(), "evaluation.survival-curve")

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return {"survival-rows": 1, "survival-cell": 1}

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        return [("survival curve", f"in {len(self.grid.edges)} intervals, {self.run.first.cost}")]
