"""Files that are replaced as a whole, and files that one process at a time may use, on every operating system.

After a crash, a replaced file has its old content or its new one. The operating system holds a lock and releases it
when the process ends, however it ends. Where `flock` exists, the file itself is locked. Windows has no lock that
readers could share and that leaves the file readable, so there FILE.lock, next to the file, is locked by `filelock`.
"""

import os
import stat
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TRIED = 2**16
"""Bytes of the file with which `try_folder` tries a folder."""
_PAUSE = 0.05  # seconds between two attempts to lock a file
_FLAGS = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)  # on Windows files are texts by default


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file atomically with mode 0600 and flush it to disk; the old content remains until then.

    What `reserve` has reserved for it is used.
    """
    temporary = temporary_of(path)
    with os.fdopen(os.open(temporary, _FLAGS, 0o600), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush the entries of a folder to disk; nothing where folders cannot be opened, as on Windows."""
    with suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reserve(path: Path, size: int) -> None:
    """Take disk space with which `write_whole` can write `size` bytes; OSError if there is not enough.

    A file system that copies on write may need more later.
    """
    with os.fdopen(os.open(temporary_of(path), _FLAGS, 0o600), "wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def try_folder(folder: Path) -> None:
    """Write and flush a small file in the folder or, if that is still to be made, in the next one above, and remove
    it; OSError if that fails."""
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    trial = existing / f".trial-{os.getpid()}"
    try:
        reserve(trial, TRIED)
    finally:
        temporary_of(trial).unlink(missing_ok=True)


def temporary_of(path: Path) -> Path:
    """The file that is written before it replaces `path`."""
    return path.with_name(f"{path.name}.new")


def open_regular(path: str, flags: int) -> int:
    """Open or create a regular file with mode 0600; OSError for a symbolic link or anything else."""
    if os.path.islink(path):
        raise OSError(None, "it is a symbolic link")
    for name in ("O_NOFOLLOW", "O_NONBLOCK"):  # not on Windows
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(None, "it is not a regular file")


class LockableFile(FileIO):
    """A file with a lock, which is released when the file is closed or the process ends."""

    _beside: "FileLock | None" = None

    def lock(self, shared: bool = False) -> None:
        """Lock the file without waiting; BlockingIOError if another process has locked it.

        shared: others may hold the lock in the same way, except on Windows.
        """
        if fcntl:
            fcntl.flock(self, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            return
        from filelock import (
            FileLock,
            Timeout,
        )  # takes longer to import than a lock is held, and not needed elsewhere

        beside = FileLock(f"{self.name}.lock")
        try:
            beside.acquire(timeout=0)
        except Timeout:
            raise BlockingIOError(None, "it is locked by another process") from None
        self._beside = beside

    def wait(self, patience: float, shared: bool = False) -> None:
        """See `lock`; BlockingIOError only if the file is still locked after so many seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return self.lock(shared)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE)

    def close(self) -> None:
        """Close the file and release its lock."""
        super().close()
        if self._beside:
            self._beside.release()
