"""SCAFFOLD, DP-SCAFFOLD on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.scaffold import Scaffold as ScaffoldPage

from .star import StarStrategy


class Scaffold(StarStrategy):
    """Keeps x0, the mean c of the clients' control variates, and the last round of every client that it
    counted. Sends x0, c and that round, receives x and the number of local steps, from which c follows:
    `twinflower.algorithms.scaffold.Scaffold.server_update`.

    A missing client is left out of the mean of x, and its c_i stays as it is; the echoed round makes it drop
    a step that was never counted.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ScaffoldPage
