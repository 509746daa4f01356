"""SSCA on a client."""

from typing import ClassVar

from twinflower.algorithms.page import Page
from twinflower.algorithms.ssca import SSCA as SSCAPage

from .shell import PageClient


class SSCAClient(PageClient):
    """Keeps nothing. Receives x, sends the (noisy) mean gradient of one batch:
    `twinflower.algorithms.ssca.SSCA.client_update`.
    """

    page_class: ClassVar[type[Page]] = SSCAPage
