"""Checks of an algorithm's claimed privacy: transcript replay, and a black-box lower bound on epsilon.

Replay is the check that finds mistakes. The guarantee over many adaptive rounds rests on one property: given
everything released so far, replacing what is protected moves the next release by at most its sensitivity. To test it,
a client runs on its data and its releases are recorded. It then runs again on neighbouring data, with every release
replaced by the recorded one, and the values before noise of the two runs are compared.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.batches import LocalSchedule, Shards
from ..problems.interfaces import Batch, Bounds, Objective
from ..work import LocalWork, Noise, Tape


class Move(NamedTuple):
    """One release compared between the two runs of a replay.

    moved: the Euclidean distance of the two values before noise. sensitivity: the claimed bound on it, times the
    factor (`shrink`) by which the algorithm scaled its noise. same_message, same_state: whether both runs sent, and
    kept, the same arrays; they must where these are functions of what was released. same_noise: whether both runs
    requested the same draw at the same scale; a scale that depends on the data would be a release by itself.
    """

    round: int
    moved: float
    sensitivity: float
    same_message: bool
    same_state: bool
    same_noise: bool

    @property
    def agrees(self) -> bool:
        """Whether the two runs agree in everything but the value before noise."""
        return self.same_message and self.same_state and self.same_noise


def replay(
    algorithm: Any,
    objective: Objective,
    data: Batch,
    neighbour: Batch,
    schedule: LocalSchedule,
    bounds: Bounds,
    inboxes: Sequence[Any],
    sigma: float = 1.0,
    seed: int = 0,
) -> list[Move]:
    """Run one client over the inboxes on data and on neighbour, forcing the same releases; return a Move per release.

    data and neighbour have the same number of rows and differ in up to schedule.group rows. sigma is the noise
    multiplier.
    """
    workload = schedule.workload(len(data.labels))
    rng = np.random.default_rng(seed)
    states = [algorithm.init_client(np.zeros(objective.d))] * 2
    moves = []
    for round_, inbox in enumerate(inboxes, 1):
        sensitivity = algorithm.release(bounds, workload, round_).sensitivity
        tape = Tape(_fresh(rng, sigma * sensitivity))
        forced = Tape(results=tape.results)
        outcomes = [
            algorithm.client_update(
                state,
                inbox,
                LocalWork(objective, schedule.batches(Shards.site(rows, 0), 0, seed, round_), noise, round_),
            )
            for state, rows, noise in zip(states, (data, neighbour), (tape, forced), strict=True)
        ]
        states = [outcome[0] for outcome in outcomes]
        message, state = (_same([outcome[part] for outcome in outcomes]) for part in (1, 0))
        moves += [
            Move(
                round_,
                float(np.linalg.norm(a - b)),
                sensitivity * float(asked[1]),
                message,
                state,
                asked == other,
            )
            for a, b, asked, other in zip(tape.values, forced.values, tape.asked, forced.asked, strict=True)
        ]
    return moves


def _fresh(rng: np.random.Generator, sigma: float) -> Noise:
    """Noise of standard deviation sigma, drawn anew in every call."""

    def noise(value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        return value + sigma * np.asarray(shrink) * rng.normal(size=value.shape)

    return noise


def _same(pair: Sequence[Any]) -> bool:
    """Whether two states or uploads hold the same arrays."""
    return all(np.array_equal(a, b) for a, b in zip(*pair, strict=True))


def neighbours(
    rows: int,
    features: int,
    row_norm: float,
    reach: float = 1e3,
    tilt: float = 0.03,
    replaced: int = 1,
    weight: float | None = None,
) -> tuple[Batch, Batch]:
    """Two neighbouring data sets whose gradients at reach * e_0 differ nearly as much as a logistic loss allows.

    At that point every row is strongly misclassified, so every slope is saturated, and the replacements of the first
    `replaced` rows are nearly their negatives. Each data set has `rows` rows of norm row_norm, all of this weight if
    rows have weights.
    """
    data = np.zeros((rows, features))
    data[:, 0] = -1.0
    data[:replaced, :2] = -tilt, np.sqrt(1 - tilt**2)
    other = data.copy()
    other[:replaced, 1] *= -1.0
    labels = np.ones(rows, dtype=np.int64)
    weights = None if weight is None else np.full(rows, weight)
    first, second = (Batch(row_norm * own, labels, row_weights=weights) for own in (data, other))
    return first, second


def lower_bound(
    release: Callable[[int, int], float], trials: int, delta: float, confidence: float = 0.95
) -> float:
    """A black-box lower bound on epsilon at delta from a statistic of runs on two neighbouring data sets.

    release(which, trial) returns the statistic of a new run on data set 0 or 1. Half of the trials choose the
    threshold; the others bound both error rates (Clopper-Pearson). The bound can lie far below the true epsilon even
    if the accounting is exact, so it belongs in a report and is not a test.
    """
    scores = np.array([[release(which, trial) for trial in range(trials)] for which in (0, 1)])
    choose, count = scores[:, : trials // 2], scores[:, trials // 2 :]
    thresholds = np.quantile(choose, np.linspace(0.02, 0.98, 49))
    threshold = max(thresholds, key=lambda t: _epsilon(choose, t, delta, confidence))
    return _epsilon(count, float(threshold), delta, confidence)


def _epsilon(scores: Array, threshold: float, delta: float, confidence: float) -> float:
    from scipy import stats  # slow to import, and needed only here

    trials = scores.shape[1]
    above = (scores > threshold).sum(1)
    level = (1 - confidence) / 2
    low = stats.beta.ppf(level, above[1], trials - above[1] + 1) if above[1] else 0.0
    high = stats.beta.isf(level, above[0] + 1, trials - above[0]) if above[0] < trials else 1.0
    return float(max(0.0, np.log(max(low - delta, 1e-300) / high)))
