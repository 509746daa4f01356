"""The messages of FedPDM and its benchmarks: x0 down and one point up, dense or sparsified (Li 2024, Algorithm 2).

The server sends the top-k' entries of x0, k' = round(downlink_ratio d), and the client uses that zero-padded point
throughout. The client sends k = round(uplink_ratio d) entries of its point, chosen by top-k or rand-k. The server
divides the sum of an entry by the number of clients that sent it (20), (23). With a ratio of 1 the whole point is sent,
without indices.

Sums run over the client axis in ascending partition order, independent of the order of arrival, so every runtime adds
the same numbers in the same order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds, of_clients
from ..randomness import stream
from ..settings import SHARE, Setting, one_of
from ..sparsifiers import SPARSIFIERS, Code, RandK, TopK, make_sparsifier, scatter
from ..work import Report
from .algorithm import Algorithm, to_nodes
from .layout import Constant, Count, Entries, Field, Layout, Point, SparseVector


class Inbox(NamedTuple):
    """x0 (..., d), zero-padded; the indices of its kept entries (..., k'), or (..., 0) if all are kept; rand-k seed
    (...,)."""

    x0: Array
    kept: Index
    seed: Seeds


class Upload(NamedTuple):
    """The entries sent, y (..., k); their indices (..., k), or (..., 0) if all are sent; the number of steps taken
    (...,), or (..., 0) if the server does not need it."""

    y: Array
    indices: Index
    steps: Index


Ratio = Annotated[float, Setting("fraction of entries that a client sends", SHARE)]


@dataclass(frozen=True, kw_only=True)
class Messages(Algorithm):
    """Settings of the messages.

    uplink, uplink_ratio: "top-k" or "rand-k" and the share alpha_U of entries sent. downlink_ratio: share alpha_D of
    entries broadcast (top-k). missing: the mean of an entry that nobody sent is 0, as printed in (23) ("zero"), or its
    previous mean ("keep").
    """

    counts_steps: ClassVar[bool] = False  # whether an upload carries the number of local steps

    uplink: Annotated[str, Setting("which entries of its message a client sends", one_of(SPARSIFIERS))] = "top-k"
    uplink_ratio: Ratio = 1.0
    downlink_ratio: Annotated[float, Setting("fraction of entries broadcast, the largest ones", SHARE)] = 1.0
    missing: Annotated[
        str, Setting("mean of an entry that no client sent: 0 as published, or unchanged", one_of(("zero", "keep")))
    ] = "zero"

    @property
    def up(self) -> TopK | RandK:
        """The sparsifier of uploads."""
        return make_sparsifier(self.uplink, self.uplink_ratio)

    @property
    def down(self) -> TopK:
        """The sparsifier of broadcasts."""
        return TopK(self.downlink_ratio)

    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """Send the top-k' entries of x0 (27) to every client."""
        x0, kept = self.thinned(server.x0)
        return Inbox(to_nodes(x0, node), to_nodes(kept, node), self.seeds(server.key, round_, node))

    def thinned(self, x: Array) -> tuple[Array, Index]:
        """The point (..., d) as clients receive it, and the indices of its kept entries."""
        if self.downlink_ratio == 1:
            return x, np.empty(x.shape[:-1] + (0,), dtype=np.int64)
        code = self.down.encode(x, np.zeros((), np.uint64))
        return scatter(code, x.shape[-1])[0], code.indices

    def message(self, y: Array, inbox: Any, report: Report) -> Upload:
        """The message of a client whose point is y (..., d).

        Noise is added to y before its largest entries are chosen, so that the choice is post-processing. The paper adds
        noise to the k chosen entries instead, (18), (19): see privacy "as-published" of FedPDM.
        """
        lead = y.shape[:-1]
        steps = np.asarray(report.steps) if self.counts_steps else np.empty(lead + (0,), dtype=np.int64)
        if self.uplink_ratio == 1:
            return Upload(y, np.empty(lead + (0,), dtype=np.int64), steps)
        code = self.up.encode(y, np.broadcast_to(inbox.seed, lead))
        return Upload(code.values, code.indices, steps)

    def received(self, upload: Any, d: int) -> tuple[Array, Mask | None]:
        """Zero-padded points (..., d) and which entries were sent, None if all; upload has the fields y and indices."""
        return (upload.y, None) if self.uplink_ratio == 1 else scatter(Code(upload.indices, upload.y), d)

    def mean(self, server: Any, y: Array, sent: Mask | None, shares: Array | None = None) -> Array:
        """The mean of each entry over the clients that sent it, (20), (23), weighted by their shares (..., K) in F if
        these are given."""
        return self.exact_mean(server, y, sent, shares).astype(y.dtype, copy=False)

    def exact_mean(self, server: Any, y: Array, sent: Mask | None, shares: Array | None = None) -> Array:
        """`mean` in double precision."""
        return mean_of_senders(y, sent, 0.0 if sent is None else self.unheard(server), shares)

    def unheard(self, server: Any) -> Array:
        """The mean of an entry that nobody sent. The server stores means for this purpose, because x0 is the result of
        a prox."""
        return np.zeros_like(server.x0) if self.missing == "zero" else server.mean  # type: ignore[no-any-return]

    def seeds(self, key: Seeds, round_: int, node: Index) -> Seeds:
        """A public 64-bit seed for each node's rand-k; a single 0 for all nodes if rand-k is not in use."""
        node = np.asarray(node)
        if not self._seeded:
            return np.zeros((1,) * node.ndim, dtype=np.uint64)
        keys = np.broadcast_to(key if node.ndim == 0 else key[..., None], node.shape)
        seeds = [
            stream(int(key), "rand-k", int(i), round_).integers(2**63)
            for key, i in zip(keys.flat, node.flat, strict=True)
        ]
        return np.array(seeds, dtype=np.uint64).reshape(node.shape)

    @property
    def _seeded(self) -> bool:
        return self.uplink == "rand-k" and self.uplink_ratio < 1

    @cached_property
    def inbox(self) -> Layout:
        """The layout of x0 and the seed for rand-k."""
        return Layout(Inbox, *self.point)

    @property
    def point(self) -> tuple[Field, ...]:
        """The fields of `Inbox`, to be reused by methods that send more."""
        none = Constant("seed", np.zeros((), dtype=np.uint64))
        seed = Count("seed", most=2**64 - 1, kind=np.uint64) if self._seeded else none
        return SparseVector("x0", "kept", self.down), seed

    @cached_property
    def upload(self) -> Layout:
        """The layout of the entries sent, and of the number of steps where the server needs it."""
        steps = Count("steps", least=1) if self.counts_steps else Constant("steps", np.empty(0, dtype=np.int64))
        return Layout(Upload, Entries("y", "indices", self.up), steps)


class Vector(NamedTuple):
    """One vector x (..., d), as an inbox or as an upload."""

    x: Array


VECTOR = Layout(Vector, Point("x"))


class Dense(Algorithm):
    """The layouts of a method that sends one dense vector in each direction."""

    @property
    def inbox(self) -> Layout:
        """The layout of one vector x."""
        return VECTOR

    @property
    def upload(self) -> Layout:
        """The layout of one vector x."""
        return VECTOR


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
