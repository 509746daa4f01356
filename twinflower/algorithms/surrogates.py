"""Mini-batch SSCA: the code shared by the method and its constrained form (Ye 2021, section III).

In each round each sampled client sends one estimate, taken at the broadcast x and noisy in private runs. The server
averages convex surrogates of the objective or of the constraint functions, with weight rho_t (3). It then moves x
towards the solution of the surrogate problem with step gamma_t (4), (5). F = sum_i (N_i/N) f_i: clients are weighted by
their numbers of rows. A client that does not reply is left out with its rows; the mean over the sampled clients is
unbiased.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, Index, Mask
from ..errors import RunError
from ..problems.interfaces import Batch
from ..problems.regularisers import ZERO, Regulariser
from ..settings import SHARE, Setting, above, between, check_settings, one_of
from ..work import LocalWork, Report
from .algorithm import NO_INFO, RunInfo, to_nodes
from .averaging import unbiased_mean
from .messages import NOTHING, Dense, Nothing, Vector, check_mode

Decay = Annotated[float, Setting("alpha: how fast averaging and steps shrink with the round", between(0, 0.95))]


@dataclass(frozen=True)
class Surrogates(Dense):
    """Settings of SSCA and constrained SSCA.

    averaging, step_size, step_decay: a_1, a_2 and alpha in rho_t = a_1 / t^alpha and gamma_t = a_2 / t^(alpha + 0.05),
    in (0, 1], (0, 1] and [0, 0.95]. curvature: the paper's tau. surrogate: "exact" or "literal". The paper uses (0.4,
    0.4, 0.4), (0.6, 0.9, 0.3) and (0.9, 0.9, 0.3) for batches of 1, 10 and 100, and tau = 0.1. Its (5) requires sum
    gamma_t^2 to be finite, so alpha above 0.45.
    """

    weightings: ClassVar[tuple[str, ...]] = ("rows",)
    takes_local_steps: ClassVar[bool] = False
    works_on_sums: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("none", "gradient")

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    averaging: Annotated[float, Setting("a_1: weight of the first round's gradient in the surrogate", SHARE)] = 0.9
    step_size: Annotated[float, Setting("a_2: share of the way to the surrogate's minimum in round 1", SHARE)] = 0.9
    step_decay: Decay = 0.3
    curvature: Annotated[float, Setting("tau: curvature of the surrogate", above(0))] = 0.1
    surrogate: Annotated[
        str, Setting("weight of h in the surrogate: as much as its gradients have, or 1 as published",
                     one_of(("exact", "literal")))
    ] = "exact"
    privacy: str = "none"

    def __post_init__(self) -> None:
        check_settings(self)
        check_mode(self)

    state = NOTHING

    def init_client(self, start: Array) -> Nothing:
        """The empty state: clients keep nothing."""
        return Nothing()

    def broadcast(self, server: Any, round_: int, node: Index) -> Vector:
        """Send x to every client."""
        return Vector(to_nodes(server.x, node))

    def client_update(
        self, state: Nothing, inbox: Vector, work: LocalWork
    ) -> tuple[Nothing, Vector, Report]:
        """Send the (noisy) estimate from the first batch."""
        return state, Vector(work.noise(self.estimate(work.objective, inbox.x, work.rows))), work.one_step()

    @abstractmethod
    def estimate(self, objective: Any, x: Array, rows: Batch) -> Array:
        """A client's upload before noise is added: a mean over its rows."""

    def weights(self, round_: int) -> tuple[float, float]:
        """rho_t (3) and gamma_t (5)."""
        return self.averaging / round_**self.step_decay, self.step_size / round_ ** (self.step_decay + 0.05)

    def mean(self, uploads: Array, clients: Index) -> Array:
        """Unbiased estimate (..., q) of the mean over all rows, from the uploads (..., K, q) of clients (..., K)."""
        return unbiased_mean(uploads, clients, self.info.sizes)

    def refuse_rest(self, x: Array, gradients: Array, heard: Mask | np.bool_ | bool = True) -> None:
        """Raise RunError if x (..., d) and all gradients are exactly 0, since the zero weights of a network would never
        change.

        In the paper x may start anywhere. heard is False if gradients of 0 carry no information, because no row was in
        the batches.
        """
        if (~x.any(-1) & ~gradients.any(-1) & heard).any():
            raise RunError(
                "all gradients are 0 at the current point, as at the zero weights of a network: start from the "
                "objective's own starting point (start-scale = 0)"
            )

    def model(self, server: Any) -> Array:
        """The last x (..., d)."""
        return server.x  # type: ignore[no-any-return]

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """||x||^2 of the current model."""
        return {"squared_norm": (server.x**2).sum(-1)}
