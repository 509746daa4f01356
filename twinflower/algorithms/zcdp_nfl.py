"""zCDP-NFL: networked ADMM with a linearised local step under zCDP (Gauthier 2023, Algorithm 1), and DP-NFL.

    minimise  sum_k ( f_k(w_k) + h(w_k) ),  w_k = w_l on every edge,     h = (lambda/K) R

    w_k = argmin_w  <g_k + R'_k, w> + ||w - w~_k||^2 / (2 eta_n) + <gamma_k, w>
                    + rho sum_{l in N_k} ||w - (w~_k + w~_l) / 2||^2,      g_k, R'_k at w~_k                   (7)
    w~_k = w_k + noise,    gamma_k <- gamma_k + rho sum_{l in N_k} (w~_k - w~_l)                          (8), (9)

client keeps     dual gamma (..., d) and its last message w~ (..., d), before and after its last reply (`echo`)
       receives  the sum of its neighbours' messages and the dual steps since its last reply (..., d), the number of
                 its neighbours, and the last of its rounds that the server counted
       sends     w~ (..., d)
server keeps     the state of a relay (`relay.Server`)
If a client misses a round, its last message is reused, and it receives the missed dual steps with its next request.
Clients that stay silent are removed from the graph (`relay`).

The paper's Algorithm 1, (7)-(9), is an image; implemented here is the argmin of (3) with f of (5). The paper's (A.1)
has the dual and the neighbours with other signs and factors, which diverges, and R' at the noise-free model. Here
everything is evaluated at the released w~. Evaluating at the noise-free w gives better results, but breaks the
guarantee (Theorem I requires everything except the data to be public). With clipped gradients the limit is the point
where the clipped gradients balance, which the paper does not discuss.

Privacy. Dual and messages are functions of the releases, so the noisy model of a round is its only release. One record
changes it by at most Delta_k(n) = 2 C / (M_k (1/eta_n + 2 rho d_k)) (11). The release is planned for d_k = 0, and the
noise is reduced according to the actual number of neighbours, so that (12) also holds after clients were removed.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..privacy.accountant import advanced_share, basic_share, classical_noise_multiplier
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import Zero
from ..settings import Setting, above, one_of
from ..work import LocalWork, Report
from .algorithm import length
from .echo import PAIR, Unacknowledged, confirmed, initial, of_node, unacknowledged
from .layout import Count, Layout, Point
from .messages import Vector
from .relay import GradientSteps, GrowingBudget, Relayed, Server, rows_of_node


class Inbox(NamedTuple):
    """The sum of the neighbours' messages, neighbours (..., d); the dual steps, divided by rho, since the last reply
    that was counted, gain (..., d); the number of neighbours, degree (...,); and the round of that reply, heard (...,).
    """

    neighbours: Array
    gain: Array
    degree: Array
    heard: Index


@dataclass(frozen=True)
class NetworkedADMM(Relayed):
    """The code shared by zCDP-NFL, DP-NFL and P-ADMM, with the networked settings (`relay.Relayed`), and rho > 0, the
    penalty of an edge."""

    needs_client_state: ClassVar[bool] = True

    rho: Annotated[float, Setting("penalty of an edge", above(0))] = 0.1

    state = PAIR

    @cached_property
    def inbox(self) -> Layout:
        """The layout of neighbours, gain, degree and heard."""
        degree = Count("degree", 1, self.info.num_clients - 1, None)
        return Layout(Inbox, Point("neighbours"), Point("gain"), degree, Count("heard"))

    def init_client(self, start: Array) -> Unacknowledged:
        """Start with gamma = 0 and w~ = start."""
        return initial(np.concatenate([np.zeros_like(start), start], -1))

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Send each client the sum of its neighbours' messages and its missing dual steps."""
        neighbours, gain = rows_of_node(server.neighbours, node), rows_of_node(server.gain, node)
        return Inbox(neighbours, gain, of_node(self.relay.live_degrees(server), node), of_node(server.heard, node))

    def client_update(
        self, state: Unacknowledged, inbox: Inbox, work: LocalWork
    ) -> tuple[Unacknowledged, Vector, Report]:
        """Apply the dual steps of the previous rounds, then take one ADMM step on the first batch."""
        counted = confirmed(state, inbox.heard)
        dual, last, pull = self.pulled(counted, inbox)
        w = self.primal(work, last, pull, inbox.degree)
        sent = work.noise(w, shrink=self.shrink(inbox.degree, work.round))               # (8)
        return unacknowledged(counted, np.concatenate([dual, sent], -1), work.round), Vector(sent), work.one_step()

    def pulled(self, counted: Array, inbox: Inbox) -> tuple[Array, Array, Array]:
        """The dual, the client's last message, and the gradient of the public terms of the local problem, (..., d)
        each. counted (..., 2d): the dual and the message after the last reply that was counted."""
        d = inbox.gain.shape[-1]
        dual, last = counted[..., :d], np.ascontiguousarray(counted[..., d:])    # faster for many short vectors
        dual = dual + self.rho * inbox.gain                                     # (9)
        return dual, last, dual - self.rho * (inbox.degree[..., None] * last + inbox.neighbours)

    @abstractmethod
    def primal(self, work: LocalWork, last: Array, pull: Array, degree: Array) -> Array:
        """The new models (..., d) of clients with these degrees (...,). last: w~; pull: the gradient of the public
        terms."""

    def prox(self, u: Array, steps: Array) -> Array:
        """The prox for clients (..., d) whose steps (..., 1) depend on their degrees."""
        w, steps = np.empty_like(u), np.broadcast_to(steps[..., 0], u.shape[:-1])
        for step in np.unique(steps):
            w[steps == step] = self.regulariser.prox(u[steps == step], float(step))
        return w

    @abstractmethod
    def shrink(self, degree: Array, round_: int) -> Array:
        """The noise of clients with these degrees, as a fraction of the noise that the release was planned with."""

    def sensitivity_ratio(self, client: int, round_: int) -> float:
        """`shrink` for the client's number of neighbours in the full graph, before any client is removed."""
        return float(self.shrink(np.array(len(self.info.neighbours[client])), round_))


@dataclass(frozen=True)
class LinearisedADMM(NetworkedADMM, GradientSteps):
    """zCDP-NFL's mathematics, shared by both accountings.

    composite: "subgradient" uses a subgradient of R, as in the paper; "prox" uses its prox, which gives exact zeros in
    each message and, without noise, an exact limit at a constant step.
    """

    composite: Annotated[
        str, Setting("how h is handled: by its subgradient as published, or by its prox",
                     one_of(("subgradient", "prox")))
    ] = "subgradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composite == "subgradient":
            self.check_subgradients()

    def primal(self, work: LocalWork, last: Array, pull: Array, degree: Array) -> Array:
        """argmin_w <g, w> + ||w - last||^2 / (2 eta) + <pull, w> + rho d_k ||w||^2, where g is a subgradient of f + h
        at last.

        With "prox", g is the gradient of f alone, and h is added to the objective.
        """
        eta, shrink = self.step(work.round), self.shrink(degree, work.round)[..., None]
        slope = work.gradient(last)
        if self.composite == "subgradient" and not isinstance(self.regulariser, Zero):
            slope = slope + self.subgradient(last)
        w = (last - eta * (slope + pull)) * shrink                              # (7)
        return self.prox(w, eta * shrink) if self.composite == "prox" else w

    def rounding(
        self, state: Unacknowledged, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the sum of gradients in the local step."""
        _, last, pull = self.pulled(confirmed(state, inbox.heard), inbox)
        eta, degree = self.step(round_), float(inbox.degree)
        kinks = 0.0 if self.composite == "prox" else length(self.subgradient(last))
        slope = length(last) / eta + bounds.gradient + bounds.steepest * length(last) + kinks + length(pull)
        return Rounding(slope / (1 / eta + 2 * self.rho * degree), 0.0, float(self.shrink(inbox.degree, round_)))

    def shrink(self, degree: Array, round_: int) -> Array:
        """Delta_k(n) divided by the sensitivity that the release was planned for."""
        return 1 / (1 + 2 * self.rho * self.step(round_) * degree)


@dataclass(frozen=True)
class ZCDPNFL(LinearisedADMM, GrowingBudget):
    """The method with the settings of `LinearisedADMM`, `NetworkedADMM` and `relay`."""

    name: ClassVar[str] = "zcdp-nfl"
    title: ClassVar[str] = "zCDP-NFL (Gauthier 2023): networked ADMM, neighbours agree, the server relays"


_SHARES = {"basic": basic_share, "advanced": advanced_share}


@dataclass(frozen=True)
class DPNFL(LinearisedADMM):
    """(epsilon, delta)-DP-NFL: zCDP-NFL with the older accounting (section 5 of the paper), as a baseline.

    Every round gets the same (epsilon_n, delta_n), chosen so that basic or advanced composition over all rounds gives
    the total. Its noise follows the classical rule, sigma_n = Delta_k(n) sqrt(2 ln(1.25 / delta_n)) / epsilon_n. Exact
    accounting of this Gaussian noise gives a far smaller epsilon, which a run reports beside the planned total.

    The settings are zCDP-NFL's without budget_ratio, and composition: "basic" or "advanced".
    """

    name: ClassVar[str] = "dp-nfl"
    title: ClassVar[str] = "(epsilon, delta)-DP-NFL (Gauthier 2023): basic or advanced composition; a baseline"

    composition: Annotated[str, Setting("composition theorem that turns epsilon into noise", one_of(_SHARES))] = "basic"

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float:
        """sigma / sensitivity by the classical rule for a total (epsilon, delta)."""
        return classical_noise_multiplier(*_SHARES[self.composition](epsilon, delta, releases))
