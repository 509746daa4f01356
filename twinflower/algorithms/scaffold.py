"""SCAFFOLD, option II (Karimireddy et al., ICML 2020, Algorithm 1; private: DP-SCAFFOLD, a baseline in Zhang 2023).

    x <- x - eta (grad f_i(x; batch) - c_i + c),  Q times from x0
    c_i+ = c_i - c + (x0 - x) / (Q eta)
    server: x0 <- mean x,   c <- c + (1/N) sum_{sampled} (c_i+ - c_i)

client keeps     c_i (..., d) before and after its last reply, and that reply's round (`echo`)
       receives  x0 (..., d), c (..., d), and the last of its rounds that the server counted
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d), c (..., d), and the last counted round of each client
A client that misses a round keeps its c_i. If its reply was lost, the echo makes it discard that update of c_i.

c_i+ - c_i = (x0 - x)/(Q eta) - c follows from the messages that the server sent and received, so it is not sent, which
halves the published uplink. If x is sparsified, client and server update c_i only in the entries that were sent, and so
c = (1/N) sum_i c_i always holds; with rows as weights of the clients, c = sum_i (N_i/N) c_i.

With h = 0 (or h in the local steps, if it is smooth) the fixed point is the optimum, even for heterogeneous clients.
With server-prox there is a small bias: at the optimum c = -dh is not 0, the clients take Q steps along it, and the
gradients averaged on this path are wrong by O(Q eta ||dh||). FedPDM and FedDyn have no such bias.

Privacy. Zhang 2023 adds noise to every gradient ("gradient"); "public-state" adds noise to x once, and c_i is computed
from the noisy x. If only the message were noisy and c_i computed from the exact x, c_i would be private state.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..work import LocalWork, Report
from .algorithm import to_nodes
from .echo import Echoed, Unacknowledged, acknowledge, confirmed, nobody_heard, of_node, unacknowledged
from .layout import Count, Layout, SparseVector
from .messages import Upload, mean_of_senders
from .server_prox import ServerProx


class Inbox(NamedTuple):
    """x0 and c (..., d), zero-padded, with the indices of their kept entries (`messages.Inbox`); rand-k seed (...,);
    and heard (...,), the last round of this client that the server counted."""

    x0: Array
    kept: Index
    seed: Seeds
    heard: Index
    control: Array
    control_kept: Index


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; the variate c,
    control (..., d); heard (..., N), the last counted round of each client; and the key (...,) of the run's public
    random numbers."""

    x0: Array
    mean: Array
    average: Array
    control: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class Scaffold(ServerProx, Echoed):
    """SCAFFOLD with FedAvg's settings."""

    name: ClassVar[str] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD, DP-SCAFFOLD: local SGD with control variates"
    counts_steps: ClassVar[bool] = True

    @cached_property
    def inbox(self) -> Layout:
        """The layout of c, the echo, x0, and the seed for rand-k."""
        return Layout(Inbox, SparseVector("control", "control_kept", self.down), Count("heard"), *self.point)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start and c = 0."""
        return Server(start, start, start, np.zeros_like(start), nobody_heard(start, num_clients), key)

    def broadcast(self, server: Server, round_: int, node: Index) -> Inbox:
        """Send x0, c and the echo."""
        x0, kept, seed = super().broadcast(server, round_, node)
        c, c_kept = self.thinned(server.control)
        return Inbox(x0, kept, seed, of_node(server.heard, node), to_nodes(c, node), to_nodes(c_kept, node))

    def client_update(
        self, state: Unacknowledged, inbox: Any, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Take local steps corrected by c - c_i, then update c_i in the entries that are sent."""
        x0, c = inbox.x0, inbox.control
        c_i = confirmed(state, inbox.heard)
        x, report = self.descend(work, x0, c - c_i)
        upload = self.message(x, inbox, report)
        return unacknowledged(c_i, c_i + self._change(upload, x0, c, work.round), work.round), upload, report

    def local_start_and_shift(self, state: Unacknowledged, inbox: Any) -> tuple[Array, Array]:
        """The local loop starts at x0 with shift c - c_i."""
        return inbox.x0, inbox.control - confirmed(state, inbox.heard)

    def _change(self, upload: Upload, x0: Array, c: Array, round_: int) -> Array:
        """c_i+ - c_i (..., d), computed from a message and the points it replies to; 0 for entries that were not sent.
        """
        x, sent = self.received(upload, x0.shape[-1])
        change = x0 - x                                     # in place: memory bandwidth limits large cohorts
        change /= np.asarray(upload.steps * self.step(round_), x.dtype)[..., None]
        change -= c
        return change if sent is None else np.where(sent, change, 0.0)

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Update x0 as FedAvg does, and c with the changes of the clients' c_i, which follow from the messages."""
        y, sent = self.received(uploads, server.x0.shape[-1])
        mean = self.exact_mean(server, y, sent, self.info.shares(clients))
        control = server.control + self._mean_change(server, uploads, mean, clients, round_)
        after: Server = self.step_to(mean.astype(y.dtype, copy=False), server, uploads, clients, round_)
        return after._replace(control=control, heard=acknowledge(server.heard, clients, round_))

    def _mean_change(self, server: Server, uploads: Upload, mean: Array, clients: Index, round_: int) -> Array:
        """The sum of p_i (c_i+ - c_i) (..., d) over the sampled clients, with p_i = 1/N, or N_i/N with rows as weights.

        It is sum p_i times the weighted mean of the changes: if all took Q steps and sent all entries, that is
        (x0 - mean x) / (Q eta) - c.
        """
        x0, c = (self.thinned(x)[0] for x in (server.x0, server.control))
        steps = uploads.steps
        if self.uplink_ratio < 1 or (steps != steps[..., :1]).any():
            changes = self._change(uploads, x0[..., None, :], c[..., None, :], round_)
            change = mean_of_senders(changes, None, shares=self.info.shares(clients))
        else:
            way = np.asarray(steps[..., :1] * self.step(round_), x0.dtype)  # rounded as by the clients
            change = (x0 - mean) / way - c
        return (self.weight(clients, server.heard.shape[-1]) * change).astype(c.dtype, copy=False)
