"""FedSGM on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedsgm import FedSGM as FedSGMAlgorithm

from .shell import AlgorithmClient


class FedSGMClient(AlgorithmClient):
    """Keeps what its messages left out, before and after its last reply, and the server's point if it receives only
    entries of it. Receives that point, what the steps follow, and the last round whose reply the server used; sends
    entries of its change and the values of the bounds: `twinflower.algorithms.fedsgm.FedSGM.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedSGMAlgorithm
