"""Constrained SSCA on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ssca_constrained import ConstrainedSSCA as ConstrainedSSCAAlgorithm

from .shell import AlgorithmClient


class ConstrainedSSCAClient(AlgorithmClient):
    """Keeps no state. Receives x and sends (noisy) gradients and values of the constraints on one batch:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.client_update`.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ConstrainedSSCAAlgorithm
