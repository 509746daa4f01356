"""The question for an article's Table 1: what the rows that the sites train on are like, column by column."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from ..arrays import Array
from ..errors import SettingError
from ..models.differences import with_differences
from ..models.summaries import ALL, Layout, Line, Summaries, Variable
from ..settings import Setting, at_least
from .columns import (
    check_categories,
    check_whole_rows,
    column_values,
    column_variable,
    label_values,
    label_variables,
)
from .query import FRACTION_OF_BUDGET, CountAnswers, Histogram, Part, SentCounts, Table

FILE = "table-one.csv"
COLUMNS = ("client", "site", *Line._fields)
_BINS, _NOISY_BINS = 200, 40  # of a number's range; with more there is more noise in a quartile


@dataclass(frozen=True)
class TableOneSettings:
    """Settings of [evaluation]."""

    table_one: Annotated[
        bool,
        Setting(
            "before round 1 clients describe the columns of the rows that they train on, for Table 1: counts, means, "
            "standard deviations, quartiles and missing values"
        ),
    ] = False
    table_one_by: Annotated[
        str,
        Setting(
            "column of categories, such as the arm of a trial, or of a label of classes, by which Table 1 is divided; "
            "empty: it is not",
        ),
    ] = ""


@dataclass(frozen=True)
class TableOneShare:
    """Settings of [privacy]."""

    table_one_share: Annotated[
        float,
        Setting("part for what evaluation.table-one releases, if it is asked", *FRACTION_OF_BUDGET),
    ] = 0.1


@dataclass(frozen=True)
class TableOnePolicy:
    """Keys of a site's node config."""

    table_rows: Annotated[
        int | None,
        Setting("fewest rows that it describes for Table 1; else it describes none", at_least(1)),
    ] = None
    table_cell: Annotated[
        int,
        Setting(
            "fewest rows in a cell of Table 1; it withholds counts of fewer, unless they are 0, and merges bins",
            at_least(1),
            needs="table-rows",
        ),
    ] = 5


@dataclass(frozen=True)
class Described(Part):
    """The values (rows, variables) of one client's rows, and their groups (rows,), which are described by a layout.

    least: cells of fewer rows are withheld.
    """

    layout: Layout
    values: Array
    groups: Array
    least: int

    @property
    def histograms(self) -> int:
        """See `Part`."""
        return self.layout.histograms

    def counts(self) -> Array:
        """See `Part`."""
        return self.layout.counted(self.values, self.groups, self.least)


class TableOneAnswers(CountAnswers):
    """What every client has sent, and the table that follows."""

    known_files = (FILE,)

    def files(self, sent: Mapping[int, SentCounts]) -> Iterator[Table]:
        """The lines of all sites together, and of each client."""
        yield FILE, COLUMNS, self._rows(sent)

    def _rows(self, sent: Mapping[int, SentCounts]) -> Iterator[dict[str, Any]]:
        layout = TableOne(self.run).layout
        known = {
            i: Summaries.of(layout, np.array(own.counts), own.rows, own.sigma) for i, own in sent.items()
        }
        tables = [
            (ALL, ALL, Summaries.together(known.values())),
            *((*self.site(client), table) for client, table in known.items()),
        ]
        for client, site, table in tables:
            for line in with_differences(table):
                yield dict(zip(COLUMNS, (client, site, *line), strict=True))

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, str]]) -> list[tuple[str, str, Line]]:
        """The lines with their clients and the names of the sites."""
        return [(row["client"], row["site"], _line(row)) for row in rows]


def _line(row: Mapping[str, str]) -> Line:
    texts = row["group"], row["column"], row["category"]
    return Line(*texts, *(float(row[key]) for key in Line._fields[len(texts) :]))


class TableOne(Histogram):
    """Counts and sums of every column and of the label, at every client."""

    name = "table_one"
    what = "Table 1"
    follows, otherwise = "Table 1", "set evaluation.table-one to false"
    reported = TableOneAnswers
    asked_by = "evaluation.table-one"
    share_key = "privacy.table-one-share"

    @classmethod
    def check_settings(cls, config: Any) -> None:
        """See `SiteQuery`."""
        if config.evaluation.table_one_by and not config.evaluation.table_one:
            raise SettingError("evaluation.table-one-by needs evaluation.table-one = true")

    @cached_property
    def _variables(self) -> tuple[Variable, ...]:
        """The variables of the label and of the columns; none for data without a schema."""
        schema = self.run.dataset.schema
        bins = _BINS if self.run.config.privacy.mode == "none" else _NOISY_BINS
        columns = [column_variable(column, bins) for column in schema.columns] if schema else []
        return (*label_variables(schema.label, bins), *columns) if schema else ()

    @cached_property
    def layout(self) -> Layout:
        """What is described."""
        by = {variable.name: variable for variable in self._variables}.get(
            self.run.config.evaluation.table_one_by
        )
        return Layout(tuple(variable for variable in self._variables if variable is not by), by)

    def check(self) -> None:
        """See `SiteQuery`."""
        run, by = self.run, self.run.config.evaluation.table_one_by
        if run.dataset.marks is None:
            raise SettingError(
                "evaluation.table-one needs tables with a schema: set data.name to tables or own"
            )
        check_whole_rows(run, "evaluation.table-one")
        numbers = [variable for variable in self._variables if not variable.categories]
        private = [number.name for number in numbers if number.range is None]
        if private:
            raise SettingError(
                f"evaluation.table-one needs public ranges: give column '{private[0]}' one in the schema"
            )
        known = [variable.name for variable in self._variables if variable.categories]
        if by and by not in known:
            raise SettingError(
                f"evaluation.table-one-by must be a column of categories ({', '.join(known) or 'there is none'}); got "
                f"'{by}'"
            )
        for variable in self._variables:
            check_categories(variable, "evaluation.table-one", *[ALL] * (variable.name == by))

    @property
    def squared_move(self) -> int:
        """See `Histogram`."""
        return self.layout.squared_move

    @property
    def entries(self) -> int:
        """See `Histogram`."""
        return self.layout.entries

    def part(self, client: int, site: Any = None) -> Described:
        """See `Histogram`."""
        run, names = self.run, [variable.name for variable in self._variables]
        schema = run.dataset.schema
        assert schema is not None
        columns = [column_values(run, column, client)[:, None] for column in schema.columns]
        values = np.hstack([label_values(run, client), *columns])
        by = names.index(self.layout.by.name) if self.layout.by else None
        groups = np.zeros(len(values)) if by is None else values[:, by]
        least = 1 if site is None or run.plan else site.table_cell
        return Described(self.layout, values if by is None else np.delete(values, by, 1), groups, least)

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        rows, least = int(self.run.partition.sizes[client]), max(site.table_rows or 0, site.table_cell)
        if site.table_rows is None or rows < least:
            needed = (
                "its node config has no table-rows" if site.table_rows is None else f"it needs {least} rows"
            )
            raise SettingError(
                f"this site describes no rows for evaluation.table-one: {needed}, and the run has {rows} "
                "(evaluation.table-one = false trains without)"
            )

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return {"table-rows": 1, "table-cell": 1}

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        cost = self.run.first.cost(len(self.layout.groups))
        return [("Table 1", f"of {len(self._variables)} columns, {cost}")]

    def advice(self) -> list[str]:
        """A warning if the noise hides most of the table."""
        remedy = ": raise privacy.table-one-share or epsilon, or describe fewer columns"
        return self.run.first.advice("Table 1", remedy, len(self.layout.groups))  # type: ignore[no-any-return]
