"""The training loop: rounds of an algorithm on arrays, independent of Flower, files and wall-clock time.

    for outcome in rounds(FedPDM(L1(1e-3)), problem, LocalSchedule(batch_size=10), 50, sampled(10, 3)):
        print(outcome.round, problem.objective.value(outcome.server.x0, problem.shards.everyone()))

A round samples K of the N clients, updates each from its own state, and passes their uploads to the server. All arrays
have an axis of clients; runs that differ only in the seed are stacked along an additional axis in front of it.

If a client's update is not finite, its state stays as it was before the round and the server ignores the upload. If a
client's reply is lost, the client still keeps its new state. If no reply remains, the server's state does not change.
Methods that need every client raise an error in these cases.

`Outcome` is what comes of one round on arrays. A `Training` is where a run stands, on arrays or by messages
(`twinflower.strategies`), with a `Round` for each round so far.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from .algorithms.algorithm import Algorithm, stack
from .arrays import Array, Index, Mask, all_finite
from .client_states import ClientStates, take
from .errors import RunError
from .problems.batches import Batches, Shards
from .problems.interfaces import Objective, check_weights
from .randomness import participants
from .work import LocalWork, Noise, Report, no_noise

Sampling = Callable[[int], Index]  # maps a round to its sampled clients (..., K), ascending
NoiseOf = Callable[[int, Index], Noise]  # maps a round and clients (..., K) to the noise of their releases
Lost = Callable[[int, Index], Mask]  # maps a round and clients (K,) to a mask of lost replies


REFUSED = "it refuses: its privacy budget is spent, reserved by other runs, or too small for the run"
"""Why a reply of a private client cannot be used that released nothing."""


def who(client: int, sites: Sequence[str] = ()) -> str:
    """A client in a message: its site's name, if the clients have names (`Training.sites`)."""
    return f"site {sites[client]}" if sites else f"client {client}"


class Schedule(Protocol):
    """Anything that returns the batches of a round, such as a `LocalSchedule`."""

    def batches(self, shards: Shards, clients: Index, seed: int | Index, round_: int) -> Batches:
        """The batches of clients (..., K) in this round; `seed` must broadcast against clients."""


class Problem(NamedTuple):
    """The problem to minimise: the objective f_i on each client's rows, and a public starting point (..., d)."""

    objective: Objective
    shards: Shards
    start: Array

    @property
    def num_clients(self) -> int:
        """Number of clients N."""
        return self.shards.num_clients


class Outcome(NamedTuple):
    """The result of a round: its number, and the states of the server and the clients after it.

    clients (..., K) were sampled; counted (..., K') are those whose updates arrived and are finite. uploads and report
    belong to the counted clients. The next round changes `states` in place. Round 0 is
    the start of the run, with no clients sampled.
    """

    round: int
    server: Any
    states: ClientStates
    clients: Index = np.arange(0)
    counted: Index = np.arange(0)
    uploads: Any = None
    report: Report | None = None


class Round(NamedTuple):
    """The record of a finished round.

    asked: the clients that got a request. accepted: the number of replies used. rejected: for every other client, the
    reason. uplink_bits: of the accepted replies. downlink_bits: of the requests. local_steps, stopped: means over the
    clients that report them, otherwise nan. seconds: from the requests to the new model.
    """

    round: int
    asked: tuple[int, ...]
    accepted: int
    rejected: dict[int, str]
    uplink_bits: int
    downlink_bits: int
    local_steps: float
    stopped: float
    seconds: float = 0.0


@dataclass(kw_only=True)
class Training:
    """A training in progress: what its rounds have led to, and all from which the next ones follow.

    server: the algorithm's server state, None before the start. states: those of the clients, in a training on arrays;
    by messages the clients keep them. rounds: the statistics of all rounds. session: the name by which the clients know
    it. born: the round in which each client's state began. ranges: those that the clients agreed on, empty without
    private ranges, and None before the clients have counted. first: the number of rounds that were completed before
    this start. settled: the last round whose replies the clients may delete, None for the one before the current one.
    sites: the names of the clients by number, if they are nodes without partitions. met: False until a server has met
    all clients, before which they release nothing.
    """

    server: Any = None
    states: ClientStates | None = None
    rounds: list[Round] = field(default_factory=list)
    session: str = field(default_factory=lambda: secrets.token_hex(8))
    born: dict[int, int] = field(default_factory=dict)
    ranges: bytes | None = None
    first: int = 0
    settled: int | None = None
    sites: list[str] = field(default_factory=list)
    met: bool = True

    @property
    def round(self) -> int:
        """The last round so far."""
        return self.rounds[-1].round if self.rounds else 0

    def number(self, server_round: int) -> int:
        """The number of a round that Flower counts from this start."""
        return server_round + self.first

    def stamp(self, round_: int) -> dict[str, Any]:
        """The fields of every request: round, session, and the last settled round, whose replies may be deleted.

        Private ranges are part of every request.
        """
        settled = round_ - 1 if self.settled is None else self.settled
        ranges = {"ranges": self.ranges} if self.ranges else {}
        return {"round": round_, "session": self.session, "settled": settled, **ranges}

    def update(self, algorithm: Algorithm, round_: int, sent: Mapping[int, Any]) -> None:
        """Update the server state with the uploads of a round, by client."""
        clients = sorted(sent)
        uploads = stack([sent[client] for client in clients])
        self.server = algorithm.server_update(self.server, uploads, np.array(clients), round_)


class SeedsNotStackable(Exception):
    """Raised if stacked seeds would count different clients in a round; these seeds must be run one by one."""


def everyone(num_clients: int) -> Sampling:
    """A sampling that selects all clients in every round."""
    return lambda round_: np.arange(num_clients)


def sampled(
    num_clients: int, clients_per_round: int, seed: int = 0, first_round: str = "sampled"
) -> Sampling:
    """A sampling without replacement; with first_round = "all", round 1 samples all clients (see `participants`)."""
    return lambda round_: participants(seed, round_, num_clients, clients_per_round, first_round)


def start(algorithm: Algorithm, problem: Problem, seed: int | Index = 0) -> Outcome:
    """Round 0: the initial states of the server and the clients."""
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
    """Run the rounds up to `number` and yield the `Outcome` of each; every round uses all clients by default.

    noise: the noise of a private run (`SimulatedNoise`); None adds none. seed: the seed of the batches and of the
    algorithm's public coins, or seeds (S,) for stacked runs. block: the largest number of clients computed at once, so
    that their arrays fit the processor's cache; 0 computes all at once. begin: an outcome to continue from. If the
    algorithm `closes`, its clients receive one more inbox after the last round. An algorithm may end the run before
    (`Algorithm.stops`). Raises RunError if the run diverges, and SettingError if the objective does not take the
    weights of the rows.
    """
    algorithm.check_server()
    check_weights(problem.objective, problem.shards.row_weights)
    at = begin or start(algorithm, problem, seed)
    sampling = sampling or everyone(problem.num_clients)
    loop = _Loop(algorithm, problem, schedule, noise, lost, seed, block)
    for round_ in range(at.round + 1, number + 1):
        if algorithm.stops(at.server):
            break
        at = loop.round(Outcome(round_, at.server, at.states, sampling(round_)))
        yield at
    _check_model(algorithm, at.server, at.round)
    if algorithm.closes:
        close(algorithm, at)


def _check_model(algorithm: Algorithm, server: Any, round_: int) -> None:
    if not all_finite(algorithm.model(server)):
        raise RunError(f"the model diverged in round {round_}: lower step-size")


def close(algorithm: Any, at: Outcome) -> None:
    """Broadcast to all clients once more after the last round, and store the states that `finish` returns."""
    nodes = at.states.everyone
    inbox = algorithm.broadcast(at.server, at.round + 1, nodes)
    at.states.put(nodes, algorithm.finish(at.states.all(), inbox))


@dataclass
class _Loop:
    """The arguments that are the same for all rounds."""

    algorithm: Algorithm
    problem: Problem
    schedule: Schedule
    noise: NoiseOf | None
    lost: Lost | None
    seed: int | Index
    block: int

    def round(self, at: Outcome) -> Outcome:
        """Run the round at.round of at.clients, starting from the states in `at`, and return its outcome."""
        if not at.clients.shape[-1]:
            return at._replace(counted=at.clients)
        updated = map(partial(self._update, at), self._parts(at.clients))
        states, sent, reports = zip(*updated, strict=True)
        axis = at.clients.ndim - 1
        uploads, report = _joined(sent, axis), _joined(reports, axis)
        finite = self._finite(uploads, at.round)
        new = take(_joined(states, axis), finite, axis)
        at.states.put(at.clients[..., finite], new)
        places = self._arrived(at, finite)
        counted = at.clients[..., places]
        uploads, report = take(uploads, places, axis), take(report, places, axis)
        server = self._served(at, uploads, counted)
        return Outcome(at.round, server, at.states, at.clients, counted, uploads, report)

    def _parts(self, clients: Index) -> list[Index]:
        """The clients (..., K) split into blocks of at most `block` clients."""
        count = clients.shape[-1]
        few = not self.block or count <= self.block
        return [clients] if few else np.array_split(clients, -(-count // self.block), axis=-1)

    def _update(self, at: Outcome, clients: Index) -> tuple[Any, Any, Report]:
        """New states, uploads and reports of clients (..., K)."""
        inbox = self.algorithm.broadcast(at.server, at.round, clients)
        seed = self.seed[:, None] if isinstance(self.seed, np.ndarray) else self.seed
        batches = self.schedule.batches(self.problem.shards, clients, seed, at.round)
        noise = self.noise(at.round, clients) if self.noise else no_noise
        work = LocalWork(self.problem.objective, batches, noise, at.round)
        return self.algorithm.client_update(at.states.of(clients), inbox, work)

    def _served(self, at: Outcome, uploads: Any, counted: Index) -> Any:
        """The server's new state; the old one if no update counts."""
        if not counted.shape[-1]:
            return at.server
        server = self.algorithm.server_update(at.server, uploads, counted, at.round)
        # a network's model is a mean of finite messages, which seldom overflows: checked after the last round only
        if not self.algorithm.networked:
            _check_model(self.algorithm, server, at.round)
        return server

    def _finite(self, uploads: Any, round_: int) -> Index | slice:
        """Positions of the clients whose update is finite, or slice(None) if all are."""
        if all(map(all_finite, uploads)):
            return slice(None)  # the usual case: nothing is copied
        if isinstance(self.seed, np.ndarray):
            raise SeedsNotStackable
        finite = np.all([np.isfinite(a).reshape(len(a), -1).all(-1) for a in uploads], axis=0)
        if not finite.any() or self.algorithm.needs_every_client:
            count = f"{len(finite) - finite.sum()} of {len(finite)}"
            raise RunError(
                f"round {round_}: {count} updates are not finite; the run diverged: lower step-size"
            )
        return np.flatnonzero(finite)

    def _arrived(self, at: Outcome, finite: Index | slice) -> Index | slice:
        """The positions in `finite` whose reply arrived."""
        if self.lost is None:
            return finite
        places = np.arange(len(at.clients))[finite]
        missing = self.lost(at.round, at.clients[places])
        absent = self.algorithm.most_absent
        if self.algorithm.needs_every_client and missing.sum() > absent:
            needed = f"all but {absent}" if absent else "all"
            raise RunError(
                f"round {at.round}: {self.algorithm.name} needs {needed} clients, and the replies of {missing.sum()} "
                "are lost"
            )
        return places[~missing]


def _joined(blocks: Sequence[Any], axis: int) -> Any:
    """The blocks' NamedTuples concatenated along `axis`."""
    if len(blocks) == 1:
        return blocks[0]
    return type(blocks[0])(*(np.concatenate(arrays, axis) for arrays in zip(*blocks, strict=True)))
