"""ZCDP-NFL on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.zcdp_nfl import ZCDPNFL as ZCDPNFLAlgorithm

from .shell import AlgorithmClient


class ZCDPNFLClient(AlgorithmClient):
    """Keeps its dual and its last message, before and after its last reply. Receives the sum of its neighbours'
    messages, the dual steps since that reply, and the round of that reply. Takes one linearised ADMM step and sends the
    new point with noise:
    `twinflower.algorithms.zcdp_nfl.ZCDPNFL.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ZCDPNFLAlgorithm
