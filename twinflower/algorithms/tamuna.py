"""TAMUNA with all clients in every round (Condat, Agarsky, Malinovsky and Richtarik, arXiv 2302.09832), which is then
CompressedScaffnew (Condat, Agarsky and Richtarik, arXiv 2210.13277).

    minimise  (1/N) sum_i f_i(x),     f_i smooth
    x_i <- x_i - gamma (grad f_i(x_i) - h_i), a random number of times from x0                            (1)
    x0 <- (1/s) sum_i C_i(x_i)                                                                            (2)
    h_i <- h_i + (eta/gamma) C_i(x0 - x_i)                                                                (3)

C_i keeps the entries of a public mask. In each round s of the N clients send each entry, so that a client sends d s/N
of d entries: entry j is in the columns s j, ..., s j + s - 1 of N, modulo N, and a public permutation gives each client
one of the columns. The means (2) leave no error, and (3) adds up to 0 over the clients.

client keeps     control (..., d), h_i; sent (..., d), its last message; and its column (...,) in that message
       receives  x0 (..., d), and its column
       sends     x_i (..., d) with 0 in entries outside of its mask
server keeps     x0 (..., d), and the key of the columns
A client takes step (3) of a round when x0 arrives with the next one. Rounds, their numbers of steps and what a missing
client does are those of `proxskip`. With s = N it is ProxSkip without h, with the same numbers of steps.

Fixed point and rate. Everything rests at the optimum of F with h_i = grad f_i there. For strongly convex f_i and any s
of at least 2 the distance falls linearly. The authors want eta between p/2 and p N (s - 1) / (s (N - 1)). The paper's
own pages were not at hand: this follows the program of two of its authors (Flower's baselines/tamuna), in which some of
the clients take part in a round. There a client takes step (3) with the x0 of its next round, which with sampled
clients is not the mean that its last message was a part of. Here all take part. The numbers (1) to (3) are ours.

h. The paper has none: a prox of x0 would leave a rest in the sum of (3).

Privacy. "public-state" adds the noise to the end point of (1), before C_i: sent and h_i are functions of public values.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Array, Index, Mask, Seeds
from ..errors import ReplyError, SettingError
from ..problems.regularisers import Zero
from ..randomness import stream
from ..settings import Setting, at_least
from ..sparsifiers import value_bits
from ..wire import checked
from ..work import LocalWork, Report
from .algorithm import to_nodes
from .layout import Arrays, Count, Field, Layout, Point
from .local import local_steps
from .proxskip import ProxSkip


class State(NamedTuple):
    """A client's h_i and its last message, (..., d) each, and its column (...,) in it."""

    control: Array
    sent: Array
    column: Array


class Message(NamedTuple):
    """x0, or x_i with 0 in entries outside of the mask, (..., d), and the client's column (...,)."""

    x: Array
    column: Index


class Server(NamedTuple):
    """x0 (..., d), and the key of the columns."""

    x0: Array
    key: Seeds


def mask_of(column: Array | Index, senders: int, clients: int, d: int) -> Mask:
    """Which of d entries the clients in these columns (...,) send, (..., d)."""
    return (np.asarray(column)[..., None] - senders * np.arange(d)) % clients < senders


class Part(Field):
    """The entries of x in the mask of the client's column, filled up with 0 to the largest number in a column."""

    names = ("x", "column")

    def __init__(self, senders: int, clients: int) -> None:
        self.senders, self.clients = senders, clients

    def entries(self, d: int) -> int:
        """The largest number of entries in a column."""
        return -(-d * self.senders // self.clients)

    def bits(self, d: int, dtype: DTypeLike) -> int:
        """Those of the entries, as both sides know the mask."""
        return self.entries(d) * value_bits(dtype)

    def pack(self, *values: Any, d: int) -> Arrays:
        """The entries in the mask."""
        x, column = values
        kept = x[mask_of(column, self.senders, self.clients, d)]
        return [np.pad(kept, (0, self.entries(d) - len(kept)))]

    def unpack(self, arrays: Arrays, d: int, request: Any, dtype: DTypeLike) -> list[Any]:
        """x with 0 outside of the mask, and the column of the request."""
        sent, x = checked("x", arrays[0], (self.entries(d),), dtype), np.zeros(d, dtype)
        mask = mask_of(request.column, self.senders, self.clients, d)
        if sent[mask.sum() :].any():
            raise ReplyError("x must be filled up with 0")
        x[mask] = sent[: mask.sum()]
        return [x, request.column]


@dataclass(frozen=True)
class Tamuna(ProxSkip):
    """TAMUNA with ProxSkip's settings, senders, the s above, and control_step, eta, 0 for the largest in theory."""

    name: ClassVar[str] = "tamuna"
    title: ClassVar[str] = "TAMUNA: random numbers of local steps, and messages of a public part of the entries"

    senders: Annotated[int, Setting("s: clients that send each entry in a round", at_least(2))] = field(
        default=2, kw_only=True
    )
    control_step: Annotated[
        float, Setting("eta: step of the control variates; 0: the largest that the theory allows", at_least(0))
    ] = field(default=0.0, kw_only=True)

    state = Layout(State, Point("control"), Point("sent"), Count("column", kind=None))

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.regulariser, Zero):
            raise SettingError(
                f"tamuna has no regulariser; got {type(self.regulariser).__name__}: set regulariser.name to none, or "
                "take proxskip"
            )

    def check(self, objective: Any) -> None:
        """SettingError for more senders than clients."""
        if not self.senders <= self.info.num_clients:
            raise SettingError(
                f"tamuna.senders must be at most the number of clients, {self.info.num_clients}; got {self.senders}"
            )

    @property
    def largest_control_step(self) -> float:
        """p N (s - 1) / (s (N - 1)), the largest eta for which the authors show a linear rate; with s = N it is p."""
        s, n = self.senders, self.info.num_clients
        return self.communication_probability * (n * (s - 1) / (s * (n - 1)) if n > s else 1.0)

    def beyond_theory(self) -> list[str]:
        """The range of eta in the README of the authors' program (Flower's baselines/tamuna)."""
        least, most, eta = self.communication_probability / 2, self.largest_control_step, self.control_step
        if not eta or least <= eta <= most * (1 + 1e-12):
            return []
        return [
            f"tamuna.control-step must be from p/2 = {least:.4g} to p N (s - 1) / (s (N - 1)) = {most:.4g} for the "
            f"linear rate of TAMUNA (arXiv 2302.09832, by the authors' program); got {eta:g}: 0 takes the largest"
        ]

    @property
    def inbox(self) -> Layout:
        """The layout of x0 and the column."""
        return Layout(Message, Point("x"), Count("column", most=self.info.num_clients - 1))

    @property
    def upload(self) -> Layout:
        """The layout of the entries in the mask."""
        return Layout(Message, Part(self.senders, self.info.num_clients))

    def init_client(self, start: Array) -> Any:
        """Start with h_i = 0, as if the start had been sent."""
        return State(np.zeros_like(start), start, np.zeros(start.shape[:-1], start.dtype))

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """Start with x0 = start."""
        return Server(start, key)

    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """Send x0, and each client its column."""
        columns = stream(int(server.key), "rand-k", round_=round_).permutation(self.info.num_clients)
        return Message(to_nodes(server.x0, node), columns[node])

    def _mask(self, column: Array | Index, d: int) -> Mask:
        return mask_of(column, self.senders, self.info.num_clients, d)

    def _control(self, state: Any, inbox: Any) -> Array:
        """h_i after the step that waits for x0."""
        eta = self.control_step or self.largest_control_step
        way = np.where(self._mask(state.column, inbox.x.shape[-1]), inbox.x - state.sent, 0.0)
        return state.control + eta / self.step_size * way  # type: ignore[no-any-return]  # (3)

    def client_update(self, state: Any, inbox: Any, work: LocalWork) -> tuple[Any, Any, Report]:
        """Update h_i with the new x0, take the local steps, and send the entries of the mask."""
        h, batches = self._control(state, inbox), work.batches.first(self.steps_of(work.round))
        x, report = local_steps(work.objective, inbox.x, inbox.x, 0.0, -h, self.step_size, batches)  # (1)
        sent = np.where(self._mask(inbox.column, x.shape[-1]), work.noise(x), 0.0)
        return State(h, sent, inbox.column.astype(x.dtype)), Message(sent, inbox.column), report

    def server_update(self, server: Any, uploads: Any, clients: Index, round_: int) -> Any:
        """The mean of each entry over those that sent it."""
        x0 = uploads.x.sum(-2, dtype=np.float64) / self.senders                 # (2)
        return server._replace(x0=x0.astype(uploads.x.dtype, copy=False))
