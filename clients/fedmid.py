"""FedMiD on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedmid import FedMiD as FedMiDAlgorithm

from .shell import AlgorithmClient


class FedMiDClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes proximal gradient steps, and sends the change:
    `twinflower.algorithms.fedmid.FedMiD.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedMiDAlgorithm
