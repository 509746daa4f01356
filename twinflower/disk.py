"""Files that are replaced as a whole: after a crash, a file has its old content or its new one."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file atomically with mode 0600 and flush it to disk; the old content remains until then.

    What `reserve` has reserved for it is used.
    """
    temporary = temporary_of(path)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(content)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def reserve(path: Path, size: int) -> None:
    """Take disk space with which `write_whole` can write `size` bytes; OSError if there is not enough.

    A file system that copies on write may need more later.
    """
    with os.fdopen(os.open(temporary_of(path), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(bytes(size))
        file.flush()
        os.fsync(file.fileno())


def temporary_of(path: Path) -> Path:
    """The file that is written before it replaces `path`."""
    return path.with_name(f"{path.name}.new")
