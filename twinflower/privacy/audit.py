"""Checks that an algorithm's privacy is what it says: transcript replay, and a black-box lower bound.

Replay is the one that finds mistakes. The guarantee of many adaptive rounds rests on one sentence: given
everything released so far, the next release moves by at most its sensitivity when one record is replaced.
So a client is run on its data and its releases are written down; then it is run again on neighbouring data
while every release is forced to be the one written down, and the values under the noise are compared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..arrays import Array
from ..batches import LocalSchedule, Shards
from ..objectives import Batch, Bounds, Objective
from ..work import LocalWork, Noise


class Move(NamedTuple):
    """A release under replay: how far the value moved, its sensitivity (as small as the algorithm made its noise), and
    what the round ended in.

    same_message, same_state: whether the two runs sent, and kept, the same arrays. They must wherever both are
    functions of what was released. same_noise: whether both asked for the same draw of the same size; a size that
    depends on the data is a release of its own.
    """

    round: int
    moved: float
    sensitivity: float
    same_message: bool
    same_state: bool
    same_noise: bool

    @property
    def agrees(self) -> bool:
        """Whether the two runs differ in nothing but the value under the noise."""
        return self.same_message and self.same_state and self.same_noise


@dataclass
class _Tape:
    """A noise that writes down values and results, or plays results back."""

    noise: Noise | None = None
    results: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    asked: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        self.values.append(value.copy())
        self.asked.append((draw, float(shrink)))
        if self.noise is not None:
            self.results.append(self.noise(value, draw, shrink))
        return self.results[len(self.values) - 1].copy()  # algorithms may go on in place


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
    """Run one client over the inboxes on its data, then on the neighbour's with the same releases forced.

    data and neighbour have the same number of rows and differ in one. sigma is the noise multiplier.
    """
    workload = schedule.workload(len(data.labels))
    rng = np.random.default_rng(seed)
    states = [algorithm.init_client(np.zeros(objective.d))] * 2
    moves = []
    for round_, inbox in enumerate(inboxes, 1):
        sensitivity = algorithm.release(bounds, workload, round_).sensitivity
        tape = _Tape(_fresh(rng, sigma * sensitivity))
        forced = _Tape(results=tape.results)
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
            Move(round_, float(np.linalg.norm(a - b)), sensitivity * asked[1], message, state, asked == other)
            for a, b, asked, other in zip(tape.values, forced.values, tape.asked, forced.asked, strict=True)
        ]
    return moves


def _fresh(rng: np.random.Generator, sigma: float) -> Noise:
    """Noise of this deviation, anew in every call."""

    def noise(value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        return value + sigma * np.asarray(shrink) * rng.normal(size=value.shape)

    return noise


def _same(pair: Sequence[Any]) -> bool:
    """Whether two states or uploads hold the same arrays."""
    return all(np.array_equal(a, b) for a, b in zip(*pair, strict=True))


def neighbours(
    rows: int, features: int, row_norm: float, reach: float = 1e3, tilt: float = 0.03
) -> tuple[Batch, Batch]:
    """Two data sets whose replaced record pulls as far apart as a logistic loss allows at reach * e_0.

    All rows score far below 0 for their label there, so that every slope is saturated, and the replaced row
    is nearly the opposite of what it was.
    """
    data = np.zeros((rows, features))
    data[:, 0] = -1.0
    data[0, :2] = -tilt, np.sqrt(1 - tilt**2)
    other = data.copy()
    other[0, 1] *= -1.0
    labels = np.ones(rows, dtype=np.int64)
    return Batch(row_norm * data, labels), Batch(row_norm * other, labels)


def lower_bound(
    release: Callable[[int, int], float], trials: int, delta: float, confidence: float = 0.95
) -> float:
    """A black-box lower bound on epsilon at delta from a statistic of runs on two neighbouring data sets.

    release(which, trial) gives the statistic of a fresh run on data set 0 or 1. Half of the trials choose the
    threshold, the others bound both errors (Clopper-Pearson). Far below the truth for a tight mechanism: a
    report, not a check.
    """
    scores = np.array([[release(which, trial) for trial in range(trials)] for which in (0, 1)])
    choose, count = scores[:, : trials // 2], scores[:, trials // 2 :]
    thresholds = np.quantile(choose, np.linspace(0.02, 0.98, 49))
    threshold = max(thresholds, key=lambda t: _epsilon(choose, t, delta, confidence))
    return _epsilon(count, float(threshold), delta, confidence)


def _epsilon(scores: Array, threshold: float, delta: float, confidence: float) -> float:
    from scipy import stats  # slow to import, and needed in this report only

    trials = scores.shape[1]
    above = (scores > threshold).sum(1)
    level = (1 - confidence) / 2
    low = stats.beta.ppf(level, above[1], trials - above[1] + 1) if above[1] else 0.0
    high = stats.beta.isf(level, above[0] + 1, trials - above[0]) if above[0] < trials else 1.0
    return float(max(0.0, np.log(max(low - delta, 1e-300) / high)))
