"""Files that are there completely or not at all."""

import csv
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from twinflower.errors import DiskError, SettingError

_MARKS = (
    b"<!-- written by Twinflower -->",
    b"# HELP twinflower_",
)  # at the beginning of our reports and metrics


def write_text(path: Path, text: str) -> None:
    """Write the text to the file atomically: if writing fails, the file is unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """The rows as comma-separated values, each on a line."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def require_free(path: Path, force: bool = False) -> None:
    """SettingError for a file that a command must not overwrite without `force`: one that is not empty and not marked
    as a report or metrics of ours."""
    if force or not path.expanduser().is_file():
        return
    with path.expanduser().open("rb") as file:
        start = file.read(200)
    if start and not any(mark in start for mark in _MARKS):
        raise SettingError(f"{path} is there already: choose another file, or overwrite it with --force")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces the path when the block succeeds.

    The file that a link points to is replaced, not the link; a device or a pipe is yielded itself. Raises DiskError,
    which names the path, if it cannot be written, for instance because the disk is full.
    """
    path = path.resolve() if path.is_symlink() else path.absolute()
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
