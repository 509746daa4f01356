"""Evidence against a claim of privacy: attacks learned on some runs of a mechanism and counted on others.

Everything is chosen on the runs `learned`, and the bounds hold for the runs `counted`, with the probability of error
`alpha` for each. Both are pairs of `Runs` on two neighbouring data sets; run i of both had the same seed.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from .accountant import gdp_epsilon
from .distinguish import LinearScore, best_threshold, counted, distance, looks_normal
from .lower_bounds import Counts, epsilon_of_rates, mu_of_means, mu_of_rates, mu_of_shift

_KNOWN = 1e-3  # relative range of a shift up to which it is known
_DIRECTIONS = 2  # of every round
_UNEQUAL = 1.25  # ratio of two deviations from which they are not taken as equal


class Runs(NamedTuple):
    """n runs on a data set: the released numbers (n, q), sums of squares of every round (n, rounds), and all that is
    not a number, as one value per run."""

    values: Array
    energies: Array
    forms: Sequence[Any]

    def half(self, which: int) -> "Runs":
        """Every second run, from run `which` on."""
        return Runs(self.values[which::2], self.energies[which::2], self.forms[which::2])

    def of(self, columns: Array) -> "Runs":
        """The runs with some of the released numbers only."""
        return self._replace(values=self.values[:, columns])


Pair = tuple[Runs, Runs]


class Evidence(NamedTuple):
    """Lower bounds: how they were found; epsilon at the claimed delta; and mu. gaussian: whether they hold for Gaussian
    noise only. perfect: whether the attack was right in every run, so that more runs would show more."""

    how: str
    epsilon: float
    mu: float = 0.0
    gaussian: bool = False
    perfect: bool = False


def smaller(one: Evidence, again: Evidence) -> Evidence:
    """The smaller bounds of evidence that was counted twice."""
    return one._replace(
        how=f"{one.how} (the smaller of two counts)",
        epsilon=min(one.epsilon, again.epsilon),
        mu=min(one.mu, again.mu),
        perfect=one.perfect and again.perfect,
    )


def linear_score(learned: Pair, rounds: Array) -> LinearScore:
    """The score of the released numbers. rounds: of these numbers (q,).

    All numbers; or only those on the directions in which rounds move most, because fewer are estimated with less error;
    or two numbers that share their noise. The choice is what is best on half of the runs after learning on the others.
    """
    train, test = _halves(learned)
    options: list[Callable[[Pair], LinearScore]] = [
        _of_all_numbers,
        _of_shared_noise,
        partial(_of_directions, rounds=rounds),
    ]
    best = max(options[: 3 if rounds.size else 1], key=lambda score: distance(*_scores(score(train), test)))
    return best(learned)


def _of_all_numbers(learned: Pair) -> LinearScore:
    return LinearScore.learned(learned[0].values, learned[1].values)


def _of_shared_noise(learned: Pair) -> LinearScore:
    return LinearScore.of_shared_noise(learned[0].values, learned[1].values)


def _of_directions(learned: Pair, rounds: Array) -> LinearScore:
    basis = _directions(learned, rounds)
    first, second = (side.values for side in learned)
    small = LinearScore.learned(first @ basis, second @ basis)
    return LinearScore(basis @ small.weights, (first.mean(0) + second.mean(0)) / 2)


def _directions(learned: Pair, rounds: Array) -> Array:
    """The directions (q, k rounds): in every round the k <= 2 in which the means of all rounds move most."""
    moved = learned[1].values.mean(0) - learned[0].values.mean(0)
    parts = [rounds == t for t in np.unique(rounds)]
    longest = max((int(part.sum()) for part in parts), default=0)
    stacked = np.zeros((len(parts), longest))
    for row, part in zip(stacked, parts, strict=True):
        row[: part.sum()] = moved[part]
    main = np.linalg.svd(stacked, full_matrices=False)[2][:_DIRECTIONS]
    return np.concatenate(
        [np.where(part[:, None], main.T[np.cumsum(part) - 1], 0.0) for part in parts], axis=1
    )


def _halves(learned: Pair) -> tuple[Pair, Pair]:
    first, second = learned
    return (first.half(0), second.half(0)), (first.half(1), second.half(1))


def _scores(score: LinearScore, pair: Pair) -> tuple[Array, Array]:
    return score(pair[0].values), score(pair[1].values)


def energy_score(learned: Pair) -> LinearScore:
    """The score of the sums of squares, which finds noise whose scale depends on the data."""
    return LinearScore.learned(learned[0].energies, learned[1].energies)


def separation(learned: Pair, rounds: Array) -> float:
    """How far apart the scores of both data sets are, in deviations; learned on half of the runs, on the other half."""
    train, test = _halves(learned)
    energies = [energy_score(train)(side.energies) for side in test]
    return max(distance(*_scores(linear_score(train, rounds), test)), distance(*energies))


def of_all(learned: Pair, new: Pair, rounds: Array, delta: float, alpha: float) -> list[Evidence]:
    """Everything that is tried; all bounds hold at once with the probability of error alpha.

    Half of alpha is for the bound for Gaussian noise; the six others (two thresholds for each of two scores, the forms,
    and a single round) share the other half.
    """
    each = alpha / 12
    linear, energy = linear_score(learned, rounds), energy_score(learned)
    values, new_values = (_scores(linear, pair) for pair in (learned, new))
    energies, new_energies = ((energy(pair[0].energies), energy(pair[1].energies)) for pair in (learned, new))
    return [
        of_normal(*new_values, delta, 6 * each),
        of_thresholds("released numbers", values, new_values, delta, each),
        of_thresholds("sizes of the released numbers", energies, new_energies, delta, each),
        of_forms(learned, new, delta, each),
        of_one_round(learned, new, rounds, delta, each),
    ]


def of_normal(first: Array, second: Array, delta: float, alpha: float) -> Evidence:
    """The bound if scores on both data sets (n,) are normal with the same deviation, as for Gaussian noise; nothing if
    they do not look so. It is no bound for other noise, even if the scores look normal: a mean of Laplace noise has
    heavier tails than are seen in so many runs.

    If runs with the same seed differ by the same shift on both data sets, noise is replayed, and the shift is known;
    otherwise the means of runs with different seeds are compared.
    """
    if not _normal(first, second):
        none = "no bound for Gaussian noise: the scores are not normal with one deviation"
        return Evidence(none, 0.0, gaussian=True)
    moved = second - first
    low, high = float(moved.min()), float(moved.max())
    if low > 0 and high - low <= _KNOWN * high:
        how, mu = "Gaussian noise, with the exact shift of replayed runs", mu_of_shift(low, first, alpha)
    else:
        how, mu = (
            "Gaussian noise, with the means of independent runs",
            mu_of_means(first[::2], second[1::2], alpha),
        )
    epsilon = gdp_epsilon(mu, delta) if delta else math.inf if mu else 0.0
    return Evidence(how, epsilon, mu, gaussian=True)


def _normal(first: Array, second: Array) -> bool:
    deviations = sorted((float(first.std()), float(second.std())))
    equal = deviations[0] > 0 and deviations[1] <= _UNEQUAL * deviations[0]
    return equal and looks_normal(first) and looks_normal(second)


def of_thresholds(
    what: str, learned: tuple[Array, Array], new: tuple[Array, Array], delta: float, alpha: float
) -> Evidence:
    """Bounds from how often a score exceeds a threshold, without any assumption on the mechanism: one threshold for
    epsilon and another for mu, each with alpha."""
    found = [counted(*new, best_threshold(*learned, goal, alpha)) for goal in (delta, None)]
    how = f"successes of a threshold on the {what}"
    return _of_counts(how, found[0], delta, alpha)._replace(mu=mu_of_rates(found[1], alpha))


def _of_counts(how: str, counts: Counts, delta: float, alpha: float) -> Evidence:
    perfect = counts.hits == counts.seconds and not counts.alarms
    return Evidence(how, epsilon_of_rates(counts, delta, alpha), mu_of_rates(counts, alpha), perfect=perfect)


def of_forms(learned: Pair, new: Pair, delta: float, alpha: float) -> Evidence:
    """A bound from all that is not a number: kinds of replies, shapes, texts. An attack says "second" to what was more
    frequent on the second data set."""
    first, second = (list(side.forms) for side in learned)
    typical = {form for form in second if second.count(form) > first.count(form)}
    hits, alarms = (sum(form in typical for form in side.forms) for side in reversed(new))
    counts = Counts(hits, len(new[1].forms), alarms, len(new[0].forms))
    return _of_counts("successes of kinds of replies, shapes and texts", counts, delta, alpha)


def certain_score(learned: Pair, rounds: Array) -> LinearScore | None:
    """A score that is positive in all learned runs on the second data set and in none on the first; None if there is
    none. Its noise, if any, need not be normal: it may be the rounding of two numbers in which the noise is the
    same."""
    score = linear_score(learned, rounds)
    first, second = _scores(score, learned)
    gap = float(second.min() - first.max())
    return score.above(float(first.max()) + gap / 2) if gap > 0 else None


def of_certain(what: str, counts: Counts, delta: float, alpha: float) -> Evidence:
    """The bound from how often something showed that was in all runs on the second data set and in none on the
    first."""
    return _of_counts(
        f"successes of {what}, in {counts.seconds} new runs on each data set", counts, delta, alpha
    )


def of_one_round(learned: Pair, new: Pair, rounds: Array, delta: float, alpha: float) -> Evidence:
    """The bound for Gaussian noise from the round that reveals most by itself. rounds: of the released numbers (q,)."""
    if not rounds.size:
        return Evidence("no numbers are released", 0.0, gaussian=True)
    found = []
    for t in np.unique(rounds):
        here = rounds == t
        old, later = ((pair[0].of(here), pair[1].of(here)) for pair in (learned, new))
        score = linear_score(old, rounds[here])
        found.append((distance(*_scores(score, old)), int(t), _scores(score, later)))
    _, best, scores = max(found, key=lambda one: one[0])
    bound = of_normal(*scores, delta, alpha)
    return bound._replace(how=f"round {best} alone: {bound.how}")
