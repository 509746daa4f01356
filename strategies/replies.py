"""Which replies of nodes are valid; those to `fit` are read in the format of Flower's NumPyClient."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.errors import ReplyError
from twinflower.flower_messages import FIT, NO_ARRAYS, readable, reply_record
from twinflower.wire import from_npy

T = TypeVar("T")
Arrays = Sequence[NDArray[Any]]
Read = Callable[[int, Message], T]
"""What the reply of a client holds; raises ReplyError if it is invalid."""

NO_REPLY = "no reply"
_LONGEST_REASON, _LONGEST_TRACEBACK = 1000, 100_000
_FOREIGN = {  # what errors of Flower's own mods contain, and what to do about them
    "secaggplus_configs": "its app uses Flower's secagg_mod or secaggplus_mod, which need the workflow of that name in "
    'place of a strategy: leave the mod out, and set privacy.trust = "sum" to hide what single sites send',
    "LocalDpMod": "its app uses Flower's LocalDpMod, which needs a strategy of Flower: leave the mod out, and "
    "set privacy.mode, with which clients add noise themselves",
}


def short(message: object) -> str:
    """Text from an untrusted node, made safe for the log: one printable line of bounded length."""
    text = str(message)[:_LONGEST_TRACEBACK]
    line = " ".join(readable(text).split())[:_LONGEST_REASON]
    line = next((remedy for mark, remedy in _FOREIGN.items() if mark in text), line)
    return "".join(filter(str.isprintable, line))


def sort_replies(
    replies: Iterable[Message], clients: Mapping[int, int], read: Read[T], round_: int
) -> tuple[dict[int, T], dict[int, str]]:
    """What each client's valid reply holds, and the reason for every client without one.

    clients: node -> client, for those that were asked. The first reply of a client counts; others are logged.
    """
    good: dict[int, T] = {}
    rejected = dict.fromkeys(clients.values(), NO_REPLY)
    for reply in replies:
        client = clients.get(reply.metadata.src_node_id, -1)
        error = f"error {reply.error.code}: {short(reply.error.reason)}" if reply.has_error() else ""
        if error and client < 0:
            continue  # from Flower itself, about a node that has gone: its client is one without a reply
        if rejected.get(client) != NO_REPLY:
            reason = error or "a second reply, or one that was not requested"
            log(WARNING, "round %s: ignored: %s", round_, reason)
            continue
        try:
            if error:
                raise ReplyError(error)
            good[client] = read(client, reply)
            del rejected[client]
        except ReplyError as invalid:
            rejected[client] = short(invalid)
    return good, rejected


def fit_results(reply: Message, round_: int, session: str) -> tuple[Arrays, Mapping[str, Any]]:
    """The arrays and metrics of a reply; ReplyError if it lacks them, is a refusal, or belongs to another round."""
    try:
        records, metrics = (reply.content[reply_record(FIT, part)] for part in ("parameters", "metrics"))
    except KeyError as missing:
        raise ReplyError(f"record {missing} is missing") from None
    if not isinstance(records, ArrayRecord) or not isinstance(metrics, ConfigRecord):
        raise ReplyError("the reply's records have the wrong kind")
    if metrics.get("refused") is True:
        raise ReplyError("it refuses: its privacy budget is spent, or too small for the run")
    stamp = metrics.get("round")
    if type(stamp) is not int or stamp != round_:
        raise ReplyError(f"the reply belongs to round {stamp!r}, not {round_}")
    if metrics.get("session", session) != session:
        raise ReplyError("the reply belongs to another run")
    arrays = [from_npy(array.data) for name, array in records.items() if name != NO_ARRAYS]
    return arrays, cast(Mapping[str, Any], metrics)


class Upload(NamedTuple):
    """What a client sent in a round: the algorithm's upload, and metrics."""

    values: Any
    metrics: Mapping[str, Any]


@dataclass
class Inspector:
    """Tells valid replies of the rounds from others.

    entries: d, the number of entries of the model, and dtype its type. session: the training that replies must belong
    to. max_norm: the largest Euclidean norm of an array. born: the round in which each client's state began.
    """

    algorithm: Algorithm
    entries: int
    dtype: np.dtype[Any]
    session: str
    max_norm: float = math.inf
    born: dict[int, int] = field(default_factory=dict)

    def read(self, client: int, inbox: Any, reply: Message, round_: int) -> Upload:
        """What a client sent in reply to this inbox; ReplyError for what an `AlgorithmClient` would not send."""
        arrays, metrics = fit_results(reply, round_, self.session)
        values = self.algorithm.upload.unpack(arrays, self.entries, inbox, self.dtype)
        if self.max_norm < math.inf and any(np.linalg.norm(array) > self.max_norm for array in arrays):
            raise ReplyError(f"an array is longer than server.max-norm, {self.max_norm:g}")
        self._check_birth(client, metrics.get("born"))
        return Upload(values, dict(metrics))

    def _check_birth(self, client: int, born: Any) -> None:
        """Detect a client whose state was lost and began again, from the round `born` in which it began.

        Clients that are not `AlgorithmClient`s need not report it. Raises ReplyError if the algorithm needs the state.
        """
        known = self.born.get(client)
        if type(born) is not int or born == known:
            return
        if known is not None and self.algorithm.needs_client_state:
            raise ReplyError(
                f"it has lost its state: what it sends begins in round {born}, and {known} was expected"
            )
        if known is not None:
            log(WARNING, "client %s has lost its state and starts afresh in round %s", client, born)
        self.born[client] = born
