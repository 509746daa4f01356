"""Messages to nodes and their replies in the format of Flower's NumPyClient: which are valid, and whether there are
enough."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import WARNING
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common import log
from numpy.typing import NDArray

from twinflower.algorithms.algorithm import Algorithm
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError, RunError
from twinflower.flower_messages import (
    EVALUATE,
    FIT,
    NO_ARRAYS,
    PROPERTIES,
    readable,
    reply_record,
    request_record,
)
from twinflower.rounds import REFUSED, Round, who
from twinflower.wire import from_npy

T = TypeVar("T")
Arrays = Sequence[NDArray[Any]]
Read = Callable[[int, Message], T]
"""What the reply of a client holds; raises ReplyError if it is invalid."""

NO_REPLY = "no reply"
_LONGEST_REASON, _LONGEST_TRACEBACK = 1000, 100_000
_FOREIGN = {  # what errors of Flower and its mods contain, and what to do about them
    "secaggplus_configs": "its app uses Flower's secagg_mod or secaggplus_mod, which need the workflow of that name in "
    'place of a strategy: leave the mod out, and set privacy.trust = "sum" to hide what single sites send',
    "Invalid message type: get_properties": "its app's clients are functions, such as @app.train(), which need "
    "twinflower.strategies.AppFunctions around the grid. Or is this SuperLink another app's?",
    "Invalid message type: query": "its app has a NumPyClient: leave out AppFunctions around the grid",
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
        raise ReplyError(REFUSED)
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
    sites: Sequence[str] = ()

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
            log(WARNING, "%s has lost its state and starts afresh in round %s", who(client, self.sites), born)
        self.born[client] = born


def properties_request(node: int, session: str = "", key: str = "session", **more: Any) -> Message:
    """A message that asks a node for its partition, and if a session is named, for what else the client has for it, or,
    with the key BEGINS, whether it takes part; the key ENDS says that nothing more is asked. more: of the config."""
    config = ConfigRecord({key: session, **more} if session else {})
    return Message(RecordDict({request_record(PROPERTIES, "config"): config}), node, "get_properties")


def properties_in(reply: Message) -> ConfigRecord:
    """What a client replies to a `properties_request`; empty if the reply holds nothing of it."""
    return reply.content.config_records.get(reply_record(PROPERTIES, "properties"), ConfigRecord())


def fit_request(node: int, arrays: ArrayRecord, config: Mapping[str, Any]) -> Message:
    """A message that asks a node for a round, whose number is in the config."""
    return Message(_content(FIT, arrays, config), node, "train", group_id=str(config["round"]))


def question_request(node: int, model: ArrayRecord, config: Mapping[str, Any]) -> Message:
    """A message that asks a node about a model; config: round, session, and the fields of the question."""
    return Message(_content(EVALUATE, model, config), node, "evaluate", group_id=str(config["round"]))


def _content(kind: str, arrays: ArrayRecord, config: Mapping[str, Any]) -> RecordDict:
    content = RecordDict({request_record(kind, "parameters"): arrays})
    content[request_record(kind, "config")] = ConfigRecord(dict(config))
    return content


@dataclass(frozen=True)
class Requests:
    """The requests of a round to its clients, and how their replies are read.

    config: of every request. inboxes: client -> inbox.
    """

    inspector: Inspector
    round: int
    config: Mapping[str, Any]
    inboxes: Mapping[int, Any]
    _records: dict[tuple[int, ...], ArrayRecord] = field(default_factory=dict, init=False)

    def message(self, client: int, node: int) -> Message:
        """The request to a client at this node; inboxes that hold the same array objects are encoded only once."""
        inbox = self.inboxes[client]
        same = tuple(map(id, inbox))  # inboxes keeps the arrays alive, so no id is reused
        if same not in self._records:
            self._records[same] = record_of(
                self.inspector.algorithm.inbox.pack(inbox, self.inspector.entries)
            )
        return fit_request(node, self._records[same], self.config)

    def read(self, client: int, reply: Message) -> Upload:
        """What a client sent; ReplyError for an invalid reply."""
        return self.inspector.read(client, self.inboxes[client], reply, self.round)

    def statistics(self, accepted: Iterable[Upload], rejected: Mapping[int, str]) -> Round:
        """The round's statistics, except for its duration."""
        layouts = self.inspector.algorithm.upload, self.inspector.algorithm.inbox
        up, down = (layout.bits(self.inspector.entries, self.inspector.dtype) for layout in layouts)
        metrics = [upload.metrics for upload in accepted]
        return Round(
            self.round,
            tuple(self.inboxes),
            len(metrics),
            dict(sorted(rejected.items())),
            up * len(metrics),
            down * len(self.inboxes),
            _mean_of(metrics, "local-steps"),
            _mean_of(metrics, "stopped"),
        )


def _mean_of(metrics: Sequence[Mapping[str, Any]], key: str) -> float:
    """The mean of a metric over the clients that report a valid number, nan if none does."""
    values = [m.get(key) for m in metrics]
    sane = [float(v) for v in values if isinstance(v, int) and 0 <= v < 2**40]
    return float(np.mean(sane)) if sane else float("nan")


@dataclass
class Quorum:
    """Whether a round has enough valid replies.

    min_replies: a round with fewer changes nothing. void_rounds: how many such rounds may occur in a row. sites: the
    clients' names, if they have some.
    """

    min_replies: int
    void_rounds: int
    void: int = 0
    sites: Sequence[str] = ()

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
        return f"round {server_round}: {what}, the run stops ({who(client, self.sites)}: {reason})"
