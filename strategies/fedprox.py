"""FedProx on the server."""

from typing import ClassVar

from twinflower.algorithms.fedprox import FedProx as FedProxPage
from twinflower.algorithms.page import Page

from .star import StarStrategy


class FedProx(StarStrategy):
    """Keeps x0. Sends it, receives each client's x and number of local steps, takes mean and prox as FedAvg:
    `twinflower.algorithms.fedprox.FedProx.server_update`.

    A missing client is left out of the mean.
    """

    page_class: ClassVar[type[Page]] = FedProxPage
