"""Attacks that distinguish two data sets by what a mechanism released, learned from runs on both.

A run is a row of numbers (p,). A score is a function of it; a run is taken for one on the second data set if its score
is large. Scores and thresholds are chosen on some runs, and counted on others (`lower_bounds`).

The best score of normal numbers with a common covariance S whose means differ by v is w . x with w = S^-1 v; then
mu = sqrt(v . S^-1 v), as the likelihood ratio is a function of it (Neyman and Pearson 1933). S is estimated by Ledoit
and Wolf, "A well-conditioned estimator for large-dimensional covariance matrices", JMVA 2004: with independent noise it
is nearly a multiple of the identity, and where numbers share their noise, w is nearly orthogonal to that noise.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from ..arrays import Array, Mask
from .lower_bounds import Counts, epsilon_of_rates, mu_of_rates

_THRESHOLDS = 99  # quantiles of the scores among which a threshold is chosen
_SAME_NOISE = 1 - 1e-6  # correlation of two numbers from which their noise counts as the same
_EVERY_RUN = 1e-13  # relative deviation below which a number is the same in all runs


@dataclass(frozen=True)
class LinearScore:
    """A linear score of rows (..., p): weights . (x - centre) - threshold."""

    weights: Array
    centre: Array
    threshold: float = 0.0

    @classmethod
    def learned(cls, first: Array, second: Array) -> "LinearScore":
        """The best score for normal numbers with the means and the covariance of runs (n, p) on both data sets.

        Numbers that are the same in all runs have weight 0.
        """
        from sklearn.covariance import ledoit_wolf  # slow to import, and needed only here

        means, residuals, scale, used = _centred(first, second)
        weights = np.zeros(first.shape[1])
        if used.any():
            covariance, _ = ledoit_wolf(residuals[:, used], assume_centered=True)
            moved = (means[1] - means[0])[used] / scale[used]
            weights[used] = np.linalg.lstsq(covariance, moved, rcond=None)[0] / scale[used]
        return cls(weights, (means[0] + means[1]) / 2)

    @classmethod
    def of_shared_noise(cls, first: Array, second: Array) -> "LinearScore":
        """The difference, or the sum, of two numbers that have the same noise up to a factor, in which it cancels; of
        several such pairs the one that moves most. All weights are 0 if there is none."""
        means, residuals, scale, used = _centred(first, second)
        weights, moved = np.zeros(first.shape[1]), (means[1] - means[0]) / np.where(used, scale, 1.0)
        correlations = np.triu(residuals.T @ residuals / len(residuals), k=1)
        pairs = np.argwhere(np.abs(correlations) > _SAME_NOISE)
        if len(pairs):
            signs = np.sign(correlations[*pairs.T])
            moves = moved[pairs[:, 0]] - signs * moved[pairs[:, 1]]
            best = int(np.argmax(np.abs(moves)))
            direction = np.sign(moves[best]) / scale[pairs[best]]
            weights[pairs[best]] = direction * [1.0, -signs[best]]
        return cls(weights, (means[0] + means[1]) / 2)

    @classmethod
    def of_one_number(cls, first: Array, second: Array) -> "LinearScore":
        """The number that moves most in deviations of its noise."""
        means, _, scale, used = _centred(first, second)
        moved = np.where(used, means[1] - means[0], 0) / np.where(used, scale, 1)
        weights = np.zeros(first.shape[1])
        if used.any():
            best = int(np.argmax(np.abs(moved)))
            weights[best] = np.sign(moved[best])
        return cls(weights, (means[0] + means[1]) / 2)

    def __call__(self, rows: Array) -> Array:
        """The scores (...,) of rows (..., p)."""
        scores: Array = (rows - self.centre) @ self.weights - self.threshold
        return scores

    def above(self, threshold: float) -> "LinearScore":
        """The score less a threshold."""
        return replace(self, threshold=self.threshold + threshold)


def special_scores(first: Array, second: Array) -> tuple[LinearScore, LinearScore]:
    """Scores of one number, and of two that share their noise: of numbers with far less noise than the others."""
    return LinearScore.of_one_number(first, second), LinearScore.of_shared_noise(first, second)


def _centred(first: Array, second: Array) -> tuple[tuple[Array, Array], Array, Array, Mask]:
    """The means of both data sets, the residuals (2 n, p) of all runs in deviations, 0 for numbers that do not vary,
    the deviations (p,), and which numbers vary."""
    means = first.mean(0), second.mean(0)
    residuals = np.concatenate([first - means[0], second - means[1]])
    scale = residuals.std(0)
    used = scale > _EVERY_RUN * np.abs(np.stack(means)).max(0)
    return means, np.where(used, residuals, 0) / np.where(used, scale, 1), scale, used


def distance(first: Array, second: Array) -> float:
    """The difference of the means of scores (n,), in deviations; infinite for different scores without noise."""
    deviation = float(np.sqrt((first.var() + second.var()) / 2))
    difference = float(second.mean() - first.mean())
    if deviation or not difference:
        return difference / (deviation or 1.0)
    return math.copysign(math.inf, difference)


def best_threshold(first: Array, second: Array, delta: float | None, alpha: float) -> float:
    """The threshold at which these scores would give the largest bound: on epsilon at delta, or on mu for None."""
    both = np.concatenate([first, second])
    choices = np.unique(np.quantile(both, np.linspace(0, 1, _THRESHOLDS + 2)[1:-1]))

    def bound(threshold: float) -> float:
        counts = counted(first, second, threshold)
        return mu_of_rates(counts, alpha) if delta is None else epsilon_of_rates(counts, delta, alpha)

    return float(max(choices, key=bound))


def counted(first: Array, second: Array, threshold: float) -> Counts:
    """How often the scores of runs exceed a threshold."""
    return Counts(int((second > threshold).sum()), len(second), int((first > threshold).sum()), len(first))


def looks_normal(scores: Array, alpha: float = 1e-3) -> bool:
    """Whether scores pass the test of D'Agostino and Pearson (skewness and kurtosis), with false alarms at alpha."""
    from scipy import stats

    if len(scores) < 20 or np.ptp(scores) == 0:
        return False
    return float(stats.normaltest(scores).pvalue) > alpha
