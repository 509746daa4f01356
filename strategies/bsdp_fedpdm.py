"""BSDP-FedPDM on the server (Li 2024, Algorithm 2)."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.bsdp_fedpdm import BSDPFedPDM as BSDPFedPDMPage

from .star import StarStrategy


class BSDPFedPDM(StarStrategy):
    """Keeps x0. Sends its top-k' (and a rand-k seed), receives k entries of y_i, divides each entry by
    the number of its senders and takes the prox:
    `twinflower.algorithms.bsdp_fedpdm.BSDPFedPDM.server_update`.

    A missing client is one sender less for the entries it would have sent.
    """

    algorithm_class: ClassVar[type[Algorithm]] = BSDPFedPDMPage
