"""Lines and tables on the user's terminal."""

import os
import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 180)


def say(*lines: str) -> None:
    """Print lines without formatting or wrapping."""
    for line in lines:
        console.out(line, highlight=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows under headings."""
    shown = Table(*headings, title=title or None, title_justify="left")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def titled(title: str, rows: Iterable[Sequence[str]]) -> None:
    """Print rows of two columns under a title."""
    table((title, ""), rows)
