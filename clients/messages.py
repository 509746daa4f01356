"""A client's answers to Flower messages, in the format of Flower's NumPyClient.

Flower converts a message to the arguments of a NumPyClient, and the result to a message, through a dozen dictionaries
and copies, which takes as long as some rounds. This module reads and writes the same records directly.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from twinflower.errors import ReplyError
from twinflower.flower_messages import (
    EVALUATE,
    FIT,
    KINDS,
    NO_ARRAYS,
    PROPERTIES,
    reply_record,
    request_record,
)
from twinflower.wire import from_npy

from .records import record_of
from .shell import AlgorithmClient, Answer

Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

_SUCCESS = ConfigRecord({"code": 0, "message": "Success"})


def directly(client_of: Callable[[Context], AlgorithmClient]) -> Mod:
    """A Flower mod that answers with the context's client.

    It must be the last one in `ClientApp(client_fn, mods=[...])`, because it calls no other.
    """

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        """Answer with the context's client; pass on messages of other types."""
        if message.metadata.message_type not in KINDS:
            return call_next(message, context)
        content = answered(client_of(context), message)
        share_bytes(content, context.state)
        return Message(content, reply_to=message)

    return mod


def answered(client: AlgorithmClient, message: Message) -> RecordDict:
    """The content of the client's reply to a message of type "train", "evaluate" or "get_properties".

    Raises ReplyError if the message lacks a record that a NumPyClient needs, and what the client raises.
    """
    kind, content = KINDS[message.metadata.message_type], message.content
    config = dict(_record(content, request_record(kind, "config"), ConfigRecord).items())
    if kind == PROPERTIES:
        properties = ConfigRecord(client.get_properties(config))
        return _content(PROPERTIES, properties=properties)
    parameters = _record(content, request_record(kind, "parameters"), ArrayRecord)
    arrays = [from_npy(array.data) for name, array in parameters.items() if name != NO_ARRAYS]
    if kind == EVALUATE:
        return _evaluate_result(*client.evaluate(arrays, config))
    return _fit_result(client.answer(arrays, config))


def share_bytes(content: RecordDict, state: RecordDict) -> None:
    """Let the arrays of a reply share their bytes with equal ones that are stored in the client's context.

    A process of Flower's engine returns both together, and pickle writes an object once. Ray returns up to 100 KB
    directly; more takes three times as long.
    """
    stored = [array.data for array in _arrays(state)]
    for array in _arrays(content):  # compared one by one: hashing takes longer
        array.data = next((data for data in stored if data == array.data), array.data)


def _arrays(records: RecordDict) -> list[Array]:
    arrays = [record for record in records.values() if isinstance(record, ArrayRecord)]
    return [array for record in arrays for array in record.values()]


def _record(content: RecordDict, name: str, kind: type[Any]) -> Any:
    """A record of a message; ReplyError unless it is there and of this kind."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise ReplyError(f"the request must hold a record {name} of type {kind.__name__}")
    return record


def _fit_result(answer: Answer) -> RecordDict:
    """The records that Flower makes from the return value of `fit`."""
    return _content(
        FIT,
        parameters=record_of(answer.arrays),
        num_examples=_row_count(answer.rows),
        metrics=ConfigRecord(dict(answer.metrics)),
    )


def _evaluate_result(loss: float, rows: int, metrics: dict[str, Any]) -> RecordDict:
    """The records that Flower makes from the return value of `evaluate`."""
    return _content(
        EVALUATE,
        loss=MetricRecord({"loss": loss}),
        num_examples=_row_count(rows),
        metrics=ConfigRecord(metrics),
    )


def _content(kind: str, **records: Any) -> RecordDict:
    """The content of a reply, with these records and the status of success."""
    parts = {**records, "status": _SUCCESS}
    return RecordDict({reply_record(kind, part): record for part, record in parts.items()})


@lru_cache
def _row_count(rows: int) -> MetricRecord:
    return MetricRecord({"num_examples": rows})
