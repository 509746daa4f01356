"""The LDP primal-dual method on a client."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.ldp_primal_dual import LDPPrimalDual as LDPPrimalDualAlgorithm

from .shell import AlgorithmClient


class LDPPrimalDualClient(AlgorithmClient):
    """Keeps its last message, its dual and its point. Receives the mean of all clients' last messages, completes the
    previous round with it, and sends one (noisy) gradient step:
    `twinflower.algorithms.ldp_primal_dual.LDPPrimalDual`.

    If a request is repeated for the same round, the client sends the stored message, because new noise would spend
    budget twice. The server rejects a client that has lost its state, because the duals would no longer sum to 0.
    """

    algorithm_class: ClassVar[type[Algorithm]] = LDPPrimalDualAlgorithm
