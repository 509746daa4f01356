"""The question for a survival curve: clients count the persons that they train on by intervals of time."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Array, Index, Labels
from ..errors import SettingError
from ..models.survival import ACTUARIAL, KAPLAN_MEIER, Curve, SurvivalTable, TimeGrid
from ..problems.discrete_cox import interval_ends
from .query import Histogram, Run, Table

FILE = "survival.csv"
ALL_SITES = "all"  # in the column "client"
COLUMNS = ("client", "site", *Curve._fields, "noise", "estimate")


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


class SurvivalCurve(Histogram):
    """The numbers of events and of censored persons by intervals of time, at every client."""

    name = "survival"
    what = "counts of persons"
    squared_move = 2  # a person is in one cell

    @classmethod
    def of(cls, run: Run) -> "SurvivalCurve | None":
        """See `SiteQuery`."""
        return cls(run) if run.config.evaluation.survival_curve else None

    @cached_property
    def grid(self) -> TimeGrid:
        """The intervals."""
        return TimeGrid(tuple(interval_ends(self.run.config.evaluation.survival_curve) or ()))

    @property
    def share(self) -> float:
        """See `SiteQuery`."""
        return self.run.config.privacy.survival_share  # type: ignore[no-any-return]

    @property
    def entries(self) -> int:
        """See `Histogram`."""
        return self.grid.cells

    def part(self, client: int) -> Persons:
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
        """See `SiteQuery`."""
        return [[i, own.cells.tolist(), own.edges.tolist(), *own[2:]] for i, own in found.items()]

    @classmethod
    def restored(cls, stored: Any) -> dict[int, SurvivalTable]:
        """See `SiteQuery`."""
        return {
            i: SurvivalTable(np.array(cells), np.array(edges), *others) for i, cells, edges, *others in stored
        }
