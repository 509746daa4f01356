"""FedAvg and DP-FedAvg on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedavg import FedAvg as FedAvgAlgorithm

from .star import StarStrategy


class FedAvg(StarStrategy):
    """Keeps x0. Sends x0, receives each client's x and number of local steps, and takes the mean. Unless the clients
    used subgradients of h, it then applies the prox with the total step length of the round:
    `twinflower.algorithms.fedavg.FedAvg.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAvgAlgorithm
