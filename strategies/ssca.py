"""SSCA on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ssca import SSCA as SSCAAlgorithm

from .star import StarStrategy


class SSCA(StarStrategy):
    """Keeps x and the averaged surrogate of F. Sends x, receives each client's (noisy) batch gradient, and moves x
    towards the minimiser of the surrogate: `twinflower.algorithms.ssca.SSCA.server_update`.

    A missing client is left out, and the others are weighted to represent all rows.
    """

    algorithm_class: ClassVar[type[Algorithm]] = SSCAAlgorithm
