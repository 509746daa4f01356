"""Lines, tables and sections on the user's terminal."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from .document import Section

_EMPTY = {"", "-"}
_NUMBER = re.compile(r"[-+<]?[\d.,]+(e[-+]?\d+)?%?( \+- [\d.e-]+)?")
_LONGEST = 24  # most letters of a column that are kept together


@cache
def console() -> "Console":
    """The terminal; where there is none, one that is wide enough for tables."""
    from rich.console import Console  # most commands print lines only

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 180)


def say(*lines: str) -> None:
    """Print lines without formatting or wrapping."""
    for line in lines:
        print(line)


def progress(text: str) -> None:
    """Say what a command is doing to a person who waits at a terminal; files and pipes get no such lines."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr, flush=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows under headings, without the columns that have no entry.

    Nothing is cut: cells in narrow columns have more lines, but not those in the first one if half the width is enough.
    Numbers and words of headings are never broken; a table that is still wider than the screen scrolls or wraps there.
    """
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text  # names of columns can have brackets, which are markup in a str

    given = [(head, cells) for head, *cells in zip(headings, *rows, strict=True)]
    columns = [(head, cells) for head, cells in given if not cells or set(cells) - _EMPTY]
    screen, shown = console(), Table(title=Text(title) if title else None, title_justify="left")
    for place, (head, cells) in enumerate(columns):
        short = max(map(len, (head, *cells))) <= screen.width // 2
        kept = max(map(len, (*head.split(), *filter(_NUMBER.fullmatch, cells))), default=0)
        shown.add_column(
            Text(head), no_wrap=place == 0 and short, overflow="fold", min_width=min(kept, _LONGEST)
        )
    for row in zip(*(cells for _, cells in columns), strict=True):
        shown.add_row(*map(Text, row))
    needed = Measurement.get(screen, screen.options, shown).minimum
    screen.print(shown, width=max(screen.width, needed), crop=False, soft_wrap=needed > screen.width)


def titled(title: str, rows: Iterable[Sequence[str]]) -> None:
    """Print rows of two columns under a title."""
    table((title, ""), rows)


def show(section: "Section") -> None:
    """Print a section, what to know of it last, where a terminal stays; of a chart what is drawn in it."""
    say(*filter(None, [section.title]))
    for part in (*section.parts, *section.folded):
        show(part)
    for one in section.tables:
        table(one.headings, one.rows, one.title)
        say(*filter(None, [one.remark]))
    for drawn in section.charts:
        say(f"chart: {' '.join(filter(None, [f'{drawn.description}.', drawn.remark]))}")
    say(*section.paragraphs, *section.points)
