"""The attack: find what tells neighbours apart most, learn to tell them apart, and count successes on new runs.

Data sets and messages are chosen, and the attack is learned, on other runs than those that are counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from twinflower.errors import require
from twinflower.privacy.accountant import check_count, check_probability
from twinflower.privacy.distinguish import distance, special_scores
from twinflower.privacy.evidence import Evidence, Pair, Runs, of_all, of_one_round, promise

from .cases import Case
from .features import Features, Leak, changing, leaks
from .recorder import recording
from .transcript import Transcript

_FAR_LARGER = 10.0
_LEAST = {"screening": 2, "trying": 20, "learning": 40, "counting": 40, "certain": 2}


@dataclass(frozen=True)
class Effort:
    """How much an audit runs. A run is all rounds on one data set, and there are as many on each of two.

    screening: runs of every pair of data sets under every kind of message. trying: runs of the strongest pair under
    every kind of message, by which they are chosen. learning: runs from which the attack is learned. counting: new runs
    on which its successes are counted. certain: runs that must agree before something counts as the same in every run.
    confidence: with which all bounds hold together.
    """

    screening: int = 6
    trying: int = 60
    learning: int = 300
    counting: int = 1000
    certain: int = 200
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_count(name, getattr(self, name))
            require(
                getattr(self, name) >= least, f"{name} must be at least {least}; got {getattr(self, name)}"
            )
        check_probability("confidence", self.confidence)


class Candidate(NamedTuple):
    """Data sets and messages by name. strength: how far apart a few runs on both are, in deviations of their noise.
    error: one of the replies if all of them are errors, otherwise empty."""

    messages: str
    pair: str
    strength: float
    error: str = ""


class Attack(NamedTuple):
    """What was achieved.

    leaks: what tells the data sets apart in every run. evidence: lower bounds over all rounds. one_round: a bound from
    one round alone; None after a leak. chosen: what was attacked. screened: all that was tried. changing: texts and
    single numbers that change from run to run on the same data.
    """

    leaks: Sequence[Leak]
    evidence: Sequence[Evidence]
    one_round: Evidence | None
    chosen: Candidate
    screened: Sequence[Candidate]
    changing: Sequence[str] = ()

    @property
    def unanswered(self) -> str:
        """A reply if all that were screened are errors, so that nothing was attacked; otherwise empty."""
        return self.chosen.error if all(candidate.error for candidate in self.screened) else ""

    @property
    def epsilon(self) -> float:
        """The largest lower bound on epsilon; infinite for a leak."""
        return math.inf if self.leaks else max(found.epsilon for found in self.evidence)

    @property
    def mu(self) -> float:
        """The largest lower bound on mu; infinite for a leak."""
        return math.inf if self.leaks else max(found.mu for found in self.evidence)


def attack(case: Case, effort: Effort) -> Attack:
    """Attack a case under all its messages and on all its pairs."""
    with recording(), np.errstate(all="ignore"):
        screened = [_screened(case, *names, effort) for names in product(case.mechanisms, case.pairs)]
        candidates = [candidate for candidate, _ in screened]
        for candidate in [candidate for candidate, leaking in screened if leaking]:
            if sure := leaks(*_both(case, candidate, range(effort.certain)), case.public):
                return Attack(sure, [], None, candidate, candidates)
        found = _counted(case, candidates, effort)
        runs, _ = _both(case, found.chosen, range(effort.screening))
        return found._replace(changing=changing(runs))


def _both(case: Case, names: Sequence[Any], seeds: range) -> tuple[list[Transcript], list[Transcript]]:
    """Runs on both data sets of a candidate with the same seeds."""
    mechanism = case.mechanisms[names[0]]
    first, second = ([mechanism(data, seed) for seed in seeds] for data in case.pairs[names[1]])
    return first, second


def _screened(case: Case, messages: str, pair: str, effort: Effort) -> tuple[Candidate, bool]:
    """A candidate with its strength, and whether it may leak."""
    runs = _both(case, (messages, pair), range(effort.screening))
    candidate = Candidate(messages, pair, _strength(*runs, case.public), _error([*runs[0], *runs[1]]))
    return candidate, bool(leaks(*runs, case.public))


def _error(runs: Sequence[Transcript]) -> str:
    """An error among the replies if all of them are errors."""
    errors = [outcome.form.get("error", "") for run in runs for outcome in run]
    return errors[0] if all(errors) else ""


def _strength(first: Sequence[Transcript], second: Sequence[Transcript], public: frozenset[str]) -> float:
    """How far the runs on both data sets are apart, in deviations of their noise.

    Usually the distance of the means over all rounds, where the numbers of a round are taken to have the same noise. If
    it is far larger, it is the distance in a number that has little noise, or in two that share theirs.
    """
    features = Features.of(first, second, public)
    one, other = (np.stack([features.values(run) for run in side]) for side in (first, second))
    moved, variance = other.mean(0) - one.mean(0), (one.var(0, ddof=1) + other.var(0, ddof=1)) / 2
    noisy = [(features.rounds == t) & (variance > 0) for t in np.unique(features.rounds)]
    parts = [float((moved[here] ** 2).sum() / variance[here].mean()) for here in noisy if here.any()]
    usual = math.sqrt(sum(parts))
    special = max(distance(score(one), score(other)) for score in special_scores(one, other))
    return special if special > _FAR_LARGER * usual else usual


@dataclass(frozen=True)
class _Learned:
    """What is known of a candidate from the runs of which it was learned."""

    candidate: Candidate
    features: Features
    runs: Pair

    @classmethod
    def of(cls, case: Case, candidate: Candidate, seeds: range) -> "_Learned":
        """From runs with these seeds, of which the first third shows what to look at."""
        first = range(seeds.start, seeds.start + len(seeds) // 3)
        features = Features.of(*_both(case, candidate, first), case.public)
        return cls(candidate, features, _played(case, candidate, features, range(first.stop, seeds.stop)))


def _played(case: Case, candidate: Candidate, features: Features, seeds: range) -> Pair:
    """Runs on both data sets with the same seeds, of which only the features are stored."""
    mechanism = case.mechanisms[candidate.messages]

    def runs_on(data: Any) -> Runs:
        runs = (mechanism(data, seed) for seed in seeds)
        rows = [(features.values(run), features.energies(run), _form(run)) for run in runs]
        values, energies, forms = zip(*rows, strict=True)
        return Runs(np.stack(values), np.stack(energies), forms)

    first, second = case.pairs[candidate.pair]
    return runs_on(first), runs_on(second)


def _form(run: Transcript) -> tuple[Any, ...]:
    return tuple(tuple(sorted(outcome.form.items())) for outcome in run)


def _counted(case: Case, candidates: Sequence[Candidate], effort: Effort) -> Attack:
    """The attack on the data sets and under the messages that promise most."""
    strongest = [
        max((c for c in candidates if c.messages == messages), key=lambda c: c.strength)
        for messages in case.mechanisms
    ]
    seeds = _consecutive(effort.screening, effort.trying, effort.learning, effort.counting)
    tried = [_Learned.of(case, candidate, seeds[0]) for candidate in strongest]
    best = max(tried, key=lambda one: promise(one.runs, one.features.rounds)).candidate
    learned = _Learned.of(case, best, seeds[1])
    new = _played(case, best, learned.features, seeds[2])
    rest = learned.features.rounds, case.claim.delta, 1 - effort.confidence
    return Attack(
        [], of_all(learned.runs, new, *rest), of_one_round(learned.runs, new, *rest), best, candidates
    )


def _consecutive(start: int, *counts: int) -> list[range]:
    """Ranges of so many seeds, one after the other."""
    ends = np.cumsum([start, *counts]).tolist()
    return [range(first, end) for first, end in pairwise(ends)]
