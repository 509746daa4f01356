"""ZCDP-NFL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.zcdp_nfl import ZCDPNFL as ZCDPNFLAlgorithm

from .relay import RelayStrategy


class ZCDPNFL(RelayStrategy):
    """A relay that keeps the last message of every client. Sends each client the sum of its neighbours' messages and
    the dual steps that it has not received yet: `twinflower.algorithms.zcdp_nfl.ZCDPNFL`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ZCDPNFLAlgorithm
