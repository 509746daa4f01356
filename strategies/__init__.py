"""Flower strategies, one class per algorithm; each is the server side of a page in twinflower.algorithms."""

from .bsdp_fedpdm import BSDPFedPDM
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fedpdm import FedPDM
from .fedprox import FedProx
from .isrl_dp import ISRLDP
from .ldp_primal_dual import LDPPrimalDual
from .scaffold import Scaffold
from .ssca import SSCA
from .ssca_constrained import ConstrainedSSCA
from .star import Round, StarStrategy

STRATEGIES: dict[str, type[StarStrategy]] = {
    s.page_class.name: s
    for s in (
        FedPDM,
        BSDPFedPDM,
        FedAvg,
        FedProx,
        Scaffold,
        FedDyn,
        ISRLDP,
        LDPPrimalDual,
        SSCA,
        ConstrainedSSCA,
    )
}

__all__ = [
    "ISRLDP",
    "SSCA",
    "STRATEGIES",
    "BSDPFedPDM",
    "ConstrainedSSCA",
    "FedAvg",
    "FedDyn",
    "FedPDM",
    "FedProx",
    "LDPPrimalDual",
    "Round",
    "Scaffold",
    "StarStrategy",
]
