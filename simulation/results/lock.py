"""File locks that give one process at a time exclusive use of a resource."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinflower.errors import SettingError
from twinflower.locks import LockableFile


@contextmanager
def holding(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock on a lock file; SettingError with the text `refusal` if another process holds it.

    The operating system holds the lock and releases it when the process ends, however it ends; a leftover lock file
    has no effect.
    """
    file = _lock(path)
    if file is None:
        raise SettingError(refusal)
    try:
        yield
    finally:
        # Before the lock is released: a process that waits for this file then sees that it is gone.
        with suppress(PermissionError):  # Windows removes no open file
            path.unlink(missing_ok=True)
        file.close()


def held(path: Path) -> bool:
    """Whether another process holds the lock on a file."""
    if not path.exists():
        return False
    file = _lock(path)
    if file:
        file.close()
    return file is None


def _lock(path: Path) -> LockableFile | None:
    """The file, opened and locked; None if another process has locked it."""
    while True:
        file = LockableFile(path, "a")
        try:
            file.lock()
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
