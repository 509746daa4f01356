"""Stored results as a table of pandas, for plots and tests of one's own."""

from pathlib import Path
from typing import Any

from twinflower.errors import SettingError

from .study import Study


def read(*folders: str | Path) -> Any:
    """The ended runs in these folders and below as a pandas.DataFrame: a row for each evaluated round, with the columns
    `curve`, `algorithm` and `seed`, and those of metrics.csv.

    Raises SettingError for a folder that does not exist, if no run has ended, for a damaged file, and without pandas.
    """
    try:
        import pandas
    except ImportError:
        raise SettingError("twinflower.read needs pandas: pip install pandas") from None
    study = Study.of_folders([*map(Path, folders)])
    rows: list[dict[str, Any]] = []
    for curve in study.curves:
        for run in curve.runs:
            origin = {"curve": curve.name, **{key: run.summary[key] for key in ("algorithm", "seed")}}
            rows += [origin | row for row in run.rows]
    return pandas.DataFrame(rows)
