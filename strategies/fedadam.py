"""FedAdam on the server."""

from typing import ClassVar

from twinflower.algorithms.algorithm import Algorithm
from twinflower.algorithms.fedadam import FedAdam as FedAdamAlgorithm

from .star import StarStrategy


class FedAdam(StarStrategy):
    """Keeps x0 and running means of the clients' mean change and of its squares, takes an adaptive step, and applies
    the prox of h in its norm: `twinflower.algorithms.fedadam.FedAdam.step_to`.

    A missing client is left out of the mean.
    """

    algorithm_class: ClassVar[type[Algorithm]] = FedAdamAlgorithm
