"""The results of runs: of one as facts in large type, of several as a table; warnings, and why a result is missing."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS
from twinflower.data.sets import DATASETS, OWN
from twinflower.models.facts import Facts
from twinflower.models.intervals import LEVEL
from twinflower.privacy import best_guess

from ...results.resume import read_resumed
from ...settings import Config
from ..document import Fact, Section, Table
from ..labels import bits, number, score_of
from ..study import CurveRuns, StoredRun, Study, rows_of

_ROUNDING = 1e-12  # relative deviation of seeds below which their values are equal


def warnings(study: Study) -> list[Section]:
    """What the runs warned of, each text of a curve once."""
    points = []
    for curve in study.curves:
        texts = [text.removeprefix("warning: ") for own in curve.summaries for text in own["warnings"] or []]
        points += [f"{curve.name}: {text}" if curve.name else text for text in dict.fromkeys(texts)]
    return [Section("Warnings", points=points)] if points else []


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


# --- missing results


def alarm(study: Study) -> str:
    """Which results are missing or not as they should be; empty if all runs finished."""
    if study.run:
        return _alarm_of(study.run.summary)
    if study.alone:
        return "This run had not ended when this report was written, and has no results yet."
    ended = len(study.runs)
    total = max(ended, sum(curve.planned for curve in study.curves))
    failed = sum(not run.summary["finished"] for run in study.runs)
    missing = [f"{failed} of {total} runs failed"] if failed else []
    if ended < total:
        missing.append(f"{total - ended} of {total} runs had not ended when this report was written")
    return "; ".join(missing) + "." * bool(missing)


def _alarm_of(summary: Mapping[str, Any]) -> str:
    """Why an ended run has no model, or that it violates its bounds."""
    if summary["finished"]:
        return "The model violates its bounds." if summary["bounds_met"] is False else ""
    reason = summary["failure"] or "no reason known"
    return f"The run failed after round {summary['rounds']} and has no model: {reason}"


# --- one run


def facts(run: StoredRun) -> Iterator[Fact]:
    """The results of a run; only what its summary holds."""
    summary = run.summary
    place = "" if summary["finished"] else f"in round {summary['rounds']}, the last one evaluated"
    yield Fact(f"Test {score_of(summary)}", number(summary["test_accuracy"]), place or _measure_of(summary))
    if summary["held_out_low"] is not None:
        yield _measured(summary)
    if summary["held_out_auc"] is not None:
        yield Fact(
            "ROC area at the sites", number(summary["held_out_auc"]), _between(summary, "held_out_auc_")
        )
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
    yield _time(summary, read_resumed(run.folder))


def _measure_of(summary: Mapping[str, Any]) -> str:
    """With what a test score is to be compared, or on which rows it is."""
    if summary["test_accuracy_from"] == "clients":
        measured = summary["test_accuracy"] is not None
        return "on the rows that the sites hold out" if measured else "set evaluation.held-out for it"
    base = summary["majority_baseline"]
    return f"always the most frequent class: {base:.4f}" if base is not None else ""


def _between(summary: Mapping[str, Any], key: str) -> str:
    return f"{LEVEL:.0%} interval {summary[f'{key}low']:.4f} to {summary[f'{key}high']:.4f}"


def _rows(facts: Facts) -> Fact:
    """How many rows were trained on, and why not the others."""
    return Fact("Rows trained on", number(facts.rows, ",d"), facts.sentence.partition("; ")[2])


def _time(summary: Mapping[str, Any], resumed: Sequence[int]) -> Fact:
    """How long the run took, and after which rounds it was resumed."""
    again = f"; resumed after round {', '.join(map(str, resumed))}" if resumed else ""
    remark = f"runtime {summary['runtime']}, seed {summary['seed']}{again}"
    return Fact("Time", number(summary["seconds"], ".1f") + " s", remark)


def _measured(summary: Mapping[str, Any]) -> Fact:
    """What the sites of a private run measured on held-out rows, with its interval and its share of the budget."""
    has_accuracy = summary["held_out_accuracy"] is not None
    name, key = ("Accuracy", "held_out_accuracy") if has_accuracy else ("Clipped loss", "held_out_loss")
    cost = f"for {evaluation_share(summary['privacy']):.3g} of the budget in mu^2"
    remark = f"{_between(summary, 'held_out_')}, on {summary['held_out_rows']:,} held-out rows, {cost}"
    return Fact(f"{name} at the sites", number(summary[key]), remark)


def evaluation_share(privacy: Mapping[str, Any] | None) -> float:
    """The share of the evaluation at the sites in the budget of a run, in mu^2; 0 without one."""
    spent = privacy or {}
    return (spent.get("mu_evaluation") or 0.0) ** 2 / (spent.get("mu") or math.inf) ** 2


def _errors(summary: Mapping[str, Any]) -> Fact:
    """The errors of a regression on the rows that the sites hold out."""
    remark = (
        f"mean absolute error {summary['held_out_mae']:.4g}, R^2 {number(summary['held_out_r2'])}, on "
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


# --- several runs


def results(study: Study) -> list[Section]:
    """A row for each curve: mean +- standard deviation over the seeds; without the columns that no run measured."""
    if study.alone:
        return []
    score = score_heading([run.summary for run in study.runs])
    rows = [_row(curve, score) for curve in study.curves]
    names = dict.fromkeys(chain.from_iterable(rows))
    kept = [name for name in names if any(row.get(name, "-") != "-" for row in rows)]
    cells = [[row.get(name, "-") for name in kept] for row in rows]
    return [Section("Results", tables=[Table(kept, cells, " ".join(_remarks(study)))])]


def _remarks(study: Study) -> Iterator[str]:
    if any(len(curve.runs) > 1 for curve in study.curves):
        yield "Mean +- standard deviation over the seeds."
    if any(run.summary["privacy"] for run in study.runs):
        yield "Epsilon is the largest that a site spent in any of the runs."


def score_heading(summaries: Sequence[Mapping[str, Any]]) -> str:
    """The heading of the test scores of runs, which names them by what they are."""
    kinds = sorted({score_of(summary) for summary in summaries}, reverse=True)
    return f"test {' or '.join(kinds or ['accuracy'])}"


def _row(curve: CurveRuns, score: str) -> dict[str, str]:
    """The row of a curve by heading; score: that of the test scores. Only the first three if no run has finished."""
    finished = [summary for summary in curve.summaries if summary["finished"]]
    failed = len(curve.runs) - len(finished)
    first = {
        "curve": curve.name,
        "algorithm": curve.config.algorithm,
        "runs": f"{len(curve.runs)}{f' ({failed} failed)' if failed else ''}",
    }
    if not finished:
        return first
    return first | {
        "rounds": str(finished[0]["rounds"]),
        score: spread(finished, "test_accuracy", ".4f"),
        "objective": spread(finished, "objective", ".5g"),
        "optimality": spread(finished, "optimality", ".2g"),
        "nonzeros": spread(finished, "nonzeros", ".0f"),
        "uplink Mbit": spread(finished, "uplink_bits", ".3g", 1e-6),
        "epsilon": _epsilon([run["privacy"] for run in finished]),
        "seconds": spread(finished, "seconds", ".1f"),
    }


def _epsilon(privacy: list[dict[str, Any] | None]) -> str:
    """The largest epsilon that a client actually spent in any of the runs, as text."""
    private = [p for p in privacy if p is not None]
    if not private:
        return "-"
    if any(p["epsilon"] is None for p in private):
        return "no guarantee"
    worst = max(private, key=lambda p: p["epsilon"])
    return f"{worst['epsilon']:.4g} (delta {worst['delta']:g}; attacker right {best_guess(worst['mu']):.0%})"


def spread(runs: Sequence[Mapping[str, Any]], key: str, form: str, unit: float = 1.0) -> str:
    """Mean +- standard deviation; a dash if a run did not measure the value, such as optimality without reference."""
    if any(run[key] is None for run in runs):
        return "-"
    values = unit * np.array([run[key] for run in runs], dtype=float)
    if len(values) < 2:
        return f"{values.mean():{form}}"
    deviation = values.std(ddof=1)
    return f"{values.mean():{form}} +- {deviation * (deviation > _ROUNDING * np.abs(values).max()):{form}}"
