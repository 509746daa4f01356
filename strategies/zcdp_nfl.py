"""ZCDP-NFL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.zcdp_nfl import ZCDPNFL as ZCDPNFLPage

from .relay import RelayStrategy


class ZCDPNFL(RelayStrategy):
    """Relays: keeps the last message of every client, sends each the sum of its neighbours' and the dual steps it
    has not heard of: `twinflower.algorithms.zcdp_nfl.ZCDPNFL`.

    A missing client is frozen at its last message; one that is silent for `dead_after` rounds leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ZCDPNFLPage
