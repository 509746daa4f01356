"""Averages of the clients' messages, entry by entry.

Sums run over the client axis in ascending partition order, independent of the order of arrival, so every
runtime adds the same numbers in the same order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, of_clients
from ..errors import SettingError


class Memory(NamedTuple):
    """The last value received of every entry from every client, last (..., N, d), and a mask of the entries received so
    far, heard (..., N, d).

    heard has shape (..., N, 1) if messages are dense. Both arrays have N = 0 if no memory is kept. Each round copies
    and averages all N d numbers.
    """

    last: Array
    heard: Mask


def empty_memory(start: Array, num_clients: int, wanted: bool, dense: bool = True) -> Memory:
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


def mean_of_memory(memory: Memory, unheard: Array, shares: Array | None = None) -> Array:
    """Mean (..., d) of each entry over the clients that have ever sent it; `unheard` (..., d) for an entry that no
    client has sent."""
    mean = mean_of_senders(memory.last, memory.heard, unheard, shares)
    return mean.astype(memory.last.dtype, copy=False)


def mean_of_senders(
    values: Array, sent: Mask | None, unheard: Array | float = 0.0, shares: Array | None = None
) -> Array:
    """The sum of an entry over the clients that sent it, divided by their number (Li 2024 (20), (23)).

    An entry that nobody sent is taken from unheard, (..., d) or a number. shares (..., K) > 0: if given, the clients'
    weights in F; the mean over the senders of an entry is then weighted in proportion to them. The result is double in
    any precision.
    """
    if shares is not None:
        return _weighted_mean(values, sent, unheard, shares[..., None])
    if sent is None:
        return _mean(values)
    count, total = sent.sum(-2), (values * sent).sum(-2, dtype=np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), unheard)


def mean_over_clients(values: Array) -> Array:
    """The mean (..., d) of values (..., K, d), in their precision; the sum is double, because rounding errors grow with
    K."""
    return _mean(values).astype(values.dtype, copy=False)


def unbiased_mean(values: Array, clients: Index, sizes: Sequence[int]) -> Array:
    """Unbiased estimate (..., q) of the mean over all rows, from the values (..., K, q) of clients (..., K), each the
    mean over its own rows, of which clients have `sizes`; if empty, all have the same number."""
    if not sizes:
        return mean_over_clients(values)
    numbers = np.array(sizes)
    shares = numbers / numbers.mean(-1, keepdims=True)
    weighted = of_clients(shares, clients)[..., None] * values
    return weighted.mean(-2).astype(values.dtype, copy=False)  # type: ignore[no-any-return]


def _mean(values: Array) -> Array:
    mean = np.add.reduce(values, -2, dtype=np.float64)
    mean /= values.shape[-2]
    return mean  # type: ignore[no-any-return]


def _weighted_mean(values: Array, sent: Mask | None, unheard: Array | float, shares: Array) -> Array:
    if sent is not None:
        shares = shares * sent
    total = shares.sum(-2)
    return np.where(total > 0, (values * shares).sum(-2) / np.where(total > 0, total, 1.0), unheard)
