"""What a private run of the LDP primal-dual method will reach, from public numbers alone, before it starts.

In a round the distance to x* shrinks by c = 1 - gamma min(mu_f, 1) or more, and the mean of n messages brings in
d sigma_t^2 / n of squared noise. Where f is as flat as theta_2 allows, what is left at the end is

    E ||xbar - x*||^2  <~  (d / n) sum_t c^(2 (T - t)) sigma_t^2

(9) of Zhang 2023, telescoped, bounds all n clients together, dual included, and is 7.5 n^2 times as large for dynamic
shares and 5 n^2 times for static ones (long runs).
Steeper directions forget faster, so the estimate is rather too high.
"""

import math
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..objectives import Bounds

_FORGOTTEN = 0.1  # of the floor


class Outlook(NamedTuple):
    """floor: what the noise leaves of ||xbar - x*||^2. begun: ||x* - start||^2, or a bound on it. enough: rounds after
    which the start is forgotten: it adds a tenth of the floor, and more rounds cannot gain more than that."""

    floor: float
    begun: float
    enough: int


def look_out(sigmas: Array, log_contraction: float, d: int, n: int, begun: float) -> Outlook:
    """For releases of these sigmas (T,) and c = exp(log_contraction) below 1."""
    ages = np.arange(len(sigmas))[::-1]
    left = np.where(ages, np.exp(np.maximum(2 * log_contraction, -1e3) * ages), 1.0)
    floor = d / n * float((left * sigmas**2).sum())
    rounds = math.log(max(begun / (_FORGOTTEN * floor), 1.0)) / (-2 * log_contraction)
    return Outlook(floor, begun, max(1, math.ceil(rounds)))


def in_words(told: Outlook, known: bool, rounds: int) -> list[tuple[str, str]]:
    """As rows of a table; known: whether `begun` is exact."""
    begun = f"{'' if known else 'at most '}{told.begun:.3g}"
    return [
        ("expected noise floor", f"||xbar - x*||^2 = {told.floor:.3g}, where the start has {begun}"),
        ("rounds that are enough", f"{told.enough}; the run has {rounds}"),
    ]


def warnings(told: Outlook, bounds: Bounds, step_size: float, pull: float, rounds: int) -> list[tuple[str, str]]:
    """Settings that are allowed and surely not meant; pull = s/n."""
    steepest = pull * (bounds.curvature + bounds.penalty[1])  # L_f
    largest = min(0.25, 1 / steepest)
    reasons = {
        "at this budget the result will be no better than the start: take more rows, clients or epsilon":
            told.floor >= told.begun,
        "the run ends before the start is forgotten: take more rounds, or scale = 0": rounds < told.enough,
        f"the theory wants a step-size of at most min(1/4, 1/L_f) = {largest:.3g}": step_size > largest,
    }
    return [("warning", text) for text, holds in reasons.items() if holds]
