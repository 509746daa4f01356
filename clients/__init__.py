"""Flower clients, one NumPyClient class per algorithm; each is the client side of an algorithm in
twinflower.algorithms."""

from .bsdp_fedpdm import BSDPFedPDMClient
from .dp_nfl import DPNFLClient
from .fedadam import FedAdamClient
from .fedadmm import FedADMMClient
from .fedavg import FedAvgClient
from .feddr import FedDRClient
from .feddualavg import FedDualAvgClient
from .feddyn import FedDynClient
from .fedmid import FedMiDClient
from .fedpdm import FedPDMClient
from .fedprox import FedProxClient
from .fedsgm import FedSGMClient
from .isrl_dp import ISRLDPClient
from .ldp_primal_dual import LDPPrimalDualClient
from .ledger import ContextLedger
from .mods import for_flower_strategies
from .mr_mtl import MRMTLClient
from .networked_subgradient import NetworkedSubgradientClient
from .p_admm import PADMMClient
from .proxskip import ProxSkipClient
from .scaffold import ScaffoldClient
from .shell import AlgorithmClient
from .soteriafl import SoteriaFLClient
from .ssca import SSCAClient
from .ssca_constrained import ConstrainedSSCAClient
from .sums import SumClient
from .zcdp_nfl import ZCDPNFLClient

CLIENTS: dict[str, type[AlgorithmClient]] = {
    c.algorithm_class.name: c
    for c in (
        FedPDMClient,
        BSDPFedPDMClient,
        FedAvgClient,
        FedProxClient,
        FedAdamClient,
        ScaffoldClient,
        FedDynClient,
        FedADMMClient,
        FedDRClient,
        FedMiDClient,
        FedDualAvgClient,
        MRMTLClient,
        ProxSkipClient,
        ISRLDPClient,
        SoteriaFLClient,
        LDPPrimalDualClient,
        ZCDPNFLClient,
        DPNFLClient,
        PADMMClient,
        NetworkedSubgradientClient,
        SSCAClient,
        ConstrainedSSCAClient,
        FedSGMClient,
    )
}

__all__ = [
    "CLIENTS",
    "AlgorithmClient",
    "BSDPFedPDMClient",
    "ConstrainedSSCAClient",
    "ContextLedger",
    "DPNFLClient",
    "FedADMMClient",
    "FedAdamClient",
    "FedAvgClient",
    "FedDRClient",
    "FedDualAvgClient",
    "FedDynClient",
    "FedMiDClient",
    "FedPDMClient",
    "FedProxClient",
    "FedSGMClient",
    "ISRLDPClient",
    "LDPPrimalDualClient",
    "MRMTLClient",
    "NetworkedSubgradientClient",
    "PADMMClient",
    "ProxSkipClient",
    "SSCAClient",
    "ScaffoldClient",
    "SoteriaFLClient",
    "SumClient",
    "ZCDPNFLClient",
    "for_flower_strategies",
]
