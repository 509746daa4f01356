"""SoteriaFL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.soteriafl import SoteriaFL as SoteriaFLAlgorithm

from .star import StarStrategy


class SoteriaFL(StarStrategy):
    """Keeps x0, the mean of the clients' shifts, and for every client the last round whose reply was used. Sends x0,
    that round and the seed of the entries to send, receives these entries of the clients' differences, takes one step
    along the mean shift plus the mean difference, and applies the prox:
    `twinflower.algorithms.soteriafl.SoteriaFL.server_update`.

    A missing client is left out of the mean difference. From the round that it is sent it learns whether its last reply
    was used, and if not, it discards that step of its shift.
    """

    algorithm_class: ClassVar[type[Algorithm]] = SoteriaFLAlgorithm
