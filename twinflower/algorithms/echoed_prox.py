"""Methods with h as in `server_prox` whose requests carry x0 and the echo (`echo`)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..arrays import Array, Index, Seeds
from .echo import Echoed, echo, nobody_heard
from .layout import Count, Layout
from .server_prox import ServerProx


class Inbox(NamedTuple):
    """x0 (..., d), kept entries and rand-k seed (`messages.Inbox`), and heard (...,), the last round of this client
    that the server counted."""

    x0: Array
    kept: Index
    seed: Seeds
    heard: Index


@dataclass(frozen=True)
class EchoedProx(ServerProx, Echoed):
    """A method whose clients keep a variable that the server tracks, and whose server state has a field heard (..., N),
    the last counted round of each client."""

    @cached_property
    def inbox(self) -> Layout:
        """The layout of the echo, x0, and the seed for rand-k."""
        return Layout(Inbox, Count("heard"), *self.point)

    def broadcast(self, server: Any, round_: int, node: Index) -> Inbox:
        """Send x0 and the echo."""
        x0, kept, seed = super().broadcast(server, round_, node)
        return Inbox(x0, kept, seed, echo(server.heard, node))


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
