"""What a report consists of, and its renderers for HTML and Markdown (`console.show` is that for the terminal).

A section turns stored results into these values; a renderer knows texts, tables and charts, and no subject.
The templates end in .md because Flower's bundles hold no .html, .css or .js files.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .charts import Chart

if TYPE_CHECKING:
    from jinja2 import Template

_ONE = r"-?[\d.,]+(e[-+]?\d+)?(%| .?bit)?"
_NUMBER = re.compile(rf"{_ONE}(( \+- | to ){_ONE})?|-|-?inf|nan")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#&])")


class Table(NamedTuple):
    """Rows of text under headings, with a title above and a remark below; `codes` are set in a monospaced face that
    breaks anywhere.

    bars: for each row the fractions in [0, 1] in its second and third column, which HTML also draws as a bar.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""
    codes: bool = False
    title: str = ""
    bars: Sequence[tuple[float, float]] = ()

    @property
    def numeric(self) -> list[bool]:
        """Whether a column, but for the first, holds nothing but numbers, which are then aligned to the right."""
        columns = zip(*self.rows, strict=True)
        return [place > 0 and all(map(_NUMBER.fullmatch, column)) for place, column in enumerate(columns)]

    def first(self, most: int, others: str) -> "Table":
        """The table with at most so many of its rows, the first ones; others: see `_kept`."""
        return self._kept(range(min(most, len(self.rows))), others)

    def thinned(self, most: int, others: str) -> "Table":
        """The table with at most so many of its rows, evenly spaced, the first and the last among them."""
        last, count = len(self.rows) - 1, min(most, len(self.rows))
        return self._kept([round(last * n / max(count - 1, 1)) for n in range(count)], others)

    def _kept(self, rows: Sequence[int], others: str) -> "Table":
        """The table with these rows; others: what the remark says if there are more."""
        if len(rows) == len(self.rows):
            return self
        text = others.format(shown=len(rows), all=len(self.rows), more=len(self.rows) - len(rows))
        return self._replace(rows=[self.rows[n] for n in rows], remark=f"{self.remark} {text}".strip())


class Section(NamedTuple):
    """A part of a report under a heading, with its content in the order of the fields.

    parts: sections below it. folded: sections below it whose content is hidden at first on the screen.
    """

    title: str
    paragraphs: Sequence[str] = ()
    points: Sequence[str] = ()
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


def html(page: Page) -> str:
    """The page as one HTML file with its style and script; every text in it is escaped."""
    return _template("page.html.md", escaping=True).render(page=page)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The sections as Markdown, in which every text is escaped."""
    text = _template("document.md", escaping=False).render(title=title, sections=sections)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


@cache
def _template(name: str, escaping: bool) -> "Template":
    """A template. escaping: whether texts are escaped as HTML."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # the terminal needs no templates

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=escaping,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["markdown"] = _escaped
    return made.get_template(name)


def _escaped(text: str) -> str:
    """The text on one line, with a backslash before everything that Markdown would take as markup."""
    return " ".join(_MARKUP.sub(r"\\\1", text).split())
