"""FedProx on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedprox import FedProx as FedProxAlgorithm

from .star import StarStrategy


class FedProx(StarStrategy):
    """Keeps x0. Sends x0, receives each client's x and number of local steps, then takes the mean and applies the prox
    as in FedAvg: `twinflower.algorithms.fedprox.FedProx.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedProxAlgorithm
