"""A wrapper that runs a method in such a way that the server receives nothing but sums over the clients.

docs/sums.md has the theorem and its proof.

client keeps     nothing
       receives  what it receives in the method itself, the same as every other client
       sends     the noisy part of its round, p_i v_i, as integer multiples of a cell's width modulo 2^64 (..., d)
server keeps     the method's own state, and the state of a virtual client that is the mean of all clients
A method calls `work.noise` once a round, on u_i = a(z_i, inbox) + v_i. Here z_i is the state that the client keeps, a
is affine in z_i, and v_i depends on the client's rows and the inbox alone (`Algorithm` states the requirements).
The client's next state and its upload are affine in z_i and the noisy u_i, by the same map for all clients. Let z be
the mean of the z_i, u that of the noisy u_i, and v that of the noisy v_i, with the weights p_i in F. Then

    u = a(z, inbox) + v,

the mean of the uploads is what a client with state z and noisy value u would send, and the next z is the state that it
would keep. The server computes these from v, which follows from the sums. So clients need not keep z_i, and a client's
messages depend only on its rows and on public values.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..algorithms import ALGORITHMS
from ..algorithms.algorithm import Algorithm, RunInfo
from ..algorithms.layout import Layout, MaskedInts, Nothing
from ..algorithms.messages import Messages
from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..privacy.release import Release, Rounding
from ..problems.batches import Batches, Workload
from ..problems.interfaces import Batch, Bounds, Objective
from ..problems.regularisers import Regulariser
from ..work import LocalWork, Report, Tape, no_noise
from .grid import CellArray, Grid, add


class Upload(NamedTuple):
    """Integers modulo 2^64, (..., d)."""

    cells: CellArray


class Server(NamedTuple):
    """The method's server state, and the state of the virtual mean client."""

    own: Any
    client: Any


@dataclass(frozen=True)
class Summed(Algorithm):
    """A method whose server receives only sums.

    algorithm: the method. steps: the number of local steps of each client, or a single number for all clients. widths:
    the width of a cell in each round (`Grid`), set when the run plans its noise. lost: how many clients may be missing
    in a round; the mean is then that over the others.
    """

    name: ClassVar[str] = "sum"
    title: ClassVar[str] = "a method whose server sees sums only"
    weightings: ClassVar[tuple[str, ...]] = ("clients", "rows")
    takes_local_steps: ClassVar[bool] = True
    needs_every_client: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("public-state", "gradient")
    words: ClassVar[int] = 1  # of 64 bits, in which a number is sent

    algorithm: Any
    steps: tuple[int, ...] = (1,)
    widths: tuple[float, ...] = field(default=(), repr=False)
    lost: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        check_sums(self.algorithm, max(self.steps), self.lost)
        # errors name the user's algorithm
        object.__setattr__(self, "name", f"{self.algorithm.name} with trust sum")

    @property
    def upload(self) -> Layout:
        """The layout of the integers."""
        return Layout(Upload, MaskedInts("cells", self.algorithm.release_size))

    @property
    def regulariser(self) -> Regulariser:  # type: ignore[override]
        """The regulariser h of the problem."""
        return self.algorithm.regulariser  # type: ignore[no-any-return]

    @property
    def info(self) -> RunInfo:  # type: ignore[override]
        """Public information about the run."""
        return self.algorithm.info  # type: ignore[no-any-return]

    @property
    def privacy(self) -> str:  # type: ignore[override]
        """The method's privacy mode."""
        return self.algorithm.privacy  # type: ignore[no-any-return]

    @property
    def most_absent(self) -> int:  # type: ignore[override]
        """See `Algorithm`."""
        return self.lost

    @property
    def inbox(self) -> Layout:
        """The layout of the method's inbox."""
        return self.algorithm.inbox  # type: ignore[no-any-return]

    def check_server(self) -> None:
        """See `Algorithm.check_server`."""
        self.algorithm.check_server()

    def grid(self, round_: int) -> Grid:
        """The grid of this round. Raises SettingError if no noise was planned for the round."""
        if not 1 <= round_ <= len(self.widths):
            raise SettingError(f"noise was planned for {len(self.widths)} rounds; got round {round_}")
        return Grid(self.widths[round_ - 1], self.info.num_clients)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """The method's initial server state and initial client state."""
        return Server(self.algorithm.init_server(start, num_clients, key), self.algorithm.init_client(start))

    def broadcast(self, server: Server, round_: int, node: Index) -> Any:
        """The method's inbox, the same for all clients."""
        return self.algorithm.broadcast(server.own, round_, node)

    def client_update(self, state: Nothing, inbox: Any, work: LocalWork) -> tuple[Nothing, Upload, Report]:
        """Compute v_i, add noise, and send it in cells (`SumNoise`)."""
        lead = work.batches.steps.shape
        fresh = self.algorithm.init_client(np.zeros((*lead, work.objective.d)))
        report = Report(work.batches.steps, np.zeros(lead, dtype=bool))
        public = _at_rest(lead, work.objective.d, work.round)
        v = _released(self.algorithm, fresh, inbox, work) - _released(self.algorithm, fresh, inbox, public)
        return state, Upload(work.noise(v)), report  # type: ignore[arg-type]

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The method's release, because one record changes v_i as much as u_i; SettingError as in `grid`."""
        self.grid(round_)
        return self.algorithm.release(bounds, workload, round_)  # type: ignore[no-any-return]

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The method's bound, for a client that keeps nothing."""
        fresh = self.algorithm.init_client(np.zeros_like(inbox[0]))
        return self.algorithm.rounding(fresh, inbox, bounds, workload, round_, sigma)

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Update the server as if every client had sent the mean upload."""
        count, there = self.info.num_clients, clients.shape[-1]
        if there < count - self.lost:
            absent = f"all but {self.lost} of" if self.lost else "all"
            raise SettingError(f"a sum needs {absent} {count} clients; got {there}")
        return self.advance(server, add(uploads.cells, words=self.words), clients, round_)

    def advance(self, server: Server, total: CellArray, clients: Index, round_: int) -> Server:
        """The server's state after a round, given the sum (d,) modulo 2^64 over these clients."""
        inbox = self.algorithm.broadcast(server.own, round_, np.asarray(0))
        rest = _at_rest((), total.shape[-1], round_)
        mean = self.grid(round_).mean(total, self._weight(clients))
        u = _released(self.algorithm, server.client, inbox, rest) + mean
        work = rest._replace(noise=Tape(results=[u]))
        client, upload, _ = self.algorithm.client_update(server.client, inbox, work)
        uploads, everyone = _of_all(self.algorithm, upload, self.steps), np.arange(self.info.num_clients)
        return Server(self.algorithm.server_update(server.own, uploads, everyone, round_), client)

    def _weight(self, clients: Index) -> float | None:
        """N times the weight of these clients in F, None for all of them."""
        everyone = len(clients) == self.info.num_clients
        return None if everyone else float(weights_of(self.algorithm, clients).sum())

    def model(self, server: Server) -> Array:
        """The method's model (..., d)."""
        return self.algorithm.model(server.own)  # type: ignore[no-any-return]


def check_sums(algorithm: Algorithm, steps: int, lost: int = 0) -> None:
    """Raise SettingError, with the reason, for a method or settings that are not known to work with sums alone."""
    known = [name for name, own in ALGORITHMS.items() if own.works_on_sums and not own.constrained]
    if not algorithm.works_on_sums:
        raise SettingError(
            f"trust sum is not for {algorithm.name}: no bound is proved on what a record does to the sums of its "
            f"messages; choose one of {', '.join(known)} (docs/sums.md says with which settings)"
        )
    if lost and algorithm.sends_sums:
        raise SettingError(
            f"{algorithm.name} plans its steps and intervals for the noise of all clients in every round: set "
            f"privacy.lost-sites to 0; got {lost}"
        )
    algorithm.check_sum(steps)


def weights_of(algorithm: Algorithm, clients: Index) -> Array:
    """N p_i of clients (...,): the factor applied to their values, 1 if all clients have the same weight."""
    shares = algorithm.info.shares(np.atleast_1d(clients))
    if shares is None:
        return np.ones(clients.shape)
    return algorithm.info.num_clients * shares.reshape(clients.shape)


def _of_all(algorithm: Algorithm, upload: Any, steps: tuple[int, ...]) -> Any:
    """The mean upload, repeated for all N clients, each with its own number of local steps."""
    count = algorithm.info.num_clients
    whole = type(upload)(*(np.broadcast_to(part, (count, *np.shape(part))) for part in upload))
    if isinstance(algorithm, Messages) and algorithm.counts_steps:
        return whole._replace(steps=np.broadcast_to(steps, count))
    return whole


def _released(algorithm: Algorithm, state: Any, inbox: Any, work: LocalWork) -> Array:
    """u_i (..., d): the value to which the client would add noise."""
    tape = Tape(no_noise)
    algorithm.client_update(state, inbox, work._replace(noise=tape))
    (value,) = tape.values
    return value


class _Still(NamedTuple):
    """An objective without rows, whose gradients (..., d) are all 0."""

    slope: Array

    @property
    def d(self) -> int:
        """Number of entries of the model."""
        return self.slope.shape[-1]

    def grad(self, x: Array, rows: Batch) -> Array:
        """A new array of zeros (..., d); callers add to it in place."""
        return self.slope.copy()


def _at_rest(lead: tuple[int, ...], d: int, round_: int) -> LocalWork:
    """The work of one local step of clients (...,) whose gradients are all 0."""
    nothing = Batch(np.empty((*lead, 0, 0)), np.empty((*lead, 0)))
    objective: Objective = _Still(np.zeros((*lead, d)))  # type: ignore[assignment]
    return LocalWork(objective, Batches(np.ones(lead, dtype=np.int64), full=nothing), round=round_)
