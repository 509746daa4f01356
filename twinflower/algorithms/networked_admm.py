"""Networked ADMM: the code shared by zCDP-NFL, DP-NFL and P-ADMM (Gauthier 2023, Algorithm 1).

    minimise  sum_k ( f_k(w_k) + h(w_k) ),  w_k = w_l on every edge,     h = (lambda/K) R

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
guarantee (Theorem I requires everything except the data to be public).
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..settings import Setting, above
from ..work import LocalWork, Report
from .echo import PAIR, Unacknowledged, confirmed, initial, unacknowledged
from .layout import Count, Layout, Point
from .messages import Vector
from .relay import Relayed, Server, of_node, rows_of_node


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
    """The networked settings (`relay.Relayed`), and rho > 0, the penalty of an edge."""

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
