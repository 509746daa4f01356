"""Networked subgradient method under zCDP: zCDP-grad-NFL (Nedic and Ozdaglar, 2009; compared in Gauthier 2023).

    w_k = sum_l a_kl w~_l - eta_n ( g_k + R'_k )(w~_k),     w~_k = w_k + noise
    a_kl = 1 / (1 + max(d_k, d_l)) for neighbours, a_kk what is left of 1         (Metropolis)

client keeps     nothing
       receives  its own last message and the mean of its and its neighbours' (..., d)
       sends     w~ (..., d)
server keeps     what a relay needs (`relay`)
A client that is missing is frozen, and the silent leave the graph: `relay`. With a constant step it ends near the
optimum only, the nearer the smaller the step.

Privacy. Everything but the gradient is public: the one release of a round moves by at most 2 C eta_n / M_k.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..batches import Workload
from ..objectives import Bounds
from ..privacy.release import Rounding
from ..topologies import adjacency
from ..work import LocalWork, Report
from .abilities import BoundsRounding, length
from .layout import Layout, Point
from .messages import NOTHING, Nothing, Vector
from .relay import GradientSteps, GrowingBudget, Server, rows_of_node


class Inbox(NamedTuple):
    """The client's last message and the weighted mean of its neighbourhood, (..., d) each."""

    own: Array
    mixed: Array


@dataclass(frozen=True)
class NetworkedSubgradient(GradientSteps, GrowingBudget, BoundsRounding):
    """The method with its settings, all in `relay`."""

    name: ClassVar[str] = "networked-subgradient"
    title: ClassVar[str] = "networked subgradient (Gauthier 2023): Metropolis weights over neighbours, to compare"

    state = NOTHING
    @cached_property
    def inbox(self) -> Layout:
        """Both."""
        return Layout(Inbox, Point("own"), Point("mixed"))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_subgradients()

    def init_client(self, start: Array) -> Any:
        """Nothing."""
        return Nothing()

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Own and mixed."""
        return Inbox(rows_of_node(server.w, node), rows_of_node(self._mixed(server), node))

    def _mixed(self, server: Server) -> Array:
        """sum_l a_kl w_l (..., N, d) over the living."""
        matrix = adjacency(self.info.neighbours).tocoo()
        i, j = matrix.coords
        degrees, alive = self.live_degrees(server), self.alive(server)
        weights = alive[..., i] * alive[..., j] / (1 + np.maximum(degrees[..., i], degrees[..., j]))
        apart = weights[..., None] * (server.w[..., j, :] - server.w[..., i, :])
        mixed = server.w.copy()
        np.add.at(mixed, (..., i, slice(None)), apart)  # type: ignore[arg-type]
        return mixed

    def client_update(
        self, state: Any, inbox: Inbox, work: LocalWork
    ) -> tuple[Any, Vector, Report]:
        """One subgradient step from the mean; of the batches the first is used."""
        slope = work.gradient(inbox.own) + self.subgradient(inbox.own)
        return state, Vector(work.noise(inbox.mixed - self.step(work.round) * slope)), work.one_step()

    def rounding(self, state: Any, inbox: Inbox, bounds: Bounds, workload: Workload, round_: int) -> Rounding:
        """Rounding of the neighbourhood mean and of the step from it."""
        slope = bounds.gradient + bounds.steepest * length(inbox.own) + length(self.subgradient(inbox.own))
        return Rounding(length(inbox.mixed) + self.step(round_) * slope)
