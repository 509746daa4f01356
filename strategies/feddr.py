"""FedDR on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddr import FedDR as FedDRAlgorithm

from .star import StarStrategy


class FedDR(StarStrategy):
    """Keeps x0, the mean before its prox, and for every client the last round whose reply was used. Sends x0 and that
    round, receives differences, adds their mean to the mean, and applies the prox with step eta:
    `twinflower.algorithms.feddr.FedDR.server_update`.

    A missing client changes nothing: from the round that it is sent it learns whether its last reply was used, and if
    not, it sends the difference anew.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDRAlgorithm
