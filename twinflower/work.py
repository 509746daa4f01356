"""What a client works with in a round, in one argument."""

from typing import NamedTuple, Protocol

import numpy as np

from .arrays import Array, Index, Mask
from .batches import Batches
from .objectives import Batch, Objective


class Noise(Protocol):
    """Adds the noise of draw number `draw` of the round to a value (..., d); the only way out for data.

    shrink (...,) in (0, 1] scales the noise down where an algorithm knows that less is at stake.
    """

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        """The noisy value."""


def no_noise(value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
    """The value itself: a run without privacy."""
    return value


class Report(NamedTuple):
    """What a client may report of its round when nothing is secret: steps taken (...,), and whether the stopping rule
    fired (...,)."""

    steps: Index
    fired: Mask


class LocalWork(NamedTuple):
    """A client's round, or a whole cohort's: f_i, the rows of the local steps, the noise of what is released, and the
    number of the round, from 1."""

    objective: Objective
    batches: Batches
    noise: Noise = no_noise
    round: int = 1

    @property
    def rows(self) -> Batch:
        """The rows of the first step, for methods that take one."""
        return next(iter(self.batches))

    def gradient(self, x: Array) -> Array:
        """Gradient (..., d) of f_i on `rows` at x (..., d)."""
        return self.objective.grad(x, self.rows)

    def one_step(self) -> Report:
        """The report of a method that takes one step, whatever the batches hold."""
        steps = self.batches.steps
        return Report(np.ones_like(steps), np.zeros(np.shape(steps), dtype=bool))
