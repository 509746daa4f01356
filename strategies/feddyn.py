"""FedDyn on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddyn import FedDyn as FedDynAlgorithm

from .star import StarStrategy


class FedDyn(StarStrategy):
    """Keeps x0, the mean of the clients' duals (drift), and for every client the last round whose reply was used. Sends
    x0 and that round, receives x, updates the drift, and applies the prox with step 1/alpha to mean - drift/alpha:
    `twinflower.algorithms.feddyn.FedDyn.server_update`.

    A missing client is left out of the mean of x, and its dual stays unchanged: from the round that it is sent it
    learns that its last reply was not used, and it undoes that dual step.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDynAlgorithm
