"""The interface through which runs report their progress."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..settings.experiment import Curve

Summary = dict[str, Any]
"""The content of a run's summary.json."""


class Observer(Protocol):
    """Receives the progress of a command's runs."""

    def line(self, text: str) -> None:
        """Receive a line of output from a process."""

    def following(self, label: str, rounds: int) -> AbstractContextManager[object]:
        """A context that encloses runs with this number of rounds in total."""

    def row(self, row: dict[str, Any]) -> None:
        """Receive an evaluated round (a row of metrics.csv) of a run in this process."""

    def reached(self, rounds: int) -> None:
        """Called when runs in other processes have completed this number of rounds in total."""

    def ended(self, curve: Curve, summaries: Sequence[Summary], stored: bool = True) -> None:
        """Called when the runs of a curve have ended; summaries: of the runs that this command made itself.

        stored: whether all runs of the curve are stored; if not, an error follows.
        """
