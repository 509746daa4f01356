"""FedDyn on a client."""

from typing import ClassVar

from twinflower.algorithms.feddyn import FedDyn as FedDynPage
from twinflower.algorithms.page import Page

from .shell import PageClient


class FedDynClient(PageClient):
    """Keeps its dual before and after its last reply. Receives x0 and the last of its rounds that was counted,
    takes local steps on the dynamically regularised loss, sends where they end:
    `twinflower.algorithms.feddyn.FedDyn.client_update`.
    """

    page_class: ClassVar[type[Page]] = FedDynPage
