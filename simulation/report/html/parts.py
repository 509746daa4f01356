"""What a report consists of, without its looks."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from .charts import Chart

_ONE = r"-?[\d.,]+(e[-+]?\d+)?(%| .?bit)?"
_NUMBER = re.compile(rf"{_ONE}(( ± | to ){_ONE})?|-|-?inf|nan")


class Table(NamedTuple):
    """Rows of text under headings, with a remark below; `codes` are set in a monospaced face that breaks anywhere."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""
    codes: bool = False

    @property
    def numeric(self) -> list[bool]:
        """Whether a column, but for the first, holds nothing but numbers, which are then aligned to the right."""
        columns = zip(*self.rows, strict=True)
        return [place > 0 and all(map(_NUMBER.fullmatch, column)) for place, column in enumerate(columns)]


class Chance(NamedTuple):
    """An attacker's task, and the largest probability of success without and with the messages, in [0, 1]."""

    task: str
    blind: float
    informed: float


class Odds(NamedTuple):
    """The chances of one attacker, named in `against`, and the bound that they follow from, in symbols."""

    against: str
    bound: str
    chances: Sequence[Chance]


class Section(NamedTuple):
    """A part of a report under a heading, with its content in the order of the fields.

    parts: sections below it. folded: sections below it whose content is hidden at first on the screen.
    """

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
    odds: Sequence[Odds] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    parts: Sequence["Section"] = ()
    folded: Sequence["Section"] = ()


class Fact(NamedTuple):
    """A result in large type, with its name and a remark."""

    name: str
    value: str
    remark: str = ""


class Page(NamedTuple):
    """A report. kind: what it is on. alarm: why the result is missing or incomplete; empty otherwise."""

    kind: str
    title: str
    alarm: str
    lead: Sequence[str]
    facts: Sequence[Fact]
    sections: Sequence[Section]
    footer: str
