"""Partitioning methods: how many rows of each kind every client gets.

Every method is a dataclass of its settings with a function `counts` that returns an array (N, kinds). The kinds are the
classes; for methods that ignore labels there is a single kind. To add a method, write such a class and add it to
`PARTITIONERS` at the end of this module.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from ..decimals import whole
from ..errors import SettingError, require
from ..settings import Rule, Setting, at_least

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
    if high.sum() < clients * k:
        text = f"clients.count must be lower for {k} labels each: the classes' rows do not suffice"
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


_MOST_ROWS = 20_000_000  # whose numbers every client lists
_DRAWS = 20  # draws of Dirichlet proportions, until no client is empty
_CONCENTRATION = Rule("above 0 and at most 1e6", lambda v: 0 < v <= 1e6)


class Task(NamedTuple):
    """The input of a method; class_rows (C,) counts the rows of each class, (1,) for methods that ignore labels."""

    class_rows: Ints
    num_clients: int
    draw: Generator


@dataclass(frozen=True)
class Method(ABC):
    """A partitioning method with its settings.

    by_class: whether it needs class labels. shuffled: whether rows are assigned in random order instead of file order.
    equal: whether samples_per_client > 0 gives all clients exactly that many rows.
    """

    description: ClassVar[str]
    by_class: ClassVar[bool] = True
    shuffled: ClassVar[bool] = True
    equal: ClassVar[bool] = True

    name: str = ""
    samples_per_client: Annotated[
        int, Setting("rows that every client keeps; 0: all of its rows", at_least(0), "rows")
    ] = 0

    @abstractmethod
    def counts(self, task: Task) -> Ints:
        """Number of rows of each kind for each client, (N, kinds)."""


def _even(rows: int, parts: int) -> Ints:
    """Sizes (parts,) that sum to `rows` and differ by at most one, larger sizes first."""
    return rows // parts + (np.arange(parts) < rows % parts)


@dataclass(frozen=True)
class Iid(Method):
    """Rows at random, in equal sizes."""

    description: ClassVar[str] = "at random, equal sizes"
    by_class: ClassVar[bool] = False

    name: str = "iid"

    def counts(self, task: Task) -> Ints:
        """Counts (N, 1) that differ by at most one."""
        return _even(int(task.class_rows.sum()), task.num_clients)[:, None]


@dataclass(frozen=True)
class Contiguous(Iid):
    """Rows in file order, in chunks of equal size."""

    description: ClassVar[str] = "in file order, equal chunks"
    shuffled: ClassVar[bool] = False

    name: str = "contiguous"


@dataclass(frozen=True)
class Labels(Method):
    """The same number of labels and of rows for every client."""

    description: ClassVar[str] = "labels-per-client labels for each client, equal sizes"

    name: str = "labels"
    labels_per_client: Annotated[int, Setting("labels that every client has", at_least(1))] = 2

    def counts(self, task: Task) -> Ints:
        """Counts (N, C) by `label_counts`."""
        return label_counts(*task, self.labels_per_client, self.samples_per_client)


@dataclass(frozen=True)
class OneClass(Method):
    """One label for every client.

    The number of a label's clients is proportional to its rows (`apportion`), with at least one client for
    every label that has rows. The label's rows are divided as equally as possible among these clients. With
    samples_per_client = s > 0, each client later keeps s rows, so a label with r rows has at most r // s clients.
    """

    description: ClassVar[str] = "one label for each client"

    name: str = "one-class"

    def counts(self, task: Task) -> Ints:
        """Counts (N, C) with one label per client, and labels assigned to clients in random order."""
        rows, wanted = task.class_rows, self.samples_per_client
        present = int(np.count_nonzero(rows))
        if task.num_clients < present:
            text = f"clients.count must be at least {present}, one for each class, for 'one-class'"
            raise SettingError(f"{text}; got {task.num_clients}")
        high, low = np.minimum(rows // max(wanted, 1), task.num_clients), (rows > 0).astype(np.int64)
        if high.sum() < task.num_clients or np.any(low > high):
            text = (
                "partition.samples-per-client must be lower, or clients.count: classes have too few rows for"
            )
            raise SettingError(f"{text} 'one-class'; got {wanted}")
        clients = apportion(rows, task.num_clients, low, high)
        held = task.draw.permutation(np.repeat(np.arange(len(rows)), clients))
        counts = np.zeros((task.num_clients, len(rows)), np.int64)
        for label in np.flatnonzero(rows):
            owners = np.flatnonzero(held == label)
            counts[owners, label] = _even(rows[label], len(owners))
        return counts


@dataclass(frozen=True)
class Mixed(Method):
    """Every client has some random rows and others of a single label.

    Every client has `samples_per_client` rows in total or, if that is 0, as many as the scarcest of these labels
    allows. Source: appendix A.4 of Zhang 2023 (N = 10, 1,000 and 2,850 rows). The paper does not say which rows are
    drawn first; here the random ones are.
    """

    description: ClassVar[str] = "iid-rows at random, the others of one label"

    name: str = "mixed"
    iid_rows: Annotated[
        int, Setting("rows of every client that are drawn at random", at_least(0), "rows")
    ] = 0

    def counts(self, task: Task) -> Ints:
        """Counts (N, C): `iid_rows` random rows for every client, and further rows of label i mod C for client i."""
        clients, left, share = task.num_clients, task.class_rows.copy(), self.iid_rows
        if not 0 <= share * clients <= left.sum():
            raise SettingError(
                f"partition.iid-rows must be in 0..{left.sum() // clients} for {clients} clients; got {share}"
            )
        counts = np.zeros((clients, len(left)), np.int64)
        for mine in counts:
            mine += task.draw.multivariate_hypergeometric(left, share)
            left -= mine
        labels = np.arange(clients) % len(left)
        holders = np.bincount(labels, minlength=len(left))
        largest = share + int((left[labels] // holders[labels]).min())
        size = self.samples_per_client or largest
        text = f"partition.samples-per-client must be in {max(share, 1)}..{largest} for partition 'mixed'; got {size}"
        require(max(share, 1) <= size <= largest, text)
        counts[np.arange(clients), labels] += size - share
        return counts


@dataclass(frozen=True)
class Dirichlet(Method):
    """Every class is divided in random proportions.

    A large alpha is close to iid; a small alpha gives most clients few labels and few rows. Proportions that leave a
    client empty are redrawn, `_DRAWS` draws at most. Source: Yurochkin et al., ICML 2019, section 4.
    """

    description: ClassVar[str] = "class proportions drawn from Dirichlet(dirichlet-alpha)"
    equal: ClassVar[bool] = False

    name: str = "dirichlet"
    dirichlet_alpha: Annotated[
        float, Setting("concentration: the smaller, the more the clients differ", _CONCENTRATION)
    ] = 0.5

    def counts(self, task: Task) -> Ints:
        """Counts (N, C): each class is divided among the clients by its own p ~ Dirichlet(alpha, ..., alpha)."""
        clients, alpha = task.num_clients, self.dirichlet_alpha
        for _ in range(_DRAWS):
            shares = task.draw.dirichlet(np.full(clients, alpha), size=len(task.class_rows))  # (C, N)
            ends = np.rint(np.cumsum(shares, axis=1) * task.class_rows[:, None]).astype(np.int64)
            counts = np.diff(ends, axis=1, prepend=0).T
            if counts.any(axis=1).all():
                return counts
        text = (
            f"partition.dirichlet-alpha {alpha} left one of {clients} clients without rows in {_DRAWS} draws"
        )
        raise SettingError(f"{text}; raise partition.dirichlet-alpha, lower clients.count or change the seed")


@dataclass(frozen=True)
class Sizes(Method):
    """Rows at random, with a given number of rows for each client."""

    description: ClassVar[str] = "at random, with a list of sizes"
    by_class: ClassVar[bool] = False
    equal: ClassVar[bool] = False

    name: str = "sizes"
    sizes: Annotated[
        str,
        Setting("rows of every client: first, ..., last", unit="comma-separated whole numbers", numbers=True),
    ] = ""

    def counts(self, task: Task) -> Ints:
        """The given sizes as counts (N, 1); SettingError unless they fit the clients and rows."""
        sizes, rows = np.asarray(self.numbers), task.class_rows.sum()
        if sizes.shape != (task.num_clients,):
            raise SettingError(
                f"partition.sizes must be {task.num_clients} whole numbers, one per client; got {len(sizes)}"
            )
        if not sizes.min() >= 1:
            raise SettingError(f"partition.sizes must be at least 1, or drop the client; got {sizes.min()}")
        if not sizes.sum() <= rows:
            raise SettingError(f"partition.sizes must add up to at most {rows}, the rows; got {sizes.sum()}")
        return sizes.astype(np.int64)[:, None]

    @property
    def numbers(self) -> list[int]:
        """The sizes as integers; SettingError if the text is malformed, or for more rows than a site may be made to
        number."""
        try:
            sizes = [whole(word) for word in self.sizes.split(",")] if self.sizes else []
        except ValueError:
            raise SettingError(
                f"partition.sizes must be comma-separated whole numbers; got '{self.sizes}'"
            ) from None
        total = sum(map(abs, sizes))
        if not total <= _MOST_ROWS:
            raise SettingError(f"partition.sizes must add up to at most {_MOST_ROWS:,} rows; got {total:,}")
        return sizes


PARTITIONERS: dict[str, type[Method]] = {
    entry.name: entry for entry in (Iid, Labels, OneClass, Mixed, Dirichlet, Sizes, Contiguous)
}
