"""Algorithm pages, by the name a user types."""

from ..errors import require
from .bsdp_fedpdm import BSDPFedPDM
from .fedpdm import FedPDM
from .page import Page

ALGORITHMS: dict[str, type[Page]] = {page.name: page for page in (FedPDM, BSDPFedPDM)}


def find_algorithm(name: str) -> type[Page]:
    """The page called `name`; SettingError that lists the known ones otherwise."""
    require(name in ALGORITHMS, f"algorithm must be one of {', '.join(ALGORITHMS)}; got '{name}'")
    return ALGORITHMS[name]


__all__ = ["ALGORITHMS", "BSDPFedPDM", "FedPDM", "Page", "find_algorithm"]
