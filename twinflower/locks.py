"""Files that one process at a time may use, on every operating system.

The operating system holds a lock and releases it when the process ends, however it ends. Where `flock` exists, the file
itself is locked. Windows has no lock that readers could share and that leaves the file readable, so there FILE.lock,
next to the file, is locked by `filelock`.
"""

from __future__ import annotations

from io import FileIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from filelock import FileLock

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class LockableFile(FileIO):
    """A file with a lock, which is released when the file is closed or the process ends."""

    _beside: FileLock | None = None

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

    def close(self) -> None:
        """Close the file and release its lock."""
        super().close()
        if self._beside:
            self._beside.release()
