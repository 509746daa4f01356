"""The code shared by networked methods: a graph of clients, and the server as the relay of their messages.

Neighbours reach consensus without a global average. Since every Flower client is connected to the server only, the
server acts as a relay: it stores the last message of every client and sends each client the sum of its neighbours'
messages. It sees all messages with their noise, and is trusted to forward them unaltered, that is, for integrity, but
not for confidentiality.

If a client misses a round, its last message is used again at both ends of each of its edges. The dual step of an edge,
rho (w~_k - w~_l), is taken every round with opposite signs at its two ends, so sum_k gamma_k = 0 always. The relay sums
the steps that a client has not yet received (gain), and the echo (`echo`) states which of its own replies were counted.
A client that did not reply for `dead_after` rounds is dead: it is removed from the graph together with the duals of its
edges, and the others continue with the smaller problem. If their graph is not connected, the run stops.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..errors import RunError, SettingError, require
from ..privacy.release import Release, allocation
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import ZERO, Regulariser, Subdifferentiable
from ..problems.topologies import Neighbours, adjacency, compact, connected, degrees, sums
from ..settings import SHARE, Setting, at_least, between
from .algorithm import NO_INFO, RunInfo
from .echo import acknowledge, nobody_heard, of_node
from .local import StepDecay, StepSize, decayed
from .messages import Dense, mean_over_clients


class Server(NamedTuple):
    """The state of the relay, with an entry for each client.

    w (..., N, d): its last message. neighbours (..., N, d): the sum of its neighbours' last messages. gain (..., N, d):
    the dual steps that it has not yet received, divided by rho. total (..., N, d): the sum of its messages over the
    rounds, as doubles; 0 if no client can be removed. heard (..., N): the round of its last reply. silent (..., N): the
    number of rounds since that reply. tail (..., N, d): the sum of w over the last rounds, averaged (...,) of them.
    """

    w: Array
    neighbours: Array
    gain: Array
    total: Array
    heard: Index
    silent: Index
    tail: Array
    averaged: Index


@dataclass(frozen=True)
class Relay:
    """What the relay computes from the graph, `neighbours` of each client, and `dead_after` alone."""

    neighbours: Neighbours
    dead_after: int

    @cached_property
    def _near(self) -> Any:
        return compact(adjacency(self.neighbours))

    @cached_property
    def _degrees(self) -> Array:
        return degrees(self.neighbours)

    def alive(self, server: Server) -> Mask:
        """A mask (..., N) of the clients that are in the graph."""
        return server.silent < self.dead_after if self.dead_after else server.silent >= 0

    def live_degrees(self, server: Server) -> Array:
        """The number of live neighbours of each client, (..., N), or (N,) if no client can be removed."""
        if not self.dead_after:
            return self._degrees.astype(server.w.dtype, copy=False)
        return sums(self._near, self.alive(server)[..., None].astype(server.w.dtype))[..., 0]

    def summed(self, server: Server, w: Array) -> Array:
        """The sums (..., N, d) of the live neighbours' messages w (..., N, d)."""
        return sums(self._near, w * self.alive(server)[..., None] if self.dead_after else w)

    def updated(self, server: Server) -> Server:
        """The state with up-to-date sums of the neighbours' messages."""
        return server._replace(neighbours=self.summed(server, server.w))

    def received(self, server: Server, messages: Array, clients: Index) -> tuple[Array, Index]:
        """The last messages of all clients after those of clients (..., K), and how long each has been silent."""
        if not self.dead_after:
            everyone = clients.shape[-1] == server.silent.shape[-1]
            silent = np.zeros_like(server.silent) if everyone else acknowledge(server.silent + 1, clients, 0)
            return put_rows(server.w, clients, messages), silent
        there = of_node(self.alive(server), clients)  # a cohort may include dead clients
        received = np.where(there[..., None], messages, rows_of_node(server.w, clients))
        silent = np.where(there, 0, of_node(server.silent, clients) + 1)
        return put_rows(server.w, clients, received), acknowledge(server.silent + 1, clients, silent)

    def step(self, server: Server, w: Array, silent: Index, round_: int) -> Server:
        """The state after the dual step of every edge, given the last messages w (..., N, d)."""
        neighbours = self.summed(server, w)
        steps = self.live_degrees(server)[..., None] * w - neighbours
        gain, heard = steps, np.full(silent.shape, round_)
        if np.count_nonzero(silent):
            answered = silent == 0
            gain = np.where(answered[..., None], steps, server.gain + steps)
            heard = np.where(answered, heard, server.heard)
        total = server.total + w if self.dead_after else server.total
        return server._replace(w=w, neighbours=neighbours, gain=gain, total=total, heard=heard, silent=silent)

    def without_dead(self, before: Server, server: Server) -> Server:
        """Remove the clients that died in this round. Raises RunError if the remaining graph is not connected."""
        alive = self.alive(server)
        lost = self.alive(before) & ~alive
        if not lost.any():
            return server
        for mask in alive.reshape(-1, alive.shape[-1]):
            if not connected(self.neighbours, mask):
                raise RunError(
                    f"without clients {np.flatnonzero(~mask).tolist()}, silent for {self.dead_after} rounds, the graph "
                    "is not connected"
                )
        gone = lost[..., None].astype(np.float64)
        edges = sums(self._near, gone) * server.total - sums(self._near, gone * server.total)  # their duals, over rho
        return self.updated(server._replace(gain=(server.gain - edges).astype(server.gain.dtype, copy=False)))


@dataclass(frozen=True)
class Relayed(Dense):
    """Settings of the networked methods.

    tail: each client's model is the mean of its releases in this final share of the rounds; 0: its last release.
    dead_after: the number of rounds without a reply after which a client is removed; 0: never.
    """

    networked: ClassVar[bool] = True
    server_columns: ClassVar[tuple[str, ...]] = ("alive",)

    weightings: ClassVar[tuple[str, ...]] = ("clients",)
    takes_local_steps: ClassVar[bool] = False
    modes: ClassVar[tuple[str, ...]] = ("none", "public-state")

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    tail: Annotated[
        float, Setting("last part of the rounds whose models are averaged; 0: the last models", between(0, 1),
                       "fraction of the rounds")
    ] = 0.0
    dead_after: Annotated[
        int, Setting("silence after which a client leaves the graph; 0 never", at_least(0), "rounds")
    ] = 0
    privacy: str = "none"

    def subgradient(self, x: Array) -> Array:
        """A subgradient R' of h at points (..., d); 0 where h is not differentiable."""
        return self.regulariser.subgradient(x)  # type: ignore[attr-defined,no-any-return]

    def check_subgradients(self) -> None:
        """Raise SettingError for a regulariser without subgradients."""
        if not isinstance(self.regulariser, Subdifferentiable):
            raise SettingError(
                f"{self.name} needs a regulariser that is finite everywhere: none, l1, elastic-net, group-l1"
            )

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One noisy model, with the round's share of the budget. Raises SettingError for a round that was not planned.
        """
        rounds = self.info.rounds
        if not 1 <= round_ <= rounds:
            raise SettingError(f"the budget is shared between {rounds} rounds; round {round_} has no share")
        return Release(self.sensitivity(bounds, workload, round_), weight=self.share(round_))

    @abstractmethod
    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """The sensitivity for a client with the smallest possible number of neighbours; clients with more neighbours
        reduce their noise."""

    def share(self, round_: int) -> float:
        """The round's budget relative to an equal split over the rounds; these factors average 1."""
        return 1.0

    # --------------------------------------------------------------------------------------- the relay

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start as if every client had sent the start in round 0; all dual steps are 0."""
        require(len(self.info.neighbours) == num_clients, "info.neighbours must be the graph of these clients")
        w = np.repeat(start[..., None, :], num_clients, axis=-2)
        none, nobody = np.zeros_like(w), nobody_heard(start, num_clients)
        total = np.zeros(w.shape)  # double: differences of such sums are the duals of an edge
        return self.relay.updated(Server(w, none, none, total, nobody, nobody, none, nobody[..., 0]))

    @cached_property
    def relay(self) -> Relay:
        """The relay of this run's graph."""
        return Relay(self.info.neighbours, self.dead_after)

    def server_update(self, server: Server, uploads: Any, clients: Index, round_: int) -> Server:
        """Store the messages, take the dual step of every edge, and remove the clients that are now dead."""
        w, silent = self.relay.received(server, uploads.x, clients)
        tail, averaged = self._averaged(server, w, round_)
        after = self.relay.step(server, w, silent, round_)._replace(tail=tail, averaged=averaged)
        return self.relay.without_dead(server, after) if self.dead_after else after

    def alive(self, server: Server) -> Mask:
        """A mask (..., N) of the clients that are in the graph."""
        return self.relay.alive(server)

    def _averaged(self, server: Server, w: Array, round_: int) -> tuple[Array, Index]:
        """The tail sum and its number of rounds, with w added if the round is in the final share of the rounds."""
        if not self.tail or self.info.rounds - round_ >= self.tail * self.info.rounds:
            return server.tail, server.averaged
        return server.tail + w, server.averaged + 1

    def model(self, server: Server) -> Array:
        """The mean (..., d) of the live clients' models, which all converge to the same point."""
        models = self._models(server)
        if not self.dead_after:
            return mean_over_clients(models)
        there = self.alive(server)[..., None]
        mean = (models * there).sum(-2, dtype=np.float64) / there.sum(-2)
        return mean.astype(models.dtype, copy=False)  # type: ignore[no-any-return]

    def client_models(self, server: Server) -> Array:
        """The clients' models (..., N, d); for a dead client, the mean of the live clients' models."""
        there = self.alive(server)[..., None]
        return np.where(there, self._models(server), self.model(server)[..., None, :])

    def _models(self, server: Server) -> Array:
        """The last releases, or their means over the tail."""
        if not self.tail:
            return server.w
        count = server.averaged[..., None, None]
        means = (server.tail / np.maximum(count, 1)).astype(server.w.dtype, copy=False)
        return np.where(count > 0, means, server.w)

    def server_metrics(self, server: Server) -> dict[str, Array]:
        """The number of clients in the graph."""
        return {"alive": self.alive(server).sum(-1)}


@dataclass(frozen=True)
class GradientSteps(Relayed):
    """Networked methods that take one step along a gradient: eta_n = step_size / n^step_decay."""

    step_size: StepSize = 0.4
    step_decay: StepDecay = 0.0

    def step(self, round_: int) -> float:
        """The step size eta of a round."""
        return decayed(self.step_size, self.step_decay, round_)

    def sensitivity(self, bounds: Bounds, workload: Workload, round_: int) -> float:
        """The sensitivity of a gradient step for a client without neighbours."""
        return self.step(round_) * 2 * bounds.gradient * workload.replaced_in_batch / workload.rows


@dataclass(frozen=True)
class GrowingBudget(Relayed):
    """Networked methods whose later rounds may get more of the budget.

    budget_ratio is the paper's tau: a round gets 1/tau times the privacy budget of the previous one (12). In the paper
    the noise of the first rounds grows without bound in long runs; here no round gets less than a thousandth of an
    equal share.
    """

    budget_ratio: Annotated[float, Setting("privacy budget of a round as a share of the next one's", SHARE)] = 1.0

    def share(self, round_: int) -> float:
        """The round's share of the budget, proportional to budget_ratio^(T - n)."""
        return float(allocation("dynamic", self.info.rounds, math.log(self.budget_ratio))[round_ - 1])


def rows_of_node(values: Array, node: Index) -> Array:
    """`of_node` for values (..., N, d)."""
    if np.ndim(node) == 0:
        return values[..., node, :]
    return values if node.shape[-1] == values.shape[-2] else np.take_along_axis(values, node[..., None], -2)


def put_rows(values: Array, clients: Index, rows: Array) -> Array:
    """values (..., N, d) after the rows of clients (..., K) have been replaced by rows (..., K, d)."""
    if clients.shape[-1] == values.shape[-2]:
        return rows
    values = values.copy()
    np.put_along_axis(values, clients[..., None], rows, -2)
    return values
