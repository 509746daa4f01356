"""What a second thread does while the clients compute: it looks up the rows of their next steps, and draws the noise of
simulated private runs.

The numbers are the same, because batches and draws have addresses of their own (`randomness`). NumPy copies rows and
draws normal numbers without holding Python's lock, so the two threads use two cores. Looking up rows ahead would make a
round up to a tenth slower where there are no more cores than processes, so it is not done there.
"""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from math import prod
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import numpy as np

from twinflower.arrays import Array, Index
from twinflower.batches import Batches, Shards
from twinflower.objectives import Batch
from twinflower.privacy.mechanism import Draws, DrawsInParts, GaussianNoise
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
    """A schedule whose batches are looked up while the clients compute, if there is a core for it."""

    def __init__(self, schedule: Schedule, second: "SecondThread") -> None:
        self._schedule, self._second, self._free = schedule, second, cores() > _at_once

    def batches(self, shards: Shards, clients: Index, seed: int | Index, round_: int) -> Batches:
        """The schedule's batches; those of several long steps are looked up ahead."""
        found = self._schedule.batches(shards, clients, seed, round_)
        if not self._free or found.places is None or _numbers(found.places, shards) < _FEW:
            return found
        return _BatchesAhead(found.steps, found.shards, found.places, found.weights, second=self._second)


def _numbers(places: Index, shards: Shards) -> int:
    """The number of features in each step's rows, which are at places (..., T, b)."""
    return places.size // places.shape[-2] * shards.features.shape[1]


@dataclass(frozen=True)
class _BatchesAhead(Batches):
    """Batches that `second` looks up."""

    second: "SecondThread" = field(kw_only=True)

    def __iter__(self) -> Iterator[Batch]:
        plain = Batches(self.steps, self.shards, self.places, self.weights)
        return iter(plain) if self.steps.max() == 1 else self.second.ahead(plain)


class NoiseAhead:
    """Makes the draws of a run before they are needed, assuming that every round needs the same ones as the last."""

    def __init__(self, second: "SecondThread") -> None:
        self._second = second
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
        drawn = np.empty(shape)
        end = self._second.begin(_fill(drawn.reshape(-1, shape[-1]), _parts(draws, draw, shape)))

        def finish(*asked: Any) -> Array:
            if asked != (draw, shape):
                return draws(*asked)
            end()
            return drawn

        return finish


def _parts(draws: Draws, draw: int, shape: Shape) -> Iterator[Array]:
    """The draws in parts (rows, d)."""
    if isinstance(draws, DrawsInParts):
        return draws.parts(draw, shape[-1])
    return iter([draws(draw, shape).reshape(-1, shape[-1])])


def _fill(drawn: Array, parts: Iterator[Array]) -> Iterator[bool]:
    """Write the parts into the rows of `drawn`, one after each `next`."""
    first = 0
    for part in parts:
        drawn[first : first + len(part)] = part
        first += len(part)
        yield True
    assert first == len(drawn)  # the rest would be no noise


class SecondThread:
    """A thread that computes the next items of iterators at once, and works on longer tasks in between."""

    def ahead(self, items: Iterable[T]) -> Iterator[T]:
        """The same items, computed while the caller uses those before them; an error is raised where it occurred."""
        items, found = iter(items), SimpleQueue[list[T] | BaseException]()
        for _ in range(_BATCHES):
            self._asked.put((items, found, True))
        while item := _checked(found.get()):
            self._asked.put((items, found, True))
            yield from item

    def begin(self, parts: Iterable[object]) -> Callable[[], None]:
        """Begin a task of many parts; return a function, for one call, that waits for its end or raises its error."""
        found = SimpleQueue[list[object] | BaseException]()
        self._asked.put((iter(parts), found, False))
        return partial(self._end, found)

    def _end(self, found: "SimpleQueue[list[object] | BaseException]") -> None:
        while _checked(found.get()):
            pass

    @cached_property
    def _asked(self) -> "SimpleQueue[Any]":
        """The requests to the thread, which is started by the first one."""
        asked: SimpleQueue[Any] = SimpleQueue()
        Thread(target=_work, args=(asked,), daemon=True).start()
        weakref.finalize(self, asked.put, None)
        return asked


def _checked(found: list[T] | BaseException) -> list[T]:
    if isinstance(found, BaseException):
        raise found
    return found


def _work(asked: "SimpleQueue[Any]") -> None:
    """Answer the requests until None arrives: those for one item at once, and those for all items in between."""
    tasks: deque[Any] = deque()
    while True:
        if tasks and asked.empty():
            if not _answer(*tasks[0]):
                tasks.popleft()
        elif (request := asked.get()) is None:
            return
        else:
            *task, now = request
            _answer(*task) if now else tasks.append(task)
            del request, task  # or they would keep the iterator while this thread waits


def _answer(items: Iterator[object], found: "SimpleQueue[Any]") -> bool:
    """Put a list of the next item, an empty list at the end, or the error; return whether there was an item."""
    try:
        item = list(islice(items, 1))
    except BaseException as error:  # noqa: BLE001  raised by the thread that asked
        found.put(error)
        return False
    found.put(item)
    return bool(item)
