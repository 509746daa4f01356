"""ISRL-DP on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.isrl_dp import ISRLDP as ISRLDPAlgorithm

from .shell import AlgorithmClient


class ISRLDPClient(AlgorithmClient):
    """Keeps no state. Receives x0 and sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.isrl_dp.ISRLDP.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ISRLDPAlgorithm
