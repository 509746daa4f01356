"""The last message of every client, which a server may average in place of a round's messages alone.

Messages that were sent cost no privacy when they are used again.
"""

from typing import Annotated, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask
from ..errors import SettingError
from ..settings import Setting, one_of
from .algorithm import RunInfo
from .messages import mean_of_senders

Aggregation = Annotated[
    str, Setting("what the server averages: this round's messages, or all clients' last", one_of(("sampled", "memory")))
]


class Memory(NamedTuple):
    """The last value received of every entry from every client, last (..., N, d), and a mask of the entries received so
    far, heard (..., N, d).

    heard has shape (..., N, 1) if messages are dense. Both arrays have N = 0 if no memory is kept. Each round copies
    and averages all N d numbers.
    """

    last: Array
    heard: Mask


def empty_memory(start: Array, num_clients: int, wanted: bool, dense: bool) -> Memory:
    """A memory without any received entries; of size N = 0 if it is not wanted.

    Raises SettingError if it would take more than 4 GiB.
    """
    clients = num_clients if wanted else 0
    if not start.nbytes * clients < 2**32:
        raise SettingError(
            f"aggregation memory keeps {clients} x {start.shape[-1]} numbers, more than 4 GiB: use aggregation sampled"
        )
    shape = start.shape[:-1] + (clients, start.shape[-1])
    return Memory(np.zeros(shape, start.dtype), np.zeros((*shape[:-1], 1 if dense else shape[-1]), dtype=bool))


def remember(memory: Memory, values: Array, sent: Mask | None, clients: Index) -> Memory:
    """The memory after the entries (..., K, d) that clients (..., K) sent have replaced their older values."""
    where = np.broadcast_to(clients[..., None], values.shape)
    if sent is not None:
        values = np.where(sent, values, np.take_along_axis(memory.last, where, -2))
        sent = sent | np.take_along_axis(memory.heard, where, -2)
    last, heard = memory.last.copy(), memory.heard.copy()
    np.put_along_axis(last, where, values, -2)
    np.put_along_axis(heard, clients[..., None] if sent is None else where, True if sent is None else sent, -2)
    return Memory(last, heard)


def mean_of_memory(memory: Memory, unheard: Array | float, info: RunInfo) -> Array:
    """Mean (..., d) of each entry over the clients that have ever sent it, with their weights in F; `unheard`, (..., d)
    or a number, for an entry that no client has sent."""
    shares = info.shares(np.broadcast_to(np.arange(memory.last.shape[-2]), memory.last.shape[:-1]))
    mean = mean_of_senders(memory.last, memory.heard, unheard, shares)
    return mean.astype(memory.last.dtype, copy=False)
