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

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..errors import RunError, SettingError
from ..privacy.release import Release, Rounding, gradient_release
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds, RowLosses
from ..problems.regularisers import ZERO, Regulariser
from ..settings import SHARE, Setting, above, between, one_of
from ..work import LocalWork, Report
from .algorithm import NO_INFO, RunInfo, length, to_nodes
from .layout import Nothing
from .messages import Dense, Vector, unbiased_mean

Decay = Annotated[float, Setting("alpha: how fast averaging and steps shrink with the round", between(0, 0.95))]


@dataclass(frozen=True)
class Surrogates(Dense):
    """What SSCA and constrained SSCA share (section III of the paper), and their settings.

    In each round each sampled client sends one estimate, taken at the broadcast x and noisy in private runs. The server
    averages convex surrogates of the objective or of the constraint functions, with weight rho_t (3). It then moves x
    towards the solution of the surrogate problem with step gamma_t (4), (5).

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


class Server(NamedTuple):
    """x (..., d), the slope S of the surrogate (..., q), and the sum of its weights, kappa (...,)."""

    x: Array
    surrogate: Array
    kappa: Array


@dataclass(frozen=True)
class SSCA(Surrogates):
    """SSCA with the settings of `Surrogates`."""

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
