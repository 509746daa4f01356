"""The networked subgradient method on a client."""

from typing import ClassVar

from twinflower.algorithms.networked_subgradient import NetworkedSubgradient as NetworkedSubgradientPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class NetworkedSubgradientClient(PageClient):
    """Keeps nothing. Receives its own last message and the mean of its neighbourhood, takes one subgradient step:
    `twinflower.algorithms.networked_subgradient.NetworkedSubgradient.client_update`.
    """

    page_class: ClassVar[type[Page]] = NetworkedSubgradientPage
