"""What runs report to the command that started them: to its `Observer`; on Flower, by a file.

A run on Flower and its nodes report lines for the user, and how it ended. The command names a file in the environment
of Flower's processes, and reads it while it grows. A run that `flwr run` started reports to nobody; its lines are
printed, and Flower shows them. Nodes that others started report to nobody.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from twinflower.errors import TwinflowerError

if TYPE_CHECKING:  # every process of Flower imports this module
    from ..settings.experiment import Curve

FILE = "TWINFLOWER_PROGRESS"
"""The environment variable with the path of the file."""

NODE = "TWINFLOWER_NODE"
"""The environment variable with the name of a node, for the processes of a node that a command started."""

_LOGGER = logging.getLogger("flwr")


class Report(NamedTuple):
    """A line for the user, or the end of a run: with what failed, which is empty for a run that succeeded."""

    line: str = ""
    ended: bool = False
    failure: str = ""


def report(what: Report) -> None:
    """Append to the file, if a command reads it."""
    if path := os.environ.get(FILE):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{json.dumps(what)}\n")


def say(*lines: str) -> None:
    """Print lines for the user, and report them."""
    for line in lines:
        print(line, flush=True)
        report(Report(line))


def read(line: str) -> Report:
    """A line of the file."""
    return Report(*json.loads(line))


class _Reported(logging.Handler):
    """Reports the first line of what is logged at Flower's logger, from warnings on, with the name of its origin."""

    def __init__(self, origin: str) -> None:
        super().__init__(logging.WARNING)
        self.origin = origin

    def emit(self, record: logging.LogRecord) -> None:
        first, _, _ = record.getMessage().strip().partition("\n")
        if first:
            report(Report(f"{self.origin}: {first}"))


def node() -> str:
    """The name of the node that this process belongs to; empty if no command started it."""
    return os.environ.get(NODE, "")


@cache
def report_warnings() -> None:
    """Report what a process of a node logs at Flower's logger, from warnings on; it is logged as well."""
    _LOGGER.addHandler(_Reported(node()))


def without_traceback(record: logging.LogRecord) -> bool:
    """A filter of Flower's logger: it logs an error of ours without the traceback, because its text says what to do."""
    if record.exc_info and isinstance(record.exc_info[1], TwinflowerError):
        record.exc_info = None
    return True


@contextmanager
def warnings_reported() -> Iterator[None]:
    """Report what is logged within this block at Flower's logger, from warnings on; nothing else is logged.

    Errors of ours are logged without a traceback, after the block, too.
    """
    handler = _Reported("warning")
    _LOGGER.setLevel(logging.WARNING)
    _LOGGER.addHandler(handler)
    _LOGGER.addFilter(without_traceback)  # stays, because Flower logs the error after this block
    try:
        yield
    finally:
        _LOGGER.removeHandler(handler)


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

    def ended(self, curve: "Curve", summaries: Sequence[Summary], stored: bool = True) -> None:
        """Called when the runs of a curve have ended; summaries: of the runs that this command made itself.

        stored: whether all runs of the curve are stored; if not, an error follows.
        """
