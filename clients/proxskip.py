"""ProxSkip on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.proxskip import ProxSkip as ProxSkipAlgorithm

from .shell import AlgorithmClient


class ProxSkipClient(AlgorithmClient):
    """Keeps its last message, from which it computes its control variate. Receives x0, takes local steps, whose number
    is public randomness of the round, and sends their end point:
    `twinflower.algorithms.proxskip.ProxSkip.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ProxSkipAlgorithm
