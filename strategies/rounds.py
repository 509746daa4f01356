"""A training in progress, what is kept of its rounds, and whether a round has enough replies."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
from flwr.common import log

from twinflower.algorithms.algorithm import Algorithm, stack
from twinflower.errors import RunError

from .replies import NO_REPLY, Upload


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


@dataclass
class Training:
    """A training in progress, or the one from which another start goes on.

    session: its name. server: the algorithm's server state. rounds: the statistics of all rounds. born: the round in
    which each client's state began. ranges: those that the clients agreed on, empty without private ranges, and None
    before the clients have counted. first: the number of rounds that were completed before this start. settled: the
    last round whose replies the clients may delete, None for the one before the current one. began: when the current
    round began, in seconds of `time.perf_counter`.
    """

    session: str
    server: Any
    rounds: list[Round] = field(default_factory=list)
    born: dict[int, int] = field(default_factory=dict)
    ranges: bytes | None = None
    first: int = 0
    settled: int | None = None
    began: float = 0.0

    @classmethod
    def new(cls, server: Any) -> "Training":
        """A training under a name of its own that begins with this server state."""
        return cls(secrets.token_hex(8), server)

    def resumed(self) -> "Training":
        """A training that goes on after the last round of this one, which stays as it is."""
        rounds, born = list(self.rounds), dict(self.born)
        return replace(self, first=self.round, rounds=rounds, born=born, settled=None)

    @property
    def round(self) -> int:
        """The last round so far."""
        return self.rounds[-1].round if self.rounds else 0

    def number(self, server_round: int) -> int:
        """The number of a round that Flower counts from this start."""
        return server_round + self.first

    def stamp(self, round_: int) -> dict[str, Any]:
        """The fields of every request: round, session, and the last settled round, whose replies may be deleted.

        Private ranges are part of every request.
        """
        settled = round_ - 1 if self.settled is None else self.settled
        ranges = {"ranges": self.ranges} if self.ranges else {}
        return {"round": round_, "session": self.session, "settled": settled, **ranges}

    def update(self, algorithm: Algorithm, round_: int, good: Mapping[int, Upload]) -> None:
        """Update the server state with the valid replies of a round, by client."""
        clients = sorted(good)
        uploads = stack([good[client].values for client in clients])
        self.server = algorithm.server_update(self.server, uploads, np.array(clients), round_)


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
