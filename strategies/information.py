"""The request after the last round that asks all clients for the sums from which standard errors follow."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from twinflower.arrays import Array
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.models.information import Information

from .exchange import Exchange
from .replies import doubles
from .requests import information_request

T = TypeVar("T")
_ROUNDING = 1e-9


def collect(
    exchange: Exchange, x: Array, stamp: Mapping[str, Any], size: int, read: Callable[[int, Array], T]
) -> tuple[list[T], str]:
    """What all clients send at the model x (d,), in their order; nothing, and a sentence why, if one sends none.

    stamp: the fields of a request for the last round. size: how many numbers a client sends. read: what the numbers of
    a client say; ReplyError for those that an `AlgorithmClient` would not send.
    """
    model: ArrayRecord = record_of([x])

    def ask(client: int, node: int) -> Message:
        return information_request(node, model, stamp)

    def of_client(client: int, reply: Message) -> T:
        return read(client, doubles(_content(reply, stamp["round"]), (size,), "the information matrix"))

    found, missing = exchange.ask_all(ask, of_client, stamp["round"])
    if not missing:
        return [found[client] for client in sorted(found)], ""
    client, reason = min(missing.items())
    return [], f"{len(missing)} clients sent no information matrix (client {client}: {reason})"


def _content(reply: Message, round_: int) -> object:
    """What a reply has in the place of the information matrix; ReplyError for a reply of another round."""
    metrics: Any = reply.content.config_records.get(reply_record(EVALUATE, "metrics"), ConfigRecord())
    if metrics.get("round") != round_:
        raise ReplyError(f"the reply belongs to round {metrics.get('round')!r}, not {round_}")
    return metrics.get("information")


def exact_sums(numbers: Array, d: int, rows: int) -> Information:
    """The sums over so many rows in a reply about a model of d entries; ReplyError for impossible ones."""
    found = Information.unpacked(numbers, d)
    if found.rows != rows:
        raise ReplyError(f"the information matrix must be that of {rows} rows; it says {found.rows:g}")
    if not (_symmetric(found.matrix) and _symmetric(found.outer)):
        raise ReplyError("the information matrix and the outer products must be symmetric")
    return found


def _symmetric(matrix: Array) -> bool:
    """Whether a matrix (d, d) is symmetric, up to the rounding of sums over rows."""
    return bool(np.abs(matrix - matrix.T).max() <= _ROUNDING * np.abs(matrix).max())
