"""Tuning on private rows, charged: successive halving of candidates within a share of the privacy budget.

    [run.privacy]
    epsilon = 2.0          of everything: candidates, their scores, and the final run
    tune-share = 0.3       the part of this budget, in mu^2, that the candidates and their scores take
    [tune]
    seeds = [100]          one seed; every further one would cost as much again
    by = "accuracy"

Each candidate trains on a part of every client's rows, with noise. After every stage the candidates are scored by noisy
counts of correct predictions on the others, and the better half goes on; the length of training doubles from stage to
stage. Before a candidate's stage begins, every client charges it to its ledger. If a ledger refuses, the tuning ends
with the best candidate so far.

Every record pays for every candidate, whether that candidate is chosen or not: the server sees all of them. A record is
either trained on or counted (`twinflower.privacy.plan`), and a stage costs the larger of the two costs; here both are
equal. A group of records can be partly trained on and partly counted, and pays for both.

Sources. Halving: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013; Jamieson and
Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016. The smaller cost of
an attacker who sees only the winner (Liu and Talwar 2019; Papernot and Steinke 2022) is not claimed: it needs a random
number of candidates, and here the server sees all of them.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from flwr.app import Context, RecordDict

from twinflower.arrays import Array, Index
from twinflower.errors import RunError, SettingError, require
from twinflower.privacy import Budget, gdp_epsilon
from twinflower.privacy.charges import BudgetSpent, Ledger
from twinflower.privacy.guard import Guard
from twinflower.privacy.mechanism import Draws
from twinflower.privacy.plan import TUNING, Plan, PlannedRelease
from twinflower.privacy.release import Release
from twinflower.privacy.unit import Unit
from twinflower.problems.interfaces import Batch
from twinflower.queries.held_out_question import correct
from twinflower.randomness import normals, stream
from twinflower.rounds import Outcome

from ..runs.client_factory import ledger_of
from ..runs.privacy import make_plan
from ..runs.setup import PreparedRun, prepare
from ..runtimes.cohort import Cohort
from ..runtimes.computing import computing
from ..settings import Config
from .validation import split


class Stage(NamedTuple):
    """A stage of the halving: so many candidates train up to this share of their rounds."""

    candidates: int
    share: float

    def rounds(self, all_rounds: int) -> int:
        """The round with which the stage ends, for a candidate of so many rounds."""
        return math.ceil(self.share * all_rounds)


def stages(candidates: int) -> list[Stage]:
    """The stages of the halving: ceil(n / 2^s) candidates in stage s, until two are left, which train to the end."""
    if not candidates >= 1:
        raise SettingError(f"there must be at least one candidate; got {candidates}")
    counts = [candidates]
    while counts[-1] > 2:
        counts.append(-(-counts[-1] // 2))
    return [Stage(n, 2.0 ** (place - len(counts) + 1)) for place, n in enumerate(counts)]


def cost_of_one(halving: Sequence[Stage], fractions: Sequence[float], budget: float) -> float:
    """What a candidate costs that trains to the end, with its scores, if all together cost `budget`, in mu^2.

    fractions: for each stage, the largest part of a client's training cost that lies in it, over all candidates and
    clients. Every round of every candidate gets the same part of the budget.
    """
    return budget / math.fsum(s.candidates * part for s, part in zip(halving, fractions, strict=True))


def score_releases(
    one: float, fractions: Sequence[float], unit: Unit, clients: Index
) -> list[PlannedRelease]:
    """For each stage, what every candidate of it releases, with these fractions of its cost `one`."""
    parts = float(unit.parts)
    return [
        PlannedRelease(TUNING, stage, clients, parts, math.sqrt(parts / (one * part)))
        for stage, part in enumerate(fractions)
    ]


class Accuracy(NamedTuple):
    """An estimated accuracy and the standard deviation of its noise; the rows themselves are not sampled anew."""

    value: float
    deviation: float

    @classmethod
    def of(cls, counts: Array, sigmas: Array, rows: Index) -> "Accuracy":
        """The accuracy from the noisy counts (N,) with deviations sigmas (N,) of clients with these numbers of rows."""
        total = int(rows.sum())
        return cls(float(counts.sum()) / total, math.sqrt(float((sigmas**2).sum())) / total)


NO_SCORE = Accuracy(-np.inf, 0.0)


@dataclass
class Candidate:
    """A configuration in training: its text for users, its run on the kept rows, and its latest score."""

    text: str
    setup: PreparedRun
    score: Accuracy = NO_SCORE
    reached: int = 0
    _outcomes: Iterator[Outcome] | None = field(default=None, repr=False)

    @property
    def plan(self) -> Plan:
        """The plan of its noise."""
        return plan_of(self.setup)

    @property
    def rank(self) -> tuple[int, float]:
        """What the best candidate has most of: the rounds up to which it was trained, then the latest score."""
        return self.reached, self.score.value

    def ends(self, candidates: int) -> list[int]:
        """The last round of every stage, if so many candidates are halved."""
        return [stage.rounds(self.setup.config.rounds) for stage in stages(candidates)]

    def train(self, last: int) -> Array:
        """Train up to round `last`, which is later than `reached`; return the model (d,)."""
        cohort = Cohort([self.setup])
        self._outcomes = self._outcomes or cohort.rounds(self.setup.config.rounds)
        with computing(), np.errstate(all="ignore"):
            for _ in range(last - self.reached):
                outcome = next(self._outcomes)
        self.reached = last
        return cohort.models(outcome.server)[0]  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Counted:
    """The rows of every client for the counts, and how many of them are protected together."""

    rows: list[Batch]
    group: int

    @property
    def sizes(self) -> Index:
        """The number of rows of every client (N,)."""
        return np.array([len(rows.labels) for rows in self.rows])

    @property
    def replaced(self) -> Index:
        """How far a client's count can move (N,), at least 1, because a release has a sensitivity above 0."""
        return np.maximum(np.minimum(self.group or self.sizes, self.sizes), 1)

    def accuracy(self, setup: PreparedRun, x: Array, noises: Sequence[Array], multiplier: float) -> Accuracy:
        """The accuracy of the model x (d,) from counts with this noise (1,) of every client."""
        pairs = zip(self.rows, noises, strict=True)
        counts = np.concatenate([correct(setup.objective, x, rows) + noise for rows, noise in pairs])
        return Accuracy.of(counts, self.sigmas(multiplier), self.sizes)

    def sigmas(self, multiplier: float) -> Array:
        """The standard deviation of every client's count (N,)."""
        return multiplier * self.replaced.astype(np.float64)


@dataclass(frozen=True)
class Charged:
    """A charged tuning that is ready to run.

    total: the run whose budget is divided; its plan has the noise of the final run. halving: the stages. scores: for
    each of them, what every candidate of it releases. name: the run under which the ledgers charge the tuning.
    """

    total: PreparedRun
    candidates: list[Candidate]
    counted: Counted
    halving: list[Stage]
    scores: list[PlannedRelease]
    name: str

    @classmethod
    def of(cls, points: Sequence[tuple[str, Config]], share: float, seed: int) -> "Charged":
        """Plan the tuning of configurations, which must have the same data, privacy and clients.

        share: the share of every client's rows for the counts. Raises SettingError if they cannot be tuned.
        """
        total = prepare(replace(points[0][1], seed=seed))
        _, rows = split(total, share)
        candidates = [_candidate(place, *point, share, seed) for place, point in enumerate(points)]
        _check(total, candidates)
        halving, fractions, unit = stages(len(candidates)), _fractions(candidates), total.config.privacy.unit
        one = cost_of_one(halving, fractions, plan_of(total).mu_tuning ** 2)
        scores = score_releases(one, fractions, unit, np.arange(len(rows)))
        for own in candidates:
            own.setup = replace(own.setup, plan=_scaled(own.plan, float(np.sqrt(one / unit.parts))))
        words = repr([sorted(config.items().items()) for _, config in points]) + repr((share, seed))
        name = "tune-" + hashlib.sha256(words.encode()).hexdigest()[:16]
        return cls(total, candidates, Counted(rows, unit.rows), halving, scores, name)

    @property
    def releases(self) -> list[PlannedRelease]:
        """All that the tuning releases: the score of every candidate of every stage."""
        return [
            own for stage, own in zip(self.halving, self.scores, strict=True) for _ in range(stage.candidates)
        ]

    def announced(self) -> list[str]:
        """What will run and what it costs: a line for every stage, and the total."""
        plan, ends = plan_of(self.total), [0, *self.candidates[0].ends(len(self.candidates))]
        lines = [
            f"stage {place + 1}: {stage.candidates} candidates, rounds {ends[place] + 1} to {ends[place + 1]}, noise "
            f"multiplier {self._noise:.4g}, scores +- {self._deviation(place):.3f}, mu^2 "
            f"{stage.candidates * cost_of(self.scores[place]):.4g}"
            for place, stage in enumerate(self.halving)
        ]
        mu = math.sqrt(math.fsum(map(cost_of, self.releases)))
        return [
            *lines,
            f"tuning in total: mu^2 {mu**2:.4g}, epsilon {gdp_epsilon(mu, plan.delta):.4g} at delta {plan.delta:g}",
            f"final run: {self.total.config.rounds} rounds, noise multiplier {plan.multipliers.max():.4g}, mu^2 "
            f"{plan.mu_limit**2:.4g}; with tuning epsilon {plan.epsilon_limit:.4g} at delta {plan.delta:g}",
        ]

    @property
    def _noise(self) -> float:
        """The largest noise multiplier of any candidate's client."""
        return float(np.max([own.plan.multipliers.max() for own in self.candidates]))

    def _deviation(self, place: int) -> float:
        """The standard deviation of the noise in a score of this stage."""
        sigmas = self.counted.sigmas(self.scores[place].multiplier)
        return Accuracy.of(np.zeros_like(sigmas), sigmas, self.counted.sizes).deviation

    def run(self, say: Callable[[str], None]) -> list[Candidate]:
        """Train, score and halve the candidates; return all, best first. `say` gets a line for every score."""
        ledgers, number, alive = self._ledgers(), 0, self.candidates
        for place, stage in enumerate(self.halving):
            alive = _best_first([own for own in alive if not place or np.isfinite(own.score.value)])
            alive = alive[: stage.candidates]
            for candidate in alive:
                number += 1
                try:
                    noises = self._charge(candidate, place, number, ledgers)
                except BudgetSpent as short:
                    say(
                        f"{candidate.text}: not trained, because {short}; the tuning ends with the best so far"
                    )
                    return _best_first(self.candidates)
                score = self._score(candidate, place, noises)
                say(f"{candidate.text}: accuracy {score.value:.3f} +- {score.deviation:.3f}")
        return _best_first(self.candidates)

    def _ledgers(self) -> list[Ledger]:
        """Every client's ledger: in output.state-dir, or for this tuning only."""
        clients = range(self.total.config.clients.count)
        return [ledger_of(self.total, number, Context(0, number, {}, RecordDict(), {})) for number in clients]

    def _charge(
        self, candidate: Candidate, place: int, number: int, ledgers: Sequence[Ledger]
    ) -> list[Array]:
        """Charge a candidate's stage to all clients; return the noise (1,) of their counts.

        number: of the charge, from 1. Raises BudgetSpent if a ledger refuses.
        """
        budget, unit = Budget(plan_of(self.total).mu_tuning ** 2), self.total.config.privacy.unit
        noises = []
        for client, (ledger, replaced) in enumerate(zip(ledgers, self.counted.replaced, strict=True)):
            guard = Guard(
                candidate.plan.bounds, self.scores[place].multiplier, budget, ledger,
                _draws(candidate.setup.config.seed, client), run=self.name, config=candidate.setup.config.digest,
            )  # fmt: skip
            noises.append(guard.open(Release(float(replaced), unit.parts), number)(np.zeros(1)))
        return noises

    def _score(self, candidate: Candidate, place: int, noises: Sequence[Array]) -> Accuracy:
        """Train a candidate for a stage and release the counts of its correct predictions; -inf if it diverges."""
        try:
            x = candidate.train(candidate.ends(len(self.candidates))[place])
        except RunError:
            candidate.score = NO_SCORE
        else:
            multiplier = self.scores[place].multiplier
            candidate.score = self.counted.accuracy(candidate.setup, x, noises, multiplier)
        return candidate.score


def cost_of(release: PlannedRelease) -> float:
    """What a score costs every client, in mu^2."""
    return float(release.weight) / release.multiplier**2


def plan_of(setup: PreparedRun) -> Plan:
    """The plan of a private run."""
    assert setup.plan is not None
    return setup.plan


def _best_first(candidates: Sequence[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda own: own.rank, reverse=True)


def _draws(seed: int, client: int) -> Callable[[int], Draws]:
    return lambda number: lambda draw, shape: normals(seed, "tuning", client, number, shape[-1])


def _check(total: PreparedRun, candidates: Sequence[Candidate]) -> None:
    """SettingError for a run whose tuning cannot be charged."""
    require(
        bool(total.dataset.num_classes),
        "a charged tuning counts correct predictions, so it needs classes; these labels are numbers",
    )
    require(
        len({_shared(own.setup.config) for own in candidates}) == 1,
        "the candidates of a charged tuning share a budget: leave data, clients, partition, privacy and evaluation out "
        "of the grid",
    )
    for own in candidates:
        ends = own.ends(len(candidates))
        if len(set(ends)) != len(ends):
            raise SettingError(
                f"{len(candidates)} candidates are halved in {len(ends)} stages, each longer than the one before: that "
                f"needs more than {own.setup.config.rounds} rounds, or fewer candidates"
            )


def _shared(config: Config) -> tuple[object, ...]:
    """The settings that all candidates must have in common."""
    return config.data, config.clients, config.partition, config.privacy, config.evaluation


def _candidate(place: int, text: str, config: Config, share: float, seed: int) -> Candidate:
    """A candidate on the kept rows, whose noise is that of multiplier 1.

    All candidates keep the same rows. Batches, samples and noise are drawn from a seed of the candidate's own, because
    equal noise would cancel in the difference of two candidates.
    """
    config = config.put({"privacy.epsilon": 0.0, "privacy.noise-multiplier": 1.0, "privacy.tune-share": 0.0})
    setup, _ = split(prepare(replace(config, seed=seed)), share)
    config = replace(setup.config, seed=int(stream(seed, "tuning", place).integers(2**63)))
    plan = make_plan(config, setup.algorithm, setup.objective, setup.schedule, setup.partition.sizes)
    return Candidate(text, replace(setup, config=config, plan=plan))


def _scaled(plan: Plan, mu: float) -> Plan:
    """The plan with noise such that every client that takes part spends exactly mu."""
    now = plan.mu_trained
    return replace(plan, multipliers=plan.multipliers * np.where(now > 0, now, 1.0) / mu, mu_limit=mu)


def _fractions(candidates: Sequence[Candidate]) -> list[float]:
    """For each stage, the largest part of a client's training cost that lies in it, over candidates and clients."""
    parts = [_parts(own, len(candidates)) for own in candidates]
    return [float(np.max(stage)) for stage in zip(*parts, strict=True)]


def _parts(candidate: Candidate, candidates: int) -> list[Array]:
    """For each stage, the part (N,) of every client's cost that lies in it."""
    plan, config = candidate.plan, candidate.setup.config
    spent = [
        plan.so_far((t, config.asked(t)) for t in range(1, end + 1)).units_trained
        for end in (0, *candidate.ends(candidates))
    ]
    return [(late - early) / np.maximum(plan.units_trained, 1e-300) for early, late in pairwise(spent)]
