"""The report on several runs: the curves of an experiment, or the runs that `compare` finds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...results import names
from ...results.folder import has_ended, run_folder
from ...results.reading import digests, read_config, read_environment, read_rows, read_summary
from ...settings import Config, Value
from ...settings.catalogue import DEFAULTS
from ...settings.experiment import Experiment
from ..compare import HEADINGS, Comparison, headings, row
from ..labels import BITS, score_of, words
from ..series import Series, by_round, limits, note, series
from .case import Case
from .charts import Chart, chart
from .parts import Page, Section, Table
from .runs import FOOTER, MOST_ROWS, bits, columns, settings, trained, warned
from .statement import headline, statement

_COLUMNS = ("objective", "test_accuracy", "nonzeros")  # of a comparison's charts
_FIRST_SEED = "Ranges that noisy counts gave are those of the first seed."


class CurveRuns(NamedTuple):
    """A curve of a report with its runs: its name, its settings, and its ended runs as summaries by their folders."""

    name: str
    config: Config
    runs: dict[Path, dict[str, Any]]
    planned: int = 0


def page_of_experiment(plan: Experiment, folder: Path) -> Page:
    """The report on an experiment, of which any number of runs have ended."""
    curves = [_curve(plan, folder, nth) for nth in range(len(plan.curves))]
    claims = [f"{name}: {text}" for name, text in (("Claim", plan.claim), ("Found", plan.verdict)) if text]
    lead = [f"Source: {plan.source}"] * bool(plan.source) + claims
    charts = [
        one
        for panel in dict.fromkeys(curve.panel for curve in plan.curves)
        for one in _panel(plan, folder, panel)
    ]
    files = [Table(("SHA-256 of", ""), digests(folder), codes=True)]
    return Page(
        "Federated learning experiment",
        plan.title,
        _alarm(curves),
        lead,
        [],
        _sections(curves, charts, files),
        FOOTER.format("report"),
    )


def page_of_comparison(found: Comparison) -> Page:
    """The report on finished runs of any experiments."""
    curves = [
        CurveRuns(name, read_config(next(iter(runs))).config, runs) for name, runs in found.groups.items()
    ]
    charts = [_compared(curves, column) for column in _COLUMNS]
    return Page(
        "Comparison of federated learning runs", ", ".join(found.groups), _alarm(curves), found.left_out, [],
        _sections(curves, charts, []), FOOTER.format("compare"),
    )  # fmt: skip


def _curve(plan: Experiment, folder: Path, nth: int) -> CurveRuns:
    curve = plan.curves[nth]
    folders = [run_folder(plan, folder, curve, seed) for seed in plan.seeds]
    runs = {own: read_summary(own) for own in folders if has_ended(own)}
    return CurveRuns(": ".join(filter(None, (curve.panel, curve.label))), curve.config, runs, len(folders))


def _alarm(curves: Sequence[CurveRuns]) -> str:
    """How many runs failed or have not ended; empty if all finished."""
    ended = [summary for curve in curves for summary in curve.runs.values()]
    total = max(len(ended), sum(curve.planned for curve in curves))
    failed = sum(not summary["finished"] for summary in ended)
    missing = [f"{failed} of {total} runs failed"] * bool(failed)
    missing += [f"{total - len(ended)} of {total} runs had not ended when this report was written"] * (
        len(ended) < total
    )
    return "; ".join(missing) + "." * bool(missing)


def _sections(curves: Sequence[CurveRuns], charts: Sequence[Chart], files: Sequence[Table]) -> list[Section]:
    return [
        *warned(list(_warnings(curves))), Section("Results", tables=[_results(curves)]),
        Section("Curves", charts=charts), *_columns(curves), _methods(curves), *_sites(curves), _privacy(curves),
        _settings(curves), _proofs(curves, files),
    ]  # fmt: skip


def _results(curves: Sequence[CurveRuns]) -> Table:
    """The table of `compare`, without the columns that no run measured."""
    missing = ["0", *["-"] * (len(HEADINGS) - 3)]
    rows = [
        row(curve.name, list(curve.runs.values()))
        if curve.runs
        else (curve.name, curve.config.algorithm, *missing)
        for curve in curves
    ]
    kept = [place for place in range(len(HEADINGS)) if any(cells[place] != "-" for cells in rows)]
    named = ["curve", *headings(run for curve in curves for run in curve.runs.values())[1:]]
    texts = [[cells[place].replace(" +- ", " ± ") for place in kept] for cells in rows]
    remark = "Mean ± standard deviation over the seeds; epsilon is the largest that a site spent in any of the runs."
    return Table([named[place] for place in kept], texts, remark)


def _warnings(curves: Sequence[CurveRuns]) -> Iterator[str]:
    for curve in curves:
        texts = [text for summary in curve.runs.values() for text in summary["warnings"] or []]
        yield from (f"{curve.name}: {text.removeprefix('warning: ')}" for text in dict.fromkeys(texts))


def _panel(plan: Experiment, folder: Path, panel: str) -> list[Chart]:
    """The charts of one panel of the experiment's figure."""
    curves = [curve for curve in plan.curves if curve.panel == panel]
    config = curves[0].config
    charts = []
    for y in plan.y:
        shown = series(plan, folder, curves, y)
        bounds = sorted({limit for curve in curves for limit in limits(curve.config, y)})
        title = f"{panel}: {words(y, config)}" if panel else words(y, config)
        charts.append(_chart(title, plan.x, y, config, shown, bounds, plan.log_axes))
    return charts


def _compared(curves: Sequence[CurveRuns], column: str) -> Chart:
    shown = []
    for curve in curves:
        runs = [
            rows for folder in curve.runs if (folder / names.METRICS).exists() and (rows := read_rows(folder))
        ]
        shown.append(by_round(curve.name, curve.config, runs, "round", column))
    return _chart(words(column, curves[0].config), "round", column, curves[0].config, shown, [], [])


def _chart(
    title: str,
    x: str,
    y: str,
    config: Config,
    shown: Sequence[Series],
    bounds: Sequence[float],
    logs: Sequence[str],
) -> Chart:
    units = tuple("bit" if column in BITS else "" for column in (x, y))
    return chart(
        title, words(x, config), shown, (x in logs, y in logs), (units[0], units[1]), bounds, note(shown)
    )


# --- what belongs to one curve


def _methods(curves: Sequence[CurveRuns]) -> Section:
    """What was trained, on what, and who took part; equal texts once, under the names of their curves."""
    found = _shared((curve.name, f"{trained(curve.config)} {_partition(curve)}".strip()) for curve in curves)
    texts = (
        list(found) if len(found) == 1 else [f"{', '.join(names)}: {text}" for text, names in found.items()]
    )
    rows = [(curve.name, *_participation(curve)) for curve in curves if curve.runs]
    table = Table(
        ("curve", "replies left out", "sent by all sites", "received by all sites"),
        rows,
        "Means over the seeds.",
    )
    return Section("Training, sites and participation", texts, tables=[table] if rows else [])


def _columns(curves: Sequence[CurveRuns]) -> list[Section]:
    """What the columns of tables mean, once for all curves with the same ones."""
    found: list[Section] = []
    for curve in curves:
        first, *others = [columns(folder, curve.config) for folder in curve.runs] or [[]]
        note = [_FIRST_SEED] if any(other != first for other in others) else []
        own = [section._replace(points=[*section.points, *note]) for section in first]
        found += [section for section in own if section not in found]
    return found


def _sites(curves: Sequence[CurveRuns]) -> list[Section]:
    """The names of the sites of runs on tables and, without privacy, how good the models are on their rows."""
    groups: dict[tuple[str, ...], list[CurveRuns]] = {}
    for curve in curves:
        for summary in list(curve.runs.values())[:1]:
            groups.setdefault(tuple(summary["site_names"] or ()), []).append(curve)
    tables = [_site_table(named, own) for named, own in groups.items() if named]
    return [Section("Sites", tables=tables)] if tables else []


def _site_table(site_names: Sequence[str], curves: Sequence[CurveRuns]) -> Table:
    scored = {
        curve.name: np.mean([summary["site_scores"] for summary in curve.runs.values()], axis=0)
        for curve in curves
        if all(summary["site_scores"] for summary in curve.runs.values())
    }
    rows = [
        (f"{place}: {name}", *(f"{means[place]:.4f}" for means in scored.values()))
        for place, name in enumerate(site_names)
    ]
    score = score_of(next(iter(curves[0].runs.values())))
    remark = f"The final models' {score} on the rows that each site trained on, mean over the seeds."
    return Table(("site", *scored), rows[:MOST_ROWS], remark if scored else "The names of the sites.")


def _shared(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The texts of (name, text) pairs, with the names of each."""
    found: dict[str, list[str]] = {}
    for name, text in pairs:
        found.setdefault(text, []).append(name)
    return found


def _partition(curve: CurveRuns) -> str:
    texts = [str(summary["partition"] or "") for summary in curve.runs.values()]
    return "; ".join(texts[0].splitlines()) + "." if texts and texts[0] else ""


def _participation(curve: CurveRuns) -> tuple[str, ...]:
    keys = ("rejected_replies", "uplink_bits", "downlink_bits")
    means = [np.mean([summary[key] or 0 for summary in curve.runs.values()]) for key in keys]
    return f"{means[0]:.4g}", bits(means[1]), bits(means[2])


def _settings(curves: Sequence[CurveRuns]) -> Section:
    """The settings that all curves share, and each curve's own."""
    items = [curve.config.items() for curve in curves]
    own = [", ".join(f"{key} = {mine[key]}" for key in mine if _differs(key, mine, items)) for mine in items]
    rows = [(curve.name, text) for curve, text in zip(curves, own, strict=True)]
    table = Table(("curve", "its own settings"), rows)
    shared = settings([curve.config for curve in curves])
    return shared._replace(tables=[*([table] if any(own) else []), *shared.tables])


def _differs(key: str, mine: Mapping[str, Value], items: Sequence[Mapping[str, Value]]) -> bool:
    """Whether other curves have another value of a setting, or none and this one is not its default."""
    others = [other[key] for other in items if key in other]
    return any(value != mine[key] for value in others) or (
        len(others) < len(items) and mine[key] != DEFAULTS[key]
    )


def _privacy(curves: Sequence[CurveRuns]) -> Section:
    """The statements of all curves; equal ones once, under the names of their curves."""
    cases = {curve.name: _worst(curve) for curve in curves if curve.runs}
    found = _shared((name, repr(statement(case))) for name, case in cases.items())
    groups = [(", ".join(names), cases[names[0]]) for names in found.values()]
    points = [f"{names}: {headline(case)}" for names, case in groups]
    folded = [Section(f"Statement for {names}", parts=statement(case)) for names, case in groups]
    return Section("Privacy", points=points, folded=folded)


def _worst(curve: CurveRuns) -> Case:
    """The curve's run that spent the most, or that has no guarantee."""

    def cost(folder: Path) -> float:
        privacy = curve.runs[folder]["privacy"]
        return -1.0 if privacy is None else math.inf if privacy["mu"] is None else privacy["mu"]

    return Case.of_folder(max(curve.runs, key=cost))


def _proofs(curves: Sequence[CurveRuns], files: Sequence[Table]) -> Section:
    """Versions, and the digests of every run's settings and files."""
    folders = [(curve, folder) for curve in curves for folder in curve.runs]
    versions = [Table(("made with", ""), read_environment(folders[0][1]))] if folders else []
    rows = [
        (f"{curve.name}, seed {curve.runs[folder]['seed']}: {name}", digest)
        for curve, folder in folders
        for name, digest in digests(folder)
    ]
    each = Section("Files of the runs", tables=[Table(("SHA-256 of", ""), rows, codes=True)])
    return Section("Versions and digests", tables=[*versions, *files], folded=[each] if rows else [])
