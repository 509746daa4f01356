"""FedPDM on a client (Li 2023, Algorithm 1; Li 2024, Algorithm 1)."""

from typing import ClassVar

from twinflower.algorithms.fedpdm import FedPDM as FedPDMPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class FedPDMClient(PageClient):
    """Keeps its dual (and its last x for a warm start). Receives x0, takes local steps on the augmented
    Lagrangian, updates the dual, sends y: `twinflower.algorithms.fedpdm.FedPDM.client_update`.
    """

    page_class: ClassVar[type[Page]] = FedPDMPage
