"""Flower mods for our clients: one for nodes without a partition, one for Flower's own strategies, and one that makes
replies smaller.

The strategies of `flwr.serverapp.strategy` send records named "arrays" and "config", and average what they get back.
Our clients are NumPyClients, whose records have other names, and their replies hold more than a model.
"""

from collections.abc import Callable
from copy import copy
from typing import Any, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from twinflower.errors import ReplyError
from twinflower.flower_messages import (
    EVALUATE,
    FIT,
    KINDS,
    PLACES,
    PROPERTIES,
    RAISED,
    SITE,
    reply_record,
    request_record,
)

from .functions import CONFIG
from .request import model_and_config, model_only

UNNAMED = "unnamed"  # a site that its node config does not name
_PROPERTIES = {"get_properties": reply_record(PROPERTIES, "properties"), "query": CONFIG}
_NO_NUMBER = (
    "this node has no partition-id, and the request does not say which client it is: use a strategy of Twinflower, or "
    "set partition-id and num-partitions in the node config"
)


def numbered(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """Let the server number a node whose config has no partition, as Flower's nodes have in a deployment.

    Asked for its partition, the node replies with its name: `site` in its config, else the id that Flower gives to a
    registered node for its key. All further requests of our strategies carry its number, which the client then finds in
    the node config, beside a `site`. Use it as the first of the mods of a ClientApp.
    """
    if not context.node_config.keys().isdisjoint(PLACES):
        return call_next(message, context)
    if places := _places_in(message.content):
        known = copy(context)
        known.node_config = {SITE: UNNAMED, **context.node_config, **places}
        reply = call_next(message, known)
        context.state = known.state
        return reply
    if name := _PROPERTIES.get(message.metadata.message_type):
        site = ConfigRecord({SITE: str(context.node_config.get(SITE, f"node-{context.node_id}"))})
        return Message(RecordDict({name: site}), reply_to=message)
    return Message(Error(RAISED, _NO_NUMBER), reply_to=message)


def _places_in(content: RecordDict) -> dict[str, int]:
    """The number of the client and of all clients in a request; empty without valid ones."""
    for config in content.config_records.values():
        number, count = (config.get(key) for key in PLACES)
        if type(number) is int and type(count) is int and 0 <= number < count:
            return dict(zip(PLACES, (number, count), strict=True))
    return {}


def for_flower_strategies(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Translate a request of one of Flower's own strategies, and the reply to it; pass on other messages unchanged.

    The model is one array (d,). The reply to "train" holds the client's model and its number of rows, "num-examples";
    that to "evaluate" holds "loss" and "accuracy" on the held-out rows, and their number. Raises ReplyError for an
    algorithm whose own server does more than average models.

    Use it as `ClientApp(client_fn, mods=[for_flower_strategies])`.
    """
    kind = KINDS.get(message.metadata.message_type, "")
    if kind not in _TRANSLATED or request_record(kind, "parameters") in message.content:
        return call_next(message, context)
    model, config = model_and_config(message.content)
    if len(model) != 1:
        raise ReplyError(f"the model in a request must be one flat array; got {len(model)} arrays")
    message.content = RecordDict(
        {
            request_record(kind, "parameters"): model,
            request_record(kind, "config"): ConfigRecord(model_only(config)),
        }
    )
    reply = call_next(message, context)
    if not reply.has_error():
        reply.content = _TRANSLATED[kind](reply.content, model)
    return reply


def share_bytes(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Let the arrays of a reply share their bytes with equal ones that are stored in the client's context.

    A process of Flower's engine returns both together, and pickle writes an object once. Ray returns up to 100 KB
    directly; more takes three times as long.
    """
    reply = call_next(message, context)
    if reply.has_content():
        stored = [array.data for array in _arrays(context.state)]
        for array in _arrays(reply.content):  # compared one by one: hashing takes longer
            array.data = next((data for data in stored if data == array.data), array.data)
    return reply


def _arrays(records: RecordDict) -> list[Array]:
    return [array for record in records.array_records.values() for array in record.values()]


def _fitted(content: RecordDict, model: ArrayRecord) -> RecordDict:
    """The client's model, under the name of the array that was sent, and its number of rows."""
    (array,) = content.array_records[reply_record(FIT, "parameters")].values()
    (name,) = model
    return RecordDict({"arrays": ArrayRecord({name: array}), "metrics": MetricRecord(_rows(content, FIT))})


def _evaluated(content: RecordDict, model: ArrayRecord) -> RecordDict:
    """The metrics on the held-out rows, and the number of these rows."""
    loss = content.metric_records[reply_record(EVALUATE, "loss")]["loss"]
    accuracy = cast(float, content.config_records[reply_record(EVALUATE, "metrics")]["accuracy"])
    return RecordDict(
        {"metrics": MetricRecord(_rows(content, EVALUATE) | {"loss": loss, "accuracy": accuracy})}
    )


def _rows(content: RecordDict, kind: str) -> dict[str, Any]:
    return {"num-examples": content.metric_records[reply_record(kind, "num_examples")]["num_examples"]}


_TRANSLATED: dict[str, Callable[[RecordDict, ArrayRecord], RecordDict]] = {
    FIT: _fitted,
    EVALUATE: _evaluated,
}
