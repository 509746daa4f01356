"""The attack: find what best distinguishes neighbours, learn to use it, and count successes on new runs.

Data sets and messages are chosen, and the attack is learned, on other runs than those that are counted. What exceeds
the claim is counted again on further runs, and the smaller bound is reported: a claim that holds is accused only if two
independent counts are wrong. Runs on both data sets take turns in random order, so that what drifts with time (clocks,
counters) is not taken for an effect of the data.

For apps whose training takes too long to be repeated a thousand times, `attack_once` audits a single run: many records,
the canaries, are included by coins of their own, and the attack guesses the coins (`twinflower.privacy.lower_bounds`).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from twinflower.arrays import Array, Mask
from twinflower.errors import SettingError
from twinflower.privacy.accountant import gdp_epsilon
from twinflower.privacy.distinguish import distance, special_scores
from twinflower.privacy.evidence import (
    Evidence,
    Pair,
    Runs,
    certain_score,
    of_all,
    of_certain,
    separation,
)
from twinflower.privacy.lower_bounds import Counts, best_guesses, epsilon_of_one_run, mu_of_one_run

from .cases import Case
from .data import AS_GIVEN, Rows, either, joined, taken
from .features import Features, Leak, Means, Seen, changing, leaks
from .recorder import recording
from .session import Effort, Seeds, Session, silence, unreported
from .transcript import Transcript, same

_FAR_LARGER = 10.0
_CERTAIN_SHARE = 1 / 8  # of the probability of error: for attacks that were right in every run


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
    contradict the claim. wanted: if an attack was right in every run, but in too few to contradict the claim, how many
    runs would do it; otherwise 0. assumed: bounds that hold only if the noise is Gaussian, which the case does not
    declare. errors: why the counted runs say nothing, if most of their replies are errors. changing: texts and single
    numbers that change from run to run on the same data. replayed: whether the first run, made again at the end, had
    the same result.
    """

    evidence: Sequence[Evidence]
    chosen: Candidate
    screened: Sequence[Candidate]
    leaks: Sequence[Leak] = ()
    proven: bool = False
    assumed: Sequence[Evidence] = ()
    wanted: int = 0
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


def attack(case: Case, effort: Effort, progress: Callable[[str], object] = unreported) -> Attack:
    """Attack a case under all its messages and on all its pairs. What the app prints is discarded. progress: is called
    before every run with a few words on what is being done."""
    session = Session(case, effort, Seeds(effort.seed), progress)
    with recording(), silence(), np.errstate(all="ignore"):
        few = session.seeds.take(effort.screening)
        names = list(product(case.mechanisms, case.pairs))
        begin = session.observed(names[0], 0, few[0])
        screened = [
            _screened(session, *one, few, f"combination {k} of {len(names)}")
            for k, one in enumerate(names, 1)
        ]
        found = _attacked(session, screened)
        runs, _ = session.both(found.chosen, few, "looking for keys", _unchanged)
        end = session.observed(names[0], 0, few[0])
        return found._replace(changing=changing(runs), replayed=same(begin, end))


def _unchanged(run: Transcript) -> Transcript:
    return run


def _attacked(session: Session, screened: Sequence[tuple[Candidate, bool]]) -> Attack:
    """The first leak that contradicts the claim, or else the strongest attack."""
    candidates = [candidate for candidate, _ in screened]
    leaking = [candidate for candidate, may_leak in screened if may_leak]
    alpha = (1 - session.effort.confidence) * _CERTAIN_SHARE / (len(leaking) + 1)
    weaker = None
    for candidate in leaking:
        found = _leaking(session, candidate, alpha)
        if found and found.proven:
            return found._replace(screened=candidates)
        weaker = weaker or found
        if weaker and weaker.wanted:
            break  # another leak would need as many runs
    found = _counted(session, candidates, alpha)
    if weaker:
        evidence = [*found.evidence, *weaker.evidence]
        return found._replace(leaks=weaker.leaks, evidence=evidence, wanted=found.wanted or weaker.wanted)
    return found


def _leaking(session: Session, candidate: Candidate, alpha: float) -> Attack | None:
    """The bound from what is the same in all runs of a candidate; None if nothing is."""
    seen = Seen(), Seen()
    for which, run in session.turns(candidate, session.seeds.take(session.effort.certain), "comparing"):
        seen[which].add(run)
    sure = leaks(*seen)
    if not sure:
        return None
    what = "what was the same in every run"
    found = _certain(session, candidate, lambda run: all(leak.on_second(run) for leak in sure), what, alpha)
    proven = session.refuted_by([found])
    wanted = session.needed(alpha) if found.perfect and not proven else 0
    return Attack([found], candidate, [], sure, proven=proven, wanted=wanted)


def _certain(
    session: Session, candidate: Candidate, shows: Callable[[Transcript], bool], what: str, alpha: float
) -> Evidence:
    """The bound from what showed in all runs on the second data set and in none on the first.

    So many new runs are made as contradict the claim if it does so in all; as many as otherwise if that is more than
    `most`.
    """
    effort, needed = session.effort, session.needed(alpha)

    def count(new: range) -> list[Evidence]:
        first, second = session.both(candidate, new, "counting what was certain", shows)
        counts = Counts(sum(second), len(second), sum(first), len(first))
        return [of_certain(what, counts, session.case.claim.delta, alpha)]

    (found,) = session.twice(count, needed if needed <= effort.most else effort.counting)
    return found


def _screened(session: Session, messages: str, pair: str, seeds: range, doing: str) -> tuple[Candidate, bool]:
    """A candidate with its strength, and whether it may leak."""
    runs = session.both((messages, pair), seeds, doing, _unchanged)
    seen = Seen(), Seen()
    for side, those in zip(seen, runs, strict=True):
        for run in those:
            side.add(run)
    return Candidate(messages, pair, _strength(*runs), _void(*runs)), bool(leaks(*seen))


def _void(first: Sequence[Transcript], second: Sequence[Transcript]) -> str:
    """Why the runs show nothing: all replies are errors, or equal for equal seeds; otherwise empty."""
    errors = [outcome.form.get("error", "") for run in [*first, *second] for outcome in run]
    if all(errors):
        return f"every reply is an error: {errors[0]}"
    return "the rows do not change any reply" if all(map(same, first, second)) else ""


def _strength(first: Sequence[Transcript], second: Sequence[Transcript]) -> float:
    """How far the runs on both data sets are apart, in deviations of their noise.

    Usually the distance of the means over all rounds, where the numbers of a round are taken to have the same noise. If
    it is far larger, it is the distance in a number that has little noise, or in two that share theirs.
    """
    means = Means()
    for which, side in enumerate((first, second)):
        for run in side:
            means.add(which, run)
    features = Features.of(means)
    one, other = (np.stack([features.read(run)[0] for run in side]) for side in (first, second))
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
    def of(cls, session: Session, candidate: Candidate, seeds: range) -> "_Learned":
        """From runs with these seeds, of which the first third shows what to look at."""
        first = range(seeds.start, seeds.start + len(seeds) // 3)
        means = Means()
        for which, run in session.turns(candidate, first, "looking"):
            means.add(which, run)
        features, rest = Features.of(means), range(first.stop, seeds.stop)
        return cls(candidate, features, _played(session, candidate, features, rest, "learning"))


def _played(session: Session, candidate: Candidate, features: Features, seeds: range, doing: str) -> Pair:
    """Runs on both data sets with the same seeds, of which only the features are stored."""

    def read(run: Transcript) -> tuple[Array, Array, Any]:
        return *features.read(run), _form(run)

    first, second = (_runs(side) for side in session.both(candidate, seeds, doing, read))
    return first, second


def _runs(rows: Sequence[tuple[Array, Array, Any]]) -> Runs:
    values, energies, forms = zip(*rows, strict=True)
    return Runs(np.stack(values), np.stack(energies), forms)


def _form(run: Transcript) -> tuple[Any, ...]:
    return tuple(tuple(sorted(outcome.form.items())) for outcome in run)


def _counted(session: Session, candidates: Sequence[Candidate], alpha: float) -> Attack:
    """The attack on the data sets and under the messages that separate most. alpha: of a score that is right in every
    run."""
    case, effort, learned = session.case, session.effort, _best(session, candidates)
    errors: list[str] = []

    def count(new: range) -> list[Evidence]:
        runs = _played(session, learned.candidate, learned.features, new, "counting")
        errors.append(_mostly_errors(runs))
        share = (1 - effort.confidence) * (1 - _CERTAIN_SHARE)
        return of_all(learned.runs, runs, learned.features.rounds, case.claim.delta, share)

    found = session.twice(count, effort.counting)
    wanted = 0
    if not session.refuted_by(found):
        if session.needed(alpha) <= effort.most:
            found = [*found, *_of_certain_score(session, learned, alpha)]
        elif max(found, key=lambda one: one.epsilon).perfect:
            wanted = session.needed(alpha)
    assumed = [one for one in found if one.gaussian and not case.gaussian]
    evidence = [one for one in found if one not in assumed]
    return Attack(evidence, learned.candidate, candidates, assumed=assumed, errors=max(errors), wanted=wanted)


def _best(session: Session, candidates: Sequence[Candidate]) -> _Learned:
    """What separates most, learned."""
    strongest = [
        max((c for c in candidates if c.messages == messages), key=lambda c: c.strength)
        for messages in session.case.mechanisms
    ]
    new = session.seeds.take(session.effort.trying)
    tried = [_Learned.of(session, candidate, new) for candidate in strongest]
    best = max(tried, key=lambda one: separation(one.runs, one.features.rounds)).candidate
    return _Learned.of(session, best, session.seeds.take(session.effort.learning))


def _of_certain_score(session: Session, learned: _Learned, alpha: float) -> list[Evidence]:
    """The bound from a score that separates all learned runs, if there is one: such as the difference of two rounds
    with the same noise."""
    score = certain_score(learned.runs, learned.features.rounds)
    if score is None:
        return []

    def shows(run: Transcript) -> bool:
        return bool(score(learned.features.read(run)[0]) > 0)

    return [_certain(session, learned.candidate, shows, "a score that was right in every run", alpha)]


def _mostly_errors(runs: Pair) -> str:
    """A sentence if most replies are errors; otherwise empty."""
    replies = [dict(reply) for side in runs for replies_ in side.forms for reply in replies_]
    errors = [reply["error"] for reply in replies if "error" in reply]
    if 2 * len(errors) <= len(replies):
        return ""
    return f"{len(errors)} of the {len(replies)} counted replies are errors, such as {errors[-1]}"


# ------------------------------------------------------------------------------------ one run with canaries


def attack_once(case: Case, effort: Effort, progress: Callable[[str], object] = unreported) -> Attack:
    """Guess which canaries a run held; once more, in another run, if that contradicts the claim. Raises SettingError
    for a case without losses."""
    if case.one_run is None:
        raise SettingError(
            f"{case.name}: --canaries needs the losses of the model: pass loss=... to audit.client_case"
        )
    session = Session(case, effort, Seeds(effort.seed), progress)
    errors: list[str] = []

    def count(seeds: range) -> list[Evidence]:
        progress(f"one run with {effort.canaries} canaries")
        return _guessed(case, effort, seeds.start, errors)

    with recording(), silence(), np.errstate(all="ignore"):
        found = session.twice(count, 1)
    chosen = Candidate(AS_GIVEN, f"all rows, and canaries by {effort.canaries} coins", 0.0)
    assumed = [one for one in found if one.gaussian and not case.gaussian]
    evidence = [one for one in found if one not in assumed]
    return Attack(evidence, chosen, [chosen], assumed=assumed, errors=max(errors))


def _guessed(case: Case, effort: Effort, seed: int, errors: list[str]) -> list[Evidence]:
    """What the guesses of one run show."""
    assert case.one_run
    draws = np.random.default_rng([seed, 1])
    coins = draws.random(effort.canaries) < 0.5
    heads, tails = case.one_run.canaries(effort.canaries, draws)
    run = case.one_run.mechanism(_with_canaries(case, heads, tails, coins), seed)
    scores = case.one_run.scores(heads, run)
    if case.claim.relation == "replace":
        scores = scores - case.one_run.scores(tails, run)
    errors.append("" if np.ptp(scores) else "no reply has a model in which the canaries could be seen")
    kinds = [True] if case.gaussian else [False, True]
    alpha = (1 - effort.confidence) / len(kinds)
    return [_shown(scores, coins, case.claim.delta, alpha, gaussian) for gaussian in kinds]


def _shown(scores: Array, coins: Mask, delta: float, alpha: float, gaussian: bool) -> Evidence:
    """What the guesses show of any noise, or of Gaussian noise."""
    if gaussian:
        mu, best = best_guesses(scores, coins, mu_of_one_run, alpha)
        epsilon = gdp_epsilon(mu, delta) if delta else math.inf if mu else 0.0
    else:
        epsilon, best = best_guesses(scores, coins, lambda one, a: epsilon_of_one_run(one, delta, a), alpha)
        mu = 0.0
    how = f"{best.correct} of {best.guesses} guesses right about {best.canaries} canaries in one run"
    return Evidence(how + ", for Gaussian noise" * gaussian, epsilon, mu, gaussian)


def _with_canaries(case: Case, heads: Rows, tails: Rows, coins: Mask) -> Rows:
    """The rows, and canaries: those of heads; under replacement, another in the place of each of tails."""
    assert case.one_run
    replacing = case.claim.relation == "replace"
    return joined(case.one_run.rows, either(coins, heads, tails) if replacing else taken(heads, coins))
