"""Flower strategies, one class per algorithm; each is the server side of a page in twinflower.algorithms."""

from .bsdp_fedpdm import BSDPFedPDM
from .fedpdm import FedPDM
from .star import Round, StarStrategy

STRATEGIES: dict[str, type[StarStrategy]] = {s.page_class.name: s for s in (FedPDM, BSDPFedPDM)}

__all__ = ["STRATEGIES", "BSDPFedPDM", "FedPDM", "Round", "StarStrategy"]
