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
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..batches import Pace
from ..errors import RunError, require
from ..objectives import Batch, Bounds, RowLosses
from ..privacy.release import Release, Rounding, gradient_release
from ..regularisers import ZERO, Regulariser
from ..settings import SHARE, Setting, above, between, check_settings, one_of
from ..work import LocalWork, Report
from .abilities import BoundsRounding, ModelMetrics, ServerMetrics, SumsUp, length
from .messages import NOTHING, Dense, Nothing, Vector, check_choice
from .page import NO_FACTS, Facts, to_nodes


class Server(NamedTuple):
    """x (..., d), what the surrogate averages (..., q), and the sum of its weights, kappa (...,)."""

    x: Array
    surrogate: Array
    kappa: Array


Decay = Annotated[float, Setting("alpha: how fast averaging and steps shrink with the round", between(0, 0.95))]


@dataclass(frozen=True)
class SSCA(Dense, ServerMetrics, ModelMetrics, BoundsRounding, SumsUp):
    """The method with its settings.

    averaging, step_size, step_decay: a_1, a_2, alpha of rho_t = a_1 / t^alpha and gamma_t = a_2 / t^(alpha + 0.05), in
    (0, 1], (0, 1] and [0, 0.95]. curvature is the paper's tau. surrogate: "exact" or "literal". The paper has
    (0.4, 0.4, 0.4), (0.6, 0.9, 0.3), (0.9, 0.9, 0.3) for batches of 1, 10, 100, and tau = 0.1; its (5) wants
    sum gamma_t^2 finite, so alpha above 0.45.
    """

    name: ClassVar[str] = "ssca"
    title: ClassVar[str] = "SSCA (Ye 2021): non-convex F, one batch gradient per round, surrogate on the server"
    weightings: ClassVar[tuple[str, ...]] = ("rows",)
    takes_local_steps: ClassVar[bool] = False
    server_columns: ClassVar[tuple[str, ...]] = ("squared_norm",)
    model_columns: ClassVar[tuple[str, ...]] = ("cost",)

    regulariser: Regulariser = ZERO
    facts: Facts = NO_FACTS
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
        check_choice("privacy", self.privacy, ("none", "gradient"))

    state = NOTHING

    def init_client(self, start: Array) -> Nothing:
        """Nothing."""
        return Nothing()

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """No surrogate yet."""
        return Server(start, np.zeros(start.shape[:-1] + (self._terms(start.shape[-1]),)), np.zeros(start.shape[:-1]))

    def _terms(self, d: int) -> int:
        """Numbers that the surrogate averages."""
        return d

    def broadcast(self, server: Any, round_: int, node: Index) -> Vector:
        """x."""
        return Vector(to_nodes(server.x, node))

    def client_update(
        self, state: Nothing, inbox: Vector, work: LocalWork
    ) -> tuple[Nothing, Vector, Report]:
        """The (noisy) mean of the first batch."""
        return state, Vector(work.noise(self.estimate(work.objective, inbox.x, work.rows))), work.one_step()

    def estimate(self, objective: Any, x: Array, rows: Any) -> Array:
        """The gradient (..., d)."""
        return objective.grad(x, rows)  # type: ignore[no-any-return]

    def release(self, bounds: Bounds, pace: Pace, round_: int) -> Release:
        """One noisy gradient."""
        return gradient_release(bounds, pace._replace(steps=1))

    def rounding(self, state: Nothing, inbox: Vector, bounds: Bounds, pace: Pace, round_: int) -> Rounding:
        """Of the gradient, penalty included."""
        return Rounding(bounds.gradient + bounds.steepest * length(inbox.x))

    def server_update(self, server: Any, uploads: Vector, clients: Index, round_: int) -> Any:
        """One step of the surrogate, then x moves towards its lowest point."""
        x, old, kappa = server
        rho = self.averaging / round_**self.step_decay                          # (3)
        gamma = self.step_size / round_ ** (self.step_decay + 0.05)             # (5)
        told = self.mean(uploads.x, clients)
        self.refuse_rest(x, told)
        surrogate = (1 - rho) * old + rho * self.linearised(x, told)            # (2), (14), (15)
        kappa = (1 - rho) * kappa + rho
        weight = np.ones_like(kappa) if self.surrogate == "literal" else kappa
        x = (1 - gamma) * x + gamma * self.lowest(surrogate, weight)            # (4)
        return Server(x, surrogate, kappa)

    def mean(self, told: Array, clients: Index) -> Array:
        """Unbiased mean over all rows of what clients (..., K) told (..., K, q)."""
        if self.facts.sizes:
            sizes = np.array(self.facts.sizes)
            shares = sizes / sizes.mean(-1, keepdims=True)
            told = np.take_along_axis(shares, clients, -1)[..., None] * told
        return told.mean(-2)  # type: ignore[no-any-return]

    def check_sum(self, steps: int) -> None:
        """One gradient at the broadcast point, and clients that keep nothing."""
        require(self.privacy == "gradient", f"trust sum needs privacy gradient; got {self.privacy}")

    def refuse_rest(self, x: Array, told: Array) -> None:
        """RunError where x (..., d) and all gradients are exactly 0: the zero weights of a network never move.

        The paper starts from any x. Values that are all 0 mean that no row of a bounded group was in the batches, and
        then gradients of 0 say nothing.
        """
        gradients, values = np.split(told, [self._entries(told)], -1)
        heard = values.any(-1) if values.shape[-1] else True
        if (~x.any(-1) & ~gradients.any(-1) & heard).any():
            raise RunError(
                "all gradients are 0 where the run stands: zero weights of a network are such a point, start from its "
                "own start (start-scale = 0) instead"
            )

    def _entries(self, whole: Array) -> int:
        """How many of the numbers are gradients."""
        return whole.shape[-1]

    def linearised(self, x: Array, g: Array) -> Array:
        """A row's share of S (..., d)."""
        return g - 2 * self.curvature * x

    def lowest(self, slope: Array, weight: Array) -> Array:
        """argmin <S, x> + kappa (tau ||x||^2 + h(x)) (..., d), weight being kappa (...,)."""
        vertex = -slope / (2 * self.curvature * weight[..., None])              # (16), (17)
        return self.regulariser.prox(vertex, 1 / (2 * self.curvature))

    def model(self, server: Any) -> Array:
        """x."""
        return server.x  # type: ignore[no-any-return]

    def server_metrics(self, server: Any) -> dict[str, Array]:
        """||x||^2."""
        return {"squared_norm": (server.x**2).sum(-1)}

    def model_metrics(self, x: Array, objective: Any, rows: Batch) -> dict[str, float]:
        """The mean loss of all rows, without the penalty."""
        return {"cost": float(objective.losses(x, rows).mean())} if isinstance(objective, RowLosses) else {}
