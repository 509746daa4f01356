"""Questions to clients, which are repeated until the replies are valid."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from logging import WARNING
from typing import TypeVar

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from .replies import NO_REPLY, Read, sort_replies
from .roster import Roster

T = TypeVar("T")
Ask = Callable[[int, int], Message]
"""The request to a client at a node."""


@dataclass(frozen=True)
class Exchange:
    """Sends requests to the clients of a roster, and repeats them.

    timeout: seconds to wait for replies. patience: seconds to wait for a missing node before a request is repeated.
    retries: how often a request is repeated to a client without a valid reply; the client repeats its stored reply.
    """

    roster: Roster
    grid: Grid
    timeout: float
    patience: float
    retries: int

    def ask(
        self, clients: Iterable[int], ask: Ask, read: Read[T], round_: int
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Ask these clients once; return what `sort_replies` makes of their replies."""
        nodes = self.roster.clients(sorted(clients))
        requests = [ask(client, node) for node, client in nodes.items()]
        replies = self.grid.send_and_receive(requests, timeout=self.timeout)
        return sort_replies(replies, nodes, read, round_)

    def ask_all(self, ask: Ask, read: Read[T], round_: int) -> tuple[dict[int, T], dict[int, str]]:
        """Ask all clients, and those without a valid reply again."""
        good, rejected = self.ask(self.roster.nodes, ask, read, round_)
        return self.ask_again(good, rejected, ask, read, round_)

    def ask_again(
        self, good: dict[int, T], rejected: dict[int, str], ask: Ask, read: Read[T], round_: int
    ) -> tuple[dict[int, T], dict[int, str]]:
        """Ask rejected clients again; return good and rejected as they are afterwards."""
        for _ in range(self.retries):
            if not rejected:
                break
            silent = {client for client, reason in rejected.items() if reason == NO_REPLY}
            self.roster.find(self.grid, silent, self.patience)
            log(WARNING, "round %s: asking clients %s again", round_, sorted(rejected))
            more, rejected = self.ask(rejected, ask, read, round_)
            good = good | more
        return good, rejected
