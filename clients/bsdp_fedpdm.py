"""BSDP-FedPDM on a client (Li 2024, Algorithm 2)."""

from typing import ClassVar

from twinflower.algorithms.bsdp_fedpdm import BSDPFedPDM as BSDPFedPDMPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class BSDPFedPDMClient(PageClient):
    """Keeps its dual. Receives the kept entries of x0, uses that zero-padded point everywhere, sends k
    entries of y: `twinflower.algorithms.bsdp_fedpdm.BSDPFedPDM.client_update`.
    """

    page_class: ClassVar[type[Page]] = BSDPFedPDMPage
