"""The accuracy that a private run of the LDP primal-dual method can expect.

Everything here is computed from public numbers alone, before the run starts.

Each round reduces the distance to x* at least by the factor c = 1 - gamma min(mu_f, 1), and the mean of n messages adds
noise of squared norm d sigma_t^2 / n. If f has the least possible curvature, theta_2, the error at the end is

    E ||xbar - x*||^2  <~  (d / n) sum_t c^(2 (T - t)) sigma_t^2

(9) of Zhang 2023, telescoped, bounds all n clients together, including their duals. For long runs that bound is 7.5 n^2
times as large for dynamic shares and 5 n^2 times as large for static ones. Directions of larger curvature contract
faster, so the estimate tends to be too high.
"""

import math
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.interfaces import Bounds

_FORGOTTEN = 0.1  # share of the floor


class Outlook(NamedTuple):
    """The forecast of a private run.

    floor: the part of ||xbar - x*||^2 that is due to noise. begun: ||x* - start||^2, or a bound on it. enough: the
    number of rounds after which the start contributes only a tenth of the floor; more rounds cannot gain more than
    that.
    """

    floor: float
    begun: float
    enough: int


def look_out(sigmas: Array, log_contraction: float, d: int, n: int, begun: float) -> Outlook:
    """The forecast for releases with noise sigmas (T,) and the contraction c = exp(log_contraction) below 1."""
    ages = np.arange(len(sigmas))[::-1]
    left = np.where(ages, np.exp(np.maximum(2 * log_contraction, -1e3) * ages), 1.0)
    floor = d / n * float((left * sigmas**2).sum())
    rounds = math.log(max(begun / (_FORGOTTEN * floor), 1.0)) / (-2 * log_contraction)
    return Outlook(floor, begun, max(1, math.ceil(rounds)))


def in_words(outlook: Outlook, known: bool, rounds: int) -> list[tuple[str, str]]:
    """The forecast as rows of a table. known: whether `begun` is exact."""
    begun = f"{'' if known else 'at most '}{outlook.begun:.3g}"
    return [
        ("expected noise floor", f"||xbar - x*||^2 = {outlook.floor:.3g}, where the start has {begun}"),
        ("rounds that are enough", f"{outlook.enough}; the run has {rounds}"),
    ]


def warnings(outlook: Outlook, bounds: Bounds, step_size: float, pull: float, rounds: int) -> list[tuple[str, str]]:
    """Warnings about settings that are allowed but probably unintended. pull = s/n."""
    steepest = pull * (bounds.curvature + bounds.penalty[1])  # L_f
    largest = min(0.25, 1 / steepest)
    reasons = {
        "at this budget the result will be no better than the start: take more rows, clients or epsilon":
            outlook.floor >= outlook.begun,
        "the run ends before the start is forgotten: take more rounds, or scale = 0": rounds < outlook.enough,
        f"the theory wants a step-size of at most min(1/4, 1/L_f) = {largest:.3g}": step_size > largest,
    }
    return [("warning", text) for text, holds in reasons.items() if holds]
