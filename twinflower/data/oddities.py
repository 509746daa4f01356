"""Columns that need work before they can be features: identifiers, dates, and numbers in texts, as drafts find them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from ..decimals import decimal
from .columns import Number
from .schema import LIMIT
from .words import tokens

_FEW, _MANY = (
    6,
    10,
)  # up to so many different values are categories; from so many, unlike rows are conspicuous
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


class Seen(Protocol):
    """What was seen in a column (`drafts.Seen`)."""

    tables: Sequence[Counter[str]]
    texts: Counter[str]

    @property
    def numbers(self) -> dict[float, int]:
        """How often each number occurs."""

    @property
    def others(self) -> list[str]:
        """The texts that are no numbers."""


class Written(NamedTuple):
    """How numbers are written in texts: with a unit after them, and with limits of detection such as <0.5 and >500."""

    unit: str
    below: bool
    above: bool

    def column(self, column: Number) -> Number:
        """The column, with numbers that are written so."""
        below, above = (LIMIT if allowed else "" for allowed in (self.below, self.above))
        return replace(column, unit=self.unit, below=below, above=above)


def question(name: str, seen: Seen) -> str:
    """Why a column with these values is no feature as it is; empty if it may be one."""
    if _STORED.fullmatch(name):
        return "is the index that pandas stores with a table"
    if _are_dates(name, seen):
        return "has dates or times: compute what they say, such as an age in years, in a column of its own"
    matches = [match for text in seen.others if (match := _NUMBER.fullmatch(text))]
    units = _units(matches)
    if (
        1 < len(units) <= _MOST_UNITS and len({match[2] for match in matches}) > _FEW
    ):  # fewer are codes, such as stages
        return f"has numbers in {' and '.join(map(repr, units.values()))}: bring them to one unit"
    if _are_names(name, seen):
        return f"looks like an identifier. If it says whose record a row is, it may be the group (group = {name!r})"
    return ""


def _are_dates(name: str, seen: Seen) -> bool:
    texts, numbers = seen.texts, seen.numbers
    if any(texts and all(pattern.fullmatch(text.lower()) for text in texts) for pattern in _DATES):
        return True
    if len(numbers) > _FEW and _WHEN.intersection(tokens(name)):
        return True
    return len(texts) >= _MANY and max(numbers, default=0) >= 13 and all(map(_DAY_MONTH.fullmatch, texts))


def _are_names(name: str, seen: Seen) -> bool:
    words, rows = {*tokens(name)}, seen.texts.total()
    if len(seen.texts) <= _FEW or not all(number == int(number) for number in seen.numbers):
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
    many = len({match[2] for match in matches} | {f"{number:g}" for number in seen.numbers}) > _FEW
    signs = {match[1].strip() for match in matches if match[1]}
    return Written(next(iter(units.values()), ""), "<" in signs, ">" in signs) if many else None


def number_in(text: str) -> str:
    """The number in such a text, and any other text as it is."""
    match = _NUMBER.fullmatch(text)
    return match[2] if match else text


def begin_like_numbers(texts: Sequence[str]) -> list[str]:
    """The texts that begin like a number, if these are many."""
    matching = [text for text in texts if _DIGITS.match(text)]
    return matching if len(texts) > _FEW and 2 * len(matching) > len(texts) else []


def _units(matches: Iterable[re.Match[str]]) -> dict[str, str]:
    """The units after these numbers, by what they are without capitals."""
    units = [match[3].strip() for match in matches]
    return {unit.casefold(): unit for unit in units if unit}
