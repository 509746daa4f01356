"""Stop everything that a command has started and remove its folder, even if the command itself was killed.

Every process that a command starts has the environment variable MARK, whose value is the command's folder. Its children
inherit the variable, even in another session. As a script, `python janitor.py FOLDER` waits until its standard input is
closed, which happens when the command ends for any reason, and then cleans up. It uses only the standard library, so
that it is ready before the command starts anything else.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

MARK = "TWINFLOWER_FOLDER"
GROUPS = "process-groups"  # file that lists the started process groups, for systems without /proc
PROC = Path("/proc")
_LAST_WORD = 10.0  # seconds after SIGKILL; only a process that hangs in the kernel takes longer
_PAUSE = 0.05

Address = tuple[int, str]  # the pid or group for kill(2), and the start time, because pids are reused


def clear(folder: Path, grace: float, hurry: Callable[[], bool] = lambda: False) -> list[int]:
    """End every process of this folder, then remove the folder; return the pids of processes that could not be ended.

    The processes get SIGTERM, and SIGKILL after `grace` seconds or as soon as `hurry()`, which is polled, returns true.
    """
    known: set[Address] = set()
    if grace > 0:
        _send(signal.SIGTERM, _present(folder, known))
    _wait(grace, lambda: hurry() or not _present(folder, known))
    _wait(_LAST_WORD, lambda: _killed(_present(folder, known), hurry))
    left = sorted(abs(number) for number, _ in _present(folder, known))
    shutil.rmtree(folder, ignore_errors=True)
    return left


def _wait(seconds: float, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not done():
        time.sleep(_PAUSE)


def _killed(addresses: set[Address], hurry: Callable[[], bool]) -> bool:
    _send(signal.SIGKILL, addresses)
    hurry()
    return not addresses


def _send(request: signal.Signals, addresses: set[Address]) -> None:
    for number, _ in addresses:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(number, request)


def _present(folder: Path, known: set[Address]) -> set[Address]:
    """The live processes that belong to the folder or did so in an earlier call; adds new ones to known."""
    if not PROC.is_dir():
        return _groups(folder)
    living = dict(_living())
    known |= _family(folder, living)
    return known & living.keys()


def _family(folder: Path, living: dict[Address, int]) -> set[Address]:
    """The processes with the mark and their descendants; Ray's workers overwrite their environment, and so the mark."""
    numbers = {number for number, _ in living if _marked(number, folder)}
    while more := {number for (number, _), parent in living.items() if parent in numbers} - numbers:
        numbers |= more
    return {(number, born) for number, born in living if number in numbers}


def _living() -> Iterator[tuple[Address, int]]:
    """Every process that is not a zombie, with its parent's pid."""
    for entry in PROC.glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if words[0] not in "ZX":
                yield (int(entry.name), words[19]), int(words[1])


def _marked(number: int, folder: Path) -> bool:
    with suppress(OSError):
        variables = (PROC / str(number) / "environ").read_bytes().split(b"\0")
        return os.fsencode(f"{MARK}={folder}") in variables
    return False


def _groups(folder: Path) -> set[Address]:
    """Without /proc: the process groups that the command started. Groups started by Flower end with their parents."""
    with suppress(OSError):
        numbers = (folder / GROUPS).read_text().split()
        return {(-int(number), "") for number in numbers if _exists(-int(number))}
    return set()


def _exists(number: int) -> bool:
    try:
        os.kill(number, 0)
    except (ProcessLookupError, PermissionError):  # the latter for a group of zombies
        return False
    return True


def main(folder: Path) -> None:
    """Ignore signals, wait for the command to end, and clear up after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clear(folder, grace=0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
