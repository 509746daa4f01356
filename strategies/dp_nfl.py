"""(epsilon, delta)-DP-NFL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.dp_nfl import DPNFL as DPNFLAlgorithm

from .relay import RelayStrategy


class DPNFL(RelayStrategy):
    """The same relay as for zCDP-NFL: `twinflower.algorithms.dp_nfl.DPNFL`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = DPNFLAlgorithm
