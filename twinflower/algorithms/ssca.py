"""Mini-batch SSCA: stochastic successive convex approximation (Ye 2021, Algorithm 1 with the surrogate (6)).

    minimise  F(x) + h(x),     F(x) = (1/m) sum over all m rows of loss(x, row), possibly non-convex

client keeps     nothing
       receives  x (..., d)
       sends     the mean gradient of one random batch at x (..., d)
server keeps     x (..., d), the surrogate's slope S (..., d) and weight kappa (...,)
A client that does not reply is left out: F is estimated from the clients that replied.

Clients are weighted by their rows, N_i / N. If K of n clients reply, each has the weight (n / K) N_i / N, which is
unbiased also for clients of different sizes; if all clients reply, this is Flower's weighted mean.

    Fbar_t(x) = <S_t, x> + tau kappa_t ||x||^2     up to a constant, the mean of the linearised losses so far

The paper's (13) has tau ||x||^2, as if the weights of (2) summed to 1 from the start; they sum to
kappa_t = 1 - prod (1 - rho_s). surrogate = "exact" is (2), "literal" is (13); they are the same if rho_1 = 1. The
paper's lambda ||x||^2 is the objective's l2 = 2 lambda here: beta of (12) averages 2 lambda x by the same rule as S, so
a single S covers both. h, which the paper does not have, is not linearised in the surrogate.

Privacy. "gradient" adds noise to the mean gradient, which is the only release of a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..privacy.release import Release, Rounding, gradient_release
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds, RowLosses
from .algorithm import length
from .messages import Nothing, Vector
from .surrogates import Surrogates


class Server(NamedTuple):
    """x (..., d), the slope S of the surrogate (..., q), and the sum of its weights, kappa (...,)."""

    x: Array
    surrogate: Array
    kappa: Array


@dataclass(frozen=True)
class SSCA(Surrogates):
    """SSCA with the settings of `surrogates.Surrogates`."""

    name: ClassVar[str] = "ssca"
    title: ClassVar[str] = "SSCA (Ye 2021): non-convex F, one batch gradient per round, surrogate on the server"
    server_columns: ClassVar[tuple[str, ...]] = ("squared_norm",)
    model_columns: ClassVar[tuple[str, ...]] = ("cost",)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """Start at x = start with an empty surrogate (S = 0, kappa = 0)."""
        return Server(start, np.zeros_like(start), np.zeros(start.shape[:-1], start.dtype))

    def estimate(self, objective: Any, x: Array, rows: Any) -> Array:
        """The gradient of the objective at x on these rows (..., d)."""
        return objective.grad(x, rows)  # type: ignore[no-any-return]

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One noisy gradient per round."""
        return gradient_release(bounds, workload._replace(steps=1))

    def rounding(
        self, state: Nothing, inbox: Vector, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the gradient, including the gradient of the penalty."""
        return Rounding(bounds.gradient + bounds.steepest * length(inbox.x), 0.0)

    def server_update(self, server: Any, uploads: Vector, clients: Index, round_: int) -> Any:
        """Update the surrogate, then move x towards its minimum."""
        x, old, kappa = server
        rho, gamma = self.weights(round_)                                       # (3), (5)
        gradient = self.mean(uploads.x, clients)
        self.refuse_rest(x, gradient)
        surrogate = (1 - rho) * old + rho * self.linearised(x, gradient)        # (2), (14), (15)
        kappa = (1 - rho) * kappa + rho
        weight = np.ones_like(kappa) if self.surrogate == "literal" else kappa
        x = (1 - gamma) * x + gamma * self.lowest(surrogate, weight)            # (4)
        return Server(x, surrogate, kappa)

    def check_sum(self, steps: int) -> None:
        """Require noisy gradients; they are taken at the broadcast point, and clients keep nothing."""
        if self.privacy != "gradient":
            raise SettingError(f"trust sum needs privacy gradient; got {self.privacy}")

    def linearised(self, x: Array, g: Array) -> Array:
        """The contribution of a gradient g at x to S (..., d)."""
        return g - 2 * self.curvature * x

    def lowest(self, slope: Array, weight: Array) -> Array:
        """argmin <S, x> + kappa (tau ||x||^2 + h(x)) (..., d); slope is S and weight is kappa (...,)."""
        vertex = -slope / (2 * self.curvature * weight[..., None])              # (16), (17)
        return self.regulariser.prox(vertex, 1 / (2 * self.curvature))

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The mean loss over all rows, without the penalty."""
        if not isinstance(objective, RowLosses):
            return {}
        return {"cost": float(objective.losses(x, rows).mean(dtype=np.float64))}
