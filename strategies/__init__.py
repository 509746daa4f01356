"""Flower strategies, one class per algorithm; each is the server side of an algorithm in twinflower.algorithms."""

from twinflower.rounds import Round

from .accountant import GaussianAccountant
from .bsdp_fedpdm import BSDPFedPDM
from .dp_nfl import DPNFL
from .fedadam import FedAdam
from .fedadmm import FedADMM
from .fedavg import FedAvg
from .feddr import FedDR
from .feddualavg import FedDualAvg
from .feddyn import FedDyn
from .fedmid import FedMiD
from .fedpdm import FedPDM
from .fedprox import FedProx
from .fedsgm import FedSGM
from .isrl_dp import ISRLDP
from .ldp_primal_dual import LDPPrimalDual
from .mr_mtl import MRMTL
from .networked_subgradient import NetworkedSubgradient
from .p_admm import PADMM
from .proxskip import ProxSkip
from .relay import RelayStrategy
from .scaffold import Scaffold
from .site_evaluation import SiteEvaluation
from .soteriafl import SoteriaFL
from .ssca import SSCA
from .ssca_constrained import ConstrainedSSCA
from .star import StarStrategy
from .sums import SumStrategy
from .zcdp_nfl import ZCDPNFL

STRATEGIES: dict[str, type[StarStrategy]] = {
    s.algorithm_class.name: s
    for s in (
        FedPDM,
        BSDPFedPDM,
        FedAvg,
        FedProx,
        FedAdam,
        Scaffold,
        FedDyn,
        FedADMM,
        FedDR,
        FedMiD,
        FedDualAvg,
        MRMTL,
        ProxSkip,
        ISRLDP,
        SoteriaFL,
        LDPPrimalDual,
        ZCDPNFL,
        DPNFL,
        PADMM,
        NetworkedSubgradient,
        SSCA,
        ConstrainedSSCA,
        FedSGM,
    )
}

__all__ = [
    "DPNFL",
    "ISRLDP",
    "MRMTL",
    "PADMM",
    "SSCA",
    "STRATEGIES",
    "ZCDPNFL",
    "BSDPFedPDM",
    "ConstrainedSSCA",
    "FedADMM",
    "FedAdam",
    "FedAvg",
    "FedDR",
    "FedDualAvg",
    "FedDyn",
    "FedMiD",
    "FedPDM",
    "FedProx",
    "FedSGM",
    "GaussianAccountant",
    "LDPPrimalDual",
    "NetworkedSubgradient",
    "ProxSkip",
    "RelayStrategy",
    "Round",
    "Scaffold",
    "SiteEvaluation",
    "SoteriaFL",
    "StarStrategy",
    "SumStrategy",
]
