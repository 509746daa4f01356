"""ISRL-DP on a client."""

from typing import ClassVar

from twinflower.algorithms.isrl_dp import ISRLDP as ISRLDPPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class ISRLDPClient(PageClient):
    """Keeps nothing. Receives x0, sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.isrl_dp.ISRLDP.client_update`.
    """

    page_class: ClassVar[type[Page]] = ISRLDPPage
