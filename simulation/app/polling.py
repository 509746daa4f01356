"""A grid that asks for replies sooner than Flower's own, which asks every 3 seconds."""

import time
from collections.abc import Iterable
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

_SHORTEST, _LONGEST = 0.2, 3.0  # seconds between two requests
_SHARE = 0.1  # of the time waited so far: the longer the round, the fewer requests


class PollingGrid(Grid):
    """Wraps another grid and uses its public methods only; what differs is the pause between two requests."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def set_run(self, run: Any) -> None:
        """As the grid's."""
        self.grid.set_run(run)

    @property
    def run(self) -> Any:
        """As the grid's."""
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """As the grid's."""
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        """As the grid's."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As the grid's."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As the grid's."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages and return their replies, or those that came within the timeout in seconds."""
        missing, began = set(filter(None, self.push_messages(messages))), time.monotonic()  # None: not sent
        replies: list[Message] = []
        while missing:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                break
            time.sleep(pause(waited))
            new = list(self.pull_messages(missing))
            replies.extend(new)
            missing -= {reply.metadata.reply_to_message_id for reply in new}
        return replies


def pause(waited: float) -> float:
    """Seconds until the next request, after having waited so many."""
    return min(max(_SHARE * waited, _SHORTEST), _LONGEST)
