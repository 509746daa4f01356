"""Networked subgradient method under zCDP: zCDP-grad-NFL (Nedic and Ozdaglar, 2009; compared in Gauthier 2023).

    w_k = sum_l a_kl w~_l - eta_n ( g_k + R'_k )(w~_k),     w~_k = w_k + noise
    a_kl = 1 / (1 + max(d_k, d_l)) for neighbours, a_kk = 1 - sum_{l != k} a_kl         (Metropolis)

client keeps     nothing
       receives  its own last message, and the weighted mean of its own and its neighbours' last messages, (..., d) each
       sends     w~ (..., d)
server keeps     the state of a relay (`relay.Server`)
If a client misses a round, its last message is reused; silent clients are removed from the graph (`relay`). With a
constant step the method converges only to a neighbourhood of the optimum, which is smaller for smaller steps.

Privacy. Everything but the gradient is public: one record changes the only release of a round by at most
2 C eta_n / M_k.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.topologies import adjacency
from ..work import LocalWork, Report
from .algorithm import length
from .layout import Layout, Point
from .messages import Vector
from .relay import GradientSteps, GrowingBudget, Server, rows_of_node


class Inbox(NamedTuple):
    """last: the client's last message; mixed: the weighted mean of its neighbourhood, (..., d) each."""

    last: Array
    mixed: Array


@dataclass(frozen=True)
class NetworkedSubgradient(GradientSteps, GrowingBudget):
    """The method with its settings, which are those of `relay.GradientSteps` and `relay.GrowingBudget`."""

    name: ClassVar[str] = "networked-subgradient"
    title: ClassVar[str] = "networked subgradient (Gauthier 2023): Metropolis weights over neighbours, to compare"

    @cached_property
    def inbox(self) -> Layout:
        """The layout of last and mixed."""
        return Layout(Inbox, Point("last"), Point("mixed"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_subgradients()

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Send each client its own last message and the weighted mean of its neighbourhood."""
        return Inbox(rows_of_node(server.w, node), rows_of_node(self._mixed(server), node))

    def _mixed(self, server: Server) -> Array:
        """sum_l a_kl w_l (..., N, d) over the clients that are still in the graph."""
        matrix = adjacency(self.info.neighbours).tocoo()
        i, j = matrix.coords
        degrees, alive = self.relay.live_degrees(server), self.alive(server)
        weights = alive[..., i] * alive[..., j] / (1 + np.maximum(degrees[..., i], degrees[..., j]))
        apart = weights[..., None] * (server.w[..., j, :] - server.w[..., i, :])
        mixed = server.w.copy()
        np.add.at(mixed, (..., i, slice(None)), apart)  # type: ignore[arg-type]
        return mixed

    def client_update(
        self, state: Any, inbox: Inbox, work: LocalWork
    ) -> tuple[Any, Vector, Report]:
        """Take one subgradient step from the weighted mean, on the first batch."""
        slope = work.gradient(inbox.last) + self.subgradient(inbox.last)
        return state, Vector(work.noise(inbox.mixed - self.step(work.round) * slope)), work.one_step()

    def rounding(
        self, state: Any, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the neighbourhood mean and the step from it."""
        slope = bounds.gradient + bounds.steepest * length(inbox.last) + length(self.subgradient(inbox.last))
        return Rounding(length(inbox.mixed) + self.step(round_) * slope, 0.0)
