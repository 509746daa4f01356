"""FedADMM on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedadmm import FedADMM as FedADMMAlgorithm

from .star import StarStrategy


class FedADMM(StarStrategy):
    """Keeps x0, the mean before its prox, and for every client the last round whose reply was used. Sends x0 and that
    round, receives differences, adds their mean to the mean, and applies the prox with step 1/rho:
    `twinflower.algorithms.fedadmm.FedADMM.server_update`.

    A missing client changes nothing: from the round that it is sent it learns whether its last reply was used, and if
    not, it sends the difference anew.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedADMMAlgorithm
