"""FedMiD on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedmid import FedMiD as FedMiDAlgorithm

from .star import StarStrategy


class FedMiD(StarStrategy):
    """Keeps x0 and sends it. Receives changes, moves along their mean, and applies the prox of h with the length of the
    clients' steps: `twinflower.algorithms.fedmid.FedMiD.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedMiDAlgorithm
