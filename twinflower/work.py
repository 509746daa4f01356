"""The inputs of a client's round as one argument, `LocalWork`, and what the client may report about that round."""

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
