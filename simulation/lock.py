"""Locks that give one process at a time exclusive use of a results folder."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from twinflower.errors import SettingError

_ROLES = ("command", "run")


@contextmanager
def claimed(folder: Path, role: str = "run") -> Iterator[None]:
    """Keep other runs out of a results folder while this process works in it.

    The operating system holds the lock on a file in the folder and releases it when the process ends, however it ends;
    a leftover lock file has no effect. role: "run" for the process that writes results, "command" for the command line
    that may have started it. Raises SettingError if another process holds the lock for the same role.
    """
    path = folder / f".{role}.lock"
    file = _lock(path)
    if file is None:
        raise SettingError(
            f"{folder} is in use by another run: wait until it has ended, or choose another folder"
        )
    try:
        yield
    finally:
        path.unlink(
            missing_ok=True
        )  # before the lock is released: a process that waits for this file then sees that it is gone
        file.close()


def in_use(folder: Path) -> bool:
    """Whether another process holds a lock on the folder."""
    return any(_held(folder / f".{role}.lock") for role in _ROLES)


def _held(path: Path) -> bool:
    if not path.exists():
        return False
    file = _lock(path)
    if file:
        file.close()
    return file is None


def _lock(path: Path) -> FileIO | None:
    """The file, opened and locked; None if another process has locked it."""
    while True:
        file = FileIO(path, "a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise SettingError(f"{path} cannot be locked: {error.strerror}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the previous holder has removed this file in the meantime: lock the new one
