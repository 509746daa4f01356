"""FedDyn on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.feddyn import FedDyn as FedDynPage

from .shell import AlgorithmClient


class FedDynClient(AlgorithmClient):
    """Keeps its dual before and after its last reply. Receives x0 and the last of its rounds that was counted,
    takes local steps on the dynamically regularised loss, sends where they end:
    `twinflower.algorithms.feddyn.FedDyn.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedDynPage
