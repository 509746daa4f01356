"""Files that are there completely or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinflower.errors import DiskError


def write_text(path: Path, text: str) -> None:
    """Write the text to the file atomically: if writing fails, the file is unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces the path when the block succeeds.

    The file that a link points to is replaced, not the link; a device or a pipe is yielded itself. Raises DiskError,
    which names the path, if it cannot be written, for instance because the disk is full.
    """
    path = path.resolve()
    special = path.exists() and not path.is_file()
    temporary = path if special else path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        if not special:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from None
