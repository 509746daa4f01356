"""Flower clients, one NumPyClient class per algorithm; each is the client side of an algorithm in
twinflower.algorithms."""

from .ledger import ContextLedger
from .methods import (
    CLIENTS,
    BSDPFedPDMClient,
    ConstrainedSSCAClient,
    DPNFLClient,
    FedAdamClient,
    FedADMMClient,
    FedAvgClient,
    FedDRClient,
    FedDualAvgClient,
    FedDynClient,
    FedMiDClient,
    FedPDMClient,
    FedProxClient,
    FedSGMClient,
    ISRLDPClient,
    LDPPrimalDualClient,
    MRMTLClient,
    NetworkedSubgradientClient,
    PADMMClient,
    ProxSkipClient,
    ScaffoldClient,
    SoteriaFLClient,
    SSCAClient,
    ZCDPNFLClient,
)
from .mods import for_flower_strategies
from .shell import AlgorithmClient
from .sums import SumClient

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
