"""A grid that polls for replies at shorter intervals than Flower's own, and says for whom it waits.

Flower's intervals are 3 s in deployment and 0.1 s in a simulation.
"""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from twinflower.strategies.requests import properties_in
from twinflower.strategies.waiting import Reminder, partitions

from ..runtimes.progress import say

_SHARE = 0.1  # pause before the next request, as a share of the time waited so far


class PollingGrid(Grid):
    """A wrapper of another grid that uses only its public methods and changes the pause between two requests.

    shortest, longest: of the pauses, in seconds.
    """

    def __init__(self, grid: Grid, shortest: float = 0.2, longest: float = 3.0) -> None:
        self.grid = grid
        self.shortest, self.longest = shortest, longest
        self._partitions: dict[int, Any] = {}  # node -> the partition that it reported

    def set_run(self, run: Any) -> None:
        """Call the wrapped grid's method."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """The run of the wrapped grid."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Call the wrapped grid's method."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """Call the wrapped grid's method."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Call the wrapped grid's method."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Call the wrapped grid's method."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages; return their replies, or those that arrive within the timeout in seconds."""
        sent = {id_: message.metadata.dst_node_id for id_, message in self._pushed(messages)}
        missing, began, reminder = dict(sent), time.monotonic(), Reminder(say)
        replies: list[Message] = []

        def waits() -> str:
            return self._waiting(list(missing.values()), replies, timeout, time.monotonic() - began)

        while missing:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                break
            reminder.look(waits)
            time.sleep(min(max(_SHARE * waited, self.shortest), self.longest))
            for reply in self.pull_messages(set(missing)):
                missing.pop(reply.metadata.reply_to_message_id, None)
                self._note(reply)
                replies.append(reply)
        return replies

    def _pushed(self, messages: Iterable[Message]) -> list[tuple[str, Message]]:
        """The messages that were sent, with their ids."""
        messages = list(messages)
        return [pair for pair in zip(self.push_messages(messages), messages, strict=False) if pair[0]]

    def _note(self, reply: Message) -> None:
        """Note the partition that a node reports."""
        if reply.has_content() and "partition-id" in (found := properties_in(reply)):
            self._partitions[reply.metadata.src_node_id] = found["partition-id"]

    def _waiting(self, nodes: list[int], here: list[Message], timeout: float | None, waited: float) -> str:
        """What is waited for: the partitions of these nodes, as far as they are known."""
        known = sorted(self._partitions[node] for node in nodes if node in self._partitions)
        who = partitions(known) if len(known) == len(nodes) else f"{len(nodes)} nodes"
        left = "" if timeout is None else f", at most {timeout - waited:.0f} s more"
        errors = sum(reply.has_error() for reply in here)
        failed = f" ({errors} failed)" if errors else ""
        return f"{len(here)} of {len(here) + len(nodes)} replies are here{failed}; waiting for {who}{left}"
