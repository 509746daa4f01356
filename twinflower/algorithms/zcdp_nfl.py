"""zCDP-NFL: networked ADMM with a linearised local step under zCDP (Gauthier 2023, Algorithm 1).

    minimise  sum_k ( f_k(w_k) + h(w_k) ),  w_k = w_l on every edge,     h = (lambda/K) R

client keeps     dual gamma (..., d) and its last message w~ (..., d), before and after its last reply (`echo`)
       receives  the sum of its neighbours' messages and the dual steps since its last reply (..., d), the number of
                 its neighbours, and the last of its rounds that was counted
       sends     w~ (..., d)
server keeps     what a relay needs (`relay`)
A client that is missing is frozen, its edges' dual steps are caught up with, and the silent leave the graph: `relay`.

The paper's Algorithm 1, (7)-(9), is an image; here is the argmin of (3) with f of (5). Its (A.1) has the dual and the
neighbours with other signs and factors, which diverges, and R' at the clean model. Everything is taken at w~, what was
released: at the clean w it looks better and breaks the guarantee (Theorem I needs all but the data to be public).
With a clipped gradient the limit is the point where clipped gradients balance, which the paper passes over.

Privacy. Dual and messages are functions of what was released, so the one noisy model of a round is its only release.
It moves by at most Delta_k(n) = 2 C / (M_k (1/eta_n + 2 rho d_k)) (11): the release is planned for d_k = 0, and the
noise shrinks with the neighbours there really are, so it is (12) also after some have died.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..batches import Pace
from ..objectives import Bounds
from ..privacy.release import Rounding
from ..settings import Setting, above, one_of
from ..work import LocalWork, Report
from .abilities import BoundsRounding, NeedsClientState, ShrinksNoise, length
from .echo import PAIR, Tentative, confirmed, tentative
from .layout import Count, FloatCount, Layout, Point
from .messages import Vector
from .relay import Relayed, Server, of_node, rows_of_node


class Inbox(NamedTuple):
    """Sum of the neighbours' messages (..., d), dual steps over rho since the last reply that was counted,
    gain (..., d), number of neighbours, degree (...,), and the round of that reply, heard (...,)."""

    neighbours: Array
    gain: Array
    degree: Array
    heard: Index


@dataclass(frozen=True)
class ZCDPNFL(Relayed, NeedsClientState, ShrinksNoise, BoundsRounding):
    """The networked settings (`relay.Relayed`), and rho > 0, the penalty of an edge.

    composite: "subgradient", R by its subgradient as in the paper; "prox", by its prox, for exact zeros in each
    message and, without noise, an exact limit at a constant step.
    """

    name: ClassVar[str] = "zcdp-nfl"
    title: ClassVar[str] = "zCDP-NFL (Gauthier 2023): networked ADMM, neighbours agree, the server relays"

    rho: Annotated[float, Setting("penalty of an edge", above(0))] = 0.1
    composite: Annotated[
        str, Setting("how h is handled: by its subgradient as published, or by its prox",
                     one_of(("subgradient", "prox")))
    ] = "subgradient"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composite == "subgradient":
            self.check_subgradients()

    state = PAIR

    @cached_property
    def inbox(self) -> Layout:
        """All four."""
        degree = FloatCount("degree", 1, self.facts.num_clients - 1)
        return Layout(Inbox, Point("neighbours"), Point("gain"), degree, Count("heard"))

    def init_client(self, start: Array) -> Tentative:
        """gamma = 0, w~ = start."""
        both = np.concatenate([np.zeros_like(start), start], -1)
        return Tentative(both, both, np.zeros(start.shape[:-1]))

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """What the neighbours said."""
        degrees, heard = (of_node(values, node) for values in (self.live_degrees(server), server.heard))
        return Inbox(rows_of_node(server.neighbours, node), rows_of_node(server.gain, node), degrees, heard)

    def client_update(
        self, state: Tentative, inbox: Inbox, work: LocalWork
    ) -> tuple[Tentative, Vector, Report]:
        """The dual steps of the rounds before, then one ADMM step; of the batches the first is used."""
        dual, own, pull = self.pulled(state, inbox)
        w = self.primal(work, own, pull, inbox.degree)
        sent = work.noise(w, shrink=self.shrink(inbox.degree, work.round))               # (8)
        counted = confirmed(state, inbox.heard)
        return tentative(counted, np.concatenate([dual, sent], -1), work.round), Vector(sent), work.one_step()

    def pulled(self, state: Tentative, inbox: Inbox) -> tuple[Array, Array, Array]:
        """Dual, own last message, and the slope of all that is public in the local problem, (..., d) each."""
        counted, d = confirmed(state, inbox.heard), inbox.gain.shape[-1]
        dual, own = counted[..., :d], counted[..., d:]
        dual = dual + self.rho * inbox.gain                                     # (9)
        return dual, own, dual - self.rho * (inbox.degree[..., None] * own + inbox.neighbours)

    def rounding(self, state: Tentative, inbox: Inbox, bounds: Bounds, pace: Pace, round_: int) -> Rounding:
        """Of the sum of slopes in the local step."""
        _, own, pull = self.pulled(state, inbox)
        eta, degree = self.step(round_), float(inbox.degree)
        kinks = 0.0 if self.composite == "prox" else length(self.subgradient(own))
        slope = length(own) / eta + bounds.gradient + bounds.steepest * length(own) + kinks + length(pull)
        return Rounding(slope / (1 / eta + 2 * self.rho * degree), float(self.shrink(inbox.degree, round_)))

    def primal(self, work: LocalWork, own: Array, pull: Array, degree: Array) -> Array:
        """argmin_w  <g, w> + ||w - own||^2 / (2 eta) + <pull, w> + rho d_k ||w||^2, g a subgradient of f + h at own;
        or with h itself in the place of its part of g."""
        eta = self.step(work.round)
        weight = (1 / eta + 2 * self.rho * degree)[..., None]
        slope = work.gradient(own)
        if self.composite == "prox":
            return self._prox((own / eta - slope - pull) / weight, 1 / weight)
        return (own / eta - slope - self.subgradient(own) - pull) / weight      # (7)

    def _prox(self, u: Array, steps: Array) -> Array:
        """The prox of clients (..., d) whose steps (..., 1) differ by their degrees."""
        w, steps = np.empty_like(u), np.broadcast_to(steps[..., 0], u.shape[:-1])
        for step in np.unique(steps):
            w[steps == step] = self.regulariser.prox(u[steps == step], float(step))
        return w

    def shrink(self, degree: Array, round_: int) -> Array:
        """Delta_k(n) over what the release was planned for."""
        return 1 / (1 + 2 * self.rho * degree * self.step(round_))

    def at_stake(self, client: int, round_: int) -> float:
        """`shrink` by the neighbours that the client has while nobody is removed."""
        return float(self.shrink(np.array(len(self.facts.neighbours[client])), round_))
