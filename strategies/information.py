"""The request after the last round that asks all clients for the sums from which standard errors follow."""

from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message

from twinflower.arrays import Array, Index
from twinflower.clients.records import record_of
from twinflower.errors import ReplyError
from twinflower.flower_messages import EVALUATE, reply_record
from twinflower.models.information import Information, packed_size

from .exchange import Exchange
from .requests import information_request

_ROUNDING = 1e-9


def collect(
    exchange: Exchange, x: Array, round_: int, session: str, sizes: Index
) -> tuple[Information | None, str]:
    """The sums over the rows of all clients at the model x (d,); None, and a sentence why, if a client sends none.

    sizes (N,): the clients' numbers of training rows.
    """
    model: ArrayRecord = record_of([x])

    def ask(client: int, node: int) -> Message:
        return information_request(node, model, round_, session)

    def read(client: int, reply: Message) -> Information:
        return _sums(reply, len(x), round_, int(sizes[client]))

    found, missing = exchange.ask_all(ask, read, round_)
    if not missing:
        return Information.together([found[client] for client in sorted(found)]), ""
    client, reason = min(missing.items())
    return None, f"{len(missing)} clients sent no information matrix (client {client}: {reason})"


def _sums(reply: Message, d: int, round_: int, rows: int) -> Information:
    """The sums over so many rows in a reply; ReplyError for what an `AlgorithmClient` would not send."""
    metrics: Any = reply.content.config_records.get(reply_record(EVALUATE, "metrics"), ConfigRecord())
    content = metrics.get("information")
    if metrics.get("round") != round_:
        raise ReplyError(f"the reply belongs to round {metrics.get('round')!r}, not {round_}")
    if not isinstance(content, bytes) or len(content) != 8 * packed_size(d):
        raise ReplyError(f"an information matrix of {d} parameters is {packed_size(d)} doubles")
    numbers = np.frombuffer(content, "<f8").astype(np.float64)
    if not np.isfinite(numbers).all():
        raise ReplyError("the information matrix must be finite")
    found = Information.unpacked(numbers, d)
    if found.rows != rows:
        raise ReplyError(f"the information matrix must be that of {rows} rows; it says {found.rows:g}")
    if not (_symmetric(found.matrix) and _symmetric(found.outer)):
        raise ReplyError("the information matrix and the outer products must be symmetric")
    return found


def _symmetric(matrix: Array) -> bool:
    """Whether a matrix (d, d) is symmetric, up to the rounding of sums over rows."""
    return bool(np.abs(matrix - matrix.T).max() <= _ROUNDING * np.abs(matrix).max())
