"""The text of a draft schema, with comments on what its author should look at in the tables."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from itertools import combinations, pairwise
from pathlib import Path
from textwrap import wrap
from typing import NamedTuple

from ..decimals import decimal
from .cells import few
from .checks import problems
from .columns import REFUSE, Category, Column, Number
from .csv_tables import DELIMITERS, Dialect, with_point
from .drafts import Table, about_event, about_levels, about_units, about_values, draft, read_tables
from .schema import Schema
from .schema_file import DRAFT, to_toml
from .seen import MOST_CATEGORIES, Seen, begin_like_numbers, question, spanned
from .tables import numeric_columns
from .words import tokens

_DRAFTED = f"""\
{DRAFT} {{files}}. Its ranges and categories are
# data, which no guarantee covers: before a private run, replace them by what is publicly known. Choose what a missing
# value becomes: "refuse", "zero" (the middle of the range, or no category), or "indicator" (and one more feature).
# Columns without a name, and columns of text with more than {{most}} different values, are listed under ignore. All
# sites must use the same schema.

"""
_ASKED = "These comments quote the tables: remove them before you share the schema."
_UNFIT = (
    "The tables do not fit this draft yet. Correct them, add empty columns for what a site did not measure, or list "
    "texts that mean a missing value under missing-values:"
)
_WIDTH = 118
_FEW = 5  # values that are quoted
_SEPARATED = re.compile(
    r"[+-]?\d+([.,' \u00a0\u202f]\d{3})*[.,]?\d+"
)  # numbers with separators, such as 1,234.5
_MANY_NAMES = 200  # of columns, all pairs of which are compared
_MANY_NUMBERS = 10  # from so many, a lone repeated number at the end is conspicuous


class Drafted(NamedTuple):
    """The text of a draft schema, and what its author should look at in the tables, which stands in its comments."""

    text: str
    notes: list[str]


def drafted(
    paths: Sequence[str | Path],
    label: str = "",
    private_ranges: bool = False,
    event: str = "",
    weight: str = "",
) -> Drafted:
    """A draft schema for these tables, with comments on how it was made, and on what to look at in the tables."""
    tables = read_tables(paths)
    schema = draft(tables, label, private_ranges, event, weight)
    remarks = [_printable(note) for note in [*notes(tables, schema), *_misfits(tables, schema)]]
    names = " ".join(", ".join(_name(table.file) for table in tables).split())
    about = _DRAFTED.format(files=names, most=MOST_CATEGORIES)
    return Drafted(about + _comments(remarks) + to_toml(schema), remarks)


def _comments(remarks: Sequence[str]) -> str:
    """The notes as comments; empty if there are none."""
    lines = [
        line
        for note in [_ASKED, *remarks]
        for line in wrap(note, _WIDTH, break_long_words=False, break_on_hyphens=False)
    ]
    return "".join(f"# {line}\n" for line in lines) + "\n" if remarks else ""


def _misfits(tables: Sequence[Table], schema: Schema) -> list[str]:
    """The reasons why tables do not fit the draft, with an introduction; empty if all fit."""
    unfit: list[str] = []
    for table in tables:
        unfit += problems(table.file, replace(schema, dialect=table.dialect or schema.dialect))
    return [_UNFIT, *unfit] if unfit else []


def notes(tables: Sequence[Table], schema: Schema) -> list[str]:
    """What the author of a schema should look at, a sentence or two each."""
    remarks = [*_uneven(tables), *_dialects(tables, schema.dialect), *_names(tables)]
    numbers = {column.name for column in schema.columns if isinstance(column, Number)}
    names = (*schema.used, *filter(None, schema.ignore))
    held = {name: [table for table in tables if name in table.columns] for name in names}
    whole = {name: Seen.of(table.columns[name] for table in holders) for name, holders in held.items()}
    remarks += about_event(schema.label, whole[getattr(schema.label, "event", schema.label.column)])
    for name in (*schema.names, *filter(None, schema.ignore)):
        remarks += _mixed(held[name], name, name in numbers)
        remarks += _thousands(held[name], name)
        remarks += () if name in numbers else _grouped(name, whole[name])
    for name in filter(None, schema.ignore):
        remarks += _ignored(name, whole[name])
    for column in (*schema.columns, schema.label):
        remarks += about_values(column)
    for column in schema.columns:
        remarks += _marks(column, whole[column.name])
        remarks += _written(column)
    numeric = numeric_columns(schema)
    for name in (name for name in schema.used if name in numeric):
        remarks += about_units(name, _by_table(held[name], name))
    for column in schema.columns:
        if isinstance(column, Category):
            remarks += about_levels(column, _by_table(held[column.name], column.name))
    return remarks


def _by_table(tables: Sequence[Table], column: str) -> dict[str, Seen]:
    """The values of the column in each table, if several have it."""
    if len(tables) == 1:
        return {}
    depth = (
        1 if len({table.file.name for table in tables}) == len(tables) else 2
    )  # of a name, with its folder
    return {Path(*table.file.parts[-depth:]).as_posix(): Seen.of([table.columns[column]]) for table in tables}


def _ignored(column: str, seen: Seen) -> Iterator[str]:
    """A question about a column that is ignored because of what it seems to be."""
    if why := question(column, seen):
        shown = _quoted(list(seen.texts))
        yield f"Column '{column}' ({shown}) {why}. It is ignored; if it is a feature, give it a range or categories."


def _written(column: Column) -> Iterator[str]:
    """A question about a column whose numbers are written with a unit, or with limits of detection."""
    if isinstance(column, Number) and column.unit:
        yield f"Column '{column.name}': is every number in {column.unit!r}, also without it?"
    if isinstance(column, Number) and column.above:
        yield (
            f"Column '{column.name}' has values above a limit, such as >500. They are read as the limit "
            '(censored-above = "limit"). Is that right?'
        )
    if isinstance(column, Number) and column.below:
        yield (
            f"Column '{column.name}' has values below a limit of detection, such as <0.5. Are they to be read as the "
            'limit (censored-below = "limit"), or as half of it ("half")?'
        )


def _uneven(tables: Sequence[Table]) -> Iterator[str]:
    """A note on the rows of every table that are left out."""
    for table in tables:
        if table.uneven:
            rows, file = few(map(str, table.uneven), _FEW), _name(table.file)
            yield f"Left out of this draft, because the header has more or fewer fields: row {rows} of {file}."


def _thousands(tables: Sequence[Table], column: str) -> Iterator[str]:
    """A note on a column few of whose numbers have points between thousands: perhaps one of the marks is a slip."""
    if not any(table.thousands.get(column) for table in tables):
        return
    cells = sum((table.thousands.get(column, Counter()) for table in tables), Counter[str]())
    read = {cell: decimal(with_point(cell)) for cell in sorted(cells)}
    seen = Seen.of(table.columns[column] for table in tables)
    rest = {number: count for number, count in seen.numbers.items() if number not in read.values()}
    if 0 < cells.total() < sum(rest.values()):
        values, others = few((f"{value:g}" for value in read.values()), _FEW), spanned(rest)
        yield (
            f"Column '{column}' has {_quoted(list(read))}, read as {values}, with points between thousands. Is that "
            f"right? The range of its other numbers is [{others.low:g}, {others.high:g}]."
        )


def _names(tables: Sequence[Table]) -> Iterator[str]:
    """A note on every two names of columns that are nearly the same, each of which some tables lack."""
    holders = {
        name: {table.file for table in tables if name in table.columns}
        for table in tables
        for name in filter(None, table.columns)
    }
    lacked = [name for name in holders if len(holders[name]) < len(tables)]
    for one, other in _near(lacked):
        if not holders[one] & holders[other]:
            yield (
                f"Is '{one}' in {_files(holders[one])} the same column as '{other}' in {_files(holders[other])}? Then "
                "give it one name in all files."
            )


def _near(names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every two names that are nearly the same; of many only those that are the same without capitals and signs."""
    if len(names) > _MANY_NAMES:
        same: dict[str, list[str]] = {}
        for name in names:
            same.setdefault("".join(tokens(name)), []).append(name)
        for group in same.values():
            yield from combinations(group, 2)
    else:
        pairs = combinations(names, 2)
        yield from (pair for pair in pairs if get_close_matches(pair[0].casefold(), [pair[1].casefold()]))


def _grouped(column: str, seen: Seen) -> Iterator[str]:
    """A note on a column of texts many of which could be numbers."""
    alike = [text for text in seen.others if _SEPARATED.fullmatch(text)]
    if 2 * (len(alike) + len(seen.numbers)) > len(seen.texts) and alike:
        yield (
            f"Column '{column}' is read as text because of {_quoted(alike)}. If these are numbers, write them without "
            "separators between thousands, and with the decimal mark of all other numbers in the file."
        )
    elif (alike := begin_like_numbers(seen.others)) and not question(column, seen):
        yield (
            f"Column '{column}' is read as text because of {_quoted(alike)}. If these are numbers, write one number in "
            "a cell, perhaps with one unit after it (unit) or < before it (censored-below), and give it a range."
        )


def _dialects(tables: Sequence[Table], dialect: Dialect) -> Iterator[str]:
    for table in tables:
        if table.dialect and table.dialect != dialect:
            yield (
                f"{_name(table.file)} has {_words(table.dialect)}, and other files have {_words(dialect)}: save it "
                "like these, or give its site a copy of the schema with its own delimiter and decimal, which has the "
                "same digest."
            )


def _words(dialect: Dialect) -> str:
    return f"{DELIMITERS[dialect.delimiter]} and decimal {'commas' if dialect.decimal == ',' else 'points'}"


def _mixed(tables: Sequence[Table], column: str, numeric: bool) -> Iterator[str]:
    """A note on a column that holds only numbers in some tables and texts in another one, or is drafted as a number and
    has texts."""
    seen = [(_name(table.file), Seen.of([table.columns[column]])) for table in tables]
    plain = [name for name, values in seen if values.texts and not values.others]
    for name, values in seen:
        if values.others and (plain or numeric):
            where = f"numbers in {', '.join(plain)}, and" if plain else "numbers, and"
            yield (
                f"Column '{column}' has {where} texts in {name}: {_quoted(values.others)}. Should these be numbers, "
                "or do they mean a missing value (missing-values)?"
            )


def _marks(column: Column, seen: Seen) -> Iterator[str]:
    """A note on every number that may stand for a missing value."""
    for value in marks(seen.numbers):
        rest = [number for number in seen.numbers if number != value]
        public = isinstance(column, Number) and column.range is not None
        range_ = spanned(rest)
        change = (
            f"take it out of the range, [{range_.low:g}, {range_.high:g}] without it"
            if public
            else "remove it from the categories"
        )
        chosen = "" if column.missing != REFUSE else ', and give the column missing = "indicator" or "zero"'
        yield (
            f"Column '{column.name}' has the number {value:g} in {seen.numbers[value]:,} rows, far from all others. "
            f'Does it mean a missing value? Then list "{value:g}" under missing-values'
            + (f", {change}" if public or isinstance(column, Category) else "")
            + f"{chosen}."
        )


def marks(numbers: Mapping[float, int]) -> Iterator[float]:
    """Yield the numbers that may stand for a missing value, given how often each occurs.

    These are the largest or the smallest number if it is repeated and farther from its neighbour than any two other
    neighbours are from each other; among few numbers only 9, 99, 999, ..., with either sign.
    """
    values = sorted(numbers)
    while len(values) > 2:
        ends = sorted((0, -1), key=lambda end: -abs(values[end] - values[1 if end == 0 else -2]))
        lone = next((end for end in ends if _stands_alone(values, end, numbers)), None)
        if lone is None:
            return
        yield values.pop(lone)


def _stands_alone(values: Sequence[float], end: int, numbers: Mapping[float, int]) -> bool:
    value, others = values[end], values[1:] if end == 0 else values[:-1]
    gaps = [high - low for low, high in pairwise(others)]
    lone = numbers[value] > 1 and abs(value - others[end]) > max(gaps)
    return lone and (len(others) >= _MANY_NUMBERS or set(f"{abs(value):g}") == {"9"})


def _quoted(words: Sequence[str]) -> str:
    return few(map(repr, words), _FEW)


def _name(file: Path) -> str:
    """The name of a file in ASCII."""
    return file.name.encode("ascii", "replace").decode()


def _files(files: Iterable[Path]) -> str:
    return ", ".join(sorted(map(_name, files)))


def _printable(text: str) -> str:
    """The text as it can stand in a comment."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
