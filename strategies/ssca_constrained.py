"""Constrained SSCA on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ssca_constrained import ConstrainedSSCA as ConstrainedSSCAPage

from .star import StarStrategy


class ConstrainedSSCA(StarStrategy):
    """Keeps x, a surrogate of every constraint, multipliers and slack. Sends x, receives gradients and values of
    the constraints, and moves x towards the smallest model that the surrogates allow:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.server_update`.

    A missing client is left out; the others then stand for all rows.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ConstrainedSSCAPage
