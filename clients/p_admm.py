"""P-ADMM on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.p_admm import PADMM as PADMMAlgorithm

from .shell import AlgorithmClient


class PADMMClient(AlgorithmClient):
    """The same client as for zCDP-NFL, but it solves its local problem exactly:
    `twinflower.algorithms.p_admm.PADMM.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = PADMMAlgorithm
