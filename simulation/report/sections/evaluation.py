"""The sections on discrimination and calibration: of a model on the rows that sites hold out, and on a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from twinflower.models.assessment import Assessment, Measure
from twinflower.models.discrimination import ClassTable, ScoreTable
from twinflower.models.intervals import Share
from twinflower.models.model import TrainedModel
from twinflower.models.score_bins import Counted, together
from twinflower.models.time_auc import TimeTable
from twinflower.queries.held_out import HeldOut

from ...results.files import csv_text
from ...results.reading import read_answers
from ..charts import Chart, chart
from ..document import Section, Table
from ..labels import number
from ..series import Series, line
from ..study import StoredRun, of_one_run
from .sites import label_of
from .survival import time_name

_POINTS = (
    "threshold", "true pos.", "false pos.", "false neg.", "true neg.", "sensitivity", "specificity", "precision",
    "negative predictive value",
)  # fmt: skip
_GROUPS = ("scores", "rows", "mean score", "share of positives", "95% interval")
_AREA = ("area under the ROC curve", "95% interval")
_MOST_POINTS = 10
_MOST_SITES = 40
_MOST_LINES = 8


@of_one_run
def evaluation(run: StoredRun) -> list[Section]:
    """What the sites' counts by bin say about the last model that was evaluated; nothing without them."""
    sites: dict[int, Counted] = read_answers(run.folder, HeldOut)
    if not sites:
        return []
    table = together(sites.values())
    if isinstance(table, ClassTable):
        return [_of_classes(run, table, sites)]
    if isinstance(table, TimeTable):
        return [_of_times(run, table, sites)]
    return [_of_two(run, table, sites)]


def assessment(found: Assessment, model: TrainedModel) -> Section:
    """How well a model predicts the rows of a table with labels."""
    rows = [
        (one.name, number(one.value, ".0f" if one.name == "rows" else ".5g"), _interval(one))
        for one in found.measures
    ]
    tables = [Table(("measure", "value", "95% interval"), rows)]
    if found.confusion is not None:
        tables.append(_confusion(found.confusion, model.classes))
    if found.scores is not None:
        positive = f"positive: {model.classes[1]}"
        tables.append(_points(found.scores)._replace(title=f"above a threshold, {positive}"))
        tables.append(_groups(found.scores)._replace(title=f"calibration, {positive}"))
    for name, own in zip(model.classes, found.classes.classes if found.classes else (), strict=False):
        tables.append(_groups(own)._replace(title=f"calibration, positive: {name}"))
    return Section("", found.remarks, tables=tables)


def as_csv(found: Sequence[Measure]) -> str:
    """The measures in full precision, under the names of their fields."""
    rows = (["" if cell != cell else cell for cell in row] for row in found)
    return csv_text([Measure._fields, *rows])


# --- tables


def _interval(own: Share | Measure) -> str:
    """The interval of an estimate as text; a dash if it has none."""
    return "-" if own.low != own.low or own.value != own.value else f"{own.low:.4f} to {own.high:.4f}"


def _area(own: Share) -> tuple[str, str]:
    return number(own.value), _interval(own)


def _points(table: ScoreTable) -> Table:
    """The confusion matrices at some thresholds, the edges of bins."""
    inner = np.linspace(0, table.bins, min(_MOST_POINTS, table.bins) + 1).round().astype(int)[1:-1]
    found = {own.threshold: own for own in map(table.at, sorted([*table.edges[inner], 0.5]))}
    rows = [
        (
            f"{own.threshold:.3f}", *(f"{rows:.0f}" for rows in own[1:5]),
            *(number(part.value, ".3f") for part in own[5:]),
        )
        for own in found.values()
    ]  # fmt: skip
    return Table(_POINTS, rows)


def _groups(table: ScoreTable) -> Table:
    """The calibration."""
    rows = [
        (
            f"{own.low:.3f} to {own.high:.3f}", f"{own.rows:.0f}", number(own.predicted, ".3f"),
            number(own.observed.value, ".3f"), _interval(own.observed),
        )
        for own in table.calibration()
    ]  # fmt: skip
    return Table(_GROUPS, rows)


def _confusion(counts: Any, classes: Sequence[object]) -> Table:
    rows = zip(classes, counts, strict=True)
    headings = ("true class", *(f"predicted {name}" for name in classes))
    return Table(headings, [(f"{name}", *(f"{count}" for count in own)) for name, own in rows])


def _by_site(run: StoredRun, sites: Mapping[int, Counted]) -> Section:
    """The number of rows of each site, of two classes also of positives, its area and its Brier score."""
    rows = [
        (label_of(run, client), f"{own.rows:.0f}", *_positives(own), *_area(own.auc), number(own.brier))
        for client, own in sorted(sites.items())
    ]
    positives = ["positives"] * any(map(_positives, sites.values()))
    table = Table(("site", "rows", *positives, *_AREA, "Brier score"), rows)
    return Section(
        "By site", tables=[table.first(_MOST_SITES, "{shown} of {all}; the others are in scores.csv.")]
    )


def _positives(table: Counted) -> list[str]:
    return [f"{table.counts[1].sum():.0f}"] if isinstance(table, ScoreTable) else []


# --- sentences


def _noise_of(table: Counted) -> str:
    """What a report says about the noise of the counts; empty without noise."""
    if not table.sigma:
        return ""
    return (
        f" Every count has noise of {table.sigma:.4g}, which the intervals include; a count can be negative."
    )


def _mean_area(mean: Share, what: str) -> str:
    """The mean area under the ROC curve over classes or times as a sentence."""
    if mean.value != mean.value:
        return f"There is no mean area under the ROC curve: the counts do not give one for all {what}."
    return f"The mean area under the ROC curve over the {what} is {mean.value:.4f} (95% interval {_interval(mean)})."


# --- two classes


def _of_two(run: StoredRun, table: ScoreTable, sites: Mapping[int, Any]) -> Section:
    remark = "Positive: the predicted probability of the second class is above the threshold."
    parts = [
        Section("Thresholds", tables=[_points(table)._replace(remark=remark)]),
        Section("Calibration", tables=[_groups(table)]),
        _by_site(run, sites),
    ]
    shown = table.auc.value == table.auc.value  # else the counts do not show both classes
    charts = [_roc(table), _precision(table), _calibration(table)] if shown else []
    return Section("Discrimination and calibration", _about(table), charts=charts, folded=parts)


def _about(table: ScoreTable) -> list[str]:
    area = table.auc
    if area.value != area.value:
        found = "There is no area under the ROC curve: the counts do not show rows of both classes."
    else:
        found = f"The area under the ROC curve is {area.value:.4f} (95% interval {_interval(area)})."
    return [
        f"{found} The Brier score is {number(table.brier)}.",
        f"What is shown here follows from how many held-out rows of each class have a score in each of {table.bins} "
        f"public bins, over all sites.{_noise_of(table)} Intervals are for independent rows.",
    ]


def _roc_line(name: str, table: ScoreTable) -> Series:
    false, true = table.roc()
    return line(name, false[::-1], true[::-1])


def _calibration_line(name: str, table: ScoreTable) -> Series:
    """The groups, with their intervals as a band."""
    groups = table.calibration()
    predicted = np.array([group.predicted for group in groups])
    value, low, high = np.array([group.observed for group in groups]).T
    return Series(name, "", predicted, value, low, high, seeds=1)


def _without_band(one: Series) -> Series:
    return line(one.label, one.x, one.centre)


def _roc(table: ScoreTable) -> Chart:
    area, low, high = table.auc
    remark = f"AUC {area:.3f} (95% interval {low:.3f} to {high:.3f}). Dashed: by chance."
    roc = [_roc_line("model", table)]
    return chart("ROC curve: true positive rate", "false positive rate", roc, remark=remark, frame="square")


def _precision(table: ScoreTable) -> Chart:
    points = [table.at(edge) for edge in table.edges]
    recall = np.array([own.sensitivity.value for own in points])
    precision = np.array([own.precision.value for own in points])
    return chart("Precision", "recall (sensitivity)", [line("model", recall, precision)], frame="square")


def _calibration(table: ScoreTable) -> Chart:
    remark = "Band: 95% interval of each group. Dashed: calibrated."
    lines = [_calibration_line("model", table)]
    return chart("Calibration: observed fraction", "mean score", lines, remark=remark, frame="square")


# --- more than two classes


def _of_classes(run: StoredRun, table: ClassTable, sites: Mapping[int, Counted]) -> Section:
    """The areas and the calibration of every class against the others."""
    names = _class_names(run, len(table.cells))
    drawn = dict(list(zip(names, table.classes, strict=True))[:_MOST_LINES])
    remark = "" if len(drawn) == len(names) else f"{len(drawn)} of {len(names)} classes."
    roc = [_roc_line(name, own) for name, own in drawn.items()]
    calibrated = [_without_band(_calibration_line(name, own)) for name, own in drawn.items()]
    charts = [
        chart("ROC curve: true positive rate", "false positive rate", roc, remark=remark, frame="square"),
        chart("Calibration: observed fraction", "mean score", calibrated, remark=remark, frame="square"),
    ]
    calibrations = [Section(f"Calibration of {name}", tables=[_groups(own)]) for name, own in drawn.items()]
    rows = [
        (name, f"{own.counts[1].sum():.0f}", *_area(own.auc), number(own.brier))
        for name, own in zip(names, table.classes, strict=True)
    ]
    about = [
        f"{_mean_area(table.auc, 'classes, each against all others')} The Brier score, the mean over rows of "
        f"the sum over classes of (p - y)^2, is {number(table.brier)}.",
        f"What is shown here follows from how many held-out rows have a score of each class in each of "
        f"{table.cells.shape[2]} public bins, over all sites.{_noise_of(table)} Intervals are for independent rows; "
        "that of the mean is the mean of the classes' intervals, which is too long rather than too short.",
    ]
    tables = [Table(("class", "rows", *_AREA, "Brier score of the class"), rows)]
    folded = [_by_site(run, sites), *calibrations]
    return Section("Discrimination and calibration", about, charts=charts, tables=tables, folded=folded)


def _class_names(run: StoredRun, count: int) -> list[str]:
    """The names of the classes from the model, or their numbers if it has none or is missing."""
    names = [f"{name}" for name in run.model.classes] if run.model else []
    return names if len(names) == count else [f"{place}" for place in range(count)]


# --- times


def _of_times(run: StoredRun, table: TimeTable, sites: Mapping[int, Counted]) -> Section:
    """The areas at the times of the grid."""
    found = table.areas
    rows = [(f"{time:g}", *_area(own)) for time, own in zip(table.times, found, strict=True)]
    value, low, high = np.array([own if own.value == own.value else (np.nan,) * 3 for own in found]).T
    areas = Series("model", "", table.times, value, low, high, seeds=1)
    about = [
        _mean_area(table.auc, "times"),
        "At a time, cases are persons with the event by then, and controls those who are observed beyond it without; "
        "cases are weighted for censoring by the Kaplan-Meier curve of the censoring of all sites together (Uno et al. "
        f"2007). This follows from how many held-out persons are in each of {table.cells.shape[1]} public bins of the "
        f"risk and each interval between these times, with the event or censored, over all sites.{_noise_of(table)} "
        "Intervals are for independent persons.",
    ]
    drawn = chart("AUC", time_name(run), [areas], remark="The band is the 95% interval.", frame="fraction")
    tables = [Table(("time", *_AREA), rows)]
    return Section(
        "Discrimination by time", about, charts=[drawn], tables=tables, folded=[_by_site(run, sites)]
    )
