"""Mini-batch SSCA: stochastic successive convex approximation (Ye 2021, Algorithm 1 with the surrogate (6)).

    minimise  F(x) + h(x),     F(x) = (1/m) sum over all m rows of loss(x, row), not convex perhaps

client keeps     nothing
       receives  x (..., d)
       sends     the mean gradient of one random batch at x (..., d)
server keeps     x (..., d), the surrogate's slope S (..., d) and weight kappa (...,)
A client that is missing is left out: F is estimated from those that answered.

Clients count by their rows N_i / N. Of K that answer each weighs (n / K) N_i / N, which is unbiased for unequal
clients too; with everybody there it is Flower's weighted mean.

    Fbar_t(x) = <S_t, x> + tau kappa_t ||x||^2     up to a constant, the mean of the linearised losses so far

The paper's (13) has tau ||x||^2, as if the weights of (2) summed to 1 from the start: they sum to kappa_t = 1 - prod
(1 - rho_s). surrogate = "exact" is (2), "literal" is (13); they are the same where rho_1 = 1. Its lambda ||x||^2 is
l2 = 2 lambda of the objective here: beta of (12) averages 2 lambda x by the rule of S, so one S does for both.
h, which the paper has not, stays whole in the surrogate.

Privacy. "gradient" noises the mean gradient, the only release of a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..batches import Workload
from ..errors import require
from ..objectives import Batch, Bounds, RowLosses
from ..privacy.release import Release, Rounding, gradient_release
from .abilities import length
from .messages import Nothing, Vector
from .surrogates import Surrogates


class Server(NamedTuple):
    """x (..., d), what the surrogate averages (..., q), and the sum of its weights, kappa (...,)."""

    x: Array
    surrogate: Array
    kappa: Array


@dataclass(frozen=True)
class SSCA(Surrogates):
    """The method with its settings, those of `surrogates.Surrogates`."""

    name: ClassVar[str] = "ssca"
    title: ClassVar[str] = "SSCA (Ye 2021): non-convex F, one batch gradient per round, surrogate on the server"
    server_columns: ClassVar[tuple[str, ...]] = ("squared_norm",)
    model_columns: ClassVar[tuple[str, ...]] = ("cost",)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """No surrogate yet."""
        return Server(start, np.zeros_like(start), np.zeros(start.shape[:-1]))

    def estimate(self, objective: Any, x: Array, rows: Any) -> Array:
        """The gradient (..., d)."""
        return objective.grad(x, rows)  # type: ignore[no-any-return]

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One noisy gradient."""
        return gradient_release(bounds, workload._replace(steps=1))

    def rounding(self, state: Nothing, inbox: Vector, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """Of the gradient, penalty included."""
        return Rounding(bounds.gradient + bounds.steepest * length(inbox.x))

    def server_update(self, server: Any, uploads: Vector, clients: Index, round_: int) -> Any:
        """One step of the surrogate, then x moves towards its lowest point."""
        x, old, kappa = server
        rho, gamma = self.weights(round_)                                       # (3), (5)
        told = self.mean(uploads.x, clients)
        self.refuse_rest(x, told)
        surrogate = (1 - rho) * old + rho * self.linearised(x, told)            # (2), (14), (15)
        kappa = (1 - rho) * kappa + rho
        weight = np.ones_like(kappa) if self.surrogate == "literal" else kappa
        x = (1 - gamma) * x + gamma * self.lowest(surrogate, weight)            # (4)
        return Server(x, surrogate, kappa)

    def check_sum(self, steps: int) -> None:
        """One gradient at the broadcast point, and clients that keep nothing."""
        require(self.privacy == "gradient", f"trust sum needs privacy gradient; got {self.privacy}")

    def linearised(self, x: Array, g: Array) -> Array:
        """A row's share of S (..., d)."""
        return g - 2 * self.curvature * x

    def lowest(self, slope: Array, weight: Array) -> Array:
        """argmin <S, x> + kappa (tau ||x||^2 + h(x)) (..., d), weight being kappa (...,)."""
        vertex = -slope / (2 * self.curvature * weight[..., None])              # (16), (17)
        return self.regulariser.prox(vertex, 1 / (2 * self.curvature))

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The mean loss of all rows, without the penalty."""
        return {"cost": float(objective.losses(x, rows).mean())} if isinstance(objective, RowLosses) else {}
