"""Constrained SSCA on a client."""

from typing import ClassVar

from twinflower.algorithms.page import Page
from twinflower.algorithms.ssca_constrained import ConstrainedSSCA as ConstrainedSSCAPage

from .shell import PageClient


class ConstrainedSSCAClient(PageClient):
    """Keeps nothing. Receives x, sends (noisy) gradients and values of the constraints on one batch:
    `twinflower.algorithms.ssca_constrained.ConstrainedSSCA.client_update`.
    """

    page_class: ClassVar[type[Page]] = ConstrainedSSCAPage
