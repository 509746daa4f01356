"""The progress of runs on the user's terminal."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from ..results.record import Ending
from ..settings.experiment import Curve, Experiment
from .console import console, say
from .sentences import closing, guarantee, row_line, warnings
from .words import score


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
            print(row_line(row, score(self.plan.curves[0].config)), flush=True)

    def following(self, curve: Curve) -> AbstractContextManager[None]:
        """See `Observer`."""
        return self._bar(curve.label, curve.config.rounds)

    def together(self, rounds: int) -> AbstractContextManager[None]:
        """See `Observer`."""
        return self._bar("all runs", rounds)

    def advance(self, rounds: int) -> None:
        """See `Observer`."""
        if self.bar:
            progress, task = self.bar
            progress.advance(task, rounds)

    @contextmanager
    def _bar(self, label: str, rounds: int) -> Iterator[None]:
        """Show a progress bar within the block, on a terminal."""
        if not console.is_terminal:
            yield
            return
        with Progress(console=console) as progress:
            self.bar = progress, progress.add_task(label, total=rounds)
            yield
        self.bar = None

    def ended(self, curve: Curve, endings: Sequence[Ending]) -> None:
        """See `Observer`."""
        say(*(f"{curve.label}: {text}" for text in warnings(endings)))
        say(*closing(self.plan, self.folder, curve))

    def spent(self, endings: Sequence[Ending]) -> None:
        """See `Observer`."""
        say(*guarantee(endings))
