"""What networked methods share: a graph of clients, and the server as the relay of their messages.

Neighbours agree, nobody averages everyone. On Flower's star the server only carries messages: it keeps the last one
of every client and tells each client the sum of its neighbours'. It sees them all, as noisy as they are sent, and is
trusted to pass them on unaltered: for integrity, not for confidentiality.

A client that misses a round is frozen: its last message stays what it was, at both ends of each of its edges. The
dual step of an edge, rho (w~_k - w~_l), is taken every round with opposite signs at its two ends, so sum_k gamma_k = 0
always; the relay adds up the steps that a client has not heard of (gain), and the echo (`echo`) tells the client which
of its own replies were counted. A client that has been silent for `dead_after` rounds is dead: it leaves the graph, and
with it leave the duals of its edges; what is left is the problem of the others. If it is not connected, the run stops.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index, Mask, Seeds
from ..batches import Workload
from ..errors import RunError, require
from ..objectives import Bounds
from ..privacy.allocation import allocation
from ..privacy.release import Release
from ..regularisers import ZERO, Regulariser, Subdifferentiable
from ..settings import SHARE, Setting, at_least, between, check_settings
from ..topologies import adjacency, compact, connected, degrees, sums
from .abilities import OnGraph, ServerMetrics
from .algorithm import NO_INFO, RunInfo
from .base import StepDecay, StepSize
from .echo import hear, nobody_heard
from .local import decayed
from .messages import Dense, check_choice


class Server(NamedTuple):
    """The relay's memory, for each client: its last message w (..., N, d), and the neighbours' sum of these; the dual
    steps it has not heard of, gain, and the sum of its messages over the rounds, total (..., N, d); the round of its
    last reply, heard (..., N), and rounds since, silent (..., N). tail (..., N, d): sum of the last rounds' w,
    of which there are averaged (...,)."""

    w: Array
    neighbours: Array
    gain: Array
    total: Array
    heard: Index
    silent: Index
    tail: Array
    averaged: Index


@dataclass(frozen=True)
class Relayed(Dense, OnGraph, ServerMetrics):
    """Settings of the networked methods.

    tail: each client's model is the mean of what it released in this final share of the rounds; 0: its last release.
    """

    name: ClassVar[str]
    server_columns: ClassVar[tuple[str, ...]] = ("alive",)

    weightings: ClassVar[tuple[str, ...]] = ("clients",)
    takes_local_steps: ClassVar[bool] = False

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    tail: Annotated[
        float, Setting("last part of the rounds whose models are averaged; 0: the last models", between(0, 1),
                       "share of the rounds")
    ] = 0.0
    dead_after: Annotated[
        int, Setting("silence after which a client leaves the graph; 0 never", at_least(0), "rounds")
    ] = 0
    privacy: str = "none"

    def __post_init__(self) -> None:
        check_settings(self)
        check_choice("privacy", self.privacy, ("none", "public-state"))

    def subgradient(self, x: Array) -> Array:
        """R' of a node (..., d), 0 where h has a kink."""
        return self.regulariser.subgradient(x)  # type: ignore[attr-defined,no-any-return]

    def check_subgradients(self) -> None:
        """SettingError for a regulariser that has none, at the door."""
        known = isinstance(self.regulariser, Subdifferentiable)
        require(known, f"{self.name} needs a regulariser that is finite everywhere: none, l1, elastic-net, group-l1")

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One noisy model, with the round's share of the budget; SettingError for a round that was not planned."""
        rounds = self.info.rounds
        require(1 <= round_ <= rounds, f"the budget is shared between {rounds} rounds; round {round_} has no share")
        return Release(self.sensitivity(bounds, workload, round_), weight=self.share(round_))

    @abstractmethod
    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """Of a client with the fewest neighbours that are possible; those with more shrink the noise."""

    def share(self, round_: int) -> float:
        """The round's share of the budget, with mean 1 over the rounds."""
        return 1.0

    # --------------------------------------------------------------------------------------- the relay

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """As if everybody had sent the start in round 0: all dual steps are 0."""
        require(len(self.info.neighbours) == num_clients, "info.neighbours must be the graph of these clients")
        w = np.repeat(start[..., None, :], num_clients, axis=-2)
        none, nobody = np.zeros_like(w), nobody_heard(start, num_clients)
        return self._relayed(Server(w, none, none, none, nobody, nobody, none, nobody[..., 0]))

    def server_update(self, server: Server, uploads: Any, clients: Index, round_: int) -> Server:
        """Take in the messages, let all edges take their dual step, and remove who is dead."""
        told, silent = uploads.x, np.zeros_like(clients)
        if self.dead_after:  # the dead may be among them in a cohort
            there = of_node(self.alive(server), clients)
            told = np.where(there[..., None], told, rows_of_node(server.w, clients))
            silent = np.where(there, 0, of_node(server.silent, clients) + 1)
        w, silent = put_rows(server.w, clients, told), hear(server.silent + 1, clients, silent)
        server = self._relayed(server._replace(w=w, total=server.total + w))
        steps = self.live_degrees(server)[..., None] * w - server.neighbours
        answered = silent == 0
        gain = np.where(answered[..., None], steps, server.gain + steps)
        heard = np.where(answered, round_, server.heard)
        server = self._averaged(server._replace(gain=gain, heard=heard), round_)
        return self._bury(server, silent)

    @cached_property
    def _near(self) -> Any:
        return compact(adjacency(self.info.neighbours))

    @cached_property
    def _degrees(self) -> Array:
        return degrees(self.info.neighbours)

    def _averaged(self, server: Server, round_: int) -> Server:
        """w joins the mean in the last share of the rounds."""
        if not self.tail or self.info.rounds - round_ >= self.tail * self.info.rounds:
            return server
        return server._replace(tail=server.tail + server.w, averaged=server.averaged + 1)

    def _bury(self, server: Server, silent: Index) -> Server:
        """Without the clients that died in this round; RunError if the others are no longer connected."""
        before, server = self.alive(server), server._replace(silent=silent)
        if not self.dead_after:
            return server
        alive = self.alive(server)
        lost = before & ~alive
        if not lost.any():
            return server
        for mask in alive.reshape(-1, alive.shape[-1]):
            if not connected(self.info.neighbours, mask):
                raise RunError(
                    f"without clients {np.flatnonzero(~mask).tolist()}, silent for {self.dead_after} rounds, the graph "
                    "is not connected"
                )
        gone = lost[..., None].astype(float)
        edges = sums(self._near, gone) * server.total - sums(self._near, gone * server.total)  # their duals, over rho
        return self._relayed(server._replace(gain=server.gain - edges))

    def _relayed(self, server: Server) -> Server:
        """With the neighbours' sums of what is there now."""
        w = server.w * self.alive(server)[..., None] if self.dead_after else server.w
        return server._replace(neighbours=sums(self._near, w))

    def alive(self, server: Server) -> Mask:
        """Which clients (..., N) are in the graph."""
        return server.silent < self.dead_after if self.dead_after else server.silent >= 0

    def live_degrees(self, server: Server) -> Array:
        """Living neighbours of each client, (..., N)."""
        if not self.dead_after:
            return np.broadcast_to(self._degrees, server.silent.shape)
        return sums(self._near, self.alive(server)[..., None].astype(float))[..., 0]

    def model(self, server: Server) -> Array:
        """The mean of the living clients' models, which all go to the same point."""
        models = self._models(server)
        if not self.dead_after:
            return models.mean(-2)  # type: ignore[no-any-return]
        there = self.alive(server)[..., None]
        return (models * there).sum(-2) / there.sum(-2)  # type: ignore[no-any-return]

    def client_models(self, server: Server) -> Array:
        """The models of the clients; of one that is dead, the mean of the others'."""
        there = self.alive(server)[..., None]
        return np.where(there, self._models(server), self.model(server)[..., None, :])

    def _models(self, server: Server) -> Array:
        """What was released last, or the mean over the tail."""
        if not self.tail:
            return server.w
        count = server.averaged[..., None, None]
        return np.where(count > 0, server.tail / np.maximum(count, 1), server.w)

    def server_metrics(self, server: Server) -> dict[str, Array]:
        """How many clients are in the graph."""
        return {"alive": self.alive(server).sum(-1)}


@dataclass(frozen=True)
class GradientSteps(Relayed):
    """Networked methods that take one step along a gradient: eta_n = step_size / n^step_decay."""

    step_size: StepSize = 0.4
    step_decay: StepDecay = 0.0

    def step(self, round_: int) -> float:
        """eta of a round."""
        return decayed(self.step_size, self.step_decay, round_)

    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """A step along the gradient, for no neighbours."""
        return self.step(round_) * 2 * bounds.gradient / workload.rows


@dataclass(frozen=True)
class GrowingBudget(Relayed):
    """Networked methods whose later rounds may get more of the budget.

    budget_ratio is the paper's tau: a round gets 1/tau times the privacy budget of the one before (12). The paper's
    first noises grow without bound in long runs; no round gets less than a thousandth of a plain round's share here.
    """

    budget_ratio: Annotated[float, Setting("privacy budget of a round as a share of the next one's", SHARE)] = 1.0

    def share(self, round_: int) -> float:
        """~ budget_ratio^(T - n)."""
        return float(allocation("dynamic", self.info.rounds, math.log(self.budget_ratio))[round_ - 1])


def of_node(values: NDArray[Any], node: Index) -> NDArray[Any]:
    """The part of node (), or of nodes (..., K), in values (..., N); nodes are ascending, so N of them are all."""
    if np.ndim(node) == 0:
        return values[..., node]
    return values if node.shape[-1] == values.shape[-1] else np.take_along_axis(values, node, -1)


def rows_of_node(values: Array, node: Index) -> Array:
    """`of_node` for values (..., N, d)."""
    if np.ndim(node) == 0:
        return values[..., node, :]
    return values if node.shape[-1] == values.shape[-2] else np.take_along_axis(values, node[..., None], -2)


def put_rows(values: Array, clients: Index, rows: Array) -> Array:
    """values (..., N, d) with these rows (..., K, d) for clients (..., K)."""
    if clients.shape[-1] == values.shape[-2]:
        return rows
    values = values.copy()
    np.put_along_axis(values, clients[..., None], rows, -2)
    return values
