"""The replies of a round, read from Flower messages in the format of its NumPyClient."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict
from numpy.typing import NDArray

from twinflower.errors import ReplyError
from twinflower.wire import NO_ARRAYS, from_npy

from .nodes import short

Arrays = Sequence[NDArray[Any]]


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
