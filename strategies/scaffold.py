"""SCAFFOLD and DP-SCAFFOLD on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.scaffold import Scaffold as ScaffoldAlgorithm

from .star import StarStrategy


class Scaffold(StarStrategy):
    """Keeps x0, the mean c of the clients' control variates, and for every client the last round whose reply was used.
    Sends x0, c and that round, receives x and the number of local steps, and computes the new c from them:
    `twinflower.algorithms.scaffold.Scaffold.server_update`.

    A missing client is left out of the mean of x, and its c_i stays unchanged: from the round that it is sent it learns
    that its last reply was not used, and it undoes that step of c_i.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ScaffoldAlgorithm
