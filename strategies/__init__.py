"""Flower strategies, one class per algorithm; each is the server side of an algorithm in twinflower.algorithms."""

from twinflower.rounds import Round

from .accountant import GaussianAccountant
from .app_functions import AppFunctions
from .methods import (
    DPNFL,
    ISRLDP,
    MRMTL,
    PADMM,
    SSCA,
    STRATEGIES,
    ZCDPNFL,
    BSDPFedPDM,
    ConstrainedSSCA,
    FedAdam,
    FedADMM,
    FedAvg,
    FedDR,
    FedDualAvg,
    FedDyn,
    FedMiD,
    FedPDM,
    FedProx,
    FedSGM,
    LDPPrimalDual,
    NetworkedSubgradient,
    Newton,
    NewtonPath,
    ProxSkip,
    RelayStrategy,
    Scaffold,
    SoteriaFL,
    Tamuna,
)
from .questions import SiteEvaluation
from .star import StarStrategy
from .sums import SumStrategy
