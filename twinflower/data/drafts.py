"""A first draft of a schema, made from tables, and questions about what the values of its columns say when they are
compared, in one table and between tables. Its text with all that it asks: `draft_notes`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ..errors import DataError
from ..settings import alike
from .cells import Floats, as_text, listed, texts
from .columns import Category, Classes, Column, Label, Number, Survival
from .csv_tables import DELIMITERS, PLAIN, Dialect, has_thousands, recognised, with_point
from .schema import Schema
from .schema_file import to_line
from .seen import FEW, Seen, Written, number_in, question, spanned, written
from .tables import CSV, check_names, nested_columns, opened
from .words import events, is_start

_NAMED = 10  # most columns that an error names
_ENOUGH = 5  # numbers of a table that are compared with those of others
_FACTOR = 3.0  # between medians, from which units may differ
_FEW_LEVELS = 3  # categories that tables should have in common
# Factors between units in use: powers of ten; glucose, cholesterol, creatinine and triglycerides in mmol/l and mg/dl;
# inches, pounds, feet, stones; days, weeks, months and years; kPa; kJ. Then degrees Fahrenheit.
_FACTORS = (10, 100, 1000, 1e6, 18.016, 38.67, 88.42, 88.57, 2.54, 2.2046, 3.2808, 6.35,
            7, 12, 24, 30.44, 60, 365.25, 7.5006, 4.184)  # fmt: skip
_UNITS = [(scale, 0.0) for factor in _FACTORS for scale in (float(factor), 1 / factor)] + [
    (5 / 9, -160 / 9),
    (1.8, 32.0),
]

Counts = dict[str, Counter[str]]  # by column, how often each text occurs


class Table(NamedTuple):
    """A table that was read without a schema: by column, its canonical texts and how often each occurs.

    uneven: the numbers of the rows with more or fewer fields than the header, which are left out. thousands: by column,
    the cells of a file with decimal commas that have points between thousands, too, such as 1.027,5. written: the
    columns whose numbers have a unit or limits of detection in any of the tables; the texts here are without these.
    """

    file: Path
    dialect: Dialect | None  # of a CSV file
    columns: Mapping[str, Counter[str]]
    uneven: Sequence[int] = ()
    thousands: Mapping[str, Counter[str]] = MappingProxyType({})
    written: Mapping[str, Written] = MappingProxyType({})


def read_tables(paths: Sequence[str | Path]) -> list[Table]:
    """Read tables, each in the dialect in which it seems to be written; DataError for one that cannot be read."""
    tables = [_read(Path(path).expanduser()) for path in paths]
    ways = {name: written(Seen.of(counts)) for name, counts in by_column(tables).items()}
    known = {name: way for name, way in ways.items() if way}
    return [_plain(table, known) for table in tables] if known else tables


def by_column(tables: Sequence[Table]) -> dict[str, list[Counter[str]]]:
    """The texts of every column, in each table that has it."""
    columns: dict[str, list[Counter[str]]] = {}
    for table in tables:
        for name, texts_ in table.columns.items():
            columns.setdefault(name, []).append(texts_)
    return columns


def _plain(table: Table, ways: Mapping[str, Written]) -> Table:
    """The table with plain numbers where they are written in these ways."""
    changed = dict(table.columns)
    for name in ways.keys() & changed.keys():
        plain: Counter[str] = Counter()
        for text, count in changed[name].items():
            commas, number = table.dialect and table.dialect.decimal == ",", number_in(text)
            if commas:  # a point may then be that of thousands, and the text stays as it is
                number = text if "." in number else with_point(number)
            plain[as_text(number)] += count
        changed[name] = plain
    return table._replace(columns=changed, written=ways)


def _read(file: Path) -> Table:
    dialect = recognised(file) if file.suffix.lower() == CSV else None
    uneven: dict[int, str] = {}
    header, pieces = opened(file, (dialect or PLAIN)._replace(decimal="."), uneven)  # cells as they are
    check_names(file, header)
    if not len(header) > 1 and dialect:
        raise DataError(
            f"{file} has one column, {header[0]!r}: fields must be separated by {', '.join(DELIMITERS.values())}"
        )
    columns: Counts = {name: Counter() for name in header}
    thousands: Counts = {name: Counter() for name in header}
    nested = nested_columns(file)  # which the draft ignores, as they have no texts
    for piece in pieces([name for name in header if name not in nested]):
        for name, cells in piece.items():
            values = listed(cells)
            if dialect and dialect.decimal == ",":
                thousands[name].update(filter(has_thousands, values))
                values = list(map(with_point, values))
            columns[name].update(texts(values))
    some = any(columns.values())
    if not some and uneven:
        row, text = next(iter(uneven.items()))
        raise DataError(f"{file}, row {row} {text}")
    if not some:
        raise DataError(f"{file} has a header and no rows")
    return Table(file, dialect, columns, tuple(uneven), thousands)


def draft(
    tables: Sequence[Table], label: str = "", private_ranges: bool = False, event: str = "", weight: str = ""
) -> Schema:
    """A draft schema for these tables, to be reviewed: its ranges and categories are taken from the data.

    label is the name of the label column; by default, the last column of the first table. event is the name of the
    column of the event if the label is the time until it, weight that of the rows' weights, if they have any. Numeric
    columns get the range of their values, rounded outwards to two digits, or with private_ranges no range but
    "private". A column with other texts is numeric, too, if at least half of its values, or all values of most tables,
    are numbers. Text columns, and columns with few distinct integers, become categories. A column with missing values
    gets an indicator. Text columns with too many values and columns without a name are ignored. The dialect is that of
    most CSV files.
    """
    names = list(dict.fromkeys(name for table in tables for name in table.columns))
    label = label or list(tables[0].columns)[-1]
    files = ", ".join(str(table.file) for table in tables)
    outcome = [label, *filter(None, [event, weight])]
    if weight in outcome[:-1]:
        raise DataError(f"column '{weight}' cannot be both the weight and the label or the event")
    for name in outcome:
        if name not in names:
            near = (
                alike(name, names)
                or f"; the columns are {', '.join(names[:_NAMED])}{', ...' * (len(names) > _NAMED)}"
            )
            raise DataError(f"there is no column '{name}' in {files}{near}")
    absent, ways = Counter([""]), tables[0].written
    seen = {name: Seen.of(table.columns.get(name, absent) for table in tables) for name in names}
    columns = [seen[name].column(name, ways.get(name)) for name in names if name not in outcome]
    used = tuple(
        replace(column, range=None) if private_ranges and isinstance(column, Number) else column
        for column in columns
        if isinstance(column, Number | Category)
    )
    if not used:
        asked = {name: question(name, seen[name]) for name in names if name not in outcome}
        why = "".join(f"; column '{name}' {reason}" for name, reason in asked.items() if reason)
        raise DataError(f"no column of {tables[0].file} but the label can be used{why}")
    ignored = tuple(name for name in columns if isinstance(name, str))
    drafted = seen[label].survival(label, event, seen[event]) if event else seen[label].label(label)
    others = [name for name in names if name not in outcome]
    if isinstance(drafted, Survival) and any(_may_start(name, seen[name], seen[label]) for name in others):
        drafted = replace(drafted, one_row=False)  # a question, see `schema_file`
    weight_column = seen[weight].weight(weight) if weight else None
    return Schema(used, drafted, ignored, dialect=_most_frequent(tables), weight=weight_column)


def _may_start(name: str, seen: "Seen", times: "Seen") -> bool:
    """Whether a column may have the starts of intervals that end at these times: by its name, or because some begin at
    0 and the others where another one ends."""
    later = {number: count for number, count in seen.numbers.items() if number}
    touch = all(count <= times.numbers.get(number, 0) for number, count in later.items())
    return is_start(name) or (len(later) > FEW and 0.0 in seen.numbers and touch)


def _most_frequent(tables: Sequence[Table]) -> Dialect:
    dialects = Counter(table.dialect for table in tables if table.dialect)
    return dialects.most_common(1)[0][0] if dialects else PLAIN


# --- questions about columns


def about_units(column: str, tables: Mapping[str, Seen]) -> Iterator[str]:
    """A question about every table whose numbers lie elsewhere than those of most tables, by their names.

    Its middle half and that of the table with the middle median do not overlap, or the medians differ by a factor of 3.
    """
    quartiles = {
        name: _quartiles(seen) for name, seen in tables.items() if sum(seen.numbers.values()) >= _ENOUGH
    }
    ordered = sorted(quartiles, key=lambda name: quartiles[name][1])
    usual = ordered[len(ordered) // 2] if len(ordered) > 2 else next(iter(quartiles), "")
    for name, values in quartiles.items():
        if _differ(values, quartiles[usual]):
            rest = spanned(number for other in tables if other != name for number in tables[other].numbers)
            yield (
                f"Column '{column}' has the median {values[1]:g} in {name}, and {quartiles[usual][1]:g} in {usual}. "
                f"{_remedy(column, name, values, quartiles[usual])} under [sites], where a number becomes "
                "scale * number + offset, and choose the range; that of the other tables is "
                f"[{rest.low:g}, {rest.high:g}]."
            )


def _quartiles(seen: Seen) -> Floats:
    values = np.repeat(list(seen.numbers), list(seen.numbers.values()))
    return np.quantile(values, [0.25, 0.5, 0.75], method="inverted_cdf")


def _differ(one: Floats, other: Floats) -> bool:
    small, large = sorted((abs(one[1]), abs(other[1])))
    return bool(
        one[0] > other[2] or one[2] < other[0] or (one[1] * other[1] > 0 and large >= _FACTOR * small)
    )


def _remedy(column: str, name: str, values: Floats, usual: Floats) -> str:
    """What to write into a schema: the known units that fit the quartiles best, else the factor of the medians. A
    median that is no multiple of the other, such as 0, may be a code for missing values."""

    def distance(unit: tuple[float, float]) -> float:
        return float(np.abs(unit[0] * values + unit[1] - usual).max())

    scale, offset = min(_UNITS, key=distance)
    if distance((scale, offset)) > max(usual[2] - usual[0], 0.1 * abs(usual[1])):
        if usual[1] * values[1] <= 0:
            return (
                f"Does {values[1]:g} mean a missing value (missing-values), or is that another unit? Then write scale "
                "and offset"
            )
        scale, offset = usual[1] / values[1], 0.0
    unit = {"scale": float(f"{scale:.5g}")} | ({"offset": float(f"{offset:.5g}")} if offset else {})
    return f"Is that another unit? Then write {to_line({name: {column: unit}})}"


def about_values(column: Column | Label) -> Iterator[str]:
    """A question about every category or class that stands for several values."""
    if isinstance(column, Category | Classes):
        name, kind = (
            (column.name, "categories") if isinstance(column, Category) else (column.column, "classes")
        )
        several = [", ".join(map(repr, values)) for values in column.values if len(values) > 1]
        if several:
            yield (
                f"Column '{name}': do these mean the same, as the draft takes them: {'; '.join(several)}? If not, "
                f"list them as {kind} of their own."
            )


def about_levels(column: Category, tables: Mapping[str, Seen]) -> Iterator[str]:
    """A question about the first two tables with other categories: no common one, or the same small
    number of categories with other codes."""
    codes = {
        value: code for code, values in enumerate(column.values or zip(column.categories)) for value in values
    }
    levels = {name: {codes[text] for text in seen.texts} for name, seen in tables.items() if seen.texts}
    for one, other in combinations(dict.fromkeys(map(frozenset, levels.values())), 2):
        if one.isdisjoint(other) or (len(one) == len(other) <= _FEW_LEVELS):
            names = [next(name for name, group in levels.items() if group == asked) for asked in (one, other)]
            texts = [
                ", ".join(repr(column.categories[code]) for code in sorted(group)) for group in (one, other)
            ]
            yield (
                f"Column '{column.name}' has {texts[0]} in {names[0]}, and {texts[1]} in {names[1]}. If these are "
                'codes for the same, give each category its values, such as categories = { no = ["0", "2"], yes = '
                '["1"] }, or write the same codes in all files.'
            )
            return


def about_event(label: Label, seen: Seen) -> Iterator[str]:
    """What the draft takes as the event, or as the second of two classes, or the question which it is.

    seen: the values of the column of the event, or of the label.
    """
    counts, total = seen.texts, seen.texts.total()
    if isinstance(label, Survival):
        if label.one_row is False:
            yield (
                "Has a person several rows, with the start and the end of an interval each? A row would count as a "
                "person: merge the rows of each person. When every row is another person, followed from time 0, write "
                "one-row-per-person = true. Until then a run is refused."
            )
        if not label.happened:
            yield (
                f"Which value of '{label.event}' means that the event happened, {_either(label.censored)}? The draft "
                "cannot know: move it from censored-values to event-values. Until then a run is refused."
            )
            return
        happened = [text for text in label.happened if text in counts] or list(label.happened)
        num_events = sum(counts[text] for text in happened)
        yield (
            f"The event is {_either(happened)} in column '{label.event}' ({num_events:,} of {total:,} rows). If the "
            "event is another value, exchange event-values and censored-values."
        )
    elif isinstance(label, Classes) and len(label.names) == 2:
        known = events(label.column, [values[0] for values in label.values])
        if not known or known[0][0] not in label.values[1]:
            yield (
                f"Is '{label.names[1]}' of '{label.column}' the outcome whose odds are to be modelled, against "
                f"'{label.names[0]}'? If not, exchange the two classes."
            )


def _either(values: Sequence[str]) -> str:
    return " or ".join(map(repr, values))
