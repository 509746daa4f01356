"""(epsilon, delta)-DP-NFL on a client."""

from typing import ClassVar

from twinflower.algorithms.dp_nfl import DPNFL as DPNFLPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class DPNFLClient(PageClient):
    """zCDP-NFL's client, with the noise of another accounting:
    `twinflower.algorithms.dp_nfl.DPNFL.client_update`.
    """

    page_class: ClassVar[type[Page]] = DPNFLPage
