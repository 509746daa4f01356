"""Assignment of rows to clients: `partition(labels, num_clients, method, seed, ...)`.

A method (`partitioners`) says how many rows of each kind every client gets; the kinds are the classes, or a single one
for methods that ignore labels. This module then assigns the rows.

For all methods, a row belongs to at most one client, no client is empty, and the same seed gives the same rows.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError, require
from ..randomness import stream
from ..settings import check_settings, make
from .partitioners import PARTITIONERS, Ints, Method, Task


@dataclass(frozen=True, eq=False)
class Partition:
    """Row numbers of the data set, grouped by client: client i has rows[offsets[i]:offsets[i + 1]]."""

    rows: Ints  # (total,)
    offsets: Ints  # (N + 1,), from 0 to total

    @classmethod
    def grouped(cls, rows: Iterable[Ints]) -> "Partition":
        """The partition with these rows of each client."""
        parts = list(rows)
        return cls(np.concatenate(parts), np.cumsum([0, *map(len, parts)]))

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Ints:
        """Number of rows of each client, (N,)."""
        return np.diff(self.offsets)

    def of(self, client: int) -> Ints:
        """Row numbers of one client, as a view; SettingError for an unknown client."""
        last = self.num_clients - 1
        if not 0 <= client <= last:
            raise SettingError(f"client must be in 0..{last}; got {client}")
        return self.rows[self.offsets[client] : self.offsets[client + 1]]


def hold_out(
    partition: Partition, share: float, seed: int, groups: Ints | None = None, most: int = 0
) -> tuple[Partition, Partition]:
    """Split every client's rows at random into those to train on and those to evaluate on; return both partitions.

    share in (0, 1): a client with m rows holds out round(share m) of them, but at least one, and all but one at most. A
    client with a single row holds out none. Which of a client's rows these are depends on m, the seed and the client.

    groups (rows of the data set,), most: see `held_out_rows`.
    """
    parts = [
        held_out_rows(int(m), share, seed, i, None if groups is None else groups[partition.of(i)], most)
        for i, m in enumerate(partition.sizes)
    ]
    training, held = ([partition.of(i)[split[k]] for i, split in enumerate(parts)] for k in (0, 1))
    return Partition.grouped(training), Partition.grouped(held)


def held_out_rows(
    size: int, share: float, seed: int, client: int, groups: Ints | None, most: int = 0
) -> tuple[Ints, Ints]:
    """The places, ascending, of a client's rows to train on, and of those to evaluate on, as in `hold_out`.

    groups (size,): the group of every row, such as a person. No group is in both parts; as many rows as said, or a few
    more to complete a group, are held out, and all rows of one group at most are not. most: the public number of rows
    of a group, 0 for a number of rows held out that follows from the groups. With it both numbers are those of a client
    whose groups are not known, held = round(share size) and size - held - (most - 1): rows beyond them are unused.
    """
    order = stream(seed, "held-out", client).permutation(size)
    held, spare = min(max(round(share * size), 1), size - 1), max(most - 1, 0)
    if held + spare >= size:
        held = spare = 0
    others, first = parted(order, held, None if groups is None else groups[order])
    if most:
        others, first = others[: size - held - spare], first[:held]
    return np.sort(others), np.sort(first)


def parted(rows: Ints, size: int, groups: Ints | None) -> tuple[Ints, Ints]:
    """Split shuffled rows into the first ones, at least `size`, and the others; return the others, then the first.

    groups (rows,): the group of each of them. The rows of a group stay together: the group of the last of the first
    rows is completed, unless no group would be left for the others. size 0: none.
    """
    rows, codes = together(rows, groups)
    end = np.searchsorted(codes, min(codes[size - 1] + 1, codes[-1])) if size else 0
    return rows[end:], rows[:end]


def together(rows: Ints, groups: Ints | None = None) -> tuple[Ints, Ints]:
    """Shuffled rows with those of a group next to each other, and the place of each row's group, from 0 on, ascending.

    The place of a group is that of its lowest row, so every group has the same chances, whatever its size. Without
    groups every row is one, and the order stays as it is.
    """
    if groups is None:
        return rows, np.arange(len(rows))
    by_row = np.argsort(rows)
    _, lowest, codes = np.unique(groups[by_row], return_index=True, return_inverse=True)
    rank = np.empty(len(rows), np.int64)
    rank[by_row] = np.argsort(np.argsort(by_row[lowest]))[codes]
    order = np.argsort(rank, kind="stable")
    return rows[order], rank[order]


def by_group(groups: Ints, labels: NDArray[Any]) -> tuple[Ints, NDArray[Any]]:
    """The number of each row's group (rows,), from 0 on, and the largest label of every group."""
    codes = np.unique(groups, return_inverse=True)[1]
    largest = np.full(int(codes.max()) + 1, labels.min())
    np.maximum.at(largest, codes, labels)
    return codes, largest


def describe(partition: Partition, labels: NDArray[Any], num_classes: int) -> str:
    """A summary of row and label counts in three lines; two for regression (num_classes = 0), without labels."""
    sizes = partition.sizes
    lines = [
        f"{len(sizes)} clients hold {sizes.sum()} of {len(labels)} rows",
        f"rows per client, min / median / max: {_spread(sizes)}",
    ]
    if num_classes:
        owner = np.repeat(np.arange(len(sizes)), sizes)
        pairs = np.unique(owner * num_classes + labels[partition.rows])
        held = np.bincount(pairs // num_classes, minlength=len(sizes))
        lines.append(f"labels per client, min / median / max: {_spread(held)} of {num_classes}")
    return "\n".join(lines)


def _spread(values: Ints) -> str:
    return f"{values.min()} / {np.median(values):g} / {values.max()}"


# --------------------------------------------------------------------------------------- dividing rows


def partition(
    labels: NDArray[Any],
    num_clients: int,
    method: str,
    seed: int,
    num_classes: int = 0,
    **settings: Any,
) -> Partition:
    """Divide the rows of labels (rows,) among num_clients clients by one of `PARTITIONERS`.

    iid          at random; sizes differ by at most one
    contiguous   like iid, but in file order: equal chunks, of which client 0 has the first
    sizes        at random, with sizes[i] rows for client i; rows beyond their sum are not used
    labels       exactly labels_per_client labels for every client and equal sizes, see `Labels`
    one-class    one label per client, see `OneClass`
    mixed        iid_rows random rows for every client and the others of one label, see `Mixed`
    dirichlet    each class divided in proportions drawn from Dirichlet(dirichlet_alpha), see `Dirichlet`

    samples_per_client = s > 0 limits every client to s rows, chosen at random except for contiguous, which
    keeps the first s of each chunk. Methods with equal sizes raise SettingError if a client cannot have s
    rows; dirichlet and sizes leave smaller clients as they are. num_classes = 0 stands for the largest
    label + 1. Labels of floating type are regression targets.

    Raises `SettingError` for invalid settings. `Partition.rows` omits rows that belong to no client.
    """
    if "sizes" in settings:  # make() expects the list as text
        settings["sizes"] = ", ".join(map(str, settings["sizes"]))
    return divide(labels, num_clients, make(PARTITIONERS, "partition", method, settings), seed, num_classes)


def divide(
    labels: NDArray[Any],
    num_clients: int,
    method: Method,
    seed: int,
    num_classes: int = 0,
    groups: Ints | None = None,
) -> Partition:
    """Like `partition`, with the method given as an instance with its settings.

    groups (rows,): the group of every row. The method then divides groups in place of rows, each with its largest
    label, and its sizes count groups. Within a client rows are in ascending order.
    """
    if groups is not None:
        codes, kinds = by_group(groups, labels)
        whole = divide(kinds, num_clients, method, seed, num_classes)
        return Partition.grouped(np.flatnonzero(np.isin(codes, whole.of(i))) for i in range(num_clients))
    _check(labels, num_clients, method)
    kinds = _classes(labels, num_classes, method.name) if method.by_class else np.zeros(len(labels), np.int64)
    class_rows = np.bincount(kinds, minlength=num_classes if method.by_class else 1)
    draw = stream(seed, "partition")
    counts = method.counts(Task(class_rows, num_clients, draw))
    order = draw.permutation(len(labels)) if method.shuffled else np.arange(len(labels))
    return _cut(_deal(kinds, counts, order), method.samples_per_client, method.equal)


def _check(labels: NDArray[Any], num_clients: int, method: Method) -> None:
    rows = len(labels)
    if not (labels.ndim == 1 and rows > 0):
        raise SettingError(f"labels must have shape (rows,), rows > 0; got {labels.shape}")
    if not 1 <= num_clients <= rows:
        raise SettingError(
            f"clients.count must be in 1..{rows}, the rows or their groups; got {num_clients}: set it lower"
        )
    check_settings(method)


def _classes(labels: NDArray[Any], num_classes: int, method: str) -> Ints:
    blind = ", ".join(name for name, entry in PARTITIONERS.items() if not entry.by_class)
    if labels.dtype.kind not in "iu":
        raise SettingError(f"partition {method!r} needs class labels; for regression use {blind}")
    top = num_classes or int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= top:
        raise SettingError(f"labels must be in 0..{top - 1}; got {labels.min()} to {labels.max()}")
    return labels.astype(np.int64)


def _deal(kinds: Ints, counts: Ints, order: Ints) -> Partition:
    """Assign client i the next counts[i, k] rows of kind k, going through the rows in the given order.

    kinds is (rows,), counts (N, kinds) and order (rows,). Within a client, rows keep that order.
    """
    owner = np.full(len(order), -1)
    kinds_in_order = kinds[order]
    for kind, column in enumerate(counts.T):
        positions = np.flatnonzero(kinds_in_order == kind)[: column.sum()]
        owner[positions] = np.repeat(np.arange(len(counts)), column)
    given = np.flatnonzero(owner >= 0)
    by_client = given[np.argsort(owner[given], kind="stable")]
    return Partition(order[by_client], np.cumsum([0, *counts.sum(axis=1)]))


def _cut(whole: Partition, samples: int, equal: bool) -> Partition:
    """Keep the first `samples` rows of each client; 0 keeps all."""
    smallest = whole.sizes.min()
    if not samples:
        return whole
    text = f"partition.samples-per-client must be at most {smallest}, the rows of the smallest client; got {samples}"
    require(samples <= smallest or not equal, text)
    return Partition.grouped(rows[:samples] for rows in np.split(whole.rows, whole.offsets[1:-1]))
