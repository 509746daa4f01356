"""FedProx (Li et al., MLSys 2020): FedAvg with a proximal term in the local steps.

    client i takes gradient steps towards  argmin_x f_i(x) + mu/2 ||x - x0||^2

A client keeps nothing, receives x0 (..., d), and sends x (..., d) and its number of local steps; the server keeps
x0 (..., d). A client that does not reply is left out of the mean. mu = 0 is FedAvg.

The prox step of the server is s = eta sum_{j<Q} (1 - eta mu)^j, between Q eta (mu = 0) and 1/mu (Q large);
`server_prox` describes its fixed point. Each step reduces the effect of one record by the factor |1 - eta mu|, so
public-state noise is smaller than FedAvg's.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from ..settings import Setting, at_least
from .fedavg import PlainAveraging
from .local import check_pull


@dataclass(frozen=True)
class FedProx(PlainAveraging):
    """FedProx with FedAvg's settings, and mu >= 0, the weight of the proximal term, with mu * step_size < 2."""

    name: ClassVar[str] = "fedprox"
    title: ClassVar[str] = "FedProx: FedAvg with a pull towards the server's point"

    mu: Annotated[float, Setting("weight of the pull towards the server's point", at_least(0))] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("mu", self.mu, self.step_size)

    @property
    def pull(self) -> float:
        """mu, the weight of the proximal term."""
        return self.mu
