"""Clients with a given number of labels each: which labels a client holds, and how many rows of each of them."""

from bisect import bisect_left
from functools import partial

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..errors import SettingError, require

Ints = NDArray[np.int64]


def apportion(weights: Ints, seats: int, low: Ints, high: Ints) -> Ints:
    """Integers in low..high that sum to seats and are nearly proportional to the weights; all arrays are (n,).

    Webster's method assigns seats one by one to the largest weight / (2 held + 1). It requires
    sum(low) <= seats <= sum(high).
    """
    party = np.repeat(np.arange(len(weights)), high - low)
    held = np.concatenate([np.arange(first, last) for first, last in zip(low, high, strict=True)])
    best = np.argsort(-weights[party] / (2 * held + 1), kind="stable")[: seats - low.sum()]
    return low + np.bincount(party[best], minlength=len(weights))


def label_counts(class_rows: Ints, clients: int, draw: Generator, k: int, wanted: int) -> Ints:
    """Counts (N, C) with exactly k labels and the same number of rows for every client.

    Labels are drawn at random so that the number of a label's clients is proportional to its rows (36 to 45
    of 100 clients on MNIST with k = 4; the same number for classes of equal size).
    Every client has `wanted` rows or, if that is 0, the largest number that these labels allow. If clients
    share labels in many ways (k > 1, N well above C), this is rows // N, and fewer than N rows are unused;
    with k = 1, the label with the fewest rows per client determines it. Every client has at least one row of
    each of its labels, and the largest deviation of these counts from size / k is as small as possible.
    Source: section V of Li 2024 for the setting (N = 100, k = 4, 600 rows each). The paper does not say how
    all clients can have 600 rows when the classes differ in size.
    """
    held = _held_labels(class_rows, clients, draw, k)
    fill, top = partial(_fill, held, class_rows), int(class_rows.sum()) // clients
    largest = k + bisect_left(range(k + 1, top + 1), True, key=lambda size: fill(size, size) is None)
    size = wanted or largest
    text = f"partition.samples-per-client must be in {k}..{largest} for these labels; got {size}"
    require(k <= size <= largest, text)
    slack = bisect_left(range(size), True, key=lambda width: fill(size, width) is not None)
    counts = fill(size, slack)
    assert counts is not None  # with slack = size there is no restriction, and size <= largest is feasible
    return counts


def _held_labels(class_rows: Ints, clients: int, draw: Generator, k: int) -> NDArray[np.bool_]:
    """A mask (N, C) of the labels that each client holds, k per client; SettingError if this is impossible."""
    present = int(np.count_nonzero(class_rows))
    if not 1 <= k <= present:
        raise SettingError(
            f"partition.labels-per-client must be in 1..{present}, the number of classes; got {k}"
        )
    high = np.minimum(class_rows, clients)
    enough = high.sum() >= clients * k
    text = f"clients.count must be lower for {k} labels each: the classes' rows do not suffice"
    if not enough:
        raise SettingError(f"{text}; got {clients}")
    low = np.minimum(high, 1 if clients * k >= present else 0)
    return _draw_labels(apportion(class_rows, clients * k, low, high), clients, k, draw)


def _draw_labels(needed: Ints, clients: int, k: int, draw: Generator) -> NDArray[np.bool_]:
    """A random table (clients, C) with k labels in each row and needed[c] clients in column c.

    One client after the other draws k labels without replacement, with probability weights equal to the number
    of clients that a label still needs (the k largest weight / exponential). A label that still needs all
    remaining clients is always taken.
    """
    held = np.zeros((clients, len(needed)), dtype=bool)
    waits = draw.standard_exponential(held.shape)
    for client in range(clients):
        keys = np.where(needed == clients - client, np.inf, needed / waits[client])
        held[client, np.argpartition(-keys, k - 1)[:k]] = True
        needed = needed - held[client]
    return held


def _fill(held: NDArray[np.bool_], class_rows: Ints, size: int, slack: int) -> Ints | None:
    """Counts (N, C) with `size` rows per client and size / k +- slack rows, at least 1, of every label it holds.

    Returns None if there are no such counts. They are a maximum flow client -> held label -> the label's rows, after
    the lower bounds have been subtracted. With integer capacities, the maximum flow is an integer flow.
    """
    k = int(held[0].sum())
    low, high = max(1, size // k - slack), -(-size // k) + slack
    spare, missing = class_rows - low * held.sum(axis=0), size - low * k
    if spare.min() < 0:
        return None
    clients, labels = np.nonzero(held)
    flow = _flow(clients, labels, np.full(len(held), missing), spare, high - low)
    return low * held + flow if flow.sum() == missing * len(held) else None


def _flow(clients: Ints, labels: Ints, supply: Ints, demand: Ints, most: int) -> Ints:
    """The maximum flow (N, C) from supplies (N,) to demands (C,) over the edges clients[e] -> labels[e].

    Every edge has capacity `most`.
    """
    from scipy.sparse import coo_array  # slow to import, and only needed here
    from scipy.sparse.csgraph import maximum_flow

    n, c = len(supply), len(demand)
    source, sink = n + c, n + c + 1
    start = np.concatenate([np.full(n, source), clients, n + np.arange(c)])
    end = np.concatenate([np.arange(n), n + labels, np.full(c, sink)])
    room = np.concatenate([supply, np.full(len(clients), most), demand])
    room, start, end = (array.astype(np.int32) for array in (room, start, end))  # SciPy 1.13 takes int32
    graph = coo_array((room, (start, end)), shape=(sink + 1, sink + 1)).tocsr()
    flow = maximum_flow(graph, source, sink).flow.tocoo()
    table = np.zeros((n, c), np.int64)
    inner = (flow.row < n) & (flow.col >= n) & (flow.col < source)
    table[flow.row[inner], flow.col[inner] - n] = flow.data[inner]
    return table
