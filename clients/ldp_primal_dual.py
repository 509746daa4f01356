"""The LDP primal-dual method on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ldp_primal_dual import LDPPrimalDual as LDPPrimalDualPage

from .shell import AlgorithmClient


class LDPPrimalDualClient(AlgorithmClient):
    """Keeps its last message, its dual and its point. Receives the mean of everybody's last message, with which it ends
    the round before, and sends one (noisy) gradient step: `twinflower.algorithms.ldp_primal_dual.LDPPrimalDual`.

    Asked again for the same round it sends the stored message: fresh noise would spend budget twice. One that has
    lost its state is refused, because the duals would not sum to 0 any more.
    """

    algorithm_class: ClassVar[type[Algorithm]] = LDPPrimalDualPage
