"""The training loop: rounds of an algorithm on arrays, without Flower, files or clocks.

    for outcome in rounds(FedPDM(L1(1e-3)), problem, LocalSchedule(batch_size=10), 50, sampled(10, 3)):
        print(outcome.round, problem.objective.value(outcome.server.x0, problem.shards.everyone()))

A round asks some clients, K of N, lets each go on from its own state, and gives the server what they sent. All arrays
have an axis of clients; runs that differ in the seed only are stacked on one more in front of it.

A client whose update is not finite forgets the round, and the server leaves it out. One whose reply is lost has moved
its state all the same. If no reply is left, the server stays as it is. Methods that need every client stop instead.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from .algorithms.abilities import Closes, NeedsEveryClient
from .algorithms.algorithm import Algorithm
from .arrays import Array, Index, Mask
from .batches import Batches, Shards
from .client_states import ClientStates, at_places
from .errors import RunError
from .objectives import Objective
from .randomness import participants
from .work import LocalWork, Noise, Report, no_noise

Sampling = Callable[[int], Index]  # the clients (..., K) that a round asks, ascending
NoiseOf = Callable[[int, Index], Noise]  # what clients (..., K) add in a round to what they release
Lost = Callable[[int, Index], Mask]  # of clients (K,) in a round, whose replies do not arrive


class Schedule(Protocol):
    """The local steps of a round, such as a `LocalSchedule`."""

    def batches(self, shards: Shards, clients: Index, seed: int | Index, round_: int) -> Batches:
        """The rows that clients (..., K) take, under seeds that broadcast to them."""


class Problem(NamedTuple):
    """What is minimised: f_i by an objective on each client's rows, from a public start (..., d)."""

    objective: Objective
    shards: Shards
    start: Array

    @property
    def num_clients(self) -> int:
        """N."""
        return self.shards.num_clients


class Outcome(NamedTuple):
    """A round's number, the server's state after it, and the clients', which the next round changes.

    clients (..., K) were asked; the updates of counted (..., K') arrived and are finite. uploads and report are those
    clients'; the next round may write over the uploads. Round 0 is the start, where nobody was asked.
    """

    round: int
    server: Any
    states: ClientStates
    clients: Index = np.arange(0)
    counted: Index = np.arange(0)
    uploads: Any = None
    report: Report | None = None


class Uneven(Exception):
    """Some of the stacked seeds lose a client in a round and others do not: they must be run one by one."""


def everyone(num_clients: int) -> Sampling:
    """All clients in every round."""
    return lambda round_: np.arange(num_clients)


def sampled(
    num_clients: int, clients_per_round: int, seed: int = 0, first_round: str = "sampled"
) -> Sampling:
    """Clients drawn without replacement; with first_round "all", everybody in round 1."""
    return lambda round_: participants(seed, round_, num_clients, clients_per_round, first_round)


def start(algorithm: Algorithm, problem: Problem, seed: int | Index = 0) -> Outcome:
    """Where a run begins."""
    server = algorithm.init_server(problem.start, problem.num_clients, np.asarray(seed, dtype=np.uint64))
    return Outcome(0, server, ClientStates(algorithm, problem.start, problem.num_clients))


def rounds(
    algorithm: Algorithm,
    problem: Problem,
    schedule: Schedule,
    number: int,
    sampling: Sampling | None = None,
    noise: NoiseOf | None = None,
    *,
    lost: Lost | None = None,
    seed: int | Index = 0,
    block: int = 0,
    begin: Outcome | None = None,
) -> Iterator[Outcome]:
    """Run a number of rounds, all clients in each unless `sampling` says otherwise; yields what each came to.

    noise: what makes the run private (`SimulatedNoise`). seed: of the batches and the algorithm's public coins; seeds
    (S,) where runs are stacked. block: compute at most so many clients at once, so that their arrays fit the
    processor's cache; 0, all. begin: go on after this round. After the last round the clients of a method that
    `Closes` get one more inbox. Raises RunError where the run diverges.
    """
    at = begin or start(algorithm, problem, seed)
    sampling = sampling or everyone(problem.num_clients)
    loop = _Loop(algorithm, problem, schedule, noise, lost, seed, block)
    for round_ in range(at.round + 1, number + 1):
        at = loop.round(at._replace(round=round_, clients=sampling(round_)))
        yield at
    if isinstance(algorithm, Closes):
        close(algorithm, at)


def close(algorithm: Any, at: Outcome) -> None:
    """Send all clients the inbox after the last round."""
    nodes = at.states.everyone
    inbox = algorithm.broadcast(at.server, at.round + 1, nodes)
    at.states.put(nodes, algorithm.finish(at.states.all(), inbox))


@dataclass
class _Loop:
    """What stays the same in all rounds, and the last round's uploads."""

    algorithm: Algorithm
    problem: Problem
    schedule: Schedule
    noise: NoiseOf | None
    lost: Lost | None
    seed: int | Index
    block: int
    room: Any = None

    def round(self, at: Outcome) -> Outcome:
        """The round of these clients."""
        if not at.clients.shape[-1]:
            return at._replace(counted=at.clients, uploads=None, report=None)
        parts = self._parts(at.clients)
        states, sent, reports = zip(*(self._update(at, part) for part in parts), strict=True)
        axis = at.clients.ndim - 1
        uploads, report = self._joined(sent, axis, at.server), _joined(reports, axis)
        finite = self._finite(uploads, at.round)
        _keep(at.states, parts, states, finite, self.problem.num_clients)
        counted = self._arrived(at, finite)
        uploads, report = (at_places(each, counted, axis) for each in (uploads, report))
        return self._served(at._replace(counted=at.clients[..., counted], uploads=uploads, report=report))

    def _parts(self, clients: Index) -> list[Index]:
        """The clients in blocks."""
        count = clients.shape[-1]
        few = not self.block or count <= self.block
        return [clients] if few else np.array_split(clients, -(-count // self.block), axis=-1)

    def _update(self, at: Outcome, clients: Index) -> tuple[Any, Any, Report]:
        """The round of some clients (..., K)."""
        inbox = self.algorithm.broadcast(at.server, at.round, clients)
        seed = self.seed[:, None] if isinstance(self.seed, np.ndarray) else self.seed
        batches = self.schedule.batches(self.problem.shards, clients, seed, at.round)
        noise = self.noise(at.round, clients) if self.noise else no_noise
        work = LocalWork(self.problem.objective, batches, noise, at.round)
        return self.algorithm.client_update(at.states.of(clients), inbox, work)

    def _served(self, at: Outcome) -> Outcome:
        """With the server's new state."""
        if not at.counted.shape[-1]:
            return at
        server = self.algorithm.server_update(at.server, at.uploads, at.counted, at.round)
        if not _all_finite(self.algorithm.model(server)):
            raise RunError(f"the model diverged in round {at.round}: lower step-size")
        return at._replace(server=server)

    def _finite(self, uploads: Any, round_: int) -> Index | slice:
        """Places of the clients whose update is finite."""
        if all(map(_all_finite, uploads)):
            return slice(None)  # the usual case: nothing is copied
        if isinstance(self.seed, np.ndarray):
            raise Uneven
        finite = np.all([np.isfinite(a).reshape(len(a), -1).all(-1) for a in uploads], axis=0)
        if not finite.any() or isinstance(self.algorithm, NeedsEveryClient):
            count = f"{len(finite) - finite.sum()} of {len(finite)}"
            raise RunError(
                f"round {round_}: {count} updates are not finite; the run diverged: lower step-size"
            )
        return np.flatnonzero(finite)

    def _arrived(self, at: Outcome, finite: Index | slice) -> Index | slice:
        """Of these places, those whose reply arrived."""
        if self.lost is None:
            return finite
        places = np.arange(len(at.clients))[finite]
        missing = self.lost(at.round, at.clients[places])
        if missing.any() and isinstance(self.algorithm, NeedsEveryClient):
            name = self.algorithm.name
            raise RunError(
                f"round {at.round}: {missing.sum()} replies are lost, and {name} needs all of them"
            )
        return places[~missing]

    def _joined(self, sent: Sequence[Any], axis: int, server: Any) -> Any:
        """Uploads of blocks as one, in the last round's arrays: fresh memory costs more than the copy."""
        if len(sent) == 1:
            return sent[0]
        self.room = _joined(sent, axis, self.room if self._has_room(sent, axis, server) else None)
        return self.room

    def _has_room(self, sent: Sequence[Any], axis: int, server: Any) -> bool:
        """Whether the last round's arrays have the size of this one's, and the server has kept none of them."""
        if not self.room or self.room[0].shape[axis] != sum(part[0].shape[axis] for part in sent):
            return False
        return not any(np.may_share_memory(room, kept) for room in self.room for kept in _leaves(server))


def _keep(
    states: ClientStates, parts: Sequence[Index], new: Sequence[Any], finite: Index | slice, num_clients: int
) -> None:
    """Store the new states of the clients whose update is finite; if all are, blocks need not be joined first."""
    if isinstance(finite, slice) and sum(part.shape[-1] for part in parts) < num_clients:
        for part, own in zip(parts, new, strict=True):
            states.put(part, own)
        return
    axis = parts[0].ndim - 1
    states.put(np.concatenate(parts, axis)[..., finite], at_places(_joined(new, axis), finite, axis))


def _joined(blocks: Sequence[Any], axis: int, room: Any = None) -> Any:
    """NamedTuples of blocks of clients as one, in the arrays of room if there is one."""
    if len(blocks) == 1:
        return blocks[0]
    parts = zip(zip(*blocks, strict=True), room or [None] * len(blocks[0]), strict=True)
    return type(blocks[0])(*(np.concatenate(arrays, axis, out=out) for arrays, out in parts))


def _leaves(tree: Any) -> Iterator[Array]:
    """The arrays of NamedTuples in NamedTuples."""
    for part in tree:
        yield from _leaves(part) if isinstance(part, tuple) else [np.asarray(part)]


def _all_finite(array: Array) -> bool:
    """Whether there is neither NaN nor infinity; a sum tells most cheaply, unless it overflows."""
    return math.isfinite(array.sum()) or bool(np.isfinite(array).all())
