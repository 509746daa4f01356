"""The section of a report on discrimination and calibration at the sites."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.models.class_scores import ClassTable
from twinflower.models.discrimination import ScoreTable
from twinflower.models.evaluation import together
from twinflower.models.time_scores import TimeTable

from ...results.reading import read_scores
from .. import discrimination as text
from ..series import Series
from .charts import Chart, chart
from .discrimination_parts import by_site, line, noise_of, of_classes, of_times
from .parts import Section, Table


def discrimination(folder: Path, summary: Mapping[str, Any]) -> list[Section]:
    """What the sites' counts by bin say about the last model that was evaluated; nothing without them."""
    sites = read_scores(folder)
    if not sites:
        return []
    table = together(sites.values())
    if isinstance(table, ClassTable):
        return [of_classes(folder, table, sites, summary)]
    if isinstance(table, TimeTable):
        return [of_times(folder, table, sites, summary)]
    return [_of_two(table, sites, summary)]


def _of_two(table: ScoreTable, sites: Mapping[int, Any], summary: Mapping[str, Any]) -> Section:
    parts = [
        Section("Thresholds", tables=[Table(text.POINTS, text.points(table), _POINTS)]),
        Section("Calibration", tables=[Table(text.GROUPS, text.groups(table))]),
        Section("By site", tables=[by_site(sites, summary["site_names"], {"positives": _positives})]),
    ]
    shown = table.auc.value == table.auc.value  # else the counts do not show both classes
    charts = [_roc(table), _precision(table), _calibration(table)] if shown else []
    return Section("Discrimination and calibration", _about(table), charts=charts, folded=parts)


_POINTS = "Positive: the predicted probability of the second class is above the threshold."


def _about(table: ScoreTable) -> list[str]:
    area = table.auc
    if area.value != area.value:
        found = "There is no area under the ROC curve: the counts do not show rows of both classes."
    else:
        found = f"The area under the ROC curve is {area.value:.4f} (95% interval {text.interval(area)})."
    return [
        f"{found} The Brier score is {text.number(table.brier)}.",
        f"What is shown here follows from how many held-out rows of each class have a score in each of {table.bins} "
        f"public bins, over all sites.{noise_of(table)} Intervals are for independent rows.",
    ]


def _positives(table: ScoreTable) -> str:
    return f"{table.counts[1].sum():.0f}"


def _roc(table: ScoreTable) -> Chart:
    false, true = table.roc()
    area, low, high = table.auc
    remark = f"AUC {area:.3f} (95% interval {low:.3f} to {high:.3f}). Dashed: by chance."
    roc = [line("model", false[::-1], true[::-1])]
    return chart("ROC curve: true positive rate", "false positive rate", roc, remark=remark, frame="square")


def _precision(table: ScoreTable) -> Chart:
    points = [table.at(edge) for edge in table.edges]
    recall = np.array([own.sensitivity.value for own in points])
    precision = np.array([own.precision.value for own in points])
    return chart("Precision", "recall (sensitivity)", [line("model", recall, precision)], frame="square")


def _calibration(table: ScoreTable) -> Chart:
    groups = table.calibration()
    predicted = np.array([group.predicted for group in groups])
    value, low, high = np.array([group.observed for group in groups]).T
    lines = [Series("model", "", predicted, value, low, high, seeds=1)]
    remark = "Band: 95% interval of each group. Dashed: calibrated."
    return chart("Calibration: observed fraction", "mean score", lines, remark=remark, frame="square")
