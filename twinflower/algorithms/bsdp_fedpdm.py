"""BSDP-FedPDM: FedPDM with bidirectional sparsification (Li 2024, Algorithm 2).

A client's round is the same as in FedPDM; only the messages are sparsified (`messages.Messages`).

client keeps     dual (..., d), and its last x for a warm start
       receives  the top-k' of x0, zero-padded to (..., d), and for rand-k a seed (...,)
       sends     k = round(uplink_ratio d) entries of y: top-k or rand-k
server keeps     x0 (..., d), dense
uplink_ratio = downlink_ratio = 1 is DP-FedPDM.
"""

from dataclasses import dataclass
from typing import ClassVar

from .fedpdm import FedPDM
from .messages import Ratio


@dataclass(frozen=True, kw_only=True)
class BSDPFedPDM(FedPDM):
    """FedPDM with its settings; by default clients send half of the entries."""

    name: ClassVar[str] = "bsdp-fedpdm"
    title: ClassVar[str] = "BSDP-FedPDM (Li 2024): FedPDM with top-k or rand-k up and top-k down"

    uplink_ratio: Ratio = 0.5
