"""Averages of what clients sent, entry by entry.

Sums run over the client axis in ascending partition order, whatever the order of arrival, so every
runtime adds the same numbers in the same order.
"""

from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask
from ..errors import require


class Memory(NamedTuple):
    """Each client's last sent entries, last (..., N, d), and which there are, heard (..., N, d).

    heard is (..., N, 1) while messages are dense. Both have N = 0 where no memory is kept. A round copies and
    averages all of it: N d numbers.
    """

    last: Array
    heard: Mask


def empty_memory(start: Array, num_clients: int, wanted: bool, dense: bool = True) -> Memory:
    """A memory in which nothing was heard, or an empty one if it is not wanted.

    Raises SettingError where it would take more than 4 GiB.
    """
    clients = num_clients if wanted else 0
    require(
        start.size * clients < 2**29,
        f"aggregation memory keeps {clients} x {start.shape[-1]} numbers, more than 4 GiB: use aggregation sampled",
    )
    shape = start.shape[:-1] + (clients, start.shape[-1])
    return Memory(np.zeros(shape), np.zeros((*shape[:-1], 1 if dense else shape[-1]), dtype=bool))


def remember(memory: Memory, values: Array, sent: Mask | None, clients: Index) -> Memory:
    """The memory with the sent entries (..., K, d) of clients (..., K) replaced."""
    where = np.broadcast_to(clients[..., None], values.shape)
    if sent is not None:
        values = np.where(sent, values, np.take_along_axis(memory.last, where, -2))
        sent = sent | np.take_along_axis(memory.heard, where, -2)
    last, heard = memory.last.copy(), memory.heard.copy()
    np.put_along_axis(last, where, values, -2)
    np.put_along_axis(heard, clients[..., None] if sent is None else where, True if sent is None else sent, -2)
    return Memory(last, heard)


def mean_of_memory(memory: Memory, unheard: Array, shares: Array | None = None) -> Array:
    """Mean (..., d) over the clients heard of each entry; `unheard` (..., d) where there is none."""
    return mean_of_senders(memory.last, memory.heard, unheard, shares)


def mean_of_senders(values: Array, sent: Mask | None, unheard: Array, shares: Array | None = None) -> Array:
    """sum over clients of the sent entries / number of senders, entry by entry (Li 2024 (20), (23)).

    shares (..., K) > 0, if given, are the clients' weights in F: the senders of an entry count in proportion to them.
    """
    if shares is not None:
        return _weighted_mean(values, sent, unheard, shares[..., None])
    if sent is None:
        return values.mean(-2)
    count = sent.sum(-2)
    return np.where(count > 0, (values * sent).sum(-2) / np.maximum(count, 1), unheard)


def _weighted_mean(values: Array, sent: Mask | None, unheard: Array, shares: Array) -> Array:
    if sent is not None:
        shares = shares * sent
    total = shares.sum(-2)
    return np.where(total > 0, (values * shares).sum(-2) / np.where(total > 0, total, 1.0), unheard)
