"""The interface through which runs report their progress."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..record import Result
from ..settings.experiment import Curve


class Observer(Protocol):
    """Receives the progress of a command's runs."""

    def line(self, text: str) -> None:
        """Receive a line of output from a process."""

    def row(self, row: dict[str, Any]) -> None:
        """Receive an evaluated round (a row of metrics.csv) of a run in this process."""

    def following(self, curve: Curve) -> AbstractContextManager[object]:
        """A context that encloses the runs of one curve in this process."""

    def ended(self, curve: Curve, results: Sequence[Result]) -> None:
        """Called when all runs of a curve are stored; results: those of the runs in this process."""

    def spent(self, results: Sequence[Result]) -> None:
        """Called with the results of a curve's runs in this process, whether or not they could be stored."""
