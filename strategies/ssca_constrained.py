"""Constrained SSCA on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ssca_constrained import ConstrainedSSCA as ConstrainedSSCAAlgorithm

from .star import StarStrategy


class ConstrainedSSCA(StarStrategy):
    """Keeps x, a surrogate of every constraint, the multipliers and the slack. Sends x, receives gradients and values
    of the constraints, and moves x towards the smallest model that satisfies the surrogate constraints:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.server_update`.

    A missing client is left out, and the others are weighted to represent all rows.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ConstrainedSSCAAlgorithm
