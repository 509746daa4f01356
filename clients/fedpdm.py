"""FedPDM on a client (Li 2023, Algorithm 1; Li 2024, Algorithm 1)."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedpdm import FedPDM as FedPDMAlgorithm

from .shell import AlgorithmClient


class FedPDMClient(AlgorithmClient):
    """Keeps its dual (and its last x for a warm start). Receives x0, takes local steps on the augmented Lagrangian,
    updates the dual, and sends y: `twinflower.algorithms.fedpdm.FedPDM.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedPDMAlgorithm
