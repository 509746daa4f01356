"""(epsilon, delta)-DP-NFL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.dp_nfl import DPNFL as DPNFLPage

from .relay import RelayStrategy


class DPNFL(RelayStrategy):
    """zCDP-NFL's relay: `twinflower.algorithms.dp_nfl.DPNFL`.

    A missing client is frozen at its last message; one that is silent for `dead_after` rounds leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = DPNFLPage
