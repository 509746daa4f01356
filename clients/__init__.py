"""Flower clients, one NumPyClient class per algorithm; each is the client side of a page in
twinflower.algorithms."""

from .bsdp_fedpdm import BSDPFedPDMClient
from .fedpdm import FedPDMClient
from .shell import PageClient

CLIENTS: dict[str, type[PageClient]] = {c.page_class.name: c for c in (FedPDMClient, BSDPFedPDMClient)}

__all__ = ["CLIENTS", "BSDPFedPDMClient", "FedPDMClient", "PageClient"]
