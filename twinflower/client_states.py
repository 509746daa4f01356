"""Storage for the clients' states between rounds."""

from typing import Any

import numpy as np

from .algorithms.algorithm import Algorithm, stack, unstack
from .arrays import Array, Index


class ClientStates:
    """The states that the clients keep. A client that was never sampled uses no memory.

    After a round with all clients, their states are kept stacked as that round returned them; otherwise each client's
    state is stored separately.
    """

    def __init__(self, algorithm: Algorithm, start: Array, num_clients: int) -> None:
        self._algorithm = algorithm
        self._starts = np.atleast_2d(start)  # one row per seed
        self._seeds = start.shape[:-1]  # () without an axis of seeds
        self._num_clients = num_clients
        self._own: dict[tuple[int, int], Any] = {}  # by (seed, client)
        self._stacked: Any = None  # all clients' states (..., N, ...), used instead of _own while set

    def of(self, clients: Index) -> Any:
        """The stacked states of clients (..., K)."""
        if self._stacked is not None and clients.shape[-1] == self._num_clients:
            return self._stacked
        if self._stacked is not None and (np.diff(clients) == 1).all() and np.ptp(clients[..., 0]) == 0:
            return at_places(
                self._stacked, slice(int(clients.flat[0]), int(clients.flat[-1]) + 1), len(self._seeds)
            )
        self._separate()
        by_seed = [
            stack([self._one(s, i) for i in row]) for s, row in enumerate(np.atleast_2d(clients).tolist())
        ]
        return stack(by_seed) if self._seeds else by_seed[0]

    @property
    def everyone(self) -> Index:
        """The numbers of all clients, (..., N)."""
        return np.broadcast_to(np.arange(self._num_clients), (*self._seeds, self._num_clients))

    def all(self) -> Any:
        """The stacked states of all clients (..., N); clients that were never sampled have their initial state."""
        return self.of(self.everyone)

    def put(self, clients: Index, states: Any) -> None:
        """Store the new stacked states of clients (..., K)."""
        if clients.shape[-1] == self._num_clients:
            self._stacked = states
            return
        self._separate()
        for s, row in enumerate(np.atleast_2d(clients).tolist()):
            mine = at_places(states, s, 0) if self._seeds else states
            for place, i in enumerate(row):
                # a copy: a view would keep the whole round's arrays alive
                self._own[s, i] = type(states)(*(array[place].copy() for array in mine))

    def visited(self) -> tuple[Index, Any]:
        """(seed, client) of all stored states, (V, 2), and these states stacked; None instead of states if V = 0."""
        self._separate()
        places = sorted(self._own)
        return np.array(places).reshape(-1, 2), stack([self._own[p] for p in places]) if places else None

    def restore(self, places: Index, states: Any) -> None:
        """Store the states that `visited` returned; its inverse."""
        self._own = dict(zip(map(tuple, places.tolist()), unstack(states, len(places)), strict=True))

    def _one(self, seed: int, client: int) -> Any:
        return self._own.get((seed, client)) or self._algorithm.init_client(self._starts[seed])

    def _separate(self) -> None:
        """Move the stacked states, if any, to one separate state per client."""
        whole, self._stacked = self._stacked, None
        if whole is None:
            return
        by_seed = unstack(whole, len(self._starts)) if self._seeds else [whole]
        for s, mine in enumerate(by_seed):
            self._own.update(((s, i), state) for i, state in enumerate(unstack(mine, self._num_clients)))


def at_places(parts: Any, places: Any, axis: int) -> Any:
    """A NamedTuple with every array indexed by `places` along `axis`; the same object for slice(None)."""
    if isinstance(places, slice) and places == slice(None):
        return parts
    return type(parts)(*(array[(slice(None),) * axis + (places,)] for array in parts))
