"""MR-MTL on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.mr_mtl import MRMTL as MRMTLAlgorithm

from .star import StarStrategy


class MRMTL(StarStrategy):
    """Keeps the last model of every client and their mean x0. Sends x0, and receives each client's own model:
    `twinflower.algorithms.mr_mtl.MRMTL.server_update`. A client evaluates its own model.

    A missing client stays in the mean with its last model.
    """

    algorithm_class: ClassVar[type[Algorithm]] = MRMTLAlgorithm
