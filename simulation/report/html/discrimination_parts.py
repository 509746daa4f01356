"""The sections of a report on discrimination between more than two classes, and at times of survival."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from twinflower.errors import TwinflowerError
from twinflower.models.class_scores import ClassTable
from twinflower.models.intervals import Share
from twinflower.models.score_bins import Counted
from twinflower.models.time_scores import TimeTable
from twinflower.models.trained import load

from .. import discrimination as text
from ..series import Series
from .charts import chart
from .parts import Section, Table
from .survival import time_name

_MOST_SITES = 40
_MOST_LINES = 8
_CLASSES = ("class", "rows", "area under the ROC curve", "95% interval", "Brier score of the class")
_TIMES = ("time", "area under the ROC curve", "95% interval")


def noise_of(table: Counted) -> str:
    """What a report says about the noise of the counts; empty without noise."""
    if not table.sigma:
        return ""
    return (
        f" Every count has noise of {table.sigma:.4g}, which the intervals include; a count can be negative."
    )


def by_site(
    sites: Mapping[int, Counted],
    names: Sequence[str] | None,
    further: Mapping[str, Callable[[Any], str]] = MappingProxyType({}),
) -> Table:
    """The number of rows of each site, its area and its Brier score, with further columns beside the rows."""
    columns = ("site", "rows", *further, "area under the ROC curve", "95% interval", "Brier score")
    shown = sorted(sites.items())[:_MOST_SITES]
    rows = [
        (
            f"{client}: {names[client]}" if names else f"{client}",
            f"{own.rows:.0f}", *(cell(own) for cell in further.values()), *_area(own.auc), text.number(own.brier),
        )
        for client, own in shown
    ]  # fmt: skip
    remark = (
        "" if len(shown) == len(sites) else f"{len(shown)} of {len(sites)}; the others are in scores.csv."
    )
    return Table(columns, rows, remark)


def _area(own: Share) -> tuple[str, str]:
    return text.number(own.value), text.interval(own)


def line(label: str, x: Any, y: Any) -> Series:
    """A curve of one result."""
    return Series(label, "", x, y, y, y, seeds=1)


# --- more than two classes


def of_classes(
    folder: Path, table: ClassTable, sites: Mapping[int, Counted], summary: Mapping[str, Any]
) -> Section:
    """The areas and the calibration of every class against the others."""
    names = _class_names(folder, len(table.cells))
    drawn = list(zip(names, table.classes, strict=True))[:_MOST_LINES]
    remark = "" if len(drawn) == len(names) else f"{len(drawn)} of {len(names)} classes."
    roc, calibrated = list[Series](), list[Series]()
    for name, own in drawn:
        false, true = own.roc()
        roc.append(line(name, false[::-1], true[::-1]))
        groups = own.calibration()
        shares = np.array([(group.predicted, group.observed.value) for group in groups]).T
        calibrated.append(line(name, *shares))
    charts = [
        chart("ROC curve: true positive rate", "false positive rate", roc, remark=remark, frame="square"),
        chart("Calibration: observed fraction", "mean score", calibrated, remark=remark, frame="square"),
    ]
    folded = [
        Section("By site", tables=[by_site(sites, summary["site_names"])]),
        *(
            Section(f"Calibration of {name}", tables=[Table(text.GROUPS, text.groups(own))])
            for name, own in drawn
        ),
    ]
    rows = [
        (name, f"{own.counts[1].sum():.0f}", *_area(own.auc), text.number(own.brier))
        for name, own in zip(names, table.classes, strict=True)
    ]
    about = [
        f"{text.mean_area(table.auc, 'classes, each against all others')} The Brier score, the mean over rows of "
        f"the sum over classes of (p - y)^2, is {text.number(table.brier)}.",
        f"What is shown here follows from how many held-out rows have a score of each class in each of "
        f"{table.cells.shape[2]} public bins, over all sites.{noise_of(table)} Intervals are for independent rows; "
        "that of the mean is the mean of the classes' intervals, which is too long rather than too short.",
    ]
    tables = [Table(_CLASSES, rows)]
    return Section("Discrimination and calibration", about, charts=charts, tables=tables, folded=folded)


def _class_names(folder: Path, number: int) -> list[str]:
    """The names of the classes from the model, or their numbers if it has none or is missing."""
    try:
        found = [f"{name}" for name in load(folder).classes]
    except TwinflowerError:
        found = []
    return found if len(found) == number else [f"{place}" for place in range(number)]


# --- times


def of_times(
    folder: Path, table: TimeTable, sites: Mapping[int, Counted], summary: Mapping[str, Any]
) -> Section:
    """The areas at the times of the grid."""
    found = table.areas
    rows = [(f"{time:g}", *_area(own)) for time, own in zip(table.times, found, strict=True)]
    value, low, high = np.array([own if own.value == own.value else (np.nan,) * 3 for own in found]).T
    areas = Series("model", "", table.times, value, low, high, seeds=1)
    about = [
        text.mean_area(table.auc, "times"),
        "At a time, cases are persons with the event by then, and controls those who are observed beyond it without; "
        "cases are weighted for censoring by the Kaplan-Meier curve of the censoring of all sites together (Uno et al. "
        f"2007). This follows from how many held-out persons are in each of {table.cells.shape[1]} public bins of the "
        f"risk and each interval between these times, with the event or censored, over all sites.{noise_of(table)} "
        "Intervals are for independent persons.",
    ]
    return Section(
        "Discrimination by time", about,
        charts=[chart("AUC", time_name(folder), [areas], remark="The band is the 95% interval.", frame="fraction")],
        tables=[Table(_TIMES, rows)],
        folded=[Section("By site", tables=[by_site(sites, summary["site_names"])])],
    )  # fmt: skip
