"""The replies of a round, read from Flower messages in the format of its NumPyClient, and which of them are valid."""

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.abilities import NeedsClientState
from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.wire import NO_ARRAYS, from_npy

from .nodes import short

Arrays = Sequence[NDArray[Any]]
Valid = dict[int, tuple[Any, dict[str, Any]]]
"""Upload and metrics, by client."""

NO_REPLY = "no reply"


class Asked(NamedTuple):
    """A request of the round: its client, and the inbox that it was sent."""

    client: int
    inbox: Any


class Reply(NamedTuple):
    """The arrays and the metrics that a node's `fit` returned, or in `error` why there are none."""

    node: int
    arrays: Arrays = ()
    metrics: Mapping[str, Any] = {}
    error: str = ""


def reply_of(reply: Message) -> Reply:
    """Read a message. One that no NumPyClient would send becomes a reply with an error."""
    node = reply.metadata.src_node_id
    if reply.has_error():
        return Reply(node, error=f"error {reply.error.code}: {short(reply.error.reason)}")
    try:
        return Reply(node, *_results(reply.content))
    except ReplyError as error:
        return Reply(node, error=str(error))


def _results(content: RecordDict) -> tuple[Arrays, Mapping[str, Any]]:
    """The arrays and metrics of a message's content; ReplyError if a record is missing or malformed."""
    try:
        records, metrics = content["fitres.parameters"], content["fitres.metrics"]
    except KeyError as missing:
        raise ReplyError(f"record {missing} is missing") from None
    if not isinstance(records, ArrayRecord) or not isinstance(metrics, ConfigRecord):
        raise ReplyError("the reply's records have the wrong kind")
    arrays = [array.data for name, array in records.items() if name != NO_ARRAYS]
    return [from_npy(data) for data in arrays], cast(Mapping[str, Any], metrics)


@dataclass
class Inspector:
    """Tells valid replies from others.

    entries: d, the number of entries of the model, and dtype its type. session: the training that replies must belong
    to. max_norm: the largest Euclidean norm of an array. born: the round in which each client's state began.
    """

    algorithm: Algorithm
    entries: int
    dtype: np.dtype[Any]
    session: str
    max_norm: float = math.inf
    born: dict[int, int] = field(default_factory=dict)

    def sorted(
        self, replies: Iterable[Message], asked: Mapping[int, Asked], nodes: Set[int], round_: int
    ) -> tuple[Valid, dict[int, str]]:
        """The upload and metrics of every client with a valid reply from one of these nodes, and the reason for every
        other client. asked: the requests of the round, by node."""
        good: Valid = {}
        rejected = {asked[node].client: NO_REPLY for node in nodes}
        for reply in map(reply_of, replies):
            request = asked.get(reply.node) if reply.node in nodes else None
            if request is None or rejected.get(request.client) != NO_REPLY:
                reason = reply.error or "a second reply, or one that was not requested"
                log(WARNING, "round %s: ignored: %s", round_, reason)
                continue
            try:
                good[request.client] = self._checked(reply, request, round_)
                rejected.pop(request.client, None)
            except ReplyError as error:
                rejected[request.client] = short(error)
        return good, rejected

    def _checked(self, reply: Reply, asked: Asked, round_: int) -> tuple[Any, dict[str, Any]]:
        """The upload and metrics of a reply; ReplyError for anything that an `AlgorithmClient` would not send."""
        if reply.error:
            raise ReplyError(reply.error)
        metrics = reply.metrics
        if metrics.get("refused") is True:
            raise ReplyError("it refuses: its privacy budget is spent, or too small for the run")
        stamp = metrics.get("round")
        if type(stamp) is not int or stamp != round_:
            raise ReplyError(f"the reply belongs to round {stamp!r}, not {round_}")
        if metrics.get("session", self.session) != self.session:
            raise ReplyError("the reply belongs to another run")
        upload = self.algorithm.upload.unpack(reply.arrays, self.entries, asked.inbox, self.dtype)
        if self.max_norm < math.inf and any(np.linalg.norm(a) > self.max_norm for a in reply.arrays):
            raise ReplyError(f"an array is longer than server.max-norm, {self.max_norm:g}")
        self._check_birth(asked.client, metrics.get("born"))
        return upload, dict(metrics)

    def _check_birth(self, client: int, born: Any) -> None:
        """Detect a client whose state was lost and began again, from the round `born` in which it began.

        Clients that are not `AlgorithmClient`s need not report it. Raises ReplyError if the algorithm needs the state.
        """
        known = self.born.get(client)
        if type(born) is not int or born == known:
            return
        if known is not None and isinstance(self.algorithm, NeedsClientState):
            raise ReplyError(
                f"it has lost its state: what it sends begins in round {born}, and {known} was expected"
            )
        if known is not None:
            log(WARNING, "client %s has lost its state and starts afresh in round %s", client, born)
        self.born[client] = born
