"""Noise of simulated private runs, drawn by a second thread while the clients compute."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from math import prod

import numpy as np

from twinflower.arrays import Array
from twinflower.privacy.mechanism import Draws, GaussianNoise

_LEAST = 2**14  # numbers; fewer are drawn in less time than another thread takes to start on them

Shape = tuple[int, ...]


class Ahead:
    """Makes the draws of a run before they are needed, assuming that every round needs the same ones as the last.

    The numbers are the same, because each draw has an address of its own (`randomness`). NumPy draws without holding
    Python's lock, so the two threads use two cores.
    """

    def __init__(self) -> None:
        self._widths: dict[int, int] = {}  # of the draws seen so far: their length, by number

    def of(self, noise: GaussianNoise) -> GaussianNoise:
        """The same noise; its first draw begins now, and every other one when the draw before it is needed.

        The noise itself is returned if all draws seen so far would be too short.
        """
        if self._widths and np.size(noise.sigma) * max(self._widths.values()) < _LEAST:
            return noise
        return replace(noise, draws=self._early(noise.draws, np.shape(noise.sigma)[:-1]))

    def _early(self, draws: Draws, clients: Shape) -> Draws:
        begun = self._begin(draws, 0, clients)

        def drawn(draw: int, shape: Shape) -> Array:
            nonlocal begun
            mine, begun = begun, self._begin(draws, draw + 1, clients)
            self._widths[draw] = shape[-1]
            return mine(draw, shape) if mine else draws(draw, shape)

        return drawn

    def _begin(self, draws: Draws, draw: int, clients: Shape) -> Callable[[int, Shape], Array] | None:
        """Begin a draw, if the run has needed it before and if it is long; return a function that finishes it."""
        shape = (*clients, self._widths.get(draw, 0))
        if prod(shape) < _LEAST:
            return None
        future: Future[Array] = self._thread.submit(draws, draw, shape)
        return lambda *asked: future.result() if asked == (draw, shape) else draws(*asked)

    @cached_property
    def _thread(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1)
