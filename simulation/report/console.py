"""Lines and tables on the user's terminal."""

import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


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
    """
    from rich.table import Table

    columns = [(head, cells) for head, *cells in zip(headings, *rows, strict=True) if any(cells) or not cells]
    shown = Table(title=title or None, title_justify="left")
    for place, (head, cells) in enumerate(columns):
        short = max(map(len, (head, *cells))) <= console().width // 2
        shown.add_column(head, no_wrap=place == 0 and short, overflow="fold")
    for row in zip(*(cells for _, cells in columns), strict=True):
        shown.add_row(*row)
    console().print(shown)


def titled(title: str, rows: Iterable[Sequence[str]]) -> None:
    """Print rows of two columns under a title."""
    table((title, ""), rows)
