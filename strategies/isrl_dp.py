"""ISRL-DP on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.isrl_dp import ISRLDP as ISRLDPAlgorithm

from .star import StarStrategy


class ISRLDP(StarStrategy):
    """Keeps x0 and the average of all its iterates. Sends x0, receives each client's (noisy) mean gradient, takes one
    gradient step and applies the prox: `twinflower.algorithms.isrl_dp.ISRLDP.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ISRLDPAlgorithm
