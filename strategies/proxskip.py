"""ProxSkip on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.proxskip import ProxSkip as ProxSkipAlgorithm

from .star import StarStrategy


class ProxSkip(StarStrategy):
    """Keeps x0, the prox of the mean of all messages. Sends x0, receives the end points of the clients' local steps,
    minus their control variates: `twinflower.algorithms.proxskip.ProxSkip.server_update`.

    The request is repeated to a client that does not reply, and the run stops if there is still no reply.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ProxSkipAlgorithm
