"""FedAvg, DP-FedAvg on a client."""

from typing import ClassVar

from twinflower.algorithms.fedavg import FedAvg as FedAvgPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class FedAvgClient(PageClient):
    """Keeps nothing. Receives x0, takes local gradient steps, sends where they end and how many they were:
    `twinflower.algorithms.fedavg.FedAvg.client_update`.
    """

    page_class: ClassVar[type[Page]] = FedAvgPage
