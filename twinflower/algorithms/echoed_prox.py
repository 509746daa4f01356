"""Methods with h as in `server_prox` whose requests carry x0 and the echo (`echo`)."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..arrays import Array, Index, Seeds
from .echo import Echoed, echo
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
