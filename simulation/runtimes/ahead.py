"""What a second thread does while the clients compute: it looks up the rows of their next steps, and draws the noise of
simulated private runs.

The numbers are the same, because batches and draws have addresses of their own (`randomness`). NumPy copies rows and
draws normal numbers without holding Python's lock, so the two threads use two cores. On a single core the second thread
would make a round up to a tenth slower, so no rows are looked up ahead there.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.batches import Batches, Shards
from twinflower.objectives import Batch
from twinflower.privacy.mechanism import Draws, GaussianNoise
from twinflower.rounds import Schedule

from .processes import cores

_LEAST = 2**14  # numbers; fewer are drawn in less time than another thread takes to start on them
_FEW = 2**16  # numbers of a step's rows that are looked up as fast as another thread hands them over
_BATCHES = 2  # looked up ahead; more would push the current one out of the cache

Shape = tuple[int, ...]
T = TypeVar("T")

_at_once = 1  # processes that compute at the same time, this one among them


def share_cores(processes: int) -> None:
    """Tell this process that it is one of several that compute at the same time."""
    global _at_once
    _at_once = processes


class RowsAhead:
    """A schedule whose batches are looked up while the clients compute with those before them, if a core is free."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule, self._free = schedule, cores() > _at_once

    def batches(self, shards: Shards, clients: Index, seed: int | Index, round_: int) -> Batches:
        """The schedule's batches; those of several long steps are looked up ahead."""
        found = self._schedule.batches(shards, clients, seed, round_)
        if not self._free or found.places is None or _numbers(found.places, shards) < _FEW:
            return found
        return _Early(found.steps, found.shards, found.places, found.weights, reader=self._reader)

    @cached_property
    def _reader(self) -> "Reader":
        return Reader()


def _numbers(places: Index, shards: Shards) -> int:
    """The number of features in each step's rows, which are at places (..., T, b)."""
    return places.size // places.shape[-2] * shards.features.shape[1]


@dataclass(frozen=True)
class _Early(Batches):
    """Batches that `reader` looks up."""

    reader: "Reader | None" = None

    def __iter__(self) -> Iterator[Batch]:
        found = super().__iter__()
        return found if self.reader is None or self.steps.max() == 1 else self.reader.ahead(found)


class Reader:
    """A thread that computes the next items of iterators."""

    def __init__(self) -> None:
        asked: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_read, args=(asked,), daemon=True).start()
        weakref.finalize(self, asked.put, None)
        self._asked = asked

    def ahead(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, computed while the caller uses those before them; an error is raised where it occurred."""
        items, found = iter(items), SimpleQueue[list[T] | Exception]()
        for _ in range(_BATCHES):
            self._asked.put((items, found))
        while item := found.get():
            if isinstance(item, Exception):
                raise item
            self._asked.put((items, found))
            yield from item


def _read(asked: "SimpleQueue[Any]") -> None:
    """Answer each (iterator, queue) with a list of its next item, an empty one at its end, or the error."""
    for items, found in iter(asked.get, None):
        try:
            found.put(list(islice(items, 1)))
        except Exception as error:  # noqa: BLE001  raised by the thread that asked
            found.put(error)


class NoiseAhead:
    """Makes the draws of a run before they are needed, assuming that every round needs the same ones as the last."""

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
