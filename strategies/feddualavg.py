"""FedDualAvg on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddualavg import FedDualAvg as FedDualAvgAlgorithm

from .star import StarStrategy


class FedDualAvg(StarStrategy):
    """Keeps z and the length of all steps so far, and sends both. Receives changes of z, moves along their mean, and
    evaluates the prox of h at z: `twinflower.algorithms.feddualavg.FedDualAvg.server_update`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDualAvgAlgorithm
