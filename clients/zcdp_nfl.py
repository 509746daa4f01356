"""ZCDP-NFL on a client."""

from typing import ClassVar

from twinflower.algorithms.page import Page
from twinflower.algorithms.zcdp_nfl import ZCDPNFL as ZCDPNFLPage

from .shell import PageClient


class ZCDPNFLClient(PageClient):
    """Keeps its dual and its last message, before and after its last reply. Receives its neighbours' sum, the dual
    steps since that reply and its round; takes one linearised ADMM step and sends where it ends, with noise:
    `twinflower.algorithms.zcdp_nfl.ZCDPNFL.client_update`.
    """

    page_class: ClassVar[type[Page]] = ZCDPNFLPage
