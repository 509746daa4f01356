"""The request before round 1 that asks all clients for counts (`twinflower.queries.first`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from flwr.common import log
from numpy.typing import NDArray

from twinflower.errors import ReplyError, RunError
from twinflower.wire import checked, expect_arrays

from .exchange import Exchange
from .replies import fit_results
from .requests import fit_request

Counts = NDArray[np.float64]


def expect_session(metrics: Mapping[str, Any], session: str) -> None:
    """ReplyError for counts that do not name their session: unlike a round's reply, only our clients send them."""
    if metrics.get("session") != session:
        raise ReplyError("the reply belongs to another run")


@dataclass(frozen=True)
class Agreement:
    """What a server does with the counts. entries: how many counts a client sends. content(counts (K, entries), clients
    (K,)): what is part of all further requests, such as private ranges, or empty; clients in ascending order."""

    entries: int
    content: Callable[[Counts, NDArray[np.int64]], bytes]

    def reach(self, exchange: Exchange, session: str, least: int) -> bytes:
        """Ask the clients, those without a valid reply again, and return what further requests carry.

        A client that stays away is left out; RunError if fewer than `least` reply.
        """

        def ask(client: int, node: int) -> Message:
            return fit_request(node, ArrayRecord(), {"round": 0, "session": session, "settled": 0})

        def counts(client: int, reply: Message) -> Counts:
            arrays, metrics = fit_results(reply, 0, session)
            expect_session(metrics, session)
            expect_arrays(arrays, 1)
            return checked("counts", arrays[0], (self.entries,))

        found, missing = exchange.ask_all(ask, counts, 0)
        for client, reason in sorted(missing.items()):
            log(WARNING, "client %s sent no counts before round 1: %s", client, reason)
        if len(found) < least:
            client, reason = min(missing.items())
            raise RunError(
                f"{len(found)} clients sent counts before round 1, and {least} are needed, the run stops (client "
                f"{client}: {reason})"
            )
        order = sorted(found)
        return self.content(np.stack([found[client] for client in order]), np.array(order))
