"""BSDP-FedPDM on a client (Li 2024, Algorithm 2)."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.bsdp_fedpdm import BSDPFedPDM as BSDPFedPDMAlgorithm

from .shell import AlgorithmClient


class BSDPFedPDMClient(AlgorithmClient):
    """Keeps its dual. Receives a sparse x0, sets its missing entries to zero, uses this point in all local steps, and
    sends k entries of y: `twinflower.algorithms.bsdp_fedpdm.BSDPFedPDM.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = BSDPFedPDMAlgorithm
