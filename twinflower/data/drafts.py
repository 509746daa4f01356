"""A first draft of a schema, made from tables. What it asks about them: `draft_notes`."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..decimals import decimal, is_decimal, may_be_code
from ..errors import DataError
from ..settings import LARGEST, alike
from .cells import as_text, listed, texts
from .columns import (
    CENSORED,
    HAPPENED,
    INDICATOR,
    REFUSE,
    Category,
    Classes,
    Column,
    Number,
    Range,
    Survival,
    Target,
    Weight,
)
from .csv_tables import DELIMITERS, PLAIN, Dialect, has_thousands, recognised, with_point
from .oddities import Written, number_in, question, written
from .schema import MISSING_TEXTS, Schema
from .tables import CSV, check_names, nested_columns, opened
from .words import events, is_event, is_start, same_meaning

MOST_CATEGORIES = 50  # largest number of categories of a text column
_FEW_NUMBERS = 6  # up to this many distinct integers are treated as categories
_MOST_CLASSES = 20


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
    texts_ = {
        name: counts
        for name, counts in by_column(tables).items()
        if not all(map(is_allowed_number, chain(*counts)))
    }
    ways = {name: written(Seen.of(counts)) for name, counts in texts_.items()}
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
        raise DataError("".join(f"{file}, row {row} {text}" for row, text in list(uneven.items())[:1]))
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
            raise DataError(f"there is no column '{name}' in {files}{alike(name, names)}")
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
    return is_start(name) or (len(later) > _FEW_NUMBERS and 0.0 in seen.numbers and touch)


def _most_frequent(tables: Sequence[Table]) -> Dialect:
    dialects = Counter(table.dialect for table in tables if table.dialect)
    return dialects.most_common(1)[0][0] if dialects else PLAIN


class Seen:
    """The values of a column in some tables: how often each present text occurs, and whether any value is missing."""

    def __init__(self, tables: Sequence[Counter[str]], missing: bool) -> None:
        self.tables, self.missing = tables, missing
        self.texts = tables[0] if len(tables) == 1 else sum(tables, Counter[str]())

    @classmethod
    def of(cls, tables: Iterable[Counter[str]]) -> "Seen":
        """From the texts of each table, which may mark missing values."""
        every = list(tables)
        absent = set(MISSING_TEXTS)
        present = [
            table
            if absent.isdisjoint(table)
            else Counter({text: n for text, n in table.items() if text not in absent})
            for table in every
        ]
        return cls([table for table in present if table], any(absent & table.keys() for table in every))

    @cached_property
    def numbers(self) -> dict[float, int]:
        """How often each number occurs."""
        return {number: n for text, n in self.texts.items() if (number := _number(text)) is not None}

    @cached_property
    def others(self) -> list[str]:
        """The texts that are no numbers, ascending."""
        return sorted(text for text in self.texts if not is_allowed_number(text))

    @cached_property
    def numeric(self) -> bool:
        """Whether the column holds numbers, perhaps with a few texts among them."""
        if not self.others or len(self.numbers) <= _FEW_NUMBERS:
            return not self.others and bool(self.numbers)
        whole = sum(all(map(is_allowed_number, table)) for table in self.tables)
        return 2 * sum(self.numbers.values()) >= self.texts.total() or 2 * whole > len(self.tables)

    def column(self, name: str, way: Written | None = None) -> Column | str:
        """The column in the draft, or its name if the draft ignores it. way: how its numbers are written."""
        rule = INDICATOR if self.missing else REFUSE
        if not name or question(name, self):
            return name
        if self._are_categories(_FEW_NUMBERS, MOST_CATEGORIES):
            names, values = self._grouped()
            return Category(name, names, rule, values if len(names) < len(self.texts) else ())
        if not self.numeric:
            return name
        column = Number(name, spanned(self.numbers), rule)
        return way.column(column) if way else column

    def label(self, name: str) -> Classes | Target:
        """The label in the draft; DataError if the column cannot be a label."""
        if not len(self.texts) > 1 and self.texts:
            raise DataError(
                f"column '{name}' cannot be the label: all of its values are {next(iter(self.texts), '')!r}; add a "
                "table that has others, or choose another column with --label"
            )
        if self._are_categories(_MOST_CLASSES, _MOST_CLASSES):
            names, values = self._grouped()
            if len(names) == 2 and is_event(names[0]) and is_event(names[1]) is False:
                names, values = names[::-1], values[::-1]  # the odds are those of the second class
            integers = tuple(int(decimal(text)) for text in names) if self.numeric else ()
            return Classes(name, integers if len({*integers}) == len(names) else names, values)
        if not self.numeric:
            raise DataError(f"column '{name}' cannot be the label: it has {len(self.texts)} different values")
        return Target(name, spanned(self.numbers))

    def survival(self, name: str, event: str, seen: "Seen") -> Survival:
        """The label in the draft if the column has times and another one, which was seen to have these values, events;
        DataError if they cannot be that."""
        later = [number for number in self.numbers if number > 0]
        if not (self.numeric and bool(later)):
            raise DataError(f"column '{name}' cannot be the time: it has no numbers above 0")
        if name == event:
            raise DataError(f"column '{name}' cannot be both the time and the event")
        usual = [*HAPPENED, *CENSORED]
        values = usual if set(seen.texts) <= set(usual) else seen._ordered()
        sides = events(event, values)
        if sides is None and values is not usual and len(values) != 2:
            raise DataError(
                f"column '{event}' cannot be the event: it must have two values; got {len(values)}"
            )
        happened, censored = sides or ([], seen._ordered())  # a question, see `schema_file`
        times = spanned(later)
        times = replace(times, low=times.low if times.low > 0 else min(later))
        return Survival(name, times, event, tuple(happened), tuple(censored))

    def weight(self, name: str) -> Weight:
        """The weights in the draft if the column has them; DataError if it cannot."""
        if not (self.numeric and min(self.numbers) >= 0):
            raise DataError(f"column '{name}' cannot be the weight: it must have numbers from 0 on")
        span = spanned(self.numbers)
        return Weight(name, replace(span, low=max(span.low, 0.0)))

    def _are_categories(self, most_numbers: int, most_texts: int) -> bool:
        if not self.numeric:
            return 1 <= len(self.texts) <= most_texts
        whole = all(value == int(value) for value in self.numbers)
        return len(self.numbers) <= most_numbers and whole and not self.others

    def _grouped(self) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """The values in groups that mean the same, each with its most frequent value as its name."""
        groups = same_meaning(self._ordered())
        names = tuple(max(group, key=self.texts.__getitem__) for group in groups)
        return names, tuple(map(tuple, groups))

    def _ordered(self) -> list[str]:
        return sorted(self.texts, key=decimal) if self.numeric else sorted(self.texts)


def is_allowed_number(text: str) -> bool:
    """Whether the text is a number that a table may have, and not perhaps a code such as 1e5."""
    return _number(text) is not None


@lru_cache(maxsize=2**17)  # the same numbers stand in many cells and columns
def _number(text: str) -> float | None:
    number = decimal(text) if is_decimal(text) and not may_be_code(text) else LARGEST * 2
    return number if abs(number) <= LARGEST else None


def spanned(values: Iterable[float]) -> Range:
    """A range that holds these numbers, rounded outwards to two digits."""
    numbers = list(values)
    low = max(_rounded(min(numbers), math.floor), -LARGEST)
    high = min(_rounded(max(numbers), math.ceil), LARGEST)
    return Range(low, high) if Range(low, high).half > 0 else Range(low - 1.0, low + 1.0)


def _rounded(value: float, direction: Any) -> float:
    """The value rounded to two significant digits with `direction`, math.floor or math.ceil."""
    if not value:
        return 0.0
    digits = math.floor(math.log10(abs(value))) - 1
    return float(f"{direction(float(f'{value / 10.0**digits:.9g}'))}e{digits}")
