"""The interface through which runs report their progress."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..results.record import Ending
from ..settings.experiment import Curve


class Observer(Protocol):
    """Receives the progress of a command's runs."""

    def line(self, text: str) -> None:
        """Receive a line of output from a process."""

    def row(self, row: dict[str, Any]) -> None:
        """Receive an evaluated round (a row of metrics.csv) of a run in this process."""

    def following(self, curve: Curve) -> AbstractContextManager[object]:
        """A context that encloses the runs of one curve in this process."""

    def together(self, rounds: int) -> AbstractContextManager[object]:
        """A context that encloses runs in other processes, with this number of rounds in total."""

    def advance(self, rounds: int) -> None:
        """Called when runs in other processes have completed this number of rounds."""

    def ended(self, curve: Curve, endings: Sequence[Ending]) -> None:
        """Called when all runs of a curve are stored; endings: of the runs that this command made itself."""

    def spent(self, endings: Sequence[Ending]) -> None:
        """Called with the endings of a curve's runs, whether or not the runs could be stored."""
