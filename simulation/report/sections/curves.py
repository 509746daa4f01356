"""The section with the charts of metrics by round, or of the panels of an experiment's figure."""

from collections.abc import Sequence
from dataclasses import replace

from ...settings.columns import CURVE, POINT_COLUMNS
from ...settings.experiment import Experiment
from ..charts import Chart, chart
from ..document import Section, Table
from ..labels import BITS, bits, heading, number, words
from ..series import Series, by_round, columns_of_run, limits, measured, note, runs_of, series
from ..study import CurveRuns, StoredRun, Study

_MOST_ROWS = 40  # of a table
_NUMBERS = ("round", "objective", "test_accuracy", "nonzeros", "uplink_bits", "participants", "rejected")


def curves(study: Study) -> list[Section]:
    """The charts, and of one run the numbers; nothing before a run has ended, or if no round was evaluated."""
    if not study.runs:
        return []
    charts = (
        _panels(study, study.plan) if study.plan else [_by_round(study, name) for name in _measured(study)]
    )
    folded = [Section("The numbers", tables=[_numbers(study.run)])] if study.run and charts else []
    return [Section("Curves", charts=charts, folded=folded)] if charts else []


# --- panels of an experiment


def _panels(study: Study, plan: Experiment) -> list[Chart]:
    """The charts of an experiment's figure; those of a dot plot are by round."""
    charts, plan = [], replace(plan, x="round") if plan.x == CURVE else plan
    for panel, planned in plan.panels.items():
        runs = [own for curve, own in zip(plan.curves, study.curves, strict=True) if curve.panel == panel]
        found = runs_of(plan, study.folder, planned)
        for y in plan.y:
            shown = series(plan, found, y)
            charts.append(_chart(panel, plan.x, y, runs, shown, plan.log_axes, note(shown)))
    return charts


# --- runs by round


def _measured(study: Study) -> list[str]:
    """The columns that are drawn, of those that any run measured."""
    rows = [row for run in study.runs for row in run.rows]
    names = [name for curve in study.curves for name in columns_of_run(curve.config)]
    return measured([*dict.fromkeys([*names, *POINT_COLUMNS])], rows) if rows else []


def _by_round(study: Study, column: str) -> Chart:
    shown = [
        by_round(
            curve.name or curve.config.algorithm, curve.config, [run.rows for run in curve.runs if run.rows],
            "round", column,
        )
        for curve in study.curves
    ]  # fmt: skip
    logs = [column] if column in POINT_COLUMNS else []
    return _chart("", "round", column, study.curves, shown, logs, "" if study.alone else note(shown))


def _chart(
    panel: str, x: str, y: str, curves: Sequence[CurveRuns], shown: Sequence[Series], logs: Sequence[str], remark: str
) -> Chart:  # fmt: skip
    config = curves[0].config
    bounds = sorted({limit for curve in curves for limit in limits(curve.config, y)})
    across, up = ("bit" if column in BITS else "" for column in (x, y))
    title = ": ".join(filter(None, (panel, words(y, config))))
    return chart(title, words(x, config), shown, (x in logs, y in logs), (across, up), bounds, remark)


def _numbers(run: StoredRun) -> Table:
    columns = measured([*dict.fromkeys((*_NUMBERS, *columns_of_run(run.config)))], run.rows)
    rows = [[_cell(row[column], column) for column in columns] for row in run.rows]
    table = Table([heading(column, run.config) for column in columns], rows)
    return table.thinned(_MOST_ROWS, "{shown} of {all} evaluated rounds; all are in metrics.csv.")


def _cell(value: float, column: str) -> str:
    return bits(value) if column in BITS else number(value, ".5g")
