"""Lines about what a server waits for and who is absent: it is never silent for long, and does not repeat itself."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import WARNING

from flwr.common import log

SILENCE = 10.0
"""The longest silence of a server that waits, in seconds."""

_COUNTED = 10  # rounds of an absence between two lines about it
_MOST_NAMED = 5  # numbers listed in one message


class Reminder:
    """Says what a wait is for, whenever `SILENCE` seconds of it have passed; by default in Flower's log."""

    def __init__(self, say: Callable[[str], None] = lambda text: log(WARNING, "%s", text)) -> None:
        self._say = say
        self._due = time.monotonic() + SILENCE

    def look(self, text: Callable[[], str]) -> None:
        """Say the text if the last line, or the beginning of the wait, was `SILENCE` seconds ago."""
        if time.monotonic() >= self._due:
            self._say(text())
            self._due = time.monotonic() + SILENCE


class Absences:
    """Logs why clients are left out of rounds: once for each reason, and then how many rounds they have missed."""

    def __init__(self) -> None:
        self._missed: dict[int, tuple[int, str]] = {}  # client -> rounds in a row, and the last reason

    def note(self, round_: int, asked: Iterable[int], rejected: Mapping[int, str]) -> None:
        """Log what is new about the clients that were asked in this round; rejected: client -> reason."""
        for client in sorted(asked):
            missed, known = self._missed.pop(client, (0, ""))
            if client in rejected:
                self._missed[client] = missed + 1, rejected[client]
                self._log(round_, client, missed + 1, rejected[client], known)
            elif missed > 1:
                log(WARNING, "round %s: client %s is back after %s missed rounds", round_, client, missed)

    def _log(self, round_: int, client: int, missed: int, reason: str, known: str) -> None:
        if reason != known:
            log(WARNING, "round %s: client %s left out: %s", round_, client, reason)
        elif missed % _COUNTED == 0:
            text = "round %s: client %s left out for the %sth round in a row: %s"
            log(WARNING, text, round_, client, missed, reason)


def partitions(numbers: Sequence[int]) -> str:
    """These partitions, as text."""
    return f"partition{'s' if len(numbers) > 1 else ''} {some(numbers)}"


def some(numbers: Sequence[int]) -> str:
    """The first numbers of a list, as text."""
    return ", ".join(map(str, numbers[:_MOST_NAMED])) + (", ..." if len(numbers) > _MOST_NAMED else "")
