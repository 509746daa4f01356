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

    Raises DiskError, naming the path, if it cannot be written, for instance because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from None
