"""Clients' rows, and the order in which a client walks through them.

Rows lie grouped by client in one array (`Shards`). A `LocalSchedule` says how many rows a local step takes and
how many steps there are; `LocalSchedule.batches` turns it into the sequence of `Batch`es that an algorithm
receives, for one client or for a stacked cohort, with the same draws either way.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from .arrays import Array, Index, Labels
from .errors import require
from .objectives import Batch
from .randomness import stream

_CACHED = 2**17  # numbers


@dataclass(frozen=True)
class Shards:
    """Rows of clients first, first + 1, ... over a data set that is stored once.

    features (rows, n), labels (rows,); order (...) lists row numbers grouped by client, and the i-th client
    owns order[starts[i] : starts[i] + sizes[i]]. starts and sizes are (clients,), or (seeds, clients)
    for runs stacked over seeds. Stretches may overlap, so that a million clients can share a small data
    set in a benchmark.
    """

    features: Array
    labels: Labels
    order: Index
    starts: Index
    sizes: Index
    first: int = 0

    @classmethod
    def grouped(cls, features: Array, labels: Labels, order: Index, offsets: Index) -> "Shards":
        """Client i owns order[offsets[i]:offsets[i+1]]."""
        return cls(features, labels, order, offsets[:-1], np.diff(offsets))

    @classmethod
    def of(cls, clients: Sequence[tuple[Array, Labels]]) -> "Shards":
        """Of clients with these features (m_i, n) and labels (m_i,)."""
        features, labels = (np.concatenate(parts) for parts in zip(*clients, strict=True))
        offsets = np.cumsum([0, *(len(own) for _, own in clients)])
        return cls.grouped(features, labels, np.arange(len(labels)), offsets)

    @classmethod
    def site(cls, rows: Batch, client: int) -> "Shards":
        """What one site knows: its own rows and its number."""
        size = len(rows.labels)
        return cls(rows.features, rows.labels, np.arange(size), np.zeros(1, int), np.array([size]), client)

    @classmethod
    def stacked(cls, shards: Sequence["Shards"]) -> "Shards":
        """The same data set divided once per seed, with a leading axis of seeds."""
        shift = np.cumsum([0] + [len(s.order) for s in shards[:-1]])
        starts = np.stack([s.starts + by for s, by in zip(shards, shift, strict=True)])
        sizes, order = np.stack([s.sizes for s in shards]), np.concatenate([s.order for s in shards])
        return cls(shards[0].features, shards[0].labels, order, starts, sizes)

    @property
    def num_clients(self) -> int:
        """Clients held here."""
        return self.sizes.shape[-1]

    def extent(self, clients: Index) -> tuple[Index, Index]:
        """Starts and sizes of clients (...)."""
        own = np.asarray(clients) - self.first
        if self.sizes.ndim == 1:
            return self.starts[own], self.sizes[own]
        return np.take_along_axis(self.starts, own, -1), np.take_along_axis(self.sizes, own, -1)

    def take(self, places: Index, weights: Array | None = None) -> Batch:
        """The rows at these places of `order`, as a batch."""
        rows = self.order[places]
        return Batch(self.features[rows], self.labels[rows], weights)

    def rows(self, client: int) -> Batch:
        """All rows of one client."""
        start, size = map(int, self.extent(np.asarray(client)))
        return self.take(np.arange(start, start + size))

    def everyone(self) -> Batch:
        """All clients' rows, weighted so that a mean over them is the mean of the clients' means."""
        weights = np.repeat(1.0 / (self.sizes * self.num_clients), self.sizes)
        places = np.concatenate([np.arange(a, a + m) for a, m in zip(self.starts, self.sizes, strict=True)])
        by_row = np.bincount(self.order[places], weights, len(self.labels)).astype(float)
        used = np.flatnonzero(by_row)
        if len(used) == len(self.labels):  # the usual case: no copy of a large data set
            return Batch(self.features, self.labels, by_row)
        return Batch(self.features[used], self.labels[used], by_row[used])


@dataclass(frozen=True)
class Batches:
    """The local steps of a round: iterating gives a `Batch` per step, at most steps.max() of them.

    steps (...,) tells how many steps each client may take; after those its rows mean nothing. places
    (..., T, b) point into the shards' order and weights (..., b) are as in `Batch`; or every step takes
    the same rows, `full`.
    """

    steps: Index
    shards: Shards | None = None
    places: Index | None = None
    weights: Array | None = None
    full: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        steps = range(int(self.steps.max()))
        if self.full is not None:
            return (self.full for _ in steps)
        return self._at_once() if self._few else (self._gather(step) for step in steps)

    def first(self, steps: int) -> "Batches":
        """The first steps of these, at most so many."""
        return replace(self, steps=np.minimum(self.steps, steps))

    def keeping_norms(self) -> "Batches":
        """The same, with the norms of rows that every step and every round takes again."""
        assert self.full is not None
        return replace(self, full=self.full._replace(squares=self.full.squared_norms()))

    @property
    def _few(self) -> bool:
        """Whether one client's rows of all steps stay in the processor's cache together."""
        assert self.places is not None
        assert self.shards is not None
        return self.places.ndim == 2 and self.places.size * self.shards.features.shape[1] <= _CACHED

    def _at_once(self) -> Iterator[Batch]:
        """All steps of one client, fetched in one go."""
        assert self.places is not None
        assert self.shards is not None
        rows = self.shards.take(self.places[: int(self.steps)])
        return (Batch(a, y, self.weights) for a, y in zip(rows.features, rows.labels, strict=True))

    def _gather(self, step: int) -> Batch:
        assert self.shards is not None
        assert self.places is not None
        return self.shards.take(self.places[..., step, :], self.weights)


class Workload(NamedTuple):
    """What is public about a client's round: local steps, rows in each, batches in an epoch."""

    steps: int
    rows: int
    per_epoch: int


@dataclass(frozen=True)
class LocalSchedule:
    """How a client walks through its rows in one round.

    batch_size b, 0 for all rows in every step; max_local_steps Q, 0 for the papers' silent default of one
    step less than an epoch, floor(m/b) - 1 but at least 1. Batches are drawn without replacement, an
    epoch is shuffled anew, and the rows that do not fill a batch sit out that epoch. A client with fewer
    than b rows takes all of them. With fresh = False every round walks in the order of the first.
    """

    batch_size: int = 10
    max_local_steps: int = 0
    fresh: bool = True

    def __post_init__(self) -> None:
        require(
            self.batch_size >= 0, f"local.batch-size must be at least 0 (0 = all rows); got {self.batch_size}"
        )
        require(
            self.max_local_steps >= (1 if self.batch_size == 0 else 0),
            "local.max-steps must be at least 1 with full batches, and at least 0 (0 = an epoch less one) "
            f"otherwise; got {self.max_local_steps}",
        )

    def workload(self, size: int) -> Workload:
        """The pace of a client with this many rows."""
        rows = min(self.batch_size or size, size)
        return Workload(int(self.steps(np.array(size))), rows, size // rows)

    def workloads(self, sizes: Sequence[int] | Index) -> list[Workload]:
        """Of clients with these numbers of rows."""
        known = {m: self.workload(m) for m in set(map(int, sizes))}
        return [known[int(m)] for m in sizes]

    def steps(self, sizes: Index) -> Index:
        """Local steps of clients with this many rows."""
        per_epoch = sizes // np.minimum(self.batch_size or sizes, sizes)
        return (
            np.maximum(per_epoch - 1, 1) if not self.max_local_steps else per_epoch * 0 + self.max_local_steps
        )

    def batches(self, shards: Shards, clients: int | Index, seed: int | Index, round_: int) -> Batches:
        """The batches of one client, or of clients (...) under seeds that broadcast to them."""
        clients = np.asarray(clients)
        starts, sizes = shards.extent(clients)
        steps = self.steps(sizes)
        if self.batch_size == 0:
            return Batches(steps, full=_all_rows(shards, starts, sizes))
        round_ = round_ if self.fresh else 1
        if clients.ndim == 0:
            return Batches(
                steps, shards, self._order(round_, *map(int, (clients, seed, starts, sizes, steps)))
            )
        seeds = np.broadcast_to(seed, clients.shape)
        addresses = zip(clients.flat, seeds.flat, starts.flat, sizes.flat, steps.flat, strict=True)
        orders = [self._order(round_, *map(int, address)) for address in addresses]
        if all(order.shape == orders[0].shape for order in orders):
            return Batches(steps, shards, np.array(orders).reshape(steps.shape + orders[0].shape))
        return _ragged(shards, orders, steps)

    def _order(self, round_: int, client: int, seed: int, start: int, size: int, steps: int) -> Index:
        """Places (steps, b) of one client: as many shuffled epochs as the steps need."""
        b = min(self.batch_size, size)
        per_epoch = size // b
        draw = stream(seed, "batches", client, round_)
        epochs = [draw.permutation(size)[: per_epoch * b] for _ in range(-(-steps // per_epoch))]
        return start + np.concatenate(epochs)[: steps * b].reshape(steps, b)


def _all_rows(shards: Shards, starts: Index, sizes: Index) -> Batch:
    """Every row of every client; shorter clients are filled with rows of weight 0."""
    place = np.arange(sizes.max())
    there = place < sizes[..., None]
    weights = None if there.all() else there / sizes[..., None].astype(float)
    return shards.take(starts[..., None] + np.where(there, place, 0), weights)


def _ragged(shards: Shards, orders: list[Index], steps: Index) -> Batches:
    """The clients' orders in one array; shorter ones are filled with rows of weight 0 and idle steps."""
    sizes = np.array([order.shape[1] for order in orders])
    places = np.zeros((len(orders), int(steps.max()), int(sizes.max())), dtype=np.int64)
    for stacked, order in zip(places, orders, strict=True):
        stacked[: order.shape[0], : order.shape[1]] = order
    weights = (np.arange(places.shape[-1]) < sizes[:, None]) / sizes[:, None]
    return Batches(
        steps, shards, places.reshape(steps.shape + places.shape[1:]), weights.reshape(steps.shape + (-1,))
    )
