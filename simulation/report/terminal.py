"""The progress of runs on the user's terminal."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..settings.experiment import Curve, Experiment
from .console import console, say
from .labels import score
from .messages import closing, guarantee, row_line, warnings

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


@dataclass
class Terminal:
    """An observer that shows a progress bar on a terminal, plain lines elsewhere, and the results of every curve."""

    plan: Experiment
    folder: Path
    bar: "tuple[Progress, TaskID] | None" = field(default=None, init=False)

    def line(self, text: str) -> None:
        """See `Observer`."""
        say(text)

    @contextmanager
    def following(self, label: str, rounds: int) -> Iterator[None]:
        """See `Observer`. On a terminal this shows a progress bar."""
        if not sys.stdout.isatty():
            yield
            return
        from rich.progress import Progress

        with Progress(console=console()) as progress:
            self.bar = progress, progress.add_task(label, total=rounds)
            yield
        self.bar = None

    def row(self, row: dict[str, Any]) -> None:
        """See `Observer`."""
        self.reached(row["round"])
        if not self.bar and self.plan.single:
            print(row_line(row, score(self.plan.curves[0].config)), flush=True)

    def reached(self, rounds: int) -> None:
        """See `Observer`."""
        if self.bar:
            progress, task = self.bar
            progress.update(task, completed=rounds)

    def ended(self, curve: Curve, summaries: Sequence[Mapping[str, Any]], stored: bool = True) -> None:
        """See `Observer`."""
        if stored:
            say(*(f"{curve.label}: {text}" for text in warnings(summaries)))
            say(*closing(self.plan, self.folder, curve))
        say(*guarantee(summaries))
