"""The networked subgradient method on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.networked_subgradient import NetworkedSubgradient as NetworkedSubgradientAlgorithm

from .shell import AlgorithmClient


class NetworkedSubgradientClient(AlgorithmClient):
    """Keeps no state. Receives its own last message and the mean over its neighbourhood, and takes one subgradient
    step: `twinflower.algorithms.networked_subgradient.NetworkedSubgradient.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = NetworkedSubgradientAlgorithm
