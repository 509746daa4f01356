"""FedDyn on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddyn import FedDyn as FedDynPage

from .star import StarStrategy


class FedDyn(StarStrategy):
    """Keeps x0, the mean of the clients' duals (drift), and the last round of every client that it counted.
    Sends x0 and that round, receives x, moves the drift, takes mean - drift/alpha and the prox with step
    1/alpha: `twinflower.algorithms.feddyn.FedDyn.server_update`.

    A missing client is left out of the mean of x, and its dual stays as it is; the echoed round makes it drop
    a step that was never counted.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDynPage
