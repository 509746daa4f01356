"""FedProx on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedprox import FedProx as FedProxPage

from .shell import AlgorithmClient


class FedProxClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes local gradient steps that are pulled towards it, sends where they end
    and how many they were: `twinflower.algorithms.fedprox.FedProx.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedProxPage
