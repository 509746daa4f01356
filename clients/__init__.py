"""Flower clients, one NumPyClient class per algorithm; each is the client side of an algorithm in
twinflower.algorithms."""

from .app import client_app
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
    NewtonClient,
    NewtonPathClient,
    PADMMClient,
    ProxSkipClient,
    ScaffoldClient,
    SoteriaFLClient,
    SSCAClient,
    TamunaClient,
    ZCDPNFLClient,
)
from .mods import for_flower_strategies, numbered
from .shell import AlgorithmClient
from .store import ContextLedger
from .sums import SumClient
