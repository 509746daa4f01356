"""The messages of FedPDM and its benchmarks: x0 down and one point up, whole or thinned out (Li 2024, Algorithm 2).

Down go the top-k' entries of x0, k' = round(downlink_ratio d), and the client uses that zero-padded point
everywhere. Up go k = round(uplink_ratio d) entries of the client's point, by top-k or rand-k. The server divides
an entry by the number of those who sent it (20), (23). Ratios of 1 send whole points and no indices.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..errors import require
from ..randomness import stream
from ..settings import SHARE, Setting, check_settings, one_of
from ..sparsifiers import SPARSIFIERS, Code, RandK, TopK, make_sparsifier, scatter
from ..work import Report
from .algorithm import to_nodes
from .averaging import mean_of_senders
from .layout import Absent, Count, Entries, Field, Layout, Point, Seed, Thinned


class Inbox(NamedTuple):
    """x0 (..., d), zero-padded; which entries were kept (..., k'), or (..., 0) if all; rand-k seed (...,)."""

    x0: Array
    kept: Index
    seed: Seeds


class Upload(NamedTuple):
    """The entries sent y (..., k); which, indices (..., k), or (..., 0) if all; steps taken (...,), or (..., 0)
    where the server need not know them."""

    y: Array
    indices: Index
    steps: Index


Ratio = Annotated[float, Setting("share of entries that a client sends", SHARE)]


@dataclass(frozen=True, kw_only=True)
class Messages:
    """Settings of the messages.

    uplink, uplink_ratio: "top-k" or "rand-k" and the share alpha_U of entries sent. downlink_ratio: share
    alpha_D of entries broadcast (top-k). missing: an entry that nobody sent has mean 0, as printed in (23)
    ("zero"), or the mean it had ("keep").
    """

    counts_steps: ClassVar[bool] = False  # whether an upload carries the number of local steps

    uplink: Annotated[str, Setting("which entries of its message a client sends", one_of(SPARSIFIERS))] = "top-k"
    uplink_ratio: Ratio = 1.0
    downlink_ratio: Annotated[float, Setting("share of entries broadcast, the largest ones", SHARE)] = 1.0
    missing: Annotated[
        str, Setting("mean of an entry that no client sent: 0 as published, or unchanged", one_of(("zero", "keep")))
    ] = "zero"

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def up(self) -> TopK | RandK:
        """The uplink's sparsifier."""
        return make_sparsifier(self.uplink, self.uplink_ratio)

    @property
    def down(self) -> TopK:
        """The downlink's sparsifier."""
        return TopK(self.downlink_ratio)

    def broadcast(self, server: Any, round_: int, node: Index) -> Any:
        """Top-k' of x0 (27) to everybody."""
        x0, kept = self.thinned(server.x0)
        return Inbox(to_nodes(x0, node), to_nodes(kept, node), self.seeds(server.key, round_, node))

    def thinned(self, x: Array) -> tuple[Array, Index]:
        """The point (..., d) as clients receive it, and the places of its entries."""
        if self.downlink_ratio == 1:
            return x, np.empty(x.shape[:-1] + (0,), dtype=np.int64)
        code = self.down.encode(x, np.zeros((), np.uint64))
        return scatter(code, x.shape[-1])[0], code.indices

    def message(self, y: Array, inbox: Any, report: Report) -> Upload:
        """The message of a client whose point is y (..., d).

        y is noisy before its largest entries are chosen, which is then post-processing. The paper adds noise
        to the k entries instead, (18), (19): see privacy "as-published" of FedPDM.
        """
        lead = y.shape[:-1]
        steps = np.asarray(report.steps) if self.counts_steps else np.empty(lead + (0,), dtype=np.int64)
        if self.uplink_ratio == 1:
            return Upload(y, np.empty(lead + (0,), dtype=np.int64), steps)
        code = self.up.encode(y, np.broadcast_to(inbox.seed, lead))
        return Upload(code.values, code.indices, steps)

    def received(self, upload: Upload, d: int) -> tuple[Array, Mask | None]:
        """Zero-padded points (..., d) and which entries were sent, None if all."""
        return (upload.y, None) if self.uplink_ratio == 1 else scatter(Code(upload.indices, upload.y), d)

    def mean(self, server: Any, y: Array, sent: Mask | None, shares: Array | None = None) -> Array:
        """Mean of the senders of each entry, (20), (23), who count by their shares (..., K) of F, if they are given."""
        return mean_of_senders(y, sent, self.unheard(server), shares)

    def unheard(self, server: Any) -> Array:
        """The mean of an entry that nobody sent; the server keeps means, because x0 went through a prox."""
        return np.zeros_like(server.x0) if self.missing == "zero" else server.mean  # type: ignore[no-any-return]

    def seeds(self, key: Seeds, round_: int, node: Index) -> Seeds:
        """A public 64-bit seed for each node's rand-k; one 0 for all where indices are sent anyway."""
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
        """x0, and the seed for rand-k."""
        return Layout(Inbox, *self.point)

    @property
    def point(self) -> tuple[Field, ...]:
        """The fields of `Inbox`, for methods that send more."""
        seed = Seed("seed") if self._seeded else Absent("seed", np.zeros((), dtype=np.uint64))
        return Thinned("x0", "kept", self.down), seed

    @cached_property
    def upload(self) -> Layout:
        """The entries sent, and the number of steps where it is needed."""
        steps = Count("steps", least=1) if self.counts_steps else Absent("steps", np.empty(0, dtype=np.int64))
        return Layout(Upload, Entries("y", "indices", self.up), steps)


class Nothing(NamedTuple):
    """The state of a client that keeps nothing."""


class Vector(NamedTuple):
    """One vector x (..., d), as an inbox or as an upload."""

    x: Array


NOTHING = Layout(Nothing)
VECTOR = Layout(Vector, Point("x"))


class Dense:
    """Messages of a method that sends one whole vector each way."""

    @property
    def inbox(self) -> Layout:
        """x."""
        return VECTOR

    @property
    def upload(self) -> Layout:
        """x."""
        return VECTOR


def check_choice(key: str, value: str, known: tuple[str, ...]) -> None:
    """SettingError unless the value is one of the known words."""
    require(value in known, f"{key} must be one of {', '.join(known)}; got '{value}'")
