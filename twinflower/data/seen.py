"""What was seen in a column of tables without a schema: the column that a draft makes of it, and what needs work before
it can be a feature: identifiers, dates, and numbers in texts."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from ..decimals import decimal, is_decimal, may_be_code
from ..errors import DataError
from ..settings import LARGEST
from .columns import (
    CENSORED,
    HAPPENED,
    INDICATOR,
    LIMIT,
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
from .schema import MISSING_TEXTS
from .words import events, is_event, same_meaning, tokens

MOST_CATEGORIES = 50  # largest number of categories of a text column
FEW = 6  # up to so many different numbers are categories
_MANY = 10  # from so many values, unlike rows are conspicuous
_MOST_CLASSES = 20
_MOST_UNITS, _CODE = 3, 6  # more units are a code, such as 2a; digits of numbers that are one
_NUMBER = re.compile(
    r"([<>]\s*)?([+-]?\d+(?:[.,]\d+)?)(\s*[^\W\d_][^\W\d]{0,9}(?:/[^\W\d]+\d*)?|\s*[%°‰][CFcf]?|)\s*"
)
_DIGITS = re.compile(r"[^\w\s]{0,2}\s?\d")  # texts that begin like a number
_YEAR, _MONTH, _DAY = r"(19|20)\d\d", "(0?[1-9]|1[0-2])", r"(0?[1-9]|[12]\d|3[01])"
_TIME = r"\d{1,2}:\d\d(:\d\d)?.*"
_DATES = [
    re.compile(pattern)
    for pattern in (
        rf"{_YEAR}(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])",
        rf"{_YEAR}[-/.]{_MONTH}([-/.]{_DAY})?([T ]{_TIME})?",
        rf"({_DAY}[-/.]{_MONTH}|{_MONTH}[-/.]{_DAY})[-/.]({_YEAR}|\d\d)( {_TIME})?",
        rf"({_DAY}[ -])?[a-z]{{3,9}}[ -]{_YEAR}",
        _TIME,
    )
]
_DAY_MONTH = re.compile(r"([1-9]|0[1-9]|[12]\d|3[01])\.(0[1-9]|1[0-2])\.?")
_STORED = re.compile(r"__index_level_\d+__|unnamed: ?\d+(_level_\d+)?|level_\d+", re.IGNORECASE)
_NAMED = {
    "id", "ids", "mrn", "uid", "uuid", "guid", "ssn", "nhs", "pid", "patid", "patientid", "subjid", "usubjid",
    "identifier", "zip", "zipcode", "postcode", "plz", "phone", "barcode", "accession",
}  # fmt: skip
_PERHAPS = {
    "index", "idx", "row", "record", "number", "no", "nr", "num", "key", "code", "case", "sample", "name", "seq",
    "patient",
}  # fmt: skip
_WHEN = {"date", "datum", "fecha", "dob", "timestamp", "datetime", "geburtsdatum"}


class Written(NamedTuple):
    """How numbers are written in texts: with a unit after them, and with limits of detection such as <0.5 and >500."""

    unit: str
    below: bool
    above: bool

    def column(self, column: Number) -> Number:
        """The column, with numbers that are written so."""
        below, above = (LIMIT if allowed else "" for allowed in (self.below, self.above))
        return replace(column, unit=self.unit, below=below, above=above)


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
        if not self.others or len(self.numbers) <= FEW:
            return not self.others and bool(self.numbers)
        whole = sum(all(map(is_allowed_number, table)) for table in self.tables)
        return 2 * sum(self.numbers.values()) >= self.texts.total() or 2 * whole > len(self.tables)

    def column(self, name: str, way: Written | None = None) -> Column | str:
        """The column in the draft, or its name if the draft ignores it. way: how its numbers are written."""
        rule = INDICATOR if self.missing else REFUSE
        if not name or question(name, self):
            return name
        if self._are_categories(FEW, MOST_CATEGORIES):
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


def question(name: str, seen: Seen) -> str:
    """Why a column with these values is no feature as it is; empty if it may be one."""
    if _STORED.fullmatch(name):
        return "is the index that pandas stores with a table"
    if _are_dates(name, seen):
        return "has dates or times: compute what they say, such as an age in years, in a column of its own"
    matches = [match for text in seen.others if (match := _NUMBER.fullmatch(text))]
    units = _units(matches)
    if (
        1 < len(units) <= _MOST_UNITS and len({match[2] for match in matches}) > FEW
    ):  # fewer are codes, such as stages
        return f"has numbers in {' and '.join(map(repr, units.values()))}: bring them to one unit"
    if _are_names(name, seen):
        return f"looks like an identifier. If it says whose record a row is, it may be the group (group = {name!r})"
    return ""


def _are_dates(name: str, seen: Seen) -> bool:
    texts, numbers = seen.texts, seen.numbers
    if any(texts and all(pattern.fullmatch(text.lower()) for text in texts) for pattern in _DATES):
        return True
    if len(numbers) > FEW and _WHEN.intersection(tokens(name)):
        return True
    return len(texts) >= _MANY and max(numbers, default=0) >= 13 and all(map(_DAY_MONTH.fullmatch, texts))


def _are_names(name: str, seen: Seen) -> bool:
    words, rows = {*tokens(name)}, seen.texts.total()
    if len(seen.texts) <= FEW or not all(number == int(number) for number in seen.numbers):
        return False
    unlike = all(count == 1 for table in seen.tables for count in table.values())
    if words & _NAMED or (unlike and words & _PERHAPS):
        return True
    if not unlike or rows < _MANY or len(seen.others) not in (0, rows):
        return False
    return bool(seen.others) or all(map(_runs, seen.tables)) or _are_codes(seen.numbers)


def _runs(texts: Iterable[str]) -> bool:
    """Whether these numbers count the rows: consecutive from 0, 1 or at least 100."""
    values = sorted(map(decimal, texts))
    return (values[0] in (0, 1) or values[0] >= 100) and values[-1] - values[0] == len(values) - 1


def _are_codes(numbers: Iterable[float]) -> bool:
    sizes = {len(f"{number:.0f}") for number in numbers}
    return len(sizes) == 1 and sizes.pop() >= _CODE


def written(seen: Seen) -> Written | None:
    """How numbers are written in the texts of a column; None unless most of these texts are numbers with the same unit,
    and there are more than a few different numbers."""
    matches = [match for text in seen.others if (match := _NUMBER.fullmatch(text))]
    units = _units(matches)
    if 2 * len(matches) <= len(seen.others) or len(units) > 1:
        return None
    many = len({match[2] for match in matches} | {f"{number:g}" for number in seen.numbers}) > FEW
    signs = {match[1].strip() for match in matches if match[1]}
    return Written(next(iter(units.values()), ""), "<" in signs, ">" in signs) if many else None


def number_in(text: str) -> str:
    """The number in such a text, and any other text as it is."""
    match = _NUMBER.fullmatch(text)
    return match[2] if match else text


def begin_like_numbers(texts: Sequence[str]) -> list[str]:
    """The texts that begin like a number, if these are many."""
    matching = [text for text in texts if _DIGITS.match(text)]
    return matching if len(texts) > FEW and 2 * len(matching) > len(texts) else []


def _units(matches: Iterable[re.Match[str]]) -> dict[str, str]:
    """The units after these numbers, by what they are without capitals."""
    units = [match[3].strip() for match in matches]
    return {unit.casefold(): unit for unit in units if unit}


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
