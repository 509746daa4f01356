"""The section of a report on the survival curve of the persons that the sites train on."""

from collections.abc import Mapping, Sequence

import numpy as np

from twinflower.arrays import Array
from twinflower.models.intervals import LEVEL, Share
from twinflower.models.survival import Curve, LogRank, SurvivalTable, log_rank
from twinflower.queries.survival import SurvivalCurve

from ...results.reading import read_answers
from ..charts import Chart, Counts, chart
from ..document import Section, Table
from ..labels import number
from ..series import Series
from ..study import StoredRun, of_one_run
from .sites import label_of

_TITLE = "Fraction without the event"
_MOST_SITES = 8  # curves in a chart
_MOST_ROWS = 40
_MOST_PARTS = 5  # of the axis, between ends of intervals at which the number at risk stands below a chart
_INTERVAL = f"{LEVEL:.0%} interval"
_TIMES = ("up to", "at risk", "events", "censored", "survival", _INTERVAL, "cumulative hazard", "deviation")


@of_one_run
def survival(run: StoredRun) -> list[Section]:
    """The survival curves of all sites together, and by site; nothing for a run without a survival curve."""
    sites: dict[int, SurvivalTable] = read_answers(run.folder, SurvivalCurve)
    if not sites:
        return []
    table = SurvivalTable.together(sites.values())
    curve, time = table.curve(), time_name(run)
    remark = f"{_name(table)} estimate. The band is the {_INTERVAL}."
    charts = [_chart(time, {"all sites": curve}, remark)]
    folded = [Section("The numbers", tables=[_numbers(curve)])]
    parts = [_by_group(run, table, list(sites.values()))] if table.groups else []
    if len(sites) > 1:
        folded.append(_by_site(run, {label_of(run, client): sites[client] for client in sorted(sites)}))
    return [Section("Survival", _about(table, curve), charts=charts, parts=parts, folded=folded)]


def _name(table: SurvivalTable) -> str:
    return "Actuarial" if table.actuarial else "Kaplan-Meier"


def _counting(table: SurvivalTable) -> str:
    """How those who are censored within an interval count."""
    if table.actuarial:
        return "A person censored within an interval counts as at risk for half of it (actuarial estimate, life table)."
    return (
        "A person censored within an interval counts as at risk up to its end, so the curve lies too high, and its "
        "intervals are wrong, unless every time is the end of an interval."
    )


def _about(table: SurvivalTable, curve: Curve) -> list[str]:
    noise = (
        f" Every count of all sites together has noise of {table.sigma:.4g}, which can make it negative. The intervals "
        "include the noise, and where the persons at risk do not stand out from it, the curve ends."
        if table.sigma
        else ""
    )
    return [
        f"The median survival is {_span(curve.median())}.",
        f"{_name(table)} and Nelson-Aalen estimates of the {table.rows:,} persons that the sites train on, from the "
        f"numbers of events and of censored persons in {len(table.edges)} public intervals of time. {_counting(table)}"
        f"{noise}",
    ]


def _span(median: Share) -> str:
    if not np.isfinite(median.value):
        return "not reached"
    high = f"{median.high:.6g}" if np.isfinite(median.high) else "the end"
    return f"{median.value:.6g} ({_INTERVAL} {median.low:.6g} to {high})"


def time_name(run: StoredRun) -> str:
    """The time with the column that has it, which often says the unit; "time" for data without a schema."""
    schema = run.model.inputs.schema if run.model else None
    return f"time ({schema.label.column})" if schema else "time"


def _by_site(run: StoredRun, sites: Mapping[str, SurvivalTable]) -> Section:
    curves = {name: table.curve() for name, table in sites.items()}
    shown = dict(list(curves.items())[:_MOST_SITES])
    remark = "" if len(shown) == len(sites) else f"{len(shown)} of {len(sites)} sites."
    drawn = _chart(time_name(run), shown, remark, band=False)
    table = _medians("site", sites, curves)
    table = table.first(_MOST_ROWS, "{shown} of {all}; the others are in survival.csv.")
    return Section("Survival by site", charts=[drawn], tables=[table])


def _medians(what: str, tables: Mapping[str, SurvivalTable], curves: Mapping[str, Curve]) -> Table:
    """Persons, events and the median survival of each site or group; what: which of the two it is."""
    rows = [
        (name, f"{tables[name].rows:,}", f"{curve.events.sum():.0f}", _span(curve.median()))
        for name, curve in curves.items()
    ]
    return Table((what, "persons", "events", "median survival"), rows)


def _by_group(run: StoredRun, table: SurvivalTable, sites: Sequence[SurvivalTable]) -> Section:
    """The curves of the groups, how many are at risk, and the test whether the curves differ."""
    tables = table.by_group
    curves, by = {name: own.curve() for name, own in tables.items()}, run.config.evaluation.survival_by
    drawn = _chart(time_name(run), curves)
    return Section(
        f"Survival by {by}", _tests(table, sites), charts=[drawn],
        tables=[_medians(by, tables, curves), _numbers_by_group(curves)],
    )  # fmt: skip


def _tests(table: SurvivalTable, sites: Sequence[SurvivalTable]) -> list[str]:
    if table.sigma:
        return ["There is no log-rank test, because its p-value would be wrong for counts with noise."]
    strata = {"all sites together": [table], "stratified by site": sites}
    found = {how: log_rank(own) for how, own in strata.items()}
    return [f"Log-rank test, {how}: {_tested(test)}." for how, test in found.items()]


def _tested(test: LogRank | None) -> str:
    if test is None:
        return "nothing to compare"
    p_value = f"p = {test.p_value:.3f}" if test.p_value >= 0.0005 else "p < 0.001"
    return f"chi-squared {test.statistic:.4g} on {test.freedom} degree{'s' * (test.freedom > 1)} of freedom, {p_value}"


def _numbers_by_group(curves: Mapping[str, Curve]) -> Table:
    """The survival of every group by time, and how many are at risk."""
    headings = [f"{name}: {what}" for name in curves for what in ("at risk", "survival")]
    times = next(iter(curves.values())).time
    rows = [
        (f"{time:.6g}", *(cell for own in curves.values() for cell in _row(own, place)[1:5:3]))
        for place, time in enumerate(times)
    ]
    return Table(("up to", *headings), rows).thinned(_MOST_ROWS, "{shown} of {all}; all are in survival.csv.")


def _chart(time: str, curves: Mapping[str, Curve], remark: str = "", band: bool = True) -> Chart:
    """Curves over one grid of time, with the numbers at risk below, at ends of some intervals."""
    one = next(iter(curves.values()))
    ends = np.arange(0, len(one.time) + 1, -(-len(one.time) // _MOST_PARTS))
    counts = Counts("at risk", np.append(0.0, one.time)[ends], [_at_risk(c)[ends] for c in curves.values()])
    lines = [_line(name, curve, band) for name, curve in curves.items()]
    return chart(_TITLE, time, lines, remark=remark, frame="fraction", counts=counts)


def _at_risk(curve: Curve) -> Array:
    """The number at risk at 0 and at the end of every interval; NaN where noise has ended the curve."""
    left = np.append(curve.at_risk, curve.at_risk[-1] - curve.events[-1] - curve.censored[-1])
    return np.where(np.isfinite(np.append(1.0, curve.survival)), left, np.nan)


def _line(label: str, curve: Curve, band: bool) -> Series:
    """The curve as steps, each down at the end of its interval."""
    x = np.repeat(np.append(0.0, curve.time), 2)[1:]
    centre = _steps(curve.survival)
    low, high = (_steps(curve.low), _steps(curve.high)) if band else (centre, centre)
    return Series(label, "", x, centre, low, high, seeds=1)


def _steps(values: Array) -> Array:
    return np.repeat(np.append(1.0, values), 2)[:-1]


def _numbers(curve: Curve) -> Table:
    rows = [_row(curve, place) for place in range(len(curve.time))]
    return Table(_TIMES, rows).thinned(_MOST_ROWS, "{shown} of {all}; all are in survival.csv.")


def _row(curve: Curve, place: int) -> tuple[str, ...]:
    time, at_risk, events, censored, survival, low, high, _, *hazard = (float(own[place]) for own in curve)
    counts = (f"{count:.0f}" for count in (at_risk, events, censored))
    interval = "-" if low != low else f"{low:.4f} to {high:.4f}"
    return (f"{time:.6g}", *counts, number(survival), interval, *map(number, hazard))
