"""ProxSkip on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.proxskip import ProxSkip as ProxSkipPage

from .shell import AlgorithmClient


class ProxSkipClient(AlgorithmClient):
    """Keeps its last message, from which its control variate follows. Receives x0, takes as many local steps as the
    round's public coin says, sends where they end: `twinflower.algorithms.proxskip.ProxSkip.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ProxSkipPage
