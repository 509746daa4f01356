"""Which node is which client's, through all restarts of nodes."""

import time
from collections.abc import Iterable, Set
from logging import WARNING

from flwr.app import Message
from flwr.common import log
from flwr.serverapp import Grid

from twinflower.errors import RunError

from .nodes import note_partition
from .requests import properties_request
from .waiting import Reminder, partitions

_GREETING = 10.0  # seconds for a node that joins a running training to report its partition
_PAUSE = 0.2  # seconds between two looks at which nodes are present


class Roster:
    """The node of every client. A node that returns under a new id is recognised by the partition that it reports.

    nodes: client -> node.
    """

    def __init__(self, nodes: dict[int, int]) -> None:
        self.nodes = nodes
        self._strangers: set[int] = set()  # nodes that were asked for their partition
        self._waiting: dict[int, int] = {}  # client -> a second node of that client

    def clients(self, clients: Iterable[int]) -> dict[int, int]:
        """These clients by their nodes."""
        return {self.nodes[client]: client for client in clients}

    def update(self, grid: Grid, silent: Set[int] = frozenset(), patience: float = _GREETING) -> Set[int]:
        """Let nodes take the place of others of the same client that have gone; return the ids of all present nodes.

        silent: clients whose old node is not waited for, because it does not reply. patience: seconds to wait for the
        reports of new nodes.
        """
        present = set(grid.get_node_ids())
        new = sorted(present - self._strangers - set(self.nodes.values()))
        requests = list(
            map(properties_request, new)
        )  # a list, because Flower's grid iterates over its messages twice
        for reply in grid.send_and_receive(requests, timeout=patience) if new else ():
            self._strangers.add(reply.metadata.src_node_id)
            if not reply.has_error():
                self._welcome(reply, present)
        self._let_in(present, silent)
        return present

    def find(self, grid: Grid, silent: Set[int], timeout: float) -> None:
        """Wait until the nodes of these clients are present, for at most `timeout` seconds."""
        deadline, reminder = time.monotonic() + timeout, Reminder()
        while silent:
            left = max(deadline - time.monotonic(), _GREETING)
            present = self.update(grid, silent, left)
            if {self.nodes[client] for client in silent} <= present or time.monotonic() > deadline:
                return
            reminder.look(lambda: f"waiting for {partitions(sorted(silent))} to return")
            time.sleep(_PAUSE)

    def _welcome(self, reply: Message, present: Set[int]) -> None:
        """Add a new node to the waiting list of the partition that it reports."""
        found: dict[int, int] = {}
        try:
            note_partition(reply, found, len(self.nodes))
        except RunError as error:
            log(WARNING, "ignored: %s", error)
        for client, node in found.items():
            self._waiting[client] = node
            if self.nodes[client] in present:
                log(WARNING, "a second node for client %s waits until the first is gone", client)

    def _let_in(self, present: Set[int], silent: Set[int]) -> None:
        """Replace nodes that are gone or silent by waiting ones. Flower notices only after a while that a node was
        killed."""
        for client, node in list(self._waiting.items()):
            if node not in present:
                del self._waiting[client]
            elif self.nodes[client] not in present or client in silent:
                log(WARNING, "client %s is back on another node", client)
                self.nodes[client] = self._waiting.pop(client)
