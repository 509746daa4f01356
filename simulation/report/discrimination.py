"""Tables of discrimination and calibration, for the terminal, a report and a CSV file."""

import csv
import io
from collections.abc import Sequence

import numpy as np

from twinflower.models.assessment import Assessment, Measure
from twinflower.models.discrimination import ScoreTable
from twinflower.models.intervals import Share

MEASURES = ("measure", "value", "95% interval")
POINTS = (
    "threshold", "true pos.", "false pos.", "false neg.", "true neg.", "sensitivity", "specificity", "precision",
    "negative predictive value",
)  # fmt: skip
GROUPS = ("scores", "rows", "mean score", "share of positives", "95% interval")
_MOST_POINTS = 10


def number(value: float, form: str = ".4f") -> str:
    """A number as text; a dash if it is not known."""
    return "-" if value != value else f"{value:{form}}"


def interval(own: Share | Measure) -> str:
    """The interval of an estimate as text; a dash if it has none."""
    return "-" if own.low != own.low or own.value != own.value else f"{own.low:.4f} to {own.high:.4f}"


def mean_area(mean: Share, what: str) -> str:
    """The mean area under the ROC curve over classes or times as a sentence."""
    if mean.value != mean.value:
        return f"There is no mean area under the ROC curve: the counts do not give one for all {what}."
    return f"The mean area under the ROC curve over the {what} is {mean.value:.4f} (95% interval {interval(mean)})."


def measures(found: Sequence[Measure]) -> list[tuple[str, ...]]:
    """The rows under `MEASURES`."""
    return [
        (own.name, number(own.value, ".0f" if own.name == "rows" else ".5g"), interval(own)) for own in found
    ]


def points(table: ScoreTable) -> list[tuple[str, ...]]:
    """The confusion matrices at some thresholds, the edges of bins, under `POINTS`."""
    inner = np.linspace(0, table.bins, min(_MOST_POINTS, table.bins) + 1).round().astype(int)[1:-1]
    found = {own.threshold: own for own in map(table.at, sorted([*table.edges[inner], 0.5]))}
    return [
        (
            f"{own.threshold:.3f}", *(f"{rows:.0f}" for rows in own[1:5]),
            *(number(part.value, ".3f") for part in own[5:]),
        )
        for own in found.values()
    ]  # fmt: skip


def groups(table: ScoreTable) -> list[tuple[str, ...]]:
    """The calibration under `GROUPS`."""
    return [
        (
            f"{own.low:.3f} to {own.high:.3f}", f"{own.rows:.0f}", number(own.predicted, ".3f"),
            number(own.observed.value, ".3f"), interval(own.observed),
        )
        for own in table.calibration()
    ]  # fmt: skip


def confusion(found: Assessment, classes: Sequence[object]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Headings and rows of the confusion matrix of a classifier."""
    assert found.confusion is not None
    headings = ("true class", *(f"predicted {name}" for name in classes))
    rows = zip(classes, found.confusion, strict=True)
    return headings, [(f"{name}", *(f"{count}" for count in own)) for name, own in rows]


def as_csv(found: Sequence[Measure]) -> str:
    """The measures in full precision, under the names of their fields."""
    text = io.StringIO()
    rows = (["" if cell != cell else cell for cell in row] for row in found)
    csv.writer(text, lineterminator="\n").writerows([Measure._fields, *rows])
    return text.getvalue()
