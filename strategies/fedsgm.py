"""FedSGM on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedsgm import FedSGM as FedSGMAlgorithm

from .star import StarStrategy


class FedSGM(StarStrategy):
    """Keeps x, the mean of the points that followed the objective, and for every client the last round whose reply was
    used. Sends x or entries of its change, adds the mean of the clients' changes, and follows the objective or the
    largest bound next, by the values that came with them: `twinflower.algorithms.fedsgm.FedSGM.server_update`.

    A missing client is left out of the means. From the round that it is sent it learns whether its last reply was used,
    and if not, it discards that change and returns to what its earlier messages had left out.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedSGMAlgorithm
