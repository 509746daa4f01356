"""FedDyn on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddyn import FedDyn as FedDynAlgorithm

from .shell import AlgorithmClient


class FedDynClient(AlgorithmClient):
    """Keeps its dual before and after its last reply. Receives x0 and the last round whose reply the server used, takes
    local steps on the dynamically regularised loss, and sends their end point:
    `twinflower.algorithms.feddyn.FedDyn.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDynAlgorithm
