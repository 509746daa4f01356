"""The evaluation of models on the rows that the clients of a run hold out, and what a run keeps and shows of it:
columns of metrics.csv, scores.csv, checkpoints. `held_out_question` says what the clients send."""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from ..arrays import Array
from ..data.columns import Target
from ..errors import require
from ..known_objectives import SURVIVAL
from ..models.discrimination import Bins, ClassBins, ClassTable, ScoreTable
from ..models.evaluation import COLUMNS, ERROR_COLUMNS, INTERVAL, OWN_MODEL, SCORE_COLUMNS, private_columns
from ..models.intervals import LEVEL, share_interval
from ..models.score_bins import Counted, ScoreBins
from ..models.survival import TimeGrid
from ..models.time_auc import TimeBins, TimeTable
from ..privacy.guard import Guard
from ..privacy.mechanism import evaluation_draws, secret
from ..privacy.plan import EVALUATION, Plan, PlannedRelease
from ..privacy.release import Release
from ..privacy.target import Target as Budgeted
from ..problems.discrete_cox import interval_ends
from .held_out_question import Found, HeldOutQuestion
from .held_out_settings import check_bins, check_evaluation, check_scores, released
from .model_question import SiteAnswer
from .query import Answers, ModelQuery, Run, Table
from .survival import check_persons

SCORES_COLUMNS = ("client", "low", "high", "negatives", "positives", "predicted", "squared", "sigma")
CLASS_SCORES_COLUMNS = ("client", "class", *SCORES_COLUMNS[1:])
TIME_SCORES_COLUMNS = ("client", "time", "low", "high", "events", "censored", "sigma")
Rows = Iterator[dict[str, Any]]
FILE = "scores.csv"


class HeldOutAnswers(Answers):
    """The metrics of every evaluation, and the counts of the last one."""

    known_columns = (*COLUMNS, *INTERVAL, *SCORE_COLUMNS, *ERROR_COLUMNS)
    known_files = (FILE,)

    @property
    def columns(self) -> Sequence[str]:
        """See `Answers`."""
        own = self.run.config.evaluation
        scores = SCORE_COLUMNS if own.bins else ()
        if self.run.plan:
            return (*private_columns(own.loss_bound), *scores)
        personal = (OWN_MODEL,) if self.run.method.personal else ()
        return (*COLUMNS, *personal, *scores, *(ERROR_COLUMNS if own.errors else ()))

    def row(self, found: Found | None) -> dict[str, float]:
        """The values of `columns`, NaN without answers; errors in units of the label. The mean of the scores by site is
        that of the sites' own models."""
        known = dict(found.metrics) if found else {}
        if found and found.by_site:
            known[OWN_MODEL] = fmean(found.by_site.values())
        units = dict.fromkeys(ERROR_COLUMNS[1:], self._unit)
        return {name: known.get(name, np.nan) * units.get(name, 1) for name in self.columns}

    @property
    def _unit(self) -> float:
        """What the labels are divided by: half the width of the range in a schema, else 1."""
        schema = self.run.dataset.schema
        return schema.label.range.half if schema and isinstance(schema.label, Target) else 1.0

    def kept(self, before: Found | None, found: Found) -> Found:
        """The counts by bin are those of an earlier round, if there are none now."""
        return found._replace(scores=found.scores or before.scores) if before else found

    def files(self, found: Found) -> Iterator[Table]:
        """The counts of every client by bin."""
        if found.scores:
            yield FILE, *_tabulated(found.scores)

    @classmethod
    def read(cls, rows: Sequence[Mapping[str, str]]) -> dict[int, Counted]:
        """The tables by client."""
        if not rows:
            return {}
        columns, read = {frozenset(own): (own, read) for own, _, read in _FORMS.values()}[frozenset(rows[0])]
        found: dict[int, list[list[float]]] = {}
        for row in rows:
            found.setdefault(int(row["client"]), []).append([float(row[key]) for key in columns[1:]])
        return {client: read(np.array(own)) for client, own in found.items()}

    @classmethod
    def summarised(cls, found: Found | None) -> dict[str, Any]:
        """See `Answers`."""
        scores = found.by_site if found else {}
        return {"held_out_by_site": {f"{site}": own for site, own in scores.items()} or None}

    @classmethod
    def stored(cls, found: Found) -> Any:
        """See `Answers`."""
        return [dict(found.metrics), _to_records(found.scores), list(found.by_site.items())]

    @classmethod
    def restored(cls, stored: Any) -> Found:
        """See `Answers`."""
        metrics, scores, sites = stored
        return Found(metrics, _from_records(scores), dict(sites))


def _tabulated(scores: Mapping[int, Counted]) -> tuple[Sequence[str], Rows]:
    """The columns and the rows of these tables by client, at least one, all of one kind."""
    columns, rows, _ = _FORMS[type(next(iter(scores.values())))]
    return columns, (
        dict(zip(columns, (client, *row), strict=True))
        for client, table in scores.items()
        for row in rows(table)
    )


def _bin_rows(table: ScoreTable) -> Iterator[tuple[float, ...]]:
    for low, high, cells in zip(table.edges[:-1], table.edges[1:], table.cells.T, strict=True):
        yield low, high, *cells, table.sigma


def _by_class(table: ClassTable) -> Iterator[tuple[float, ...]]:
    for place, own in enumerate(table.classes):
        for row in _bin_rows(own):
            yield place, *row


def _by_time(table: TimeTable) -> Iterator[tuple[float, ...]]:
    """By interval of time and bin; those beyond the last time are censored in an interval without an end."""
    number, bins = len(table.times), table.cells.shape[1]
    events = np.vstack([table.cells[:number], np.zeros((1, bins))])
    for time, had, lost in zip([*table.times, np.inf], events, table.cells[number:], strict=True):
        for low, high, *counts in zip(table.edges[:-1], table.edges[1:], had, lost, strict=True):
            yield time, low, high, *counts, table.sigma


def _of_two(rows: Array) -> ScoreTable:
    """The table from the rows (bins, 7)."""
    return ScoreTable(rows.T[2:6], np.append(rows[:, 0], rows[-1, 1]), float(rows[0, 6]))


def _of_classes(rows: Array) -> ClassTable:
    """The table from the rows (classes * bins, 8)."""
    parts = [_of_two(own[:, 1:]) for own in np.split(rows, int(rows[-1, 0]) + 1)]
    return ClassTable(np.stack([own.cells for own in parts]), *parts[0][1:])


def _of_times(rows: Array) -> TimeTable:
    """The table from the rows ((T + 1) * bins, 6)."""
    times = np.unique(rows[:, 0])
    parts = rows.reshape(len(times), -1, 6)
    cells = np.vstack([parts[:-1, :, 3], parts[:, :, 4]])
    return TimeTable(cells, np.append(parts[0, :, 1], parts[0, -1, 2]), times[:-1], float(rows[0, 5]))


_FORMS: dict[Any, tuple[Sequence[str], Any, Any]] = {  # table -> columns, its rows, and the table from rows
    ScoreTable: (SCORES_COLUMNS, _bin_rows, _of_two),
    ClassTable: (CLASS_SCORES_COLUMNS, _by_class, _of_classes),
    TimeTable: (TIME_SCORES_COLUMNS, _by_time, _of_times),
}


def _to_records(scores: Mapping[int, Any]) -> list[Any]:
    """The tables by client as values of JSON."""
    return [
        [client, type(own).__name__, *(np.asarray(part).tolist() for part in own)]
        for client, own in scores.items()
    ]


def _from_records(stored: list[Any]) -> dict[int, Any]:
    """Inverse of `_to_records`."""
    kinds: dict[str, Any] = {kind.__name__: kind for kind in _FORMS}
    return {client: kinds[kind](*map(np.array, arrays), sigma) for client, kind, *arrays, sigma in stored}


# --- the question


def score_bins(config: Any, num_classes: int) -> ScoreBins:
    """The kind and the number of bins of a run on this number of classes, 0 of regression and survival; no bins for a
    run without them."""
    number = config.evaluation.bins
    if number and config.evaluation.auc_times:
        return TimeBins(number, times=tuple(interval_ends(config.evaluation.auc_times) or ()))
    return ClassBins(number, classes=num_classes) if number and num_classes > 2 else Bins(number)


def fineness(bins: ScoreBins) -> int:
    """How many bins a site's policy sees: half the counts of a histogram, two for every bin of two classes."""
    return math.prod(bins.shape) // (2 * bins.histograms)


class HeldOut(ModelQuery):
    """The evaluation of models on the rows that clients hold out."""

    kind = HeldOutQuestion
    name = kind.name
    reported = HeldOutAnswers
    follows, otherwise = "scores on held-out rows", "set evaluation.held-out to 0"

    @classmethod
    def of(cls, run: Run) -> "HeldOut | None":
        """See `SiteQuery`."""
        return cls(run) if run.held is not None else None

    check_settings = staticmethod(check_evaluation)

    @cached_property
    def question(self) -> HeldOutQuestion:  # type: ignore[override]
        """See `ModelQuery`."""
        run, own = self.run, self.run.config.evaluation
        assert run.held is not None
        bins, sizes = score_bins(run.config, run.dataset.num_classes), run.held.sizes.tolist()
        rounds = [own.round for own in self.releases] or range(run.config.rounds + 1)

        def odds(x: Array) -> Array:
            """The scores of public reference rows."""
            return bins.scores(run.objective, x, run.reference_rows)

        return HeldOutQuestion(rounds, bins, odds, own.errors, own.loss_bound, sizes)

    @property
    def releases(self) -> list[PlannedRelease]:
        """The evaluations of a private run."""
        return self.run.plan.releases.of_kind(EVALUATION) if self.run.plan else []

    def release(self, client: int) -> Release:
        """What a private client releases after a round."""
        assert self.run.plan
        return self.question.release(self.question.sizes[client], self.run.plan.unit)

    def charged(self, plan: Plan, target: Budgeted) -> Plan:
        """The plan with the evaluations."""
        return plan.with_evaluation(released(self.run.config), np.flatnonzero(self.question.sizes), target)

    def check(self) -> None:
        """See `SiteQuery`."""
        config, classes = self.run.config, self.run.dataset.num_classes
        require(
            not self.run.plan or bool(classes or config.evaluation.loss_bound),
            "a private evaluation counts correct predictions, so it needs classes, and these labels are numbers: set "
            "evaluation.loss-bound, to which the losses that it releases are clipped",
        )
        require(
            not (config.evaluation.errors and (classes or config.objective.name in SURVIVAL)),
            "evaluation.errors are those of a regression, and these labels are classes or times of survival: set it "
            "to false",
        )
        if config.evaluation.bins and config.objective.name not in SURVIVAL:
            check_bins(config.objective.name, classes)

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        bins = self.question.bins
        if not (bins.number or self.question.errors):
            return
        check_scores(site, fineness(bins), self.question.sizes[client])
        if isinstance(bins, TimeBins):
            rows = self.run.held_rows(client)
            assert rows is not None
            cells = TimeGrid(bins.times).counts(rows.labels)
            check_persons(site, cells, "evaluation.auc-times")

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        bins, found = self.question.bins, {}
        if bins.number or self.question.errors:
            found["score-rows"] = 1
        if bins.number:
            found["score-bins"] = fineness(bins)
        persons = {"survival-rows": 1, "survival-cell": 1} if isinstance(bins, TimeBins) else {}
        return found | persons

    def sigma(self, client: int) -> float:
        """See `ModelQuery`."""
        return self.releases[0].multiplier * self.release(client).spread if self.releases else 0.0

    def answer(self, client: int, guard: Guard | None, site: Any = None) -> SiteAnswer | None:
        """See `ModelQuery`; a private client without held-out rows has no answer."""
        if guard is None or not self.releases:
            return SiteAnswer(replace(self.question, least_cell=site.survival_cell if site else 0))
        if not self.asks(client):
            return None
        draws = (lambda round_: secret) if guard.secret else evaluation_draws(self.run.config.seed, client)
        counting = guard.counting(self.releases[0].multiplier, draws)
        return SiteAnswer(self.question, counting, self.release(client))

    def draws(self, client: int, round_: int) -> Any:
        """See `ModelQuery`."""
        return evaluation_draws(self.run.config.seed, client)(self.question.charged_as(round_))

    def asks(self, client: int) -> bool:
        """See `ModelQuery`."""
        return not self.releases or bool(self.question.sizes[client])

    # --- before the run

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        bins, bound, rows = self.question.bins, self.question.bound, sum(self.question.sizes)
        sigma = self._total_sigma / (
            bins.weight if bins.number else 1.0
        )  # of the sum, which a release multiplies
        low, high = share_interval(rows / 2, rows, sigma)
        unit = "mean clipped loss" if bound else "accuracy"
        text = (
            f"{_after([own.round for own in self.releases])}, on {rows} held-out rows with noise of {sigma:.4g} in the "
            f"total: {unit} to +- {(high - low) / 2 * (bound or 1.0):.3g} at {LEVEL:.0%} in the worst case"
            f"{_by_bin(bins, self._total_sigma)}"
        )
        assert self.run.plan
        spent = _share_of_budget(self.run.plan)
        return [("evaluation at the clients", text), ("spent by evaluation", spent)]

    @property
    def _total_sigma(self) -> float:
        """The standard deviation of the noise in the sum of all clients' releases."""
        return math.hypot(*(self.sigma(int(client)) for client in np.flatnonzero(self.question.sizes)))

    def noise_rows(self) -> list[tuple[str, ...]]:
        """See `SiteQuery`."""
        if not self.releases:
            return []
        client, last = max(range(len(self.question.sizes)), key=self.sigma), self.releases[-1]
        numbers = last.multiplier, self.release(client).sensitivity, last.weight, self.sigma(client)
        return [("evaluation", str(last.round), str(client), *(f"{number:.6g}" for number in numbers))]


_HOW = {
    1: "in parallel with training: a record pays for one of the two",
    2: "in addition to training: a group can be in both parts",
}


def _after(rounds: Sequence[int]) -> str:
    if len(rounds) == 1:
        return f"after round {rounds[0]}"
    return f"after {len(rounds)} rounds, {rounds[0]} to {rounds[-1]}"


def _by_bin(bins: ScoreBins, sigma: float) -> str:
    """What the plan says about counts by bin, with noise of this deviation in the total; empty without them."""
    if not bins.number:
        return ""
    what = "time in {} bins of the risk" if isinstance(bins, TimeBins) else "class in {} bins of the score"
    return f"; half of the cost is for counts by {what.format(bins.number)}, each with noise of {sigma:.4g}"


def _share_of_budget(plan: Plan) -> str:
    """The share of the budget that the evaluations take, and whether it adds to the cost of training."""
    share = plan.cost(EVALUATION).max() / (plan.mu_limit**2 + plan.mu_tuning**2)
    return f"{share:.3g} of the budget in mu^2, {_HOW[plan.unit.parts]}"


def split(run: Any, client: int) -> str:
    """The identity of the division of a client's rows, by which its ledger recognises what is paid in parallel.

    It depends on all settings of the run, so no other run shares it, even if a server gives both the same session.
    Empty if there is no evaluation. Not shortened, because the server chooses the settings and could look for two with
    the same short digest.
    """
    if not (run.plan and run.plan.releases.of_kind(EVALUATION)):
        return ""
    return hashlib.sha256(f"{client} {run.config.result_digest}".encode()).hexdigest()
