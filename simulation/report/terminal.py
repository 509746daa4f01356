"""The user's terminal: tables, lines, and the progress of runs."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from ..record import Result
from ..settings.experiment import Curve, Experiment
from .sentences import closing, guarantee, row_line, warnings

console = Console() if sys.stdout.isatty() else Console(width=180)


def say(*lines: str) -> None:
    """Print lines without formatting or wrapping."""
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print rows under headings."""
    shown = Table(*headings, title=title or None, title_justify="left")
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def titled(title: str, rows: Iterable[Sequence[str]]) -> None:
    """Print rows of two columns under a title."""
    table((title, ""), rows)


@dataclass
class Terminal:
    """An observer that shows a progress bar on a terminal, plain lines elsewhere, and the results of every curve."""

    plan: Experiment
    folder: Path
    bar: tuple[Progress, TaskID] | None = field(default=None, init=False)

    def line(self, text: str) -> None:
        """See `Observer`."""
        say(text)

    def row(self, row: dict[str, Any]) -> None:
        """See `Observer`."""
        if self.bar:
            progress, task = self.bar
            progress.update(task, completed=row["round"])
        elif self.plan.single:
            print(row_line(row), flush=True)

    @contextmanager
    def following(self, curve: Curve) -> Iterator[None]:
        """See `Observer`."""
        if not console.is_terminal:
            yield
            return
        with Progress(console=console) as progress:
            self.bar = progress, progress.add_task(curve.label, total=curve.config.rounds)
            yield
        self.bar = None

    def ended(self, curve: Curve, results: Sequence[Result]) -> None:
        """See `Observer`."""
        say(*(f"{curve.label}: {text}" for text in warnings(results)))
        say(*closing(self.plan, self.folder, curve))

    def spent(self, results: Sequence[Result]) -> None:
        """See `Observer`."""
        say(*guarantee(results))
