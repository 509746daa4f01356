"""FedProx on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedprox import FedProx as FedProxAlgorithm

from .shell import AlgorithmClient


class FedProxClient(AlgorithmClient):
    """Keeps no state. Receives x0, takes local gradient steps with a proximal term towards x0, and sends their end
    point and their number: `twinflower.algorithms.fedprox.FedProx.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedProxAlgorithm
