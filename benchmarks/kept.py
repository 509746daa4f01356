"""Numbers that take long to compute, kept in a CSV file, so that a benchmark that was interrupted goes on."""

import csv
from collections.abc import Callable
from pathlib import Path


class Kept:
    """Numbers by what they depend on; a line of the file at path has its words and its number. Without a path, nothing
    is kept."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.known: dict[tuple[str, ...], float] = {}
        if path and path.exists():
            drop_torn_line(path)
            with path.open(newline="") as file:
                self.known = {tuple(words): float(value) for *words, value in csv.reader(file)}

    def get(self, words: tuple[str, ...], compute: Callable[[], float]) -> float:
        """The number of these words, computed unless it is known."""
        if words not in self.known:
            self.known[words] = compute()
            if self.path:
                with self.path.open("a", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerow([*words, repr(self.known[words])])
        return self.known[words]


def drop_torn_line(path: Path) -> None:
    """Remove what a process that was killed has written of its last line."""
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
