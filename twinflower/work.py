"""The inputs of a client's round as one argument, `LocalWork`, and what the client may report about that round."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from .arrays import Array, Index, Mask, read_only
from .problems.batches import Batches
from .problems.interfaces import Batch, Objective


class Noise(Protocol):
    """A function that adds privacy noise to a value (..., d); every release of data passes through it.

    draw is the index of the noise draw within the round. shrink (...,) in (0, 1] scales the noise down where an
    algorithm knows that the sensitivity is smaller.
    """

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """The value plus noise, (..., d)."""


def no_noise(value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
    """The value itself, for runs without privacy."""
    return value


@dataclass
class Tape:
    """A `Noise` that records the values before noise, and returns what `noise` makes of them or, without one, `results`
    in their order. asked: draw and shrink of each call."""

    noise: Noise | None = None
    results: list[Array] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)
    asked: list[tuple[int, Array | float]] = field(default_factory=list)

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """The next result, which the algorithm may modify in place."""
        self.values.append(value.copy())
        self.asked.append((draw, shrink))
        if self.noise is not None:
            self.results.append(self.noise(value, draw, shrink))
        return self.results[len(self.values) - 1].copy()


class Report(NamedTuple):
    """What a client reports about its round in a run without privacy.

    steps (...,) is the number of steps taken, and fired (...,) whether the stopping rule fired.
    """

    steps: Index
    fired: Mask


class LocalWork(NamedTuple):
    """The inputs of a round for one client or for a whole cohort.

    These are the objective f_i, the batches of the local steps, the noise that is added to releases, and the number of
    the round, counted from 1.
    """

    objective: Objective
    batches: Batches
    noise: Noise = no_noise
    round: int = 1

    @property
    def rows(self) -> Batch:
        """The batch of the first step, for methods that take only one step."""
        full = self.batches.full
        return next(iter(self.batches)) if full is None else full

    def gradient(self, x: Array) -> Array:
        """Gradient (..., d) of f_i at x (..., d) on `rows`."""
        return self.objective.grad(x, self.rows)

    def one_step(self) -> Report:
        """The report of a method that takes exactly one step, however many batches there are."""
        return _one_step(self.batches.steps.shape)


@lru_cache
def _one_step(shape: tuple[int, ...]) -> Report:
    return Report(read_only(np.ones(shape, dtype=np.int64)), read_only(np.zeros(shape, dtype=bool)))
