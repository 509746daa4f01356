"""SoteriaFL on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.soteriafl import SoteriaFL as SoteriaFLAlgorithm

from .shell import AlgorithmClient


class SoteriaFLClient(AlgorithmClient):
    """Keeps its shift, before and after its last reply. Receives x0, the last round whose reply the server used and the
    seed of the entries to send, and sends these entries of the difference between its (noisy) gradient and the shift:
    `twinflower.algorithms.soteriafl.SoteriaFL.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = SoteriaFLAlgorithm
