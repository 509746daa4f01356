"""SCAFFOLD and DP-SCAFFOLD on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.scaffold import Scaffold as ScaffoldAlgorithm

from .shell import AlgorithmClient


class ScaffoldClient(AlgorithmClient):
    """Keeps its control variate c_i before and after its last reply. Receives x0, c and the last round whose reply the
    server used, takes local steps corrected by c - c_i, and sends their end point and their number:
    `twinflower.algorithms.scaffold.Scaffold.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ScaffoldAlgorithm
