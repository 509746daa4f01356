"""Algorithm pages, by the name a user types."""

from ..errors import require
from .bsdp_fedpdm import BSDPFedPDM
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fedpdm import FedPDM
from .fedprox import FedProx
from .isrl_dp import ISRLDP
from .ldp_primal_dual import LDPPrimalDual
from .page import Page
from .scaffold import Scaffold
from .ssca import SSCA
from .ssca_constrained import ConstrainedSSCA

ALGORITHMS: dict[str, type[Page]] = {
    page.name: page
    for page in (
        FedPDM, BSDPFedPDM, FedAvg, FedProx, Scaffold, FedDyn, ISRLDP, LDPPrimalDual, SSCA, ConstrainedSSCA,
    )
}


def find_algorithm(name: str) -> type[Page]:
    """The page called `name`; SettingError that lists the known ones otherwise."""
    require(name in ALGORITHMS, f"algorithm must be one of {', '.join(ALGORITHMS)}; got '{name}'")
    return ALGORITHMS[name]


__all__ = [
    "ALGORITHMS",
    "ISRLDP",
    "SSCA",
    "BSDPFedPDM",
    "ConstrainedSSCA",
    "FedAvg",
    "FedDyn",
    "FedPDM",
    "FedProx",
    "LDPPrimalDual",
    "Page",
    "Scaffold",
    "find_algorithm",
]
