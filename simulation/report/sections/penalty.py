"""The section of a report on how the weight of a penalty was chosen."""

from collections.abc import Mapping, Sequence

import numpy as np

from twinflower.arrays import Array

from ...results.reading import read_path
from ...settings.columns import PATH_COLUMNS
from ..charts import Chart, chart
from ..document import Section, Table
from ..series import Series, line
from ..study import StoredRun, of_one_run

_MOST_LINES = 12
_WORDS = {"min": "the lowest error", "1se": "the largest weight within one standard error of it"}
Rows = Sequence[Mapping[str, str]]


@of_one_run
def penalty(run: StoredRun) -> list[Section]:
    """The error and the model by weight of the penalty, and the choice; nothing for a run whose weight was given."""
    rows = read_path(run.folder)
    if not rows:
        return []
    weights, errors, spread = (_column(rows, key) for key in PATH_COLUMNS[:3])
    error = Series("error", "", weights, errors, errors - spread, errors + spread, seeds=1)
    band = "The band is one standard error to each side."
    charts = [chart("Error by weight of the penalty", "weight", [error], (True, False), remark=band)]
    charts += _models(rows, weights)
    chosen = [
        f"{_WORDS[word]}: weight {float(row['weight']):.4g}" for row in rows for word in row["choice"].split()
    ]
    numbers = Section("The numbers", tables=[_numbers(rows)])
    return [Section("Choice of the penalty", [_about(rows)], chosen, charts=charts, folded=[numbers])]


def _about(rows: Rows) -> str:
    if _names(rows):
        return (
            "The error is the mean over the folds of the loss on rows that were not trained on; the folds divide the "
            "rows of every site. Its standard error is that over the folds."
        )
    return (
        "The error is the share of wrong predictions by noisy counts on held-out rows, charged to the privacy budget; "
        "its standard error is the noise. Weights whose training was stopped earlier are compared with each other only."
    )


def _column(rows: Rows, key: str) -> Array:
    return np.array([float(row[key] or "nan") for row in rows])


def _names(rows: Rows) -> list[str]:
    """The names of the entries of the models; none for a private path."""
    return [key for key in rows[0] if key not in PATH_COLUMNS and rows[0][key]]


def _models(rows: Rows, weights: Array) -> list[Chart]:
    """The path of the model: its entries that are largest anywhere on it."""
    entries = {name: _column(rows, name) for name in _names(rows)}
    largest = sorted(entries, key=lambda name: -float(np.abs(entries[name]).max()))[:_MOST_LINES]
    lines = [line(name, weights, entries[name]) for name in largest]
    remark = "The model's own weights, of features between -1 and 1."
    if len(lines) < len(entries):
        remark += f" The {len(lines)} largest of {len(entries)}; all are in path.csv."
    title = "Model by weight of the penalty"
    return [chart(title, "weight", lines, (True, False), remark=remark)] if lines else []


def _numbers(rows: Rows) -> Table:
    cells = [[_cell(row[key]) for key in PATH_COLUMNS[:-1]] + [row["choice"] or "-"] for row in rows]
    return Table(("weight", "error", "standard error", "rounds", "nonzeros", "choice"), cells)


def _cell(text: str) -> str:
    return f"{float(text):.5g}" if text else "-"
