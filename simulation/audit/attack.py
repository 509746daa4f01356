"""The attack: find what tells neighbours apart most, learn to tell them apart, and count successes on new runs.

Data sets and messages are chosen, and the attack is learned, on other runs than those that are counted. What exceeds
the claim is counted again on further runs, and the smaller bound is reported: a claim that holds is accused only if two
independent counts are wrong. Runs on both data sets take turns in random order, so that what drifts with time (clocks,
counters) is not taken for an effect of the data.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, TypeVar

import numpy as np

from twinflower.arrays import Array
from twinflower.errors import require
from twinflower.privacy.accountant import check_count, check_probability
from twinflower.privacy.distinguish import distance, special_scores
from twinflower.privacy.evidence import Evidence, Pair, Runs, of_all, of_leak, separation, smaller
from twinflower.privacy.lower_bounds import Counts, runs_to_exceed

from .cases import Case
from .features import Features, Leak, changing, leaks
from .recorder import recording
from .transcript import Transcript, same

T = TypeVar("T")
_FAR_LARGER = 10.0
_LEAK_SHARE = 1 / 8  # of the probability of error: for what is the same in every run
_SEEDS = 10**6  # from one `Effort.seed` to the next
_LEAST = {"screening": 2, "trying": 20, "learning": 40, "counting": 40, "certain": 2, "most": 1}


@dataclass(frozen=True)
class Effort:
    """How much an audit runs. A run is all rounds on one data set, and there are as many on each of two.

    screening: runs of every pair of data sets under every kind of message. trying: runs of the strongest pair under
    every kind of message, by which they are chosen. learning: runs from which the attack is learned. counting: new runs
    on which its successes are counted. certain: runs that must agree before something may be the same in every run.
    most: runs that may be made to show that it is: about 6 e^epsilon against a claim of epsilon. confidence: with which
    all bounds hold together. seed: another number (from 0) gives other runs.
    """

    screening: int = 6
    trying: int = 60
    learning: int = 300
    counting: int = 1000
    certain: int = 200
    most: int = 10_000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            check_count(name, getattr(self, name))
            require(
                getattr(self, name) >= least, f"{name} must be at least {least}; got {getattr(self, name)}"
            )
        check_probability("confidence", self.confidence)
        require(0 <= self.seed < 4000, f"seed must be from 0 to 3999; got {self.seed}")


class Candidate(NamedTuple):
    """Data sets and messages by name. strength: how far apart a few runs on both are, in deviations of their noise.
    void: why they show nothing, such as an error in every reply; otherwise empty."""

    messages: str
    pair: str
    strength: float
    void: str = ""


class Attack(NamedTuple):
    """What was achieved.

    evidence: lower bounds over all rounds; they hold together. chosen: what was attacked. screened: all that was tried.
    leaks: what was the same in all runs on a data set and another on its neighbour; proven: whether so many runs
    contradict the claim. assumed: bounds that hold only if the noise is Gaussian, which the case does not declare.
    errors: why the counted runs say nothing, if most of their replies are errors. changing: texts and single numbers
    that change from run to run on the same data. replayed: whether the first run, made again at the end, had the same
    result.
    """

    evidence: Sequence[Evidence]
    chosen: Candidate
    screened: Sequence[Candidate]
    leaks: Sequence[Leak] = ()
    proven: bool = False
    assumed: Sequence[Evidence] = ()
    errors: str = ""
    changing: Sequence[str] = ()
    replayed: bool = True

    @property
    def void(self) -> str:
        """Why nothing was audited; otherwise empty."""
        if all(candidate.void for candidate in self.screened):
            return self.chosen.void
        return self.errors

    @property
    def epsilon(self) -> float:
        """The largest lower bound on epsilon."""
        return max(found.epsilon for found in self.evidence)

    @property
    def mu(self) -> float:
        """The largest lower bound on mu."""
        return max(found.mu for found in self.evidence)


class _Seeds:
    """Seeds that no run had before."""

    def __init__(self, seed: int) -> None:
        self._next = seed * _SEEDS

    def take(self, number: int) -> range:
        """So many seeds."""
        self._next += number
        return range(self._next - number, self._next)


def attack(case: Case, effort: Effort) -> Attack:
    """Attack a case under all its messages and on all its pairs."""
    seeds = _Seeds(effort.seed)
    with recording(), np.errstate(all="ignore"):
        few = seeds.take(effort.screening)
        names = list(product(case.mechanisms, case.pairs))
        begin = _observed(case, names[0], 0, few[0])
        screened = [_screened(case, *one, few) for one in names]
        found = _attacked(case, screened, effort, seeds)
        runs, _ = _both(case, found.chosen, few)
        end = _observed(case, names[0], 0, few[0])
        return found._replace(changing=changing(runs), replayed=same(begin, end))


def _attacked(
    case: Case, screened: Sequence[tuple[Candidate, bool]], effort: Effort, seeds: _Seeds
) -> Attack:
    """The first leak that contradicts the claim, or else the strongest attack."""
    candidates = [candidate for candidate, _ in screened]
    leaking = [candidate for candidate, leaks_ in screened if leaks_]
    weaker = None
    for candidate in leaking:
        found = _leaking(case, candidate, effort, seeds, len(leaking))
        if found and found.proven:
            return found._replace(screened=candidates)
        weaker = weaker or found
    found = _counted(case, candidates, effort, seeds)
    if weaker:
        return found._replace(leaks=weaker.leaks, evidence=[*found.evidence, *weaker.evidence])
    return found


def _observed(case: Case, names: Sequence[Any], which: int, seed: int) -> Transcript:
    """What a run on data set `which` of a pair shows, without what is public."""
    run = case.mechanisms[names[0]](case.pairs[names[1]][which], seed)
    return [outcome.without(case.public) for outcome in run]


def _unchanged(run: Transcript) -> Any:
    return run


def _both(
    case: Case, names: Sequence[Any], seeds: range, read: Callable[[Transcript], T] = _unchanged
) -> tuple[list[T], list[T]]:
    """What `read` finds in runs on both data sets with the same seeds; which one is first is random."""
    sides: tuple[list[T], list[T]] = [], []
    for seed in seeds:
        first = int(np.random.default_rng([seed, 0]).integers(2))
        for which in (first, 1 - first):
            sides[which].append(read(_observed(case, names, which, seed)))
    return sides


def _leaking(case: Case, candidate: Candidate, effort: Effort, seeds: _Seeds, tests: int) -> Attack | None:
    """The bound from what is the same in all runs of a candidate, one of `tests`; None if nothing is.

    So many new runs are made as contradict the claim; as many as otherwise if that is more than `most`.
    """
    sure = leaks(*_both(case, candidate, seeds.take(effort.certain)))
    if not sure:
        return None
    alpha = (1 - effort.confidence) * _LEAK_SHARE / tests
    needed = runs_to_exceed(*case.claim[:2], alpha)

    def count(new: range) -> list[Evidence]:
        first, second = _both(case, candidate, new, lambda run: all(leak.on_second(run) for leak in sure))
        counts = Counts(sum(second), len(second), sum(first), len(first))
        return [of_leak(counts, case.claim.delta, alpha)]

    number = needed if needed <= effort.most else effort.counting
    evidence = _twice(case, count, lambda: seeds.take(number))
    return Attack(evidence, candidate, [], sure, proven=case.claim.refuted_by(evidence[0].epsilon))


def _twice(case: Case, count: Callable[[range], list[Evidence]], new: Callable[[], range]) -> list[Evidence]:
    """Evidence from new runs. If it contradicts the claim, it is counted again, and the smaller bounds are taken."""
    found = count(new())
    if not any(case.claim.refuted_by(one.epsilon) for one in found if case.gaussian or not one.gaussian):
        return found
    return list(map(smaller, found, count(new())))


def _screened(case: Case, messages: str, pair: str, seeds: range) -> tuple[Candidate, bool]:
    """A candidate with its strength, and whether it may leak."""
    runs: tuple[list[Transcript], list[Transcript]] = _both(case, (messages, pair), seeds)
    return Candidate(messages, pair, _strength(*runs), _void(*runs)), bool(leaks(*runs))


def _void(first: Sequence[Transcript], second: Sequence[Transcript]) -> str:
    """Why runs cannot tell anything: all replies are errors, or equal for equal seeds; otherwise empty."""
    errors = [outcome.form.get("error", "") for run in [*first, *second] for outcome in run]
    if all(errors):
        return f"every reply is an error: {errors[0]}"
    return "the rows do not change any reply" if all(map(same, first, second)) else ""


def _strength(first: Sequence[Transcript], second: Sequence[Transcript]) -> float:
    """How far the runs on both data sets are apart, in deviations of their noise.

    Usually the distance of the means over all rounds, where the numbers of a round are taken to have the same noise. If
    it is far larger, it is the distance in a number that has little noise, or in two that share theirs.
    """
    features = Features.of(first, second)
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
        features = Features.of(*_both(case, candidate, first))
        return cls(candidate, features, _played(case, candidate, features, range(first.stop, seeds.stop)))


def _played(case: Case, candidate: Candidate, features: Features, seeds: range) -> Pair:
    """Runs on both data sets with the same seeds, of which only the features are stored."""

    def read(run: Transcript) -> tuple[Array, Array, Any]:
        return features.values(run), features.energies(run), _form(run)

    first, second = (_runs(side) for side in _both(case, candidate, seeds, read))
    return first, second


def _runs(rows: Sequence[tuple[Array, Array, Any]]) -> Runs:
    values, energies, forms = zip(*rows, strict=True)
    return Runs(np.stack(values), np.stack(energies), forms)


def _form(run: Transcript) -> tuple[Any, ...]:
    return tuple(tuple(sorted(outcome.form.items())) for outcome in run)


def _counted(case: Case, candidates: Sequence[Candidate], effort: Effort, seeds: _Seeds) -> Attack:
    """The attack on the data sets and under the messages that separate most."""
    strongest = [
        max((c for c in candidates if c.messages == messages), key=lambda c: c.strength)
        for messages in case.mechanisms
    ]
    new = seeds.take(effort.trying)
    tried = [_Learned.of(case, candidate, new) for candidate in strongest]
    best = max(tried, key=lambda one: separation(one.runs, one.features.rounds)).candidate
    learned = _Learned.of(case, best, seeds.take(effort.learning))
    errors: list[str] = []

    def count(new: range) -> list[Evidence]:
        runs = _played(case, best, learned.features, new)
        errors.append(_mostly_errors(runs))
        alpha = (1 - effort.confidence) * (1 - _LEAK_SHARE)
        return of_all(learned.runs, runs, learned.features.rounds, case.claim.delta, alpha)

    found = _twice(case, count, lambda: seeds.take(effort.counting))
    assumed = [one for one in found if one.gaussian and not case.gaussian]
    evidence = [one for one in found if one not in assumed]
    return Attack(evidence, best, candidates, assumed=assumed, errors=max(errors))


def _mostly_errors(runs: Pair) -> str:
    """A sentence if most replies are errors; otherwise empty."""
    replies = [dict(reply) for side in runs for replies_ in side.forms for reply in replies_]
    errors = [reply["error"] for reply in replies if "error" in reply]
    if 2 * len(errors) <= len(replies):
        return ""
    return f"{len(errors)} of the {len(replies)} counted replies are errors, such as {errors[-1]}"
