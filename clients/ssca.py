"""SSCA on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ssca import SSCA as SSCAAlgorithm

from .shell import AlgorithmClient


class SSCAClient(AlgorithmClient):
    """Keeps no state. Receives x and sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.ssca.SSCA.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = SSCAAlgorithm
