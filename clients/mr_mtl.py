"""MR-MTL on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.mr_mtl import MRMTL as MRMTLAlgorithm

from .shell import AlgorithmClient


class MRMTLClient(AlgorithmClient):
    """Keeps its own model. Receives the mean of all models, takes local gradient steps from its own model with a pull
    towards that mean, and sends their end point: `twinflower.algorithms.mr_mtl.MRMTL.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = MRMTLAlgorithm
