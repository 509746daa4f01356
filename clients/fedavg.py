"""FedAvg, DP-FedAvg on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedavg import FedAvg as FedAvgPage

from .shell import AlgorithmClient


class FedAvgClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes local gradient steps, sends where they end and how many they were:
    `twinflower.algorithms.fedavg.FedAvg.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAvgPage
