"""FedAvg, DP-FedAvg on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedavg import FedAvg as FedAvgPage

from .star import StarStrategy


class FedAvg(StarStrategy):
    """Keeps x0. Sends it, receives each client's x and number of local steps, takes the mean and, unless the
    clients used subgradients of h, the prox with the length of the round:
    `twinflower.algorithms.fedavg.FedAvg.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAvgPage
