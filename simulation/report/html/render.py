"""Reports and statements as text: HTML and Markdown, by the templates in this folder."""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from .parts import Page, Section

_HERE = Path(__file__).parent
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#&])")


def html(page: Page) -> str:
    """The page as one HTML file with its style and script; every text in it is escaped."""
    return _template("page.html.md", escaping=True).render(page=page)


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The sections as Markdown, in which every text is escaped."""
    return _template("statement.md", escaping=False).render(title=title, sections=sections)


@cache
def _template(name: str, escaping: bool) -> Template:
    """A template of this folder. escaping: whether texts are escaped as HTML."""
    made = Environment(
        loader=FileSystemLoader(_HERE),
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
