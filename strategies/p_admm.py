"""P-ADMM on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.p_admm import PADMM as PADMMAlgorithm

from .relay import RelayStrategy


class PADMM(RelayStrategy):
    """The same relay as for zCDP-NFL: `twinflower.algorithms.p_admm.PADMM`.

    For a missing client its last message is used again. After `dead_after` rounds without a reply it leaves the graph.
    """

    algorithm_class: ClassVar[type[Algorithm]] = PADMMAlgorithm
