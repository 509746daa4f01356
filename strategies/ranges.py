"""The message before round 1 that asks all clients for counts of their columns with private ranges."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from logging import WARNING

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from twinflower.errors import ReplyError, RunError
from twinflower.wire import checked, expect_arrays, from_npy

from .nodes import short

Counts = NDArray[np.float64]
Send = Callable[[list[Message]], Iterable[Message]]
_NO_REPLY = "no reply"


@dataclass(frozen=True)
class Agreement:
    """How a server finds the ranges. entries: the number of counts that a client sends. ranges(counts (K, entries),
    clients (K,)): the ranges as bytes (`twinflower.data.ranges.pack_ranges`), clients in ascending order."""

    entries: int
    ranges: Callable[[Counts, NDArray[np.int64]], bytes]

    def reach(self, send: Send, nodes: Mapping[int, int], session: str, attempts: int, least: int) -> bytes:
        """Ask the clients (client -> node), those without a valid reply again, and return the ranges.

        A client that stays away is left out; RunError if fewer than `least` reply.
        """
        found: dict[int, Counts] = {}
        missing = dict.fromkeys(nodes, _NO_REPLY)
        for _ in range(attempts):
            clients = {nodes[client]: client for client in missing}
            for reply in send([_question(node, session) for node in sorted(clients)]):
                self._note(reply, clients.get(reply.metadata.src_node_id, -1), session, found, missing)
            if not missing:
                break
        for client, reason in sorted(missing.items()):
            log(WARNING, "client %s counts for no range: %s", client, reason)
        if len(found) < least:
            client, reason = min(missing.items())
            raise RunError(
                f"{len(found)} clients sent counts for private ranges, and {least} are needed, the run stops (client "
                f"{client}: {reason})"
            )
        order = sorted(found)
        return self.ranges(np.stack([found[client] for client in order]), np.array(order))

    def _note(
        self, reply: Message, client: int, session: str, found: dict[int, Counts], missing: dict[int, str]
    ) -> None:
        """Store the counts of a reply in `found`, or the reason why there are none in `missing`."""
        if client not in missing:
            return
        try:
            found[client] = self._checked(reply, session)
            del missing[client]
        except ReplyError as error:
            missing[client] = short(error)

    def _checked(self, reply: Message, session: str) -> Counts:
        if reply.has_error():
            raise ReplyError(short(reply.error.reason))
        content = reply.content
        metrics = content.config_records.get("fitres.metrics", ConfigRecord())
        if metrics.get("refused") is True:
            raise ReplyError("it refuses: its privacy budget is spent, or too small for the run")
        if metrics.get("round") != 0 or metrics.get("session") != session:
            raise ReplyError("the reply is not one with counts of this run")
        arrays = content.array_records.get("fitres.parameters", ArrayRecord())
        expect_arrays(list(arrays), 1)  # type: ignore[arg-type]
        (array,) = arrays.values()
        return checked("counts", from_npy(array.data), (self.entries,))


def _question(node: int, session: str) -> Message:
    config = ConfigRecord({"round": 0, "session": session, "settled": 0})
    content = RecordDict({"fitins.parameters": ArrayRecord(), "fitins.config": config})
    return Message(content, node, "train", group_id="0")
