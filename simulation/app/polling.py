"""A grid that polls for replies at shorter intervals than Flower's own: 3 s in deployment, 0.1 s in a simulation."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

_SHARE = 0.1  # pause before the next request, as a share of the time waited so far


class PollingGrid(Grid):
    """A wrapper of another grid that uses only its public methods and changes the pause between two requests.

    shortest, longest: of the pauses, in seconds.
    """

    def __init__(self, grid: Grid, shortest: float = 0.2, longest: float = 3.0) -> None:
        self.grid = grid
        self.shortest, self.longest = shortest, longest

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
        missing, began = set(filter(None, self.push_messages(messages))), time.monotonic()  # None: not sent
        replies: list[Message] = []
        while missing:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                break
            time.sleep(min(max(_SHARE * waited, self.shortest), self.longest))
            new = list(self.pull_messages(missing))
            replies.extend(new)
            missing -= {reply.metadata.reply_to_message_id for reply in new}
        return replies
