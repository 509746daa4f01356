"""P-ADMM on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.p_admm import PADMM as PADMMPage

from .relay import RelayStrategy


class PADMM(RelayStrategy):
    """zCDP-NFL's relay: `twinflower.algorithms.p_admm.PADMM`.

    A missing client is frozen at its last message; one that is silent for `dead_after` rounds leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = PADMMPage
