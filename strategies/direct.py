"""Requests and replies of a round as NumPy arrays, and their form as Flower messages.

A strategy makes `Request`s and reads `Reply`s. Over any Flower grid they travel as messages in the format of Flower's
NumPyClient. A `DirectGrid`, whose nodes are in this process, takes and returns them as they are.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from twinflower.errors import ReplyError
from twinflower.wire import NO_ARRAYS, from_npy

from .nodes import short
from .records import record_of

Arrays = Sequence[NDArray[Any]]


class Request(NamedTuple):
    """What a node is asked: the arrays and the config of its client's `fit`."""

    node: int
    arrays: Arrays
    config: Mapping[str, Any]


class Reply(NamedTuple):
    """The arrays and the metrics that a node's `fit` returned, or in `error` why there are none."""

    node: int
    arrays: Arrays = ()
    metrics: Mapping[str, Any] = {}
    error: str = ""


class DirectGrid(Grid, ABC):
    """A grid whose nodes are in this process, so that `send_and_receive` also takes requests and returns replies."""

    @abstractmethod
    def fit(self, requests: Sequence[Request]) -> list[Reply]:
        """The reply of each request's node."""


def messages_of(requests: Iterable[Request], round_: int) -> list[Message]:
    """The requests as Flower messages; arrays that several requests share are encoded once."""
    records: dict[int, ArrayRecord] = {}
    return [
        Message(_content(request, records), request.node, "train", group_id=str(round_))
        for request in requests
    ]


def _content(request: Request, records: dict[int, ArrayRecord]) -> RecordDict:
    shared = id(request.arrays)  # the requests keep the arrays alive, so no id is reused
    if shared not in records:
        records[shared] = record_of(request.arrays)
    config = ConfigRecord(dict(request.config))
    return RecordDict({"fitins.parameters": records[shared], "fitins.config": config})


def reply_of(reply: Message | Reply) -> Reply:
    """Read a message. One that no NumPyClient would send becomes a reply with an error."""
    if isinstance(reply, Reply):
        return reply
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
