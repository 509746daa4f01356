"""BSDP-FedPDM on the server (Li 2024, Algorithm 2)."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.bsdp_fedpdm import BSDPFedPDM as BSDPFedPDMAlgorithm

from .star import StarStrategy


class BSDPFedPDM(StarStrategy):
    """Keeps x0. Sends the k' largest entries of x0 (and a seed for rand-k), receives k entries of each y_i, divides the
    sum in each entry by the number of clients that sent it, and applies the prox:
    `twinflower.algorithms.bsdp_fedpdm.BSDPFedPDM.server_update`.

    A missing client is not counted as a sender of any entry.
    """

    algorithm_class: ClassVar[type[Algorithm]] = BSDPFedPDMAlgorithm
