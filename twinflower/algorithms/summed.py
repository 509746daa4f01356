"""Any method whose server needs sums only, run such that it gets nothing else (docs/sums.md has the theorem and its
proof).

client keeps     nothing
       receives  what it receives in the method itself, the same as every other client
       sends     the noisy part of its round, p_i v_i, in whole cells modulo 2^64 (..., d)
server keeps     the method's own state, and the state of a client that stands for the mean of all
A method calls `work.noise` once a round, on u_i = a(z_i, inbox) + v_i, where z_i is what the client keeps, a is affine
in it, and v_i is a function of the client's rows and of the inbox alone (`abilities.SumsUp` says when that is so). What
the client keeps and sends afterwards is affine in z_i and in the noisy u_i, alike for all clients. So with z the mean
of the z_i, u the mean of the noisy u_i, and v that of the noisy v_i (means by the weights p_i in F),

    u = a(z, inbox) + v,

the mean of the uploads is what a client with z and u would send, and the next z is what it would keep. The server
computes these from the v that the sums tell, so clients need not keep z_i, and nothing about one client can be in its
later messages but through its rows and what is public.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..batches import Batches, Workload
from ..errors import RunError, require
from ..objectives import Batch, Bounds, Objective
from ..privacy.release import Release, Rounding
from ..regularisers import Regulariser
from ..sums.grid import Cells as CellArray
from ..sums.grid import Grid, add
from ..work import LocalWork, Noise, Report
from .abilities import BoundsRounding, NeedsEveryClient, SumsUp, rounding
from .algorithm import Algorithm, RunInfo
from .layout import Cells, Layout
from .messages import NOTHING, Messages, Nothing


class Upload(NamedTuple):
    """Whole numbers modulo 2^64, (..., d)."""

    cells: CellArray


class Server(NamedTuple):
    """The method's own server state, and the state of the mean client."""

    own: Any
    client: Any


@dataclass(frozen=True)
class Summed(NeedsEveryClient, BoundsRounding):
    """A method, seen through sums.

    algorithm: the method. steps: local steps of each client, or one number for all. widths: of a cell in each round
    (`Grid`), as the run plans its noise.
    """

    name: ClassVar[str] = "sum"
    title: ClassVar[str] = "a method whose server sees sums only"
    weightings: ClassVar[tuple[str, ...]] = ("clients", "rows")
    takes_local_steps: ClassVar[bool] = True

    algorithm: Any
    steps: tuple[int, ...] = (1,)
    widths: tuple[float, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        check_sums(self.algorithm, max(self.steps))

    state = NOTHING
    upload = Layout(Upload, Cells("cells"))

    @property
    def regulariser(self) -> Regulariser:
        """h of the problem."""
        return self.algorithm.regulariser  # type: ignore[no-any-return]

    @property
    def info(self) -> RunInfo:
        """What is public about the run."""
        return self.algorithm.info  # type: ignore[no-any-return]

    @property
    def privacy(self) -> str:
        """Where the method adds noise."""
        return self.algorithm.privacy  # type: ignore[no-any-return]

    @property
    def inbox(self) -> Layout:
        """The method's."""
        return self.algorithm.inbox  # type: ignore[no-any-return]

    def grid(self, round_: int) -> Grid:
        """The grid of this round; SettingError if no noise was planned for the round."""
        require(
            1 <= round_ <= len(self.widths), f"noise was planned for {len(self.widths)} rounds; got round {round_}"
        )
        return Grid(self.widths[round_ - 1], self.info.num_clients)

    def weights(self, clients: Index) -> Array:
        """N p_i of clients (...,): how often their values count, 1 where all weigh alike."""
        shares = self.info.shares(np.atleast_1d(clients))
        return np.ones(clients.shape) if shares is None else self.info.num_clients * shares.reshape(clients.shape)

    def init_client(self, start: Array) -> Nothing:
        """Nothing."""
        return Nothing()

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """The method's, and a first client's state."""
        return Server(self.algorithm.init_server(start, num_clients, key), self.algorithm.init_client(start))

    def broadcast(self, server: Server, round_: int, node: Index) -> Any:
        """The method's, the same for all."""
        return self.algorithm.broadcast(server.own, round_, node)

    def client_update(self, state: Nothing, inbox: Any, work: LocalWork) -> tuple[Nothing, Upload, Report]:
        """v_i with noise, in cells (`SumNoise`)."""
        lead = work.batches.steps.shape
        fresh = self.algorithm.init_client(np.zeros((*lead, work.objective.d)))
        report = Report(work.batches.steps, np.zeros(lead, dtype=bool))
        v = _released(self.algorithm, fresh, inbox, work) - self._public(fresh, inbox, lead, work)
        if not np.isfinite(v).all():
            raise RunError(f"round {work.round}: an update is not finite, the run diverged: lower step-size")
        return state, Upload(work.noise(v)), report  # type: ignore[arg-type]

    def _public(self, state: Any, inbox: Any, lead: tuple[int, ...], work: LocalWork) -> Array:
        """a(z, inbox)."""
        return _released(self.algorithm, state, inbox, _at_rest(lead, work.objective.d, work.round))

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The method's: v_i moves as u_i does."""
        return self.algorithm.release(bounds, workload, round_)  # type: ignore[no-any-return]

    def rounding(self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """The method's, of a client that keeps nothing."""
        fresh = self.algorithm.init_client(np.zeros_like(inbox[0]))
        return rounding(self.algorithm, fresh, inbox, bounds, workload, round_)

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """As if every client had sent the mean upload."""
        count = self.info.num_clients
        require(clients.shape[-1] == count, f"a sum needs all {count} clients; got {clients.shape[-1]}")
        return self.advance(server, add(uploads.cells), round_)

    def advance(self, server: Server, total: CellArray, round_: int) -> Server:
        """The server after a round's sum (d,) modulo 2^64."""
        inbox = self.algorithm.broadcast(server.own, round_, np.asarray(0))
        rest = _at_rest((), total.shape[-1], round_)
        u = _released(self.algorithm, server.client, inbox, rest) + self.grid(round_).mean(total)
        client, upload, _ = self.algorithm.client_update(server.client, inbox, rest._replace(noise=_Tape(u)))
        return Server(self.algorithm.server_update(server.own, self._of_all(upload), self._everyone, round_), client)

    @property
    def _everyone(self) -> Index:
        return np.arange(self.info.num_clients)

    def _of_all(self, upload: Any) -> Any:
        """The mean upload as sent by all N clients, each with its own number of local steps."""
        count = self.info.num_clients
        whole = type(upload)(*(np.broadcast_to(part, (count, *np.shape(part))) for part in upload))
        if isinstance(self.algorithm, Messages) and self.algorithm.counts_steps:
            return whole._replace(steps=np.broadcast_to(self.steps, count))
        return whole

    def model(self, server: Server) -> Array:
        """The method's."""
        return self.algorithm.model(server.own)  # type: ignore[no-any-return]


def check_sums(algorithm: Algorithm, steps: int) -> None:
    """SettingError, in a sentence that says why, for a method or settings whose sums are not known to be enough."""
    require(
        isinstance(algorithm, SumsUp),
        f"trust sum is not for {algorithm.name}: no bound is proved on what a record does to the sums of its messages; "
        "choose fedpdm, feddyn or scaffold with one local step, fedavg, fedprox, isrl-dp, ssca, or ldp-primal-dual "
        "with step-size 1",
    )
    algorithm.check_sum(steps)  # type: ignore[attr-defined]


@dataclass
class _Tape:
    """A noise that writes down the value it is asked for, once a round, and gives back another one if there is one."""

    result: Array | None = None
    values: list[Array] = field(default_factory=list)

    def __call__(self, value: Array, draw: int = 0, shrink: Array | float = 1.0) -> Array:
        self.values.append(value.copy())
        return value if self.result is None else self.result.copy()


def _released(algorithm: Algorithm, state: Any, inbox: Any, work: LocalWork) -> Array:
    """u_i (..., d): what a client's noise would be added to."""
    tape = _Tape()
    noise: Noise = tape
    algorithm.client_update(state, inbox, work._replace(noise=noise))
    (value,) = tape.values
    return value


class _Still(NamedTuple):
    """An objective without rows: all gradients are 0, (..., d)."""

    slope: Array

    @property
    def d(self) -> int:
        """Entries of the model."""
        return self.slope.shape[-1]

    def grad(self, x: Array, rows: Batch) -> Array:
        """0, to be added to in place."""
        return self.slope.copy()


def _at_rest(lead: tuple[int, ...], d: int, round_: int) -> LocalWork:
    """One local step of clients (...,) whose gradients are 0."""
    nothing = Batch(np.empty((*lead, 0, 0)), np.empty((*lead, 0)))
    objective: Objective = _Still(np.zeros((*lead, d)))  # type: ignore[assignment]
    return LocalWork(objective, Batches(np.ones(lead, dtype=np.int64), full=nothing), round=round_)
