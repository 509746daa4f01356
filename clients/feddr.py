"""FedDR on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddr import FedDR as FedDRAlgorithm

from .shell import AlgorithmClient


class FedDRClient(AlgorithmClient):
    """Keeps y, x and the sum of all it has sent, before and after its last reply. Receives x0 and the last round whose
    reply the server used, moves y, takes local steps towards the prox of its loss at y, and sends a difference:
    `twinflower.algorithms.feddr.FedDR.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDRAlgorithm
