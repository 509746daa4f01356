"""FedPDM on the server (Li 2023, Algorithm 1; Li 2024, Algorithm 1)."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedpdm import FedPDM as FedPDMAlgorithm

from .star import StarStrategy


class FedPDM(StarStrategy):
    """Keeps x0, and with aggregation = "memory" also every client's last y. Sends x0, receives y_i, takes the mean, and
    applies the prox of h with step 1/rho: `twinflower.algorithms.fedpdm.FedPDM.server_update`.

    A missing client is left out of the mean ("sampled") or represented by its last y ("memory").
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedPDMAlgorithm
