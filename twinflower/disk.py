"""Files that are replaced as a whole: after a crash, a file has its old content or its new one."""

import os
from contextlib import suppress
from pathlib import Path

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


def temporary_of(path: Path) -> Path:
    """The file that is written before it replaces `path`."""
    return path.with_name(f"{path.name}.new")
