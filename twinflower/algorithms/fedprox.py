"""FedProx (Li et al., MLSys 2020): FedAvg whose local steps are pulled towards x0.

    client i goes towards  argmin_x f_i(x) + mu/2 ||x - x0||^2

client keeps nothing, receives x0 (..., d), sends x (..., d) and its number of local steps; the server keeps
x0 (..., d). A client that is missing is left out of the mean. mu = 0 is FedAvg.

The prox step of the server is s = eta sum_{j<Q} (1 - eta mu)^j, between Q eta (mu = 0) and 1/mu (Q large); what
fixed point that gives stands in `server_prox`. Two records' runs differ by a factor |1 - eta mu| less after every step,
so public-state noise is smaller than FedAvg's.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..settings import Setting, at_least
from .base import check_pull
from .fedavg import Averaging


@dataclass(frozen=True)
class FedProx(Averaging):
    """FedAvg's settings, and mu >= 0, the weight of the pull, with mu * step_size < 2."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx: FedAvg with a pull towards the server's point"

    mu: Annotated[float, Setting("weight of the pull towards the server's point", at_least(0))] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("mu", self.mu, self.step_size)

    @property
    def pull(self) -> float:
        """mu."""
        return self.mu
