"""FedProx on a client."""

from typing import ClassVar

from twinflower.algorithms.fedprox import FedProx as FedProxPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class FedProxClient(PageClient):
    """Keeps nothing. Receives x0, takes local gradient steps that are pulled towards it, sends where they end
    and how many they were: `twinflower.algorithms.fedprox.FedProx.client_update`.
    """

    page_class: ClassVar[type[Page]] = FedProxPage
