"""One-line messages about runs: progress, results, and the privacy spent; and the observer that prints them."""

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinflower.models.facts import Facts
from twinflower.models.intervals import LEVEL

from ..settings.experiment import Curve, Experiment
from .console import console, say
from .labels import score, score_of
from .sections.results import evaluation_share, spread
from .study import CurveRuns, StoredRun, Study

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_DIGITS = re.compile(r"[\d.,]*\d(e[-+]?\d+)?")
_MOST_NAMES = 5  # curves that are named beside a warning


def row_line(row: dict[str, float], score: str = "accuracy") -> str:
    """The progress line for an evaluated round, given as a row of metrics.csv; score: "accuracy" or "R^2"."""
    found, central = measured(row, score), ""
    if not math.isnan(row["objective"]):  # the server has rows
        central = f"  objective {row['objective']:.5g}"
    if central and not math.isnan(row["test_accuracy"]):
        central += f"  test {score} {row['test_accuracy']:.4f}"
    at_sites = f"  {found}" if found else ""
    return f"round {row['round']:>4}{central}{at_sites}  nonzeros {row['nonzeros']}"


def measured(row: Mapping[str, Any], score: str = "accuracy") -> str:
    """What the clients measured on held-out rows, with the interval of a private run; empty if they measured nothing.

    row: of metrics.csv, or a summary. score: as in `row_line`.
    """
    for column, name in (("accuracy", score), ("loss", "loss")):
        value, low, high = (row.get(f"held_out_{key}") for key in (column, "low", "high"))
        if value is not None and math.isfinite(value):
            interval = "" if low is None else f" ({LEVEL:.0%} interval {low:.4f} to {high:.4f})"
            return f"held-out {name} {value:.4f}{interval}{_area(row)}{_errors(row)}"
    return ""


def _errors(row: Mapping[str, Any]) -> str:
    """The errors of a regression in a row of metrics.csv or a summary; empty if they were not measured."""
    mae, rmse = (row.get(f"held_out_{name}") for name in ("mae", "rmse"))
    if mae is None or rmse is None or not math.isfinite(rmse):
        return ""
    return f", mean absolute error {mae:.4g}, RMSE {rmse:.4g}"


def _area(row: Mapping[str, Any]) -> str:
    """The area under the ROC curve in a row of metrics.csv or a summary; empty if it was not measured."""
    value, low, high = (row.get(f"held_out_auc{end}") for end in ("", "_low", "_high"))
    if value is None or not math.isfinite(value):
        return ""
    return f", AUC {value:.4f} ({low:.4f} to {high:.4f})"


def evaluated(summary: Mapping[str, Any], several: bool = False) -> list[str]:
    """What the clients of a private run measured in the end, and what this cost, in one line; empty if nothing.

    several: whether the line names the run's seed.
    """
    share = evaluation_share(summary["privacy"])
    text = measured(summary, score_of(summary))
    seed = f", seed {summary['seed']}" if several else ""
    if not (text and share):
        return []
    return [
        f"at the clients{seed}: {text} on {summary['held_out_rows']} rows, for {share:.3g} of the budget in mu^2"
    ]


def warnings(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The warnings of a curve's runs, and why they ended before the last planned round, without duplicates."""
    texts = [text for own in summaries for text in (*own["warnings"], own["ended"])]
    return [text for text in dict.fromkeys(filter(None, texts)) if f"warning: {text}" not in texts]


def repeated(study: Study) -> list[str]:
    """The warnings of an experiment of several curves, each once with the curves that have it.

    Warnings that differ in their numbers only count as one, and are shown as the first curve has them.
    """
    alike: dict[str, list[tuple[str, str]]] = {}
    for curve in study.curves if len(study.curves) > 1 else ():
        for text in warnings(curve.summaries):
            alike.setdefault(_DIGITS.sub("#", text), []).append((curve.name, text))
    return [_of_curves(len(study.curves), *zip(*found, strict=True)) for found in alike.values()]


def _of_curves(curves: int, names: Sequence[str], texts: Sequence[str]) -> str:
    names = list(dict.fromkeys(names))
    if len(names) == 1:
        return f"{names[0]}: {texts[0]}"
    numbers = "" if len({*texts}) == 1 else f" (in {names[0]}; the numbers of the others differ)"
    more = f"; and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    which = f"{len(names)} of {curves} curves ({'; '.join(names[:_MOST_NAMES])}{more})"
    return f"{f'all {curves} curves' if len(names) == curves else which}: {texts[0]}{numbers}"


def guarantee(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """The guarantee of the run that spent the most privacy, including failed runs; empty without private runs."""
    private = [run for run in summaries if run["privacy"] and run["privacy"]["mu"] != 0]
    worst = max(private, key=lambda run: _mu(run["privacy"]), default=None)
    if worst is None:
        nothing = any(run["privacy"] for run in summaries)
        return ["privacy: nothing was released, and nothing is charged"] if nothing else []
    spent = worst["privacy"]
    return _in_short(spent, worst["rounds"]) if spent["mu"] else [f"privacy: {spent['guarantee']}"]


def _mu(spent: Mapping[str, Any]) -> float:
    return math.inf if spent["mu"] is None else spent["mu"]  # type: ignore[no-any-return]


def _in_short(spent: Mapping[str, Any], rounds: int) -> list[str]:
    """The guarantee, and what it means for an attacker; the entry `guarantee` of summary.json has all conditions."""
    replaced, alone = spent["unit"].split(", ")[-1], ""
    period = {0: "all that it sent", 1: "1 round"}.get(rounds, f"all {rounds} rounds")
    if "epsilon_alone" in spent:
        alone = f", against {spent['attacker']}; epsilon {spent['epsilon_alone']:.4g} against everybody else together"
    seeded = "; simulation: the noise is seeded, not secret" if "seeded" in spent["guarantee"] else ""
    return [
        f"privacy: epsilon {spent['epsilon']:.4g} at delta {spent['delta']:g} for each client over {period}, "
        f"under {replaced} (mu {spent['mu']:.4g}){alone}{seeded}",
        "an attacker who must choose between two candidates for it is right at most "
        f"{spent['attacker_accuracy']:.1%} of the time (a guess: 50%)",
    ]


def bounds(satisfied: bool, excess: float) -> str:
    """Whether a constrained model satisfies its bounds, as text."""
    met = ("met" if excess <= 0 else "met within the tolerance") if satisfied else "NOT met"
    return f"bounds {met} ({excess:+.3g} from the limit)"


def closing(curve: CurveRuns, named: bool) -> list[str]:
    """The results of a curve's finished runs, mean and standard deviation over the seeds; empty if none finished.

    named: whether they begin with the curve's name.
    """
    ended = [run for run in curve.runs if run.summary["finished"]]
    runs = [run.summary for run in ended]
    if not runs:
        return []
    name = f"{curve.name}: " if named else ""
    rows = Facts.of(runs[0]["facts"] or {}).sentence  # how many were trained on, and why not the others
    parts = [name + _reached(runs, curve.planned), _bounds(ended), _lost(runs), rows]
    printed = runs[0]["runtime"] == "flower"  # by the server app, whose output the command repeats
    return [
        "; ".join(filter(None, parts)),
        *filter(None, [runs[0].get("outcome")]),
        *(line for run in runs for line in evaluated(run, len(runs) > 1) if not printed),
    ]


def _reached(runs: Sequence[dict[str, Any]], planned: int) -> str:
    """The results of these runs in one line; planned: the number of seeds in the experiment."""
    first, seeds = runs[0], ""
    if planned > 1:
        all_ = "" if len(runs) == planned else f"{len(runs)} of "
        seeds = f", {all_}{planned} seeds, mean +- standard deviation"
    score = f"test {score_of(first)}"
    base = first["majority_baseline"]
    beside = "" if base is None else f" (majority class: {base:.4f})"
    return (
        f"{first['algorithm']} on {first['dataset']}{seeds}: {score} {spread(runs, 'test_accuracy', '.4f')}{beside}, "
        f"{spread(runs, 'nonzeros', '.1f' if len(runs) > 1 else '.0f')} of {first['parameters']} entries nonzero, "
        f"{spread(runs, 'seconds', '.1f')} s"
    )


def _bounds(runs: Sequence[StoredRun]) -> str:
    """Whether a constrained model satisfies its bounds with every seed, as text; empty for other models."""
    met = [run.summary["bounds_met"] for run in runs]
    if met[0] is None:
        return ""
    return bounds(all(met), max(run.rows[-1]["excess"] for run in runs))


def _lost(runs: list[dict[str, Any]]) -> str:
    """The number of rejected replies over all seeds, as text; empty if there are none."""
    lost = sum(run["rejected_replies"] or 0 for run in runs)
    return f"{lost} replies left out" if lost else ""


def broken(study: Study) -> list[str]:
    """The curves that violate a bound, in one line; empty if there are none. A violated bound is not an error."""
    parts = []
    for curve in study.curves:
        violating = [run for run in curve.runs if run.summary["bounds_met"] is False]
        if excesses := [run.rows[-1]["excess"] for run in violating]:
            parts.append(
                f"{curve.name} ({len(excesses)} of {curve.planned} seeds, by up to {max(excesses):.3g})"
            )
    return [f"bounds NOT met: {'; '.join(parts)}"] if parts else []


@dataclass
class Terminal:
    """An observer that shows a progress bar on a terminal, plain lines elsewhere, and the results of every curve."""

    plan: Experiment
    folder: Path
    bar: "tuple[Progress, TaskID] | None" = field(default=None, init=False)

    def line(self, text: str) -> None:
        """See `Observer`."""
        say(text)

    @contextmanager
    def following(self, label: str, rounds: int) -> Iterator[None]:
        """See `Observer`. On a terminal this shows a progress bar."""
        if not sys.stdout.isatty():
            yield
            return
        from rich.progress import Progress

        with Progress(console=console()) as progress:
            self.bar = progress, progress.add_task(label, total=rounds)
            yield
        self.bar = None

    def row(self, row: dict[str, Any]) -> None:
        """See `Observer`."""
        self.reached(row["round"])
        if not self.bar and self.plan.single:
            print(row_line(row, score(self.plan.curves[0].config)), flush=True)

    def reached(self, rounds: int) -> None:
        """See `Observer`."""
        if self.bar:
            progress, task = self.bar
            progress.update(task, completed=rounds)

    def ended(self, curve: Curve, summaries: Sequence[Mapping[str, Any]], stored: bool = True) -> None:
        """See `Observer`."""
        if stored:
            several = len(self.plan.curves) > 1
            if not several:  # the warnings of several stand together at the end, see `repeated`
                say(*(f"{curve.label}: {text}" for text in warnings(summaries)))
            say(*closing(CurveRuns.of_curve(self.plan, self.folder, curve), several))
        say(*guarantee(summaries))
