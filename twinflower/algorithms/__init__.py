"""The registry of algorithms: ALGORITHMS maps the name that a user types to the class."""

from .algorithm import Algorithm, check_class
from .fedadam import FedAdam
from .fedadmm import FedADMM
from .fedavg import FedAvg
from .feddr import FedDR
from .feddualavg import FedDualAvg
from .feddyn import FedDyn
from .fedmid import FedMiD
from .fedpdm import BSDPFedPDM, FedPDM
from .fedprox import FedProx
from .fedsgm import FedSGM
from .isrl_dp import ISRLDP
from .ldp_primal_dual import LDPPrimalDual
from .mr_mtl import MRMTL
from .networked_subgradient import NetworkedSubgradient
from .newton import Newton
from .newton_path import NewtonPath
from .p_admm import PADMM
from .proxskip import ProxSkip
from .scaffold import Scaffold
from .soteriafl import SoteriaFL
from .ssca import SSCA
from .ssca_constrained import ConstrainedSSCA
from .tamuna import Tamuna
from .zcdp_nfl import DPNFL, ZCDPNFL

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: check_class(algorithm)
    for algorithm in (
        FedPDM, BSDPFedPDM, FedAvg, FedProx, FedAdam, Scaffold, FedDyn, FedADMM, FedDR, FedMiD, FedDualAvg, MRMTL,
        ProxSkip, Tamuna, ISRLDP, SoteriaFL, LDPPrimalDual, SSCA, ConstrainedSSCA, FedSGM, ZCDPNFL, DPNFL, PADMM,
        NetworkedSubgradient, Newton, NewtonPath,
    )
}
