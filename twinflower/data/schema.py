"""A schema: what the columns of a table mean, in a small public file that all sites share.

    version = 1
    delimiter = ";"                                        # optional: how CSV files are written; the default is ","
    decimal = ","                                          # optional: the default is "."
    ignore = ["ward"]                                      # columns that are not used
    group = "patient"                                      # optional: the column that says whose record a row is
    weight = "weight"                                      # optional: the column of the rows' weights
    weight-range = [0, 10]                                 # its public range, from 0 on
    terms = ["age:sex", "age^2", "bs(crp, 4)"]             # optional: products, powers and splines (`terms`)

    [label]
    column = "num"
    classes = { healthy = ["0"], ill = ["1", "2", "3"] }   # or a list of values, or range = [0, 90] for a number, or
                                                           # counts = 50 for a count of at most 50, or
                                                           # times = [1, 5000] for the time until an event

    [columns]
    age = { range = [20, 80] }
    dose = { range = "private" }
    pain = { categories = ["none", "mild", "severe"], missing = "indicator" }
    sex = { categories = { male = ["M", "m"], female = ["F", "f"] } }          # the values of each category
    crp = { range = [0, 500], unit = "mg/l", censored-below = "half" }         # "7 mg/l" is 7, "<0.5" is 0.25

    [sites]                                                # optional: units of single sites, not in the digest
    "site-2.csv" = { crp = { scale = 10 }, temperature = { scale = 0.5556, offset = -17.78 } }

A site of `sites` is called by the name of its file, or by its value in the column of sites. There a number is scale *
number + offset in the unit of the schema.

A count can have an exposure, such as the years in which events were counted: `exposure = "years"` names its column and
`exposure-range = [0.1, 10]` its public range, to which it is clipped.

A time is that of an event, or that until which a person was observed without it (censored). `event = "died"` names the
column that says which, `event-values = ["1"]` its values for an event and `censored-values = ["0"]` those for
censoring. A time above the range of `times` is censored at its upper end; a shorter time than the lower end is moved to
it, and with a lower end of 0 a time must be above 0.

A weight multiplies the loss of its row, which no longer counts as one row but as so many. It is clipped to its range,
whose upper end is a factor of what one row can change, so a private run adds so many times the noise.

A number becomes one feature, (value - middle) / half the width of its range, clipped to [-1, 1]. A range is public, or
"private": then the clients of a run release noisy counts first, from which its range follows (`ranges`). A category
becomes one feature of 0 or 1 for each of its categories. What a missing value becomes is the column's `missing`:
"refuse" (the default), "zero" (all of the column's features are 0, which is the middle of a range), or "indicator",
which also appends a feature that is 1 where the value is missing.

The features of a row therefore depend only on this row, the public schema and released ranges, not on statistics of
other rows, and a privacy guarantee for the features holds for the table as well. `schema_file` reads and
writes the file of a schema, `columns` encodes single columns, and `tables` reads the tables.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..settings import LARGEST
from .cells import CellError, Cells, Floats, Measured, as_text, numbers, people
from .columns import (
    CLIPPED,
    REFUSE,
    Classes,
    Column,
    Counts,
    Encoder,
    Label,
    Marks,
    Number,
    Range,
    Survival,
    Target,
    Weight,
    has_signs,
    plain,
)
from .csv_tables import PLAIN, Dialect
from .terms import Term


class Scale(NamedTuple):
    """A unit of a site: scale * number + offset is in the unit of the schema."""

    scale: float = 1.0
    offset: float = 0.0


VERSION = 1
ONE_ROW = "one-row-per-person"  # key of a label with times
PRIVATE = "private"  # in place of a range: not known, and computed from noisy counts
MISSING_TEXTS = ("", "NA", "N/A", "NaN", "nan", "null", "?")


@dataclass(frozen=True)
class Schema:
    """A validated schema; see the module's docstring. group: the column that says whose record a row is, or empty.
    dialect: how CSV files are written. weight: the column of the rows' weights, None for none. sites: the units of
    single sites, by the site and the column; scales: those of the site whose table is read. terms: what the features
    have besides the columns."""

    columns: tuple[Column, ...]
    label: Label
    ignore: tuple[str, ...] = ()
    missing_texts: tuple[str, ...] = MISSING_TEXTS
    source: str = field(default="", compare=False)  # the file that it was read from
    group: str = ""
    dialect: Dialect = PLAIN
    weight: Weight | None = None
    sites: Mapping[str, Mapping[str, Scale]] = field(default_factory=dict, hash=False)
    scales: Mapping[str, Scale] = field(default_factory=dict, hash=False)
    terms: tuple[Term, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns that are encoded as features."""
        return tuple(column.name for column in self.columns)

    @property
    def used(self) -> tuple[str, ...]:
        """Names of all columns that are read: those of the features, and the `encoders`."""
        return (*self.names, *self.encoders)

    @cached_property
    def encoders(self) -> Mapping[str, Encoder]:
        """What encodes the columns that are no features: the label and its exposure, the group and the weight if there
        are any."""
        group = {self.group: people} if self.group else {}
        weight = {self.weight.column: self.weight.encode} if self.weight else {}
        return {**self.label.encoders, **group, **weight}

    @cached_property
    def limits(self) -> dict[str, Range]:
        """The public ranges to which the label, its exposure and the weights are clipped, by column; times above theirs
        are censored."""
        weight = {self.weight.column: self.weight.range} if self.weight else {}
        return {**self.label.ranges, **weight}

    @property
    def marked(self) -> tuple[str, ...]:
        """Names of the columns whose values are marked if they are clipped: those of the features, and the `limits`."""
        return (*self.names, *self.limits)

    @property
    def unweighted(self) -> "Schema":
        """The schema for rows whose weights do not matter, whether their table has the column or not."""
        if not self.weight:
            return self
        return replace(self, weight=None, ignore=(*self.ignore, self.weight.column))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of all features, in order: those of the columns, and those of the terms."""
        parts = [column.features for column in self.columns]
        return tuple(chain(*parts, *(term.features(self._by_name) for term in self.terms)))

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def private(self) -> tuple[str, ...]:
        """Names of the columns with private ranges."""
        return tuple(
            column.name for column in self.columns if isinstance(column, Number) and column.range is None
        )

    @cached_property
    def private_indices(self) -> list[int]:
        """The indices of the features of these columns."""
        return [self.features.index(name) for name in self.private]

    def at(self, site: str | Path) -> "Schema":
        """The schema for the table of a site, which is called by its file (a Path), of which the longest end that is
        named counts, or by a value in the column of sites (a str), which must be equal."""
        if isinstance(site, str):
            return replace(self, scales=self.sites[site]) if site in self.sites else self
        parts = site.parts
        named = [name for name in self.sites if parts[-len(Path(name).parts) :] == Path(name).parts]
        nearest = max(named, key=lambda name: len(Path(name).parts), default="")
        return replace(self, scales=self.sites[nearest]) if named else self

    def measured(self, name: str, cells: Cells) -> Cells:
        """The cells of a column in the unit of the schema, as sites write them; CellError for an invalid cell."""
        column = self._by_name.get(name)
        if isinstance(column, Number) and has_signs(column):
            cells = plain(column, cells, self.dialect.decimal == ",")
        if name not in self.scales:
            return cells
        scale, offset = self.scales[name]
        return np.clip(numbers(cells, self.absent) * scale + offset, -LARGEST, LARGEST).view(Measured)

    def check(self, name: str, cells: Cells) -> None:
        """CellError if one of the cells of a column that is read does not fit."""
        cells = self.measured(name, cells)
        if name in self.encoders:
            self.encoders[name](cells, self.absent)
        else:
            column = self._by_name[name]
            column.encode(cells, self.absent, np.empty((len(cells), len(column.features))))

    def with_ranges(self, ranges: Sequence[Range]) -> "Schema":
        """The schema with these ranges in place of the private ones."""
        released = dict(zip(self.private, ranges, strict=True))
        columns = tuple(
            replace(column, range=released[column.name])
            if isinstance(column, Number) and column.range is None
            else column
            for column in self.columns
        )
        return replace(self, columns=columns)

    def longest(self, bias: bool) -> float:
        """The largest norm of an encoded row, with a column of ones if `bias`.

        A column's features have a norm of at most 1: they are a number in [-1, 1], or at most one of them is 1 and the
        others are 0. So have those of a term (`terms`).
        """
        return math.sqrt(len(self.columns) + len(self.terms) + bias)

    @property
    def num_classes(self) -> int:
        """Number of classes of the label; 0 for a numeric label."""
        return len(self.label.names) if isinstance(self.label, Classes) else 0

    @cached_property
    def absent(self) -> frozenset[str]:
        """The texts that mark a missing value, in canonical form, so "-9" is also -9.0."""
        return frozenset(map(as_text, self.missing_texts))

    def encode(self, cells: Mapping[str, Cells]) -> Floats:
        """The features (rows, features) of a table given by columns; DataError names the row and column.

        Columns with private ranges are not scaled, and are NaN where a value is missing.
        """
        return self.encode_marked(cells)[0]

    def encode_marked(self, cells: Mapping[str, Cells]) -> tuple[Floats, Marks]:
        """The features as of `encode`, and the marks (rows, columns) of values that are clipped or missing."""
        rows, width = len(cells[self.names[0]]), sum(len(column.features) for column in self.columns)
        out, marks = np.empty((rows, width)), np.empty((rows, len(self.columns)), np.int8)
        for index, (name, block) in enumerate(self.blocks(out).items()):
            with _named(name):
                measured = self.measured(name, cells[name])
                marks[:, index] = self.columns[index].encode(measured, self.absent, block)
        return self.with_terms(out), marks

    def limit_marks(self, cells: Mapping[str, Cells]) -> Marks:
        """The marks (rows, columns) of values that are clipped to the `limits`; for cells that passed the checks."""
        marks = np.zeros((len(cells[self.names[0]]), len(self.limits)), np.int8)
        for place, (name, limit) in enumerate(self.limits.items()):
            values = numbers(self.measured(name, cells[name]), self.absent)
            late = (
                isinstance(self.label, Survival) and name == self.label.column
            )  # censoring is no distortion
            marks[:, place] = CLIPPED * (limit.follows(values) if late else limit.excludes(values))
        return marks

    def blocks(self, features: Floats) -> dict[str, Floats]:
        """The features of each column, views (rows, k), by its name, of all features or those of the columns."""
        ends = np.cumsum([len(column.features) for column in self.columns])
        return dict(zip(self.names, np.split(features, ends, axis=1), strict=False))

    def with_terms(self, features: Floats) -> Floats:
        """All features (rows, n), given those of the columns."""
        if not self.terms:
            return features
        blocks = self.blocks(features)
        return np.hstack([features, *(term.encode(self._by_name, blocks) for term in self.terms)])

    def encode_label(self, cells: Mapping[str, Cells]) -> NDArray[Any]:
        """The labels (rows,): class indices, numbers in [-1, 1], counts with their offsets (`losses.packed`), or signed
        times (`survival_labels`)."""
        return self.label.joined(*(self._encoded(name, cells) for name in self.label.encoders))

    def encode_weights(self, cells: Mapping[str, Cells]) -> Floats | None:
        """The weights (rows,), None for a schema without them."""
        return self._encoded(self.weight.column, cells) if self.weight else None

    def encode_groups(self, cells: Mapping[str, Cells]) -> NDArray[np.str_] | None:
        """The names in the group column (rows,), None for a schema without one."""
        return self._encoded(self.group, cells) if self.group else None

    def _encoded(self, name: str, cells: Mapping[str, Cells]) -> Any:
        """What one of the `encoders` makes of its column (rows,)."""
        with _named(name):
            return self.encoders[name](self.measured(name, cells[name]), self.absent)

    @cached_property
    def digest(self) -> str:
        """A hash of the schema's content (32 hex digits), independent of how its file is formatted.

        It leaves out how CSV files are written and the units of single sites, because sites may write the same table in
        different ways.
        """
        content = replace(self, dialect=PLAIN, sites={}).document()
        return hashlib.sha256(json.dumps(content, sort_keys=False).encode()).hexdigest()[:32]

    def document(self) -> dict[str, Any]:
        """The schema as a nested dictionary, with the structure of its TOML file."""
        return {
            "version": VERSION,
            **_changed(self.dialect),
            "missing-values": list(self.missing_texts),
            "ignore": list(self.ignore),
            **({"group": self.group} if self.group else {}),
            **(
                {"weight": self.weight.column, "weight-range": _ends(self.weight.range)}
                if self.weight
                else {}
            ),
            **({"terms": [term.text for term in self.terms]} if self.terms else {}),
            "label": _label_table(self.label),
            "columns": {column.name: _column_table(column) for column in self.columns},
            **({"sites": _site_tables(self.sites)} if self.sites else {}),
        }


@contextmanager
def _named(column: str) -> Iterator[None]:
    """Add the column's name to errors about one of its cells."""
    try:
        yield
    except CellError as error:
        raise error.in_column(column) from None


def _ends(span: Range) -> list[float]:
    return [span.low, span.high]


def _label_table(label: Label) -> dict[str, Any]:
    if isinstance(label, Survival):
        values = {"event-values": list(label.happened), "censored-values": list(label.censored)}
        persons = {} if label.one_row is None else {ONE_ROW: label.one_row}
        return {
            "column": label.column,
            "times": _ends(label.times),
            "event": label.event,
            **values,
            **persons,
        }
    if isinstance(label, Counts):
        exposure = {"exposure": label.exposure, "exposure-range": _ends(label.exposures)}
        return {"column": label.column, "counts": label.most, **(exposure if label.exposure else {})}
    if isinstance(label, Target):
        return {"column": label.column, "range": _ends(label.range)}
    return {"column": label.column, "classes": _named_values(label.names, label.values)}


def _column_table(column: Column) -> dict[str, Any]:
    kind: dict[str, Any] = (
        {"range": PRIVATE if column.range is None else _ends(column.range)}
        if isinstance(column, Number)
        else {"categories": _named_values(column.categories, column.values)}
    )
    if isinstance(column, Number):
        kind |= {"unit": column.unit} if column.unit else {}
        limits = {"censored-below": column.below, "censored-above": column.above}
        kind |= {key: limit for key, limit in limits.items() if limit}
    return kind | ({} if column.missing == REFUSE else {"missing": column.missing})


def _named_values(names: Sequence[str | int], values: Sequence[tuple[str, ...]]) -> Any:
    """A list of names, or a dictionary with the values of each name where these are not the name alone."""
    if all((as_text(name),) == texts for name, texts in zip(names, values, strict=bool(values))):
        return list(names)
    return dict(zip(map(str, names), map(list, values), strict=True))


def _site_tables(sites: Mapping[str, Mapping[str, Scale]]) -> dict[str, Any]:
    """The units of sites, without the values that are the default ones."""
    return {site: {name: _changed(unit) for name, unit in columns.items()} for site, columns in sites.items()}


def _changed(value: Dialect | Scale) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    return {key: field for key, field in value._asdict().items() if field != value._field_defaults[key]}
