"""What runs tell whoever watches them."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from ..record import Result
from ..settings.experiment import Curve


class Observer(Protocol):
    """Watches the runs of a command."""

    def line(self, text: str) -> None:
        """Something that a process has said."""

    def row(self, row: dict[str, Any]) -> None:
        """An evaluated round of a run in this process."""

    def following(self, curve: Curve) -> AbstractContextManager[object]:
        """Around the runs of one curve in this process."""

    def ended(self, curve: Curve, results: Sequence[Result]) -> None:
        """All runs of a curve are stored. results: of those in this process."""

    def spent(self, results: Sequence[Result]) -> None:
        """These runs of a curve have been made in this process, whether or not they could be stored."""
