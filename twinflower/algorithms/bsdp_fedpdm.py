"""BSDP-FedPDM: FedPDM with bidirectional sparsification (003, Algorithm 2).

The mathematics of a client's round is FedPDM's; only the messages are thinned out.

client keeps     dual (..., d), and its last x for a warm start
       receives  the top-k' of x0, zero-padded to (..., d), and for rand-k a seed (...,)
       sends     k = round(uplink_ratio d) entries of y: top-k or rand-k
server keeps     x0 (..., d), dense
uplink_ratio = downlink_ratio = 1 is DP-FedPDM.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..privacy.release import Noise
from ..randomness import stream
from ..sparsifiers import Code, RandK, TopK, kept_entries, make_sparsifier, scatter
from ..wire import checked, expect_arrays
from .fedpdm import FedPDM, Server, check_choice
from .page import Arrays, to_nodes


class SparseInbox(NamedTuple):
    """x0 (..., d), which of its entries were sent (..., k'), and the rand-k seed (...,)."""

    x0: Array
    kept: Index
    seed: Seeds


@dataclass(frozen=True)
class BSDPFedPDM(FedPDM):
    """FedPDM's settings and four more.

    uplink, uplink_ratio: "top-k" or "rand-k" and the share alpha_U of entries sent. downlink_ratio: share
    alpha_D of entries broadcast (top-k). missing: an entry that nobody sent has mean 0, as printed in (23)
    ("zero"), or the mean it had ("keep").
    """

    name: ClassVar[str] = "bsdp-fedpdm"
    title: ClassVar[str] = "BSDP-FedPDM (003): FedPDM with top-k or rand-k up and top-k down"
    dense: ClassVar[bool] = False

    uplink: str = "top-k"
    uplink_ratio: float = 0.5
    downlink_ratio: float = 1.0
    missing: str = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        make_sparsifier(self.uplink, self.uplink_ratio)
        make_sparsifier("top-k", self.downlink_ratio, "downlink")
        check_choice("missing", self.missing, ("zero", "keep"))

    @property
    def up(self) -> TopK | RandK:
        """The uplink's sparsifier."""
        return make_sparsifier(self.uplink, self.uplink_ratio)

    @property
    def down(self) -> TopK:
        """The downlink's sparsifier."""
        return TopK(self.downlink_ratio)

    def broadcast(self, server: Server, round_: int, node: Index) -> SparseInbox:
        """Top-k' of x0 (27); the client uses nothing else, as start point and in (8a) and (8c)."""
        code = self.down.encode(server.x0, server.key)
        sparse, _ = scatter(code, server.x0.shape[-1])
        return SparseInbox(
            to_nodes(sparse, node), to_nodes(code.indices, node), self._seeds(server, round_, node)
        )

    def _message(self, y: Array, inbox: Any, noise: Noise, shrink: Array | float) -> Code:
        """k entries of y.

        The paper thins out first and adds noise to the k entries, (18), (19): as published, the places of a
        top-k are released without noise. In the other modes y is noisy before its largest entries are chosen,
        which is post-processing.
        """
        code = self.up.encode(y, np.broadcast_to(inbox.seed, y.shape[:-1]))
        if self.privacy == "as-published":
            code = code._replace(values=noise(code.values, shrink=shrink))
        return code

    def server_update(self, server: Server, uploads: Any, clients: Index, round_: int) -> Server:
        """Entry by entry: divide by the number of senders (20), (23), then prox."""
        y, sent = scatter(uploads, server.x0.shape[-1])
        unheard = np.zeros_like(server.x0) if self.missing == "zero" else server.mean
        return self._prox_of_mean(server, y, sent, clients, unheard)

    def _seeds(self, server: Server, round_: int, node: Index) -> Seeds:
        """A public 64-bit seed for each node's rand-k; one 0 for all where indices are sent anyway."""
        node = np.asarray(node)
        if self.uplink != "rand-k":
            return np.zeros((1,) * node.ndim, dtype=np.uint64)
        keys = np.broadcast_to(server.key if node.ndim == 0 else server.key[..., None], node.shape)
        seeds = [
            stream(int(key), "rand-k", int(i), round_).integers(2**63)
            for key, i in zip(keys.flat, node.flat, strict=True)
        ]
        return np.array(seeds, dtype=np.uint64).reshape(node.shape)

    def pack_inbox(self, inbox: SparseInbox) -> Arrays:
        """The kept entries of x0, their packed places unless all are kept, and the seed for rand-k."""
        code = Code(inbox.kept, inbox.x0[inbox.kept])
        seed = [np.asarray(inbox.seed)] if self.uplink == "rand-k" else []
        return self.down.pack(code, len(inbox.x0)) + seed

    def unpack_inbox(self, arrays: Arrays, d: int) -> SparseInbox:
        """Zero-padded x0 (d,)."""
        seed = np.zeros((), dtype=np.uint64)
        if self.uplink == "rand-k":
            expect_arrays(arrays, 2 if kept_entries(self.downlink_ratio, d) == d else 3)
            seed, arrays = checked("seed", arrays[-1], (), np.uint64), arrays[:-1]
        code = self.down.unpack(arrays, d, seed)
        return SparseInbox(scatter(code, d)[0], code.indices, seed)

    def pack_upload(self, upload: Code, d: int) -> Arrays:
        """The sparsifier's wire arrays."""
        return self.up.pack(upload, d)

    def unpack_upload(self, arrays: Arrays, inbox: SparseInbox) -> Code:
        """A checked `Code`."""
        return self.up.unpack(arrays, inbox.x0.shape[-1], inbox.seed)

    def bits(self, d: int) -> tuple[int, int]:
        """k entries up, k' down, with indices where they are needed; SettingError where k or k' is 0."""
        kept_entries(self.downlink_ratio, d, "downlink-ratio")
        return self.up.bits(d), self.down.bits(d) + (64 if self.uplink == "rand-k" else 0)

    def paper_bits(self, d: int) -> int:
        """32 k."""
        return 32 * kept_entries(self.uplink_ratio, d)
