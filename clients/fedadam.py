"""FedAdam on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedadam import FedAdam as FedAdamAlgorithm

from .shell import AlgorithmClient


class FedAdamClient(AlgorithmClient):
    """Keeps nothing. Receives x0, takes local gradient steps, and sends the end point, as FedAvg's client does:
    `twinflower.algorithms.fedavg.Averaging.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAdamAlgorithm
