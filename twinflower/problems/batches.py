"""The clients' rows, and the order in which a client processes them.

`Shards` stores the rows of all clients, grouped by client, over one array. A `LocalSchedule` sets the number of rows
per local step and the number of steps. `LocalSchedule.batches` returns the sequence of `Batch`es that an algorithm
receives, for one client or for a stacked cohort; both use the same random draws. Which batches of which permutation a
round takes is its `Span`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Labels, Mask, of_clients
from ..errors import SettingError
from ..norms import norms
from ..randomness import permutations
from .interfaces import Batch, Objective
from .penalised import Penalised
from .turns import EVERY_ROUND, Span, Turns, span_of

_BLOCK = 4096  # rows whose norms are computed at once
_TOGETHER = 2**17  # numbers of features computed at once, 1 MiB, for the cache; more if a step has more


@dataclass(frozen=True)
class Shards:
    """The rows of the clients first, first + 1, ...; the data set itself is stored once.

    features is (rows, n) and labels (rows,). order (...) lists row numbers grouped by client; the i-th client
    owns order[starts[i] : starts[i] + sizes[i]]. starts and sizes are (clients,), or (seeds, clients)
    for runs stacked over seeds. These ranges may overlap, so that a million clients can share a small data
    set in a benchmark. lengths (rows,) are the rows' norms if they are needed in every step (`prepared`).
    row_weights, groups and folds (rows,) are as in `Batch`.
    """

    features: Array
    labels: Labels
    order: Index
    starts: Index
    sizes: Index
    first: int = 0
    lengths: Array | None = None
    row_weights: Array | None = None
    groups: Index | None = None
    folds: Index | None = None

    @classmethod
    def grouped(
        cls,
        features: Array,
        labels: Labels,
        order: Index,
        offsets: Index,
        row_weights: Array | None = None,
    ) -> "Shards":
        """Shards in which client i owns order[offsets[i]:offsets[i+1]]."""
        return cls(features, labels, order, offsets[:-1], np.diff(offsets), row_weights=row_weights)

    @classmethod
    def of(cls, clients: Sequence[tuple[Array, Labels]]) -> "Shards":
        """Shards from each client's features (m_i, n) and labels (m_i,)."""
        features, labels = (np.concatenate(parts) for parts in zip(*clients, strict=True))
        offsets = np.cumsum([0, *(len(y) for _, y in clients)])
        return cls.grouped(features, labels, np.arange(len(labels)), offsets)

    @classmethod
    def site(cls, rows: Batch, client: int) -> "Shards":
        """Shards that hold only the rows of one site, whose client number is `client`."""
        size = len(rows.labels)
        return cls(
            rows.features, rows.labels, np.arange(size), np.zeros(1, int), np.array([size]), client,
            row_weights=rows.row_weights, groups=rows.groups, folds=rows.folds,
        )  # fmt: skip

    @classmethod
    def stacked(cls, shards: Sequence["Shards"]) -> "Shards":
        """Several partitions of the same data set, one per seed, stacked along a leading axis of seeds."""
        shift = np.cumsum([0] + [len(s.order) for s in shards[:-1]])
        starts = np.stack([s.starts + by for s, by in zip(shards, shift, strict=True)])
        sizes, order = np.stack([s.sizes for s in shards]), np.concatenate([s.order for s in shards])
        return replace(shards[0], order=order, starts=starts, sizes=sizes)

    def prepared(self, objective: Objective) -> "Shards":
        """The same shards, with the rows' norms stored if the objective clips gradients row by row.

        Without stored norms (also `Batches.keeping_norms`), a full batch of logistic regression takes 1.6 times as
        long, a round of softmax regression 4 % longer.
        """
        if self.lengths is not None or not (isinstance(objective, Penalised) and objective.clips_rows):
            return self
        blocks = np.array_split(np.arange(len(self.labels)), -(-len(self.labels) // _BLOCK) or 1)
        with np.errstate(all="ignore"):  # squares may overflow
            lengths = [norms(self.features.take(rows, axis=0)) for rows in blocks]
        return replace(self, lengths=np.concatenate(lengths))

    @property
    def num_clients(self) -> int:
        """Number of clients in these shards (per seed)."""
        return self.sizes.shape[-1]

    def span(self, client: int) -> tuple[int, int]:
        """Start in `order` and number of rows of one client."""
        index = client - self.first
        return int(self.starts[index]), int(self.sizes[index])

    def extent(self, clients: Index) -> tuple[Index, Index]:
        """Start in `order` and number of rows of each client, both shaped like `clients` (...)."""
        indices = np.asarray(clients) - self.first
        return of_clients(self.starts, indices), of_clients(self.sizes, indices)

    def take(self, positions: Index, weights: Array | None = None) -> Batch:
        """The rows order[positions], as a batch with these weights."""
        rows = self.order[positions]
        if rows.shape == self.labels.shape and (rows == np.arange(len(rows))).all():
            whole = np.asarray(self.features)  # all rows of a site, without a copy
            return Batch(whole, self.labels, weights, self.lengths, self.row_weights, self.groups, self.folds)
        features = self.features.take(rows, axis=0)  # faster than features[rows]
        numbers = self.lengths, self.row_weights, self.groups, self.folds
        others = (_taken(part, rows) for part in numbers)
        return Batch(features, self.labels[rows], weights, *others)

    def rows(self, client: int) -> Batch:
        """All rows of one client, as an unweighted batch."""
        start, size = self.span(client)
        return self.take(np.arange(start, start + size))

    def everyone(self) -> Batch:
        """All clients' rows, weighted so that the weighted mean is the average of the clients' means."""
        weights = np.repeat(1.0 / (self.sizes * self.num_clients), self.sizes)
        spans = zip(self.starts, self.sizes, strict=True)
        positions = np.concatenate([np.arange(start, start + size) for start, size in spans])
        by_row = np.bincount(self.order[positions], weights, len(self.labels)).astype(float)
        used = np.flatnonzero(by_row)
        if len(used) == len(self.labels):  # the usual case: no copy of a large data set
            return Batch(self.features, self.labels, by_row, row_weights=self.row_weights)
        row_weights = _taken(self.row_weights, used)
        return Batch(self.features[used], self.labels[used], by_row[used], row_weights=row_weights)


@dataclass(frozen=True)
class Batches:
    """The batches of a round's local steps: iterating yields one `Batch` per step, steps.max() in total.

    steps (...,) is the number of steps of each client; its rows in later batches must be ignored.
    positions (..., T, b) index the shards' order, and weights (..., T, b) are as in `Batch`. If `full` is set, every
    step uses those rows instead.
    """

    steps: Index
    shards: Shards | None = None
    positions: Index | None = None
    weights: Array | None = None
    full: Batch | None = None

    def __iter__(self) -> Iterator[Batch]:
        steps = range(int(self.steps.max()))
        if self.full is not None:
            return (self.full for _ in steps)
        return self._gathered(steps)

    def first(self, steps: int) -> "Batches":
        """The same batches, with at most `steps` steps for each client."""
        return replace(self, steps=np.minimum(self.steps, min(steps, int(self.steps.max()))))

    def keeping_norms(self) -> "Batches":
        """The same full batch with its rows' norms stored, since every step and every round needs them again."""
        assert self.full is not None
        return replace(self, full=self.full._replace(lengths=self.full.norms()))

    def _gathered(self, steps: range) -> Iterator[Batch]:
        """The batches of these steps."""
        assert self.shards is not None
        assert self.positions is not None
        rows = self.shards.order.take(_steps_first(self.positions)[: len(steps)])
        lengths, row_weights = self.shards.lengths, self.shards.row_weights
        all_labels = self.shards.labels.take(rows)
        weights = [None] * len(rows) if self.weights is None else _steps_first(self.weights)[: len(rows)]
        for step, features, labels, shares in zip(
            rows, self._features(rows), all_labels, weights, strict=True
        ):
            yield Batch(features, labels, shares, _taken(lengths, step), _taken(row_weights, step))

    def _features(self, rows: Index) -> Iterable[Array]:
        """The features of each step's rows (steps, ...), copied when it is the step's turn, for the cache; `Deferred`
        ones are computed for several small steps at once."""
        assert self.shards is not None
        features = self.shards.features
        if isinstance(features, np.ndarray):
            return (features.take(step, axis=0) for step in rows)
        in_a_step = math.prod(rows.shape[1:]) * features.shape[1]
        together = max(1, _TOGETHER // max(1, in_a_step))
        groups = (rows[first : first + together] for first in range(0, len(rows), together))
        return chain.from_iterable(features.take(group, axis=0) for group in groups)


class Workload(NamedTuple):
    """Public size of a client's round: number of local steps, most rows per step, and batches per epoch.

    replaced: how many of the client's rows are protected together; neighbouring data sets differ in so many rows.
    fixed: whether all epochs have the same batches in the same order. anew: else, whether every round has new batches.
    """

    steps: int
    rows: int
    per_epoch: int
    replaced: int = 1
    fixed: bool = False
    anew: bool = False

    @property
    def replaced_in_batch(self) -> int:
        """The largest number of replaced rows in one batch."""
        return min(self.replaced, self.rows)

    @property
    def for_one_row(self) -> "Workload":
        """The same workload when a single row is replaced."""
        return self._replace(replaced=1)

    @property
    def goes_on(self) -> bool:
        """Whether a round goes on in the permutation of the round before."""
        in_part = not self.anew and self.per_epoch >= 2 * self.steps
        return self.per_epoch > 1 and (self.fixed or in_part)

    def span(self, turn: int) -> Span:
        """The batches of a client's turn-th round, from 1."""
        if self.anew and not self.fixed:
            return Span(turn - 1, 0, self.steps, self.per_epoch)
        return span_of(turn, self.steps, self.per_epoch, self.fixed)


@dataclass(frozen=True)
class LocalSchedule:
    """How a client goes through its m rows, round after round.

    batch_size is b; 0 uses all rows in every step. max_local_steps is Q; 0 uses one step less than an epoch has
    batches, but at least 1, which the papers use without stating it. Batches are drawn without replacement from
    a permutation; rows that do not fill a batch are skipped in that epoch. A client with fewer than b rows uses all of
    them in every step. With fresh = True a round has a new permutation; or unless anew, so that a record is in few
    rounds, rounds go on where the client's last one ended, through a new permutation for each epoch (`turns.span_of`).
    With fresh = False they go on through one permutation, again and again, and no row is skipped: the permutation is
    split into ceil(m/b) batches, which differ by one row at most. Every row then has the weight of a row in the largest
    of them, so that an epoch counts all rows alike and a record moves every batch by the same amount. The gradient of a
    batch that is a row short is smaller by that row's share.
    group: how many rows of a client are protected together; 0: all of them.
    turns: the public sampling of the clients, by which their rounds are counted; by default every client takes part in
    every round.
    """

    batch_size: int = 10
    max_local_steps: int = 0
    fresh: bool = True
    group: int = 1
    turns: Turns = EVERY_ROUND
    anew: bool = False

    def __post_init__(self) -> None:
        if not self.batch_size >= 0:
            raise SettingError(f"local.batch-size must be at least 0 (0 = all rows); got {self.batch_size}")
        if not self.max_local_steps >= (1 if self.batch_size == 0 else 0):
            raise SettingError(
                "local.max-steps must be at least 1 with full batches, and at least 0 (0 = an epoch less one) "
                f"otherwise; got {self.max_local_steps}"
            )

    @lru_cache(maxsize=4096)  # noqa: B019  schedules are few
    def workload(self, size: int) -> Workload:
        """The workload of a client with `size` rows."""
        steps, per_epoch = int(self.steps(np.array(size))), int(self._per_epoch(np.array(size)))
        rows = min(self.batch_size or size, size) if self.fresh else -(-size // per_epoch)
        return Workload(steps, rows, per_epoch, min(self.group or size, size), not self.fresh, self.anew)

    def workloads(self, sizes: Sequence[int] | Index) -> list[Workload]:
        """The workloads of clients with these numbers of rows, in the same order."""
        known = {m: self.workload(m) for m in set(map(int, sizes))}
        return [known[int(m)] for m in sizes]

    def steps(self, sizes: Index) -> Index:
        """Number of local steps (...) of clients with sizes (...) rows."""
        if self.max_local_steps:
            return np.full_like(sizes, self.max_local_steps)
        return np.maximum(self._per_epoch(sizes) - 1, 1)

    def _per_epoch(self, sizes: Index) -> Index:
        """Number of batches (...) in an epoch of clients with sizes (...) rows."""
        rows = np.minimum(self.batch_size or sizes, sizes)
        return sizes // rows if self.fresh else -(-sizes // rows)

    def turn(self, seed: int, client: int, round_: int) -> int:
        """The how manieth of a client's rounds this is, from 1; seed: of the run."""
        return self.turns.of([seed], [client], round_)[0]

    def batches(self, shards: Shards, clients: int | Index, seed: int | Index, round_: int) -> Batches:
        """The batches of round `round_` for one client, or for clients (...); `seed` must broadcast against clients."""
        if isinstance(clients, int) and self.batch_size:
            start, size = shards.span(clients)
            order = self._orders([int(seed)], [clients], round_, size)[0]
            return _placed(shards, np.array(len(order)), order, np.array(start), np.array(order.shape[1]))
        clients = np.asarray(clients)
        starts, sizes = shards.extent(clients)
        if self.batch_size == 0:
            return Batches(self.steps(sizes), full=_all_rows(shards, starts, sizes))
        seeds = _flat(np.broadcast_to(seed, clients.shape)) if np.ndim(seed) else [int(seed)] * clients.size
        if sizes.min() < sizes.max():
            return self._uneven(shards, seeds, clients, round_, starts, sizes)
        orders = self._orders(seeds, _flat(clients), round_, int(sizes.flat[0]))
        _, steps, rows = orders.shape
        orders = orders.reshape(*clients.shape, steps, rows)
        return _placed(shards, self.steps(sizes), orders, starts[..., None, None], np.array(rows))

    def _uneven(
        self, shards: Shards, seeds: list[int], clients: Index, round_: int, starts: Index, sizes: Index
    ) -> Batches:
        """The batches of clients that differ in their numbers of rows."""
        steps = self.steps(sizes)
        addresses = zip(seeds, *map(_flat, (clients, sizes)), strict=True)
        orders = [self._orders([s], [i], round_, m)[0] for s, i, m in addresses]
        return _ragged(shards, orders, starts[..., None, None], steps)

    def _orders(self, seeds: list[int], clients: list[int], round_: int, size: int) -> Index:
        """Positions (clients, steps, b) among a client's `size` rows; -1 where a batch has a row less than b."""
        load = self.workload(size)
        turns = self.turns.of(seeds, clients, round_) if load.goes_on else [round_] * len(clients)
        spans = [load.span(turn) for turn in turns]
        epochs = 1 if load.goes_on else -(-load.steps // load.per_epoch)
        shape = (epochs, min(size, load.per_epoch * load.rows))
        drawn = permutations(seeds, "batches", clients, [1 + span.order for span in spans], size, shape)
        batches = _split(drawn, load).reshape(len(clients), -1, load.rows)
        taken = np.array([[span.first] for span in spans]) + np.arange(load.steps)
        return np.take_along_axis(batches, taken[..., None] % batches.shape[1], axis=1)


def _split(orders: Index, load: Workload) -> Index:
    """Each order (..., m) in batches (..., per_epoch, b); the last ones end with -1 if m is not a multiple."""
    missing = load.per_epoch * load.rows - orders.shape[-1]
    if not missing:
        return orders.reshape(*orders.shape[:-1], load.per_epoch, load.rows)
    batches = np.full((*orders.shape[:-1], load.per_epoch, load.rows), -1)
    whole = load.per_epoch - missing
    full, rest = np.split(orders, [whole * load.rows], axis=-1)
    batches[..., :whole, :] = full.reshape(*full.shape[:-1], whole, load.rows)
    batches[..., whole:, :-1] = rest.reshape(*rest.shape[:-1], missing, load.rows - 1)
    return batches


def _taken(numbers: NDArray[Any] | None, rows: Index) -> Any:
    """The numbers (...) of these rows (...), None for None."""
    return None if numbers is None else numbers.take(rows)


def _flat(each: Index) -> list[int]:
    return each.ravel().tolist()  # type: ignore[no-any-return]


def _all_rows(shards: Shards, starts: Index, sizes: Index) -> Batch:
    """All rows of every client, (..., max size) per client; shorter clients are padded with rows of weight 0."""
    position = np.arange(sizes.max())
    used = position < sizes[..., None]
    weights = None if used.all() else _shares(shards, used, sizes[..., None])
    return shards.take(starts[..., None] + np.where(used, position, 0), weights)


def _shares(shards: Shards, there: Mask, sizes: Index) -> Array:
    """The weight 1 / size of each row that is there, in the precision of the rows, if they are no whole numbers; 0 for
    padding."""
    shares, dtype = there * (1 / sizes), shards.features.dtype
    return shares.astype(dtype, copy=False) if dtype.kind == "f" else shares  # type: ignore[no-any-return]


def _ragged(shards: Shards, orders: list[Index], starts: Index, steps: Index) -> Batches:
    """The orders (steps_i, b_i) in one array (..., T, b), padded with rows of weight 0 and with unused steps."""
    sizes = np.array([order.shape[1] for order in orders]).reshape(*steps.shape, 1, 1)
    positions = np.full((len(orders), int(steps.max()), int(sizes.max())), -1, dtype=np.int64)
    for stacked, order in zip(positions, orders, strict=True):
        stacked[: order.shape[0], : order.shape[1]] = order
    return _placed(shards, steps, positions.reshape(steps.shape + positions.shape[1:]), starts, sizes)


def _placed(shards: Shards, steps: Index, orders: Index, starts: Index, sizes: Index) -> Batches:
    """Batches of orders (..., T, b) for clients whose rows begin at starts (..., 1, 1), with up to sizes rows in one.

    Instead of a row that is -1 there is the first one of its batch again, with weight 0.
    """
    if orders.min() >= 0:
        return Batches(steps, shards, orders + starts)
    there = orders >= 0
    positions: Index = np.where(there, orders, np.maximum(orders[..., :1], 0))
    return Batches(steps, shards, positions + starts, _shares(shards, there, sizes))


def _steps_first(each: NDArray[Any]) -> NDArray[Any]:
    """An array (..., T, b) as (T, ..., b)."""
    return np.moveaxis(each, -2, 0)
