"""FedADMM on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedadmm import FedADMM as FedADMMAlgorithm

from .shell import AlgorithmClient


class FedADMMClient(AlgorithmClient):
    """Keeps its dual and the sum of all it has sent, before and after its last reply. Receives x0 and the last round
    whose reply the server used, takes local steps on the augmented Lagrangian, and sends a difference:
    `twinflower.algorithms.fedadmm.FedADMM.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedADMMAlgorithm
