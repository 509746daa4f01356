"""SCAFFOLD, option II (Karimireddy et al., ICML 2020, Algorithm 1; private: DP-SCAFFOLD, as Zhang 2023 compares it).

    x <- x - eta (grad f_i(x; batch) - c_i + c),  Q times from x0
    c_i+ = c_i - c + (x0 - x) / (Q eta)
    server: x0 <- mean x,   c <- c + (1/N) sum_{sampled} (c_i+ - c_i)

client keeps     c_i (..., d) before and after its last reply, and that reply's round (`echo`)
       receives  x0 (..., d), c (..., d), and the last of its rounds that was counted
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d), c (..., d), and which round of which client it counted last
A client that is missing keeps its c_i; if its reply was lost, the echo makes it drop the step it had taken.

c_i+ - c_i = (x0 - x)/(Q eta) - c follows from what the server sent and received, so it is not sent: half of the
published uplink. Where x is thinned out, c_i moves in the entries that were sent, on both sides, and so
c = (1/N) sum_i c_i always holds; with rows as weights of the clients, c = sum_i (N_i/N) c_i.

With h = 0 (or h in the local steps, if it is smooth) the fixed point is the optimum, however different the clients.
With server-prox it is not quite: at the optimum c = -dh is not 0, the clients walk Q steps along it, and gradients
averaged on that way are O(Q eta ||dh||) off. FedPDM and FedDyn have no such bias.

Privacy. The paper of Zhang 2023 adds noise to every gradient ("gradient"); "public-state" adds it to x once, and c_i
follows from the noisy x. Noise on the message alone, with a c_i from the exact x, would leave private state behind.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..work import LocalWork, Report
from .abilities import NeedsClientState
from .algorithm import to_nodes
from .echo import TENTATIVE, Tentative, confirmed, echo, hear, nobody_heard, tentative, untouched
from .layout import Count, Layout, Thinned
from .messages import Upload
from .server_prox import ServerProx


class Inbox(NamedTuple):
    """x0 and c (..., d), zero-padded, and which entries were kept (`messages.Inbox`); rand-k seed (...,);
    the last round of this client that was counted, heard (...,)."""

    x0: Array
    kept: Index
    seed: Seeds
    heard: Index
    control: Array
    control_kept: Index


class Server(NamedTuple):
    """x0 (..., d), the mean (..., d) it is the prox of, the average (..., d) for `final_model`, control
    c (..., d), heard (..., N), and the key (...,) of the run's public coins."""

    x0: Array
    mean: Array
    average: Array
    control: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class Scaffold(ServerProx, NeedsClientState):
    """SCAFFOLD; its settings are FedAvg's."""

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD, DP-SCAFFOLD: local SGD with control variates"
    counts_steps: ClassVar[bool] = True

    state = TENTATIVE

    @cached_property
    def inbox(self) -> Layout:
        """c, the echo, x0, and the seed for rand-k."""
        return Layout(Inbox, Thinned("control", "control_kept", self.down), Count("heard"), *self.point)

    def init_client(self, start: Array) -> Tentative:
        """c_i = 0."""
        return untouched(start)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """c = 0."""
        return Server(start, start, start, np.zeros_like(start), nobody_heard(start, num_clients), key)

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """x0, c, and the echo."""
        x0, kept, seed = super().broadcast(server, round_, node)
        c, c_kept = self.thinned(server.control)
        return Inbox(x0, kept, seed, echo(server.heard, node), to_nodes(c, node), to_nodes(c_kept, node))

    def client_update(
        self, state: Tentative, inbox: Any, work: LocalWork
    ) -> tuple[Tentative, Upload, Report]:
        """Local steps corrected by c - c_i; c_i moves with what is sent."""
        x0, c = inbox.x0, inbox.control
        own = confirmed(state, inbox.heard)
        x, report = self.descend(work, x0, c - own)
        upload = self.message(x, inbox, report)
        return tentative(own, own + self._change(upload, x0, c, work.round), work.round), upload, report

    def departure(self, state: Tentative, inbox: Any) -> tuple[Array, Array]:
        """x0, and c - c_i."""
        return inbox.x0, inbox.control - confirmed(state, inbox.heard)

    def _change(self, upload: Upload, x0: Array, c: Array, round_: int) -> Array:
        """c_i+ - c_i (..., d) from a message and the points it answers; 0 where nothing was sent."""
        x, sent = self.received(upload, x0.shape[-1])
        change = (x0 - x) / (upload.steps * self.step(round_))[..., None] - c
        return change if sent is None else np.where(sent, change, 0.0)

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """FedAvg's mean, and c by what the messages tell of the clients' c_i."""
        x0, c = (self.thinned(x)[0][..., None, :] for x in (server.x0, server.control))
        change = self.part_of_sum(self._change(uploads, x0, c, round_), clients, server.heard.shape[-1])
        after: Server = self.step_to_mean(server, uploads, clients, round_)
        return after._replace(control=server.control + change, heard=hear(server.heard, clients, round_))
