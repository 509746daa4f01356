"""A lower bound on epsilon from a single run in which each of many records, the canaries, depended on a fair coin.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023. Heads and tails may mean that a
record is included or not, or that it is one record or another: the neighbours are then those of adding or removing a
record, or of replacing one.
"""

import math
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Mask
from ..errors import require
from .lower_bounds import largest

_PARTS = 1, 2, 4, 8  # guesses about all coins, half of them, and so on
_MOST = 50.0  # an epsilon that no number of canaries shows


class Guesses(NamedTuple):
    """How many coins of so many canaries were guessed, and how many of the guesses are right."""

    correct: int
    guesses: int
    canaries: int


def guessed(scores: Array, coins: Mask, guesses: int) -> Guesses:
    """Guesses about the `guesses` canaries of the most extreme scores (m,): heads for the larger half of them, tails
    for the smaller; about all others there is none. coins: whether each fell heads (m,)."""
    order = np.argsort(scores, kind="stable")
    tails, heads = order[: guesses // 2], order[len(order) - (guesses - guesses // 2) :]
    return Guesses(int(coins[heads].sum() + (~coins[tails]).sum()), guesses, len(coins))


def epsilon_of_one_run(found: Guesses, delta: float, alpha: float) -> float:
    """A lower bound on epsilon at delta, which exceeds the true one with a probability of at most alpha.

    For (epsilon, delta)-DP the number of right ones of r guesses about m canaries is at most about
    W ~ Binomial(r, 1 / (1 + e^-epsilon)):

        P[correct >= v] <= P[W >= v] + 2 m delta max_i P[v > W >= v - i] / i,   i = 1..v

    (Theorem 5.2). The bound is the largest epsilon at which the right side is at most alpha. If all of r guesses are
    right, it is about ln(r / ln(1 / alpha)).
    """
    require(0 <= found.correct <= found.guesses <= found.canaries, "correct <= guesses <= canaries is needed")
    return largest(lambda epsilon: _chance(found, epsilon, delta) <= alpha, _MOST)


def _chance(found: Guesses, epsilon: float, delta: float) -> float:
    """The probability, at most, of so many right guesses."""
    from scipy import stats  # slow to import, and needed only here

    if not found.correct:
        return 1.0
    coin = stats.binom(found.guesses, 1 / (1 + math.exp(-epsilon)))
    near = np.cumsum(coin.pmf(np.arange(found.correct - 1, -1, -1)))  # P[v > W >= v - i]
    slack = float((near / np.arange(1, found.correct + 1)).max())
    return float(coin.sf(found.correct - 1)) + 2 * found.canaries * delta * slack


def best_guesses(scores: Array, coins: Mask, delta: float, alpha: float) -> tuple[float, Guesses]:
    """The largest bound from guesses about all coins, half, a quarter and an eighth of them, each with alpha / 4."""
    tried = [guessed(scores, coins, max(len(coins) // part, 1)) for part in _PARTS]
    return max((epsilon_of_one_run(one, delta, alpha / len(_PARTS)), one) for one in tried)
