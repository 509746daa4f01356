"""ProxSkip on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.proxskip import ProxSkip as ProxSkipPage

from .star import StarStrategy


class ProxSkip(StarStrategy):
    """Keeps x0, the prox of the mean of all messages. Sends x0, receives where the clients' local steps end, less their
    control variates: `twinflower.algorithms.proxskip.ProxSkip.server_update`.

    A client that does not answer is asked again, and the run stops if that does not help.
    """

    algorithm_class: ClassVar[type[Algorithm]] = ProxSkipPage
