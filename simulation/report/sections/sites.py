"""The sections on the sites: their names, what the models achieve there, and in which rounds they took part."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS

from ...results.reading import read_rejections
from ..document import Section, Table
from ..labels import bits, number, score_of
from ..study import CurveRuns, Site, StoredRun, Study
from .provenance import shared
from .results import trained

_MOST_ROWS = 40  # of a table
_MOST_RANGES = 4  # of site numbers in one cell
_SHOWN = "{shown} of {all}."


def sites(study: Study) -> list[Section]:
    """Names, results and participation: site by site of one run, as means over the seeds of several."""
    if study.run:
        return [_of_run(study.run)]
    ended = [curve for curve in study.curves if curve.runs]
    return [] if study.alone else [_training(study.curves), *_named(ended)]


def label_of(run: StoredRun, client: int) -> str:
    """A site's number, and its name if the run has names."""
    return _label(run.summary["site_names"], client)


def _label(site_names: Sequence[str] | None, client: int) -> str:
    return f"{client}: {site_names[client]}" if site_names else f"{client}"


# --- one run


def _of_run(run: StoredRun) -> Section:
    groups = grouped(run.clients, ("asked", "used"))
    rows = [
        (*named(group), f"{asked:.0f}", f"{used:.0f}", f"{asked - used:.0f}")
        for (asked, used), group in groups
    ]
    table = Table(("site", "records", "rounds asked", "replies used", "left out"), rows)
    participation = [table.first(_MOST_ROWS, "The other sites are in clients.csv.")] if rows else []
    return Section(
        "Sites and participation", points=str(run.summary["partition"] or "").splitlines(),
        tables=[*_results(run), *participation], folded=_lost(read_rejections(run.folder)),
    )  # fmt: skip


def _results(run: StoredRun) -> list[Table]:
    """The name of each site and, without privacy, what the final model achieves on its rows."""
    summary = run.summary
    scores, held = summary["site_scores"], summary["held_out_by_site"]
    if not (summary["site_names"] or scores or held):
        return []
    kind = score_of(summary)
    headings = ["site", "records", *([kind] if scores else []), *([f"held-out {kind}"] if held else [])]
    rows = []
    for site in run.clients:
        client = int(site["client"] or 0)
        cells = [number(scores[client])] if scores else []
        cells += [number(held.get(f"{client}"))] if held else []
        rows.append([label_of(run, client), f"{int(site['rows'] or 0):,}", *cells])
    return [Table(headings, rows, _rows_of(summary)).first(_MOST_ROWS, _SHOWN)]


def _rows_of(summary: Mapping[str, Any]) -> str:
    """On which rows the results of `_results` are."""
    scores, held = summary["site_scores"], summary["held_out_by_site"]
    if not (scores or held):
        return "The names of the sites."
    model = "The site's own model" if ALGORITHMS[summary["algorithm"]].personal else "The final model"
    both = "trained on, and on those that it holds out"
    return f"{model} on the rows that each site {both if scores and held else 'trained on' if scores else 'holds out'}."


def _lost(rejections: Sequence[tuple[int, int, str]]) -> list[Section]:
    """The replies that were left out, the most frequent reasons first."""
    reasons: dict[str, list[tuple[int, int]]] = {}
    for round_, client, reason in rejections:
        reasons.setdefault(reason, []).append((client, round_))
    rows = [
        (*(ranges(sorted(set(numbers))) for numbers in zip(*pairs, strict=True)), f"{len(pairs)}", reason)
        for reason, pairs in sorted(reasons.items(), key=lambda item: -len(item[1]))
    ]
    table = Table(("site", "round", "replies", "reason"), rows[:_MOST_ROWS])
    return [Section("Replies that were left out", tables=[table])] if rows else []


# --- several runs


def _training(curves: Sequence[CurveRuns]) -> Section:
    """What was trained, on what, and who took part; equal texts once, under the names of their curves."""
    found = shared((curve.name, f"{trained(curve.config)} {_partition(curve)}".strip()) for curve in curves)
    texts = (
        list(found) if len(found) == 1 else [f"{', '.join(names)}: {text}" for text, names in found.items()]
    )
    rows = [(curve.name, *_participation(curve)) for curve in curves if curve.runs]
    headings = ("curve", "replies left out", "sent by all sites", "received by all sites")
    table = Table(headings, rows, "Means over the seeds.")
    return Section("Training, sites and participation", texts, tables=[table] if rows else [])


def _partition(curve: CurveRuns) -> str:
    texts = [str(summary["partition"] or "") for summary in curve.summaries]
    return "; ".join(texts[0].splitlines()) + "." if texts and texts[0] else ""


def _participation(curve: CurveRuns) -> tuple[str, ...]:
    keys = ("rejected_replies", "uplink_bits", "downlink_bits")
    means = [np.mean([summary[key] or 0 for summary in curve.summaries]) for key in keys]
    return f"{means[0]:.4g}", bits(float(means[1])), bits(float(means[2]))


def _named(curves: Sequence[CurveRuns]) -> list[Section]:
    """The names of the sites of runs on tables and, without privacy, how good the models are on their rows."""
    groups: dict[tuple[str, ...], list[CurveRuns]] = {}
    for curve in curves:
        groups.setdefault(tuple(curve.summaries[0]["site_names"] or ()), []).append(curve)
    tables = [_scores(site_names, group) for site_names, group in groups.items() if site_names]
    return [Section("Sites", tables=tables)] if tables else []


def _scores(site_names: Sequence[str], curves: Sequence[CurveRuns]) -> Table:
    scores = {
        curve.name: np.mean([summary["site_scores"] for summary in curve.summaries], axis=0)
        for curve in curves
        if all(summary["site_scores"] for summary in curve.summaries)
    }
    rows = [
        (_label(site_names, client), *(f"{means[client]:.4f}" for means in scores.values()))
        for client in range(len(site_names))
    ]
    kind = score_of(curves[0].summaries[0])
    remark = f"The final models' {kind} on the rows that each site trained on, mean over the seeds."
    return Table(("site", *scores), rows, remark if scores else "The names of the sites.").first(
        _MOST_ROWS, _SHOWN
    )


# --- sites with equal numbers in one row


def grouped(sites: Sequence[Site], columns: Sequence[str]) -> list[tuple[tuple[float, ...], list[Site]]]:
    """The sites by their values of these columns (0 for a missing one), the largest values first."""

    def values(site: Site) -> tuple[float, ...]:
        return tuple(site.get(name) or 0.0 for name in columns)

    found = sorted(sites, key=values, reverse=True)
    return [(key, list(group)) for key, group in groupby(found, key=values)]


def named(sites: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The numbers of some sites, and the range of their numbers of records, as text."""
    records = [int(site["rows"]) for site in sites]
    return ranges(sorted(int(site["client"]) for site in sites)), between(min(records), max(records))


def between(low: int, high: int) -> str:
    """A range of counts as text."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, such as "0 to 3, 7"; after some ranges only how many more there are."""
    runs = [[n for _, n in run] for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    parts = [f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:_MOST_RANGES]]
    more = sum(map(len, runs[_MOST_RANGES:]))
    return ", ".join(parts) + (f" and {more} more" if more else "")
