"""What a strategy keeps of its rounds, and whether a round has enough replies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log

from twinflower.errors import RunError

from .replies import NO_REPLY


class Round(NamedTuple):
    """Statistics of one round.

    asked: the clients that got a request. accepted: the number of replies used. rejected: for every other client, the
    reason. uplink_bits: of the accepted replies. downlink_bits: of the requests. local_steps, stopped: means over the
    clients that report them, otherwise nan. seconds: from the requests to the new model.
    """

    round: int
    asked: tuple[int, ...]
    accepted: int
    rejected: dict[int, str]
    uplink_bits: int
    downlink_bits: int
    local_steps: float
    stopped: float
    seconds: float = 0.0


class Snapshot(NamedTuple):
    """What a strategy needs to resume a run.

    round: the last completed round. session: the name of the training session. server: the algorithm's server state.
    rounds: the statistics of all rounds. born: the round in which each client's state began. ranges: those that the
    clients agreed on, empty without private ranges.
    """

    round: int
    session: str
    server: Any
    rounds: list[Round]
    born: dict[int, int]
    ranges: bytes = b""


def mean_of(metrics: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of a metric over the clients that report a valid number, nan if none does."""
    values = [m.get(key) for m in metrics]
    sane = [float(v) for v in values if isinstance(v, int) and 0 <= v < 2**40]
    return float(np.mean(sane)) if sane else float("nan")


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

    def _sentence(self, server_round: int, good: int, rejected: Mapping[int, str]) -> str:
        client, reason = min(rejected.items(), default=(0, NO_REPLY))
        what = f"none of the {len(rejected)} replies could be used"
        if good:
            what = f"{good} good replies, fewer than server.min-replies = {self.min_replies}"
        return f"round {server_round}: {what}, the run stops (client {client}: {reason})"
