"""FedDualAvg on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddualavg import FedDualAvg as FedDualAvgAlgorithm

from .shell import AlgorithmClient


class FedDualAvgClient(AlgorithmClient):
    """Keeps nothing. Receives z and the length of all steps so far, moves z along gradients at its prox, and sends the
    change: `twinflower.algorithms.feddualavg.FedDualAvg.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDualAvgAlgorithm
