"""The report on one run, from the files of its folder."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS
from twinflower.data.columns import Category, Classes, Column, Label, Range, Survival, Target
from twinflower.data.sets import DATASETS, OWN, TableData
from twinflower.errors import DataError
from twinflower.models.facts import Facts
from twinflower.models.intervals import LEVEL
from twinflower.models.trained import load

from ...results.folder import has_ended
from ...results.reading import read_clients, read_config, read_rejections, read_rows, read_summary, read_title
from ...results.resume import read_resumed
from ...settings import Config
from ...settings.catalogue import DEFAULTS
from ...settings.columns import POINT_COLUMNS
from ..labels import BITS, heading, score_of, words
from ..series import Rows, by_round, columns_of_run, limits, measured
from .case import Case
from .charts import Chart, chart
from .coefficients import coefficients
from .discrimination import discrimination
from .parts import Fact, Page, Section, Table
from .penalty import penalty
from .privacy_text import rows_of
from .sites import grouped, named, ranges
from .statement import headline, proofs, statement
from .survival import survival

MOST_ROWS = 40  # of a table
_COLUMNS = ("round", "objective", "test_accuracy", "nonzeros", "uplink_bits", "participants", "rejected")

FOOTER = "Made from stored results by Twinflower; the command twinflower {} makes it again."


def page_of_run(folder: Path) -> Page:
    """The report on an ended run, or on one that was begun; SettingError if a file of the run is damaged."""
    if not has_ended(folder):
        return page_of_begun(read_config(folder).config, read_title(folder))
    summary, rows, config = read_summary(folder), read_rows(folder), read_config(folder).config
    case = Case.of_folder(folder)
    sections = [
        *warned(summary["warnings"] or []), *_curves(rows, config), *columns(folder, config), *penalty(folder),
        *coefficients(folder), *discrimination(folder, summary), *survival(folder, summary), _sites(folder, summary),
        Section("Privacy", parts=statement(case)), settings([config]), proofs(folder, config),
    ]  # fmt: skip
    return Page(
        "Federated learning run", read_title(folder) or _title(config), alarm(summary),
        [trained(config, summary["ended"]), headline(case)],
        [*_facts(summary, config), _time(summary, read_resumed(folder))], sections, FOOTER.format("report"),
    )  # fmt: skip


def page_of_begun(config: Config, title: str = "") -> Page:
    """The report on a run without results. title: that of its experiment, or empty."""
    alarm = "This run had not ended when this report was written, and has no results yet."
    return Page(
        "Federated learning run",
        title or _title(config),
        alarm,
        [trained(config)],
        [],
        [settings([config])],
        FOOTER.format("report"),
    )


def _title(config: Config) -> str:
    return f"{config.algorithm} on {rows_of(config)}"


def trained(config: Config, ended: str | None = None) -> str:
    """What is trained on what, as a sentence or two; ended: why a run ended before its last planned round."""
    known = DATASETS.get(config.data.name) if config.data.name != OWN else None
    about = f" ({known.description})" if known else ""
    sites = f"{config.clients.count:,} sites" if config.clients.count else "the sites that take part"
    return (
        f"A {config.objective.name} model with regulariser {config.regulariser.name}, trained for "
        f"{'up to ' * bool(ended)}{config.rounds:,} "
        f"rounds over {sites} on {rows_of(config)}{about}. The method: {ALGORITHMS[config.algorithm].title}."
        + (f" The run {ended}." if ended else "")
    )


def alarm(summary: Mapping[str, Any]) -> str:
    """Why an ended run has no model; empty if it has one."""
    if summary["finished"]:
        return "The model violates its bounds." if summary["bounds_met"] is False else ""
    reason = summary["failure"] or "no reason known"
    return f"The run failed after round {summary['rounds']} and has no model: {reason}"


def warned(warnings: Sequence[str]) -> list[Section]:
    """A section of warnings, if there are any."""
    texts = [text.removeprefix("warning: ") for text in warnings]
    return [Section("Warnings", points=texts)] if texts else []


# --- results


def _facts(summary: Mapping[str, Any], config: Config) -> Iterator[Fact]:
    place = "" if summary["finished"] else f"in round {summary['rounds']}, the last one evaluated"
    base = summary["majority_baseline"]
    guess = f"always the most frequent class: {base:.4f}" if base is not None else ""
    if summary["test_accuracy_from"] == "clients":
        measured_there = summary["test_accuracy"] is not None
        guess = "on the rows that the sites hold out" if measured_there else "set evaluation.held-out for it"
    yield Fact(f"Test {score_of(summary)}", number(summary["test_accuracy"], ".4f"), place or guess)
    if summary["held_out_low"] is not None:
        yield _measured(summary)
    if summary["held_out_auc"] is not None:
        remark = (
            f"{LEVEL:.0%} interval {summary['held_out_auc_low']:.4f} to {summary['held_out_auc_high']:.4f}"
        )
        yield Fact("ROC area at the sites", number(summary["held_out_auc"], ".4f"), remark)
    if summary["held_out_rmse"] is not None:
        yield _errors(summary)
    if summary["facts"]:
        yield _rows(Facts.of(summary["facts"]))
    yield Fact("Objective", number(summary["objective"], ".5g"), place)
    yield Fact("Nonzero weights", number(summary["nonzeros"], ",.0f"), f"of {summary['parameters']:,}")
    yield _budget(summary["privacy"])
    received = summary["downlink_bits"]
    yield Fact(
        "Sent by all sites", bits(summary["uplink_bits"]), f"received: {bits(received)}" if received else ""
    )


def _rows(facts: Facts) -> Fact:
    """How many rows were trained on, and why not the others."""
    return Fact("Rows trained on", number(facts.rows, ",d"), facts.sentence.partition("; ")[2])


def _time(summary: Mapping[str, Any], resumed: Sequence[int]) -> Fact:
    """How long the run took, and after which rounds it was resumed."""
    rounds = ", ".join(map(str, resumed))
    remark = f"runtime {summary['runtime']}, seed {summary['seed']}" + (
        f"; resumed after round {rounds}" if rounds else ""
    )
    return Fact("Time", number(summary["seconds"], ".1f") + " s", remark)


def _measured(summary: Mapping[str, Any]) -> Fact:
    """What the sites of a private run measured on held-out rows, with its interval and its share of the budget."""
    name, privacy = "Accuracy", summary["privacy"]
    if summary["held_out_accuracy"] is None:
        name = "Clipped loss"
    share = privacy["mu_evaluation"] ** 2 / privacy["mu"] ** 2
    remark = (
        f"{LEVEL:.0%} interval {summary['held_out_low']:.4f} to {summary['held_out_high']:.4f}, on "
        f"{summary['held_out_rows']:,} held-out rows, for {share:.3g} of the budget in mu^2"
    )
    value = summary[f"held_out_{'loss' if name == 'Clipped loss' else 'accuracy'}"]
    return Fact(f"{name} at the sites", number(value, ".4f"), remark)


def _errors(summary: Mapping[str, Any]) -> Fact:
    """The errors of a regression on the rows that the sites hold out."""
    remark = (
        f"mean absolute error {summary['held_out_mae']:.4g}, R^2 {number(summary['held_out_r2'], '.4f')}, on "
        f"{summary['held_out_rows']:,} held-out rows; with a schema, labels are clipped to their range"
    )
    return Fact("RMSE at the sites", number(summary["held_out_rmse"], ".4g"), remark)


def _budget(privacy: Mapping[str, Any] | None) -> Fact:
    if privacy is None:
        return Fact("Privacy", "none")
    if privacy["epsilon"] is None:
        return Fact("Privacy", "no guarantee")
    remark = f"at delta {privacy['delta']:g}, in total per site"
    if privacy.get("trust") == "sum":
        remark += f"; {privacy['epsilon_alone']:.4g} against everybody else"
    return Fact("Privacy", f"epsilon {privacy['epsilon']:.4g}", remark)


def number(value: float | None, form: str) -> str:
    """A number as text; a dash if it was not measured."""
    return "-" if value is None else f"{value:{form}}"


def bits(value: float | None) -> str:
    """A number of bits as text; a dash if it was not measured."""
    from matplotlib.ticker import EngFormatter  # slow to import, and a run that begins has no numbers

    return "-" if value is None else EngFormatter("bit")(value)


def _curves(rows: Rows, config: Config) -> list[Section]:
    if not rows:
        return []
    points = [column for column in POINT_COLUMNS if column in rows[0]]
    charts = [
        _chart(rows, config, column, column in points) for column in [*columns_of_run(config, rows), *points]
    ]
    return [
        Section("Curves", charts=charts, folded=[Section("The numbers", tables=[_numbers(rows, config)])])
    ]


def _chart(rows: Rows, config: Config, column: str, log: bool) -> Chart:
    line = by_round(config.algorithm, config, [rows], "round", column)
    return chart(
        words(column, config), words("round", config), [line], (False, log), limits=limits(config, column)
    )


def _numbers(rows: Rows, config: Config) -> Table:
    keep = sorted({*np.linspace(0, len(rows) - 1, MOST_ROWS).round().astype(int)})
    columns = measured([*dict.fromkeys((*_COLUMNS, *columns_of_run(config)))], rows)
    cells = [[_cell(rows[n][c], c) for c in columns] for n in keep]
    remark = (
        ""
        if len(keep) == len(rows)
        else f"{len(keep)} of {len(rows)} evaluated rounds; all are in metrics.csv."
    )
    return Table([heading(column, config) for column in columns], cells, remark)


def _cell(value: float, column: str) -> str:
    if value != value:
        return "-"
    return bits(value) if column in BITS else f"{value:.5g}"


# --- sites


def columns(folder: Path, config: Config) -> list[Section]:
    """What the columns of tables mean, if the run has a model of tables."""
    try:
        model = load(folder)
    except DataError:
        return []
    schema, outcome = model.inputs.schema, model.origin.get("outcome", "")
    if schema is None:
        return []
    label = schema.label
    texts = [f"Files: {config.data.files}"] if isinstance(config.data, TableData) else []
    texts.append(f"Predicted: {label.column}, {_kind(label)}{f'; {outcome}' if outcome else ''}")
    if schema.weight:
        texts.append(f"Weights of the rows: {schema.weight.column}, {_span(schema.weight.range)}")
    rows = [(own.name, _content(own), own.missing) for own in schema.columns]
    return [Section("Columns", points=texts, tables=[Table(("column", "values", "missing values"), rows)])]


def _kind(label: Label) -> str:
    if isinstance(label, Classes):
        return f"classes {_listed(label.names)}"
    if isinstance(label, Target):
        return _span(label.range)
    if isinstance(label, Survival):
        return f"a time of {_span(label.times)}, until the event in column {label.event} or censoring"
    exposed = f" per unit of {label.exposure}, {_span(label.exposures)}" if label.exposure else ""
    return f"a count of at most {label.most}{exposed}"


def _content(column: Column) -> str:
    return _listed(column.categories) if isinstance(column, Category) else _span(column.range)


def _span(own: Range | None) -> str:
    return "a number" if own is None else f"{own.low:.6g} to {own.high:.6g}"


def _listed(words: Sequence[object]) -> str:
    return ", ".join(map(str, words[:MOST_ROWS])) + (" ..." if len(words) > MOST_ROWS else "")


def _results(sites: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]) -> list[Table]:
    """The name of each site and, without privacy, what the final model achieves on its rows."""
    names, scores, held = summary["site_names"], summary["site_scores"], summary["held_out_by_site"]
    if not (names or scores or held):
        return []
    headings, remark = ["site", "records"], "The names of the sites."
    personal = ALGORITHMS[summary["algorithm"]].personal
    model = "The site's own model" if personal else "The final model"
    if scores:
        headings.append(score_of(summary))
        remark = f"{model} on the rows that each site trained on."
    if held:
        headings.append(f"held-out {score_of(summary)}")
        trained_on = "trained on, and on those that it holds out" if scores else "holds out"
        remark = f"{model} on the rows that each site {trained_on}."
    rows = []
    for site in sites[:MOST_ROWS]:
        number_, records = int(site["client"]), int(site["rows"])
        own = [number(scores[number_], ".4f")] if scores else []
        own += [number(held.get(f"{number_}"), ".4f")] if held else []
        rows.append([f"{number_}: {names[number_]}" if names else f"{number_}", f"{records:,}", *own])
    return [
        Table(headings, rows, remark if len(rows) == len(sites) else f"{remark} {len(rows)} of {len(sites)}.")
    ]


def _sites(folder: Path, summary: Mapping[str, Any]) -> Section:
    sites, partition = read_clients(folder), str(summary["partition"] or "")
    groups = grouped(sites, ("asked", "used"))
    rows = [
        (*named(group), f"{asked:.0f}", f"{used:.0f}", f"{asked - used:.0f}")
        for (asked, used), group in groups[:MOST_ROWS]
    ]
    remark = "" if len(rows) == len(groups) else "The other sites are in clients.csv."
    table = Table(("site", "records", "rounds asked", "replies used", "left out"), rows, remark)
    return Section(
        "Sites and participation", points=partition.splitlines(),
        tables=[*_results(sites, summary), *([table] if rows else [])],
        folded=_lost(read_rejections(folder)),
    )  # fmt: skip


def _lost(rejections: Sequence[tuple[int, int, str]]) -> list[Section]:
    """The replies that were left out, the most frequent reasons first."""
    found: dict[str, list[tuple[int, int]]] = {}
    for round_, client, reason in rejections:
        found.setdefault(reason, []).append((client, round_))
    rows = [
        (
            ranges(sorted({client for client, _ in places})),
            ranges(sorted({r for _, r in places})),
            f"{len(places)}",
            reason,
        )
        for reason, places in sorted(found.items(), key=lambda item: -len(item[1]))
    ]
    table = Table(("site", "round", "replies", "reason"), rows[:MOST_ROWS])
    return [Section("Replies that were left out", tables=[table])] if rows else []


# --- settings


def settings(configs: Sequence[Config]) -> Section:
    """The settings that the curves share, first those that are not at their default."""
    items = [config.items() for config in configs]
    shared = {
        key: value for key, value in items[0].items() if all(value == other.get(key) for other in items)
    }
    chosen = [
        (key, f"{value}", f"{DEFAULTS[key]}") for key, value in shared.items() if value != DEFAULTS.get(key)
    ]
    every = [(key, f"{value}") for key, value in shared.items() if value != ""]
    return Section(
        "Settings", tables=[Table(("setting", "value", "default"), chosen)],
        folded=[Section("All settings", tables=[Table(("setting", "value"), every)])],
    )  # fmt: skip
