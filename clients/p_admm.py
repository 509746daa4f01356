"""P-ADMM on a client."""

from typing import ClassVar

from twinflower.algorithms.p_admm import PADMM as PADMMPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class PADMMClient(PageClient):
    """zCDP-NFL's client, which solves its local problem exactly:
    `twinflower.algorithms.p_admm.PADMM.client_update`.
    """

    page_class: ClassVar[type[Page]] = PADMMPage
