"""What a run on Flower reports to the command that started it: lines for the user, and how it ended.

The command names a file in the environment of Flower's processes, and reads it while it grows. A run that `flwr run`
started reports to nobody; its lines are printed, and Flower shows them.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

FILE = "TWINFLOWER_PROGRESS"
"""The environment variable with the path of the file."""


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
    def emit(self, record: logging.LogRecord) -> None:
        report(Report(f"warning: {record.getMessage()}"))


@contextmanager
def warnings_reported() -> Iterator[None]:
    """Report what is logged within this block at Flower's logger, from warnings on; nothing else is logged."""
    logger, handler = logging.getLogger("flwr"), _Reported(logging.WARNING)
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
