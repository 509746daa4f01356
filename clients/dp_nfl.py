"""(epsilon, delta)-DP-NFL on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.dp_nfl import DPNFL as DPNFLAlgorithm

from .shell import AlgorithmClient


class DPNFLClient(AlgorithmClient):
    """The same client as for zCDP-NFL, with noise calibrated by the older accounting of DP-NFL:
    `twinflower.algorithms.dp_nfl.DPNFL.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = DPNFLAlgorithm
