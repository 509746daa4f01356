"""Tables of three sites on disk."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np


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


TWO_CLASSES = """
version = 1
[label]
column = "y"
classes = [0, 1]
[columns]
a = { range = [-3, 3] }
b = { range = [-3, 3] }
"""


def some_patients(seed: int, rows: int) -> str:
    """A table with two numbers and an outcome that depends on both, which a third of the rows have."""
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, rows))
    y = draw.random(rows) < 1 / (1 + np.exp(1 - 2 * a + b))
    lines = [f"{left:.4f},{right:.4f},{int(ill)}" for left, right, ill in zip(a, b, y, strict=True)]
    return "\n".join(["a,b,y", *lines, ""])


def two_classes(folder: Path, **keys: Any) -> dict[str, Any]:
    """Three sites with two classes of patients on disk, and the keys of a short logistic regression on them."""
    run = {
        "algorithm": "fedavg", "fedavg.step-size": 2.0, "local.max-steps": 1, "rounds": 4,
        "objective.name": "logistic", "data.row-scaling": "all",
    }  # fmt: skip
    return three_sites(folder, TWO_CLASSES, some_patients, (40, 80, 60, 100)) | run | keys
