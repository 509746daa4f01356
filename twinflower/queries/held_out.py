"""The evaluation of models on the rows that the clients of a run hold out; `held_out_question` says what they send."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from ..arrays import Array
from ..errors import require
from ..known_objectives import SURVIVAL
from ..models.discrimination import Bins, ClassBins
from ..models.intervals import LEVEL, share_interval
from ..models.score_bins import ScoreBins
from ..models.survival import TimeGrid
from ..models.time_auc import TimeBins
from ..privacy.guard import Guard
from ..privacy.mechanism import evaluation_draws, secret
from ..privacy.plan import EVALUATION, Plan, PlannedRelease
from ..privacy.release import Release
from ..privacy.target import Target as Budgeted
from ..problems.discrete_cox import interval_ends
from .held_out_answers import HeldOutAnswers
from .held_out_question import HeldOutQuestion
from .held_out_settings import check_bins, check_evaluation, check_scores, released
from .model_question import SiteAnswer
from .query import ModelQuery, Run
from .survival import check_persons


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
        return HeldOutQuestion(rounds, bins, self._odds, own.errors, own.loss_bound, sizes)

    def _odds(self, x: Array) -> Array:
        """The scores of public reference rows."""
        return self.question.bins.scores(self.run.objective, x, self.run.reference_rows)

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
