"""Tables of three sites on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def three_sites(
    folder: Path, schema: str, table: Callable[[int, int], str], rows: Sequence[int]
) -> dict[str, Any]:
    """Write the sites' files, rows to test on and the schema to the folder; return the keys of a run on them.

    table: the text of a table with a seed and a number of rows. rows: of the three sites, and of the test file.
    """
    for number, own in enumerate(rows[:-1]):
        (folder / f"site-{number}.csv").write_text(table(number, own))
    (folder / "test.csv").write_text(table(9, rows[-1]))
    (folder / "schema.toml").write_text(schema)
    return {
        "data.name": "tables",
        "data.files": str(folder / "site-*.csv"),
        "data.schema": str(folder / "schema.toml"),
        "data.test-file": str(folder / "test.csv"),
        "regulariser.name": "none",
    }
