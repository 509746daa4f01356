"""FedAvg and DP-FedAvg on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedavg import FedAvg as FedAvgAlgorithm

from .shell import AlgorithmClient


class FedAvgClient(AlgorithmClient):
    """Keeps no state. Receives x0, takes local gradient steps, and sends their end point and their number:
    `twinflower.algorithms.fedavg.FedAvg.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAvgAlgorithm
