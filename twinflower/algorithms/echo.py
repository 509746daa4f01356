"""Client variables whose mean the server tracks: an update is valid once the server has counted the reply.

SCAFFOLD's server holds the mean of all c_i, FedDyn's the mean of all duals. If a client's reply is lost or rejected,
the client has already updated its own variable, but the server has not updated the mean, which would stay wrong for the
rest of the run. So a client stores its variable both before and after its last reply, and every request names the last
round in which the server counted a reply of this client: the echo. If that is not the round of the client's last reply,
the client returns to the variable before it. The mean over all clients of `confirmed` then equals the server's variable
after any sequence of missing rounds and faults. The cost is 64 bits in each request, and d more numbers stored on the
client. On arrays they are kept even if no reply can be lost: without them a round of `benchmarks/yardstick.py` would be
up to 2 % faster.

A client that loses its whole state (a new node without the stored state) would start from zero, and the mean would be
off by the lost value. Therefore these methods are `Algorithm.needs_client_state`, and the server rejects the replies of
such a client.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Seeds, of_clients
from .algorithm import Algorithm
from .layout import Count, Layout, Point
from .messages import Upload, mean_of_senders
from .server_prox import ServerProx


class Unacknowledged(NamedTuple):
    """A client's variable before its last reply (..., d), after it (..., d), and that reply's round (...,)."""

    before: Array
    after: Array
    round: Array


def vectors_of(count: int) -> Layout:
    """The layout of a variable of this many vectors, side by side (..., count d)."""
    return Layout(
        Unacknowledged, Point("before", per_entry=count), Point("after", per_entry=count), Count("round", kind=None)
    )


UNACKNOWLEDGED, PAIR = vectors_of(1), vectors_of(2)


class Echoed(Algorithm):
    """A method whose state is an `Unacknowledged`, and whose server counts every reply that arrives. (The server of a
    networked method does not count replies of clients that it has removed.)"""

    needs_client_state: ClassVar[bool] = True

    @property
    def state(self) -> Layout:
        """The layout of a variable (..., d)."""
        return UNACKNOWLEDGED

    def init_client(self, start: Array) -> Unacknowledged:
        """Start with a variable of 0."""
        return initial(np.zeros_like(start))


def initial(variable: Array) -> Unacknowledged:
    """The state before the first reply, with this variable (..., d)."""
    return Unacknowledged(variable, variable, np.zeros(variable.shape[:-1], variable.dtype))


def confirmed(state: Unacknowledged, heard: Index) -> Array:
    """The variable (..., d) as counted by the server. heard (...,): the round that the request echoes."""
    counted = state.round == heard
    if np.count_nonzero(counted) == counted.size:  # the usual case; faster than all()
        return state.after
    return np.where(counted[..., None], state.after, state.before)


def unacknowledged(before: Array, after: Array, round_: int) -> Unacknowledged:
    """The client's state after its reply in this round."""
    return Unacknowledged(before, after, np.full(after.shape[:-1], round_, after.dtype))


def nobody_heard(start: Array, num_clients: int) -> Index:
    """The server's initial record (..., N) of the last counted round of each client: 0, no reply counted yet."""
    return np.zeros(start.shape[:-1] + (num_clients,), dtype=np.int64)


def acknowledge(heard: Index, clients: Index, round_: int | Index) -> Index:
    """The record (..., N) after the replies of clients (..., K) in this round were counted."""
    if clients.shape[-1] == heard.shape[-1]:
        return np.full(heard.shape, round_)  # all clients
    heard = heard.copy()
    if heard.ndim == 1:
        heard[clients] = round_  # much faster
    else:
        np.put_along_axis(heard, clients, round_, -1)
    return heard


def of_node(values: NDArray[Any], node: Index) -> NDArray[Any]:
    """The entries of one node (shape ()), or of nodes (..., K), in values (..., N) or (N,), such as the last counted
    round, the echo. Nodes are ascending, so K = N selects all."""
    if np.ndim(node) == 0:
        return values[..., node]
    return values if node.shape[-1] == values.shape[-1] else of_clients(values, node)


class Inbox(NamedTuple):
    """x0 (..., d), kept entries and rand-k seed (`messages.Inbox`), and heard (...,), the last round of this client
    that the server counted."""

    x0: Array
    kept: Index
    seed: Seeds
    heard: Index


@dataclass(frozen=True)
class EchoedProx(Echoed, ServerProx):
    """A method whose clients keep a variable that the server tracks, and whose server state has a field heard (..., N),
    the last counted round of each client."""

    @cached_property
    def inbox(self) -> Layout:
        """The layout of the echo, x0, and the seed for rand-k."""
        return Layout(Inbox, Count("heard"), *self.point)

    def broadcast(self, server: Any, round_: int, node: Index) -> Inbox:
        """Send x0 and the echo."""
        x0, kept, seed = super().broadcast(server, round_, node)
        return Inbox(x0, kept, seed, of_node(server.heard, node))


class MeanServer(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; heard (..., N),
    the last counted round of each client; and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class TracksMean(EchoedProx):
    """A method whose server adds the clients' differences to a mean, and applies the prox of h to it."""

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> MeanServer:
        """Start with x0 = mean = start."""
        return MeanServer(start, start, start, nobody_heard(start, num_clients), key)

    def moved(
        self, server: MeanServer, uploads: Upload, clients: Index, round_: int, weight: Array | float, step: float
    ) -> MeanServer:
        """The state after `weight` times the mean difference was added to the mean, and the prox of h with this step.
        """
        changes, _ = self.received(uploads, server.x0.shape[-1])
        change = weight * mean_of_senders(changes, None, shares=self.info.shares(clients))
        mean = (server.mean + change).astype(server.mean.dtype, copy=False)
        x0, heard = self.proximal(mean, step), acknowledge(server.heard, clients, round_)
        return self.averaged(server._replace(x0=x0, mean=mean, heard=heard), round_)  # type: ignore[no-any-return]
