"""Storage for the clients' states between rounds."""

from typing import Any

import numpy as np

from .algorithms.algorithm import Algorithm, stack
from .arrays import Array, Index, of_clients


class ClientStates:
    """The states that the clients keep. A client that was never sampled has no state of its own in memory.

    After a round with all clients, their states are kept stacked as that round returned them. Otherwise each client
    that was ever sampled owns a row of a table, which grows with their number; all others share the row of their seed's
    initial state.
    """

    def __init__(self, algorithm: Algorithm, start: Array, num_clients: int) -> None:
        starts = np.atleast_2d(start)  # one row per seed
        self._seeds = start.shape[:-1]  # () without an axis of seeds
        self._num_clients = num_clients
        self._table = stack([algorithm.init_client(x) for x in starts])
        self._used = self._shared = len(starts)  # the first rows are the initial states
        self._row = np.repeat(np.arange(self._shared), num_clients).reshape(*self._seeds, num_clients)
        self._stacked: Any = None  # all clients' states (..., N, ...), used instead of the table while set

    def of(self, clients: Index) -> Any:
        """The stacked states of clients (..., K)."""
        if self._stacked is not None and clients.shape[-1] == self._num_clients:
            return self._stacked
        if self._stacked is not None and (np.diff(clients) == 1).all() and np.ptp(clients[..., 0]) == 0:
            return take(
                self._stacked, slice(int(clients.flat[0]), int(clients.flat[-1]) + 1), len(self._seeds)
            )
        self._separate()
        rows = of_clients(self._row, clients)
        return type(self._table)(*(column.take(rows, axis=0) for column in self._table))

    @property
    def everyone(self) -> Index:
        """The numbers of all clients, (..., N)."""
        return np.broadcast_to(np.arange(self._num_clients), self._row.shape)

    def all(self) -> Any:
        """The stacked states of all clients (..., N); clients that were never sampled have their initial state."""
        return self.of(self.everyone)

    def put(self, clients: Index, states: Any) -> None:
        """Store the new stacked states of clients (..., K)."""
        if clients.shape[-1] == self._num_clients:
            self._stacked = states
            return
        self._separate()
        self._write(clients, states)

    def visited(self) -> tuple[Index, Any]:
        """(seed, client) of all stored states, (V, 2), and these states stacked; None instead of states if V = 0."""
        self._separate()
        indices = np.argwhere(np.atleast_2d(self._row) >= self._shared)
        rows = np.atleast_2d(self._row)[tuple(indices.T)]
        return indices, take(self._table, rows, 0) if len(rows) else None

    def restore(self, indices: Index, states: Any) -> None:
        """Store the states that `visited` returned; its inverse."""
        rows = np.arange(self._shared, self._shared + len(indices))
        np.atleast_2d(self._row)[tuple(indices.T)] = rows
        self._used = self._shared + len(indices)
        self._set(rows, states)

    def _separate(self) -> None:
        """Move the stacked states, if any, to the table."""
        whole, self._stacked = self._stacked, None
        if whole is not None:
            self._write(self.everyone, whole)

    def _write(self, clients: Index, states: Any) -> None:
        """Write states (..., K, ...) to the clients' rows of the table; new clients get new rows."""
        rows = of_clients(self._row, clients)
        new = rows < self._shared
        count = int(np.count_nonzero(new))
        if count:
            rows[new] = np.arange(self._used, self._used + count)
            np.put_along_axis(self._row, clients, rows, -1)
            self._used += count
        self._set(rows, states)

    def _set(self, rows: Index, states: Any) -> None:
        self._grow()
        self._table = type(states)(*map(_fitted, self._table, states))
        for column, values in zip(self._table, states, strict=True):
            column[rows] = values

    def _grow(self) -> None:
        """Make room for all rows in use, and for a quarter more, so that the table seldom grows."""
        capacity = len(self._table[0]) if self._table else self._used
        if self._used > capacity:
            most = self._shared + self._row.size
            for column in self._table:  # where it is: nothing else refers to its memory
                column.resize((min(most, self._used + self._used // 4), *column.shape[1:]), refcheck=False)


def _fitted(column: Array, values: Array) -> Array:
    """The column in a type that holds `values`."""
    return column.astype(np.result_type(column, values), copy=False)


def take(parts: Any, indices: Any, axis: int) -> Any:
    """A NamedTuple with every array indexed by `indices` along `axis`; the same object for slice(None)."""
    if isinstance(indices, slice) and indices == slice(None):
        return parts
    return type(parts)(*(array[(slice(None),) * axis + (indices,)] for array in parts))
