"""Whether a round has enough replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING

from flwr.common import log

from twinflower.errors import RunError
from twinflower.rounds import Round

from .messages import NO_REPLY


def incomplete(server_round: int, rejected: Mapping[int, str], method: str, retries: int) -> str:
    """The sentence for a round that lacks clients although the method needs all."""
    client, reason = min(rejected.items())
    return (
        f"round {server_round}: {method} needs all clients, and {len(rejected)} did not answer even after {retries} "
        f"more requests: the run stops (client {client}: {reason})"
    )


@dataclass
class Quorum:
    """Whether a round has enough valid replies.

    min_replies: a round with fewer changes nothing. void_rounds: how many such rounds may occur in a row.
    """

    min_replies: int
    void_rounds: int
    void: int = 0

    def reached(self, server_round: int, good: int, rejected: Mapping[int, str]) -> bool:
        """Whether there are min_replies valid replies; RunError after too many rounds in a row without."""
        self.void = 0 if good >= self.min_replies else self.void + 1
        if self.void > self.void_rounds:
            raise RunError(self._sentence(server_round, good, rejected))
        if self.void:
            text = "round %s: %s good replies, fewer than server.min-replies: it changes nothing"
            log(WARNING, text, server_round, good)
        return not self.void

    def require_one(self, rounds: Sequence[Round]) -> None:
        """RunError if no round of a run had enough replies: its model is the starting point."""
        if rounds and all(one.accepted < self.min_replies for one in rounds):
            last = rounds[-1]
            raise RunError(
                f"no round changed the model: {self._sentence(last.round, last.accepted, last.rejected)}"
            )

    def _sentence(self, server_round: int, good: int, rejected: Mapping[int, str]) -> str:
        client, reason = min(rejected.items(), default=(0, NO_REPLY))
        what = f"none of the {len(rejected)} replies could be used"
        if good:
            what = f"{good} good replies, fewer than server.min-replies = {self.min_replies}"
        return f"round {server_round}: {what}, the run stops (client {client}: {reason})"
