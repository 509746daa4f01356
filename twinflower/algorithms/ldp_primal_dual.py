"""Locally private composite primal-dual method with dynamic privacy allocation (Zhang 2023, Algorithm 1 in form (7)).

    minimise  (1/n) sum_i f_i(x) + g(x),     f_i smooth and strongly convex (l2 inside), g convex with an easy prox

client keeps     sent (..., d), its last message; dual Lambda (..., d); its own point x (..., d)
       receives  mean (..., d) of the messages of the round before; in the first round the public start
       sends     x - gamma ((s/n) grad f_i(x) + Lambda) + noise (..., d)
server keeps     mean (..., d) and the last messages, sent (..., N, d)
Every round needs every client, or the duals no longer sum to 0. The strategy repeats the request to a client that did
not reply, and that client sends its stored message again. If this fails, the run stops. A client finishes round t when
the mean of round t arrives with round t + 1; a closing message delivers the last mean.

The paper's box of Algorithm 1 reads x - gamma (1/n grad) + zeta + Lambda: with that sign it diverges. (6) and (7) have
everything inside gamma ( ), as here. The paper starts with x_i^1 = x_i^0. Here the prox is applied to the start as to
any other mean, x_i^1 = prox(start). The result is the same for a start at 0 with an l1 norm, a box around 0 or both;
any other start is moved to a point where g is finite. The paper's output is x_i, which differs between clients, need
not be sparse, and includes the client's own noise; the output here is the prox of the mean.

Privacy. The message, the dual and therefore x are functions of what was sent, so the noisy message of a round is its
only release. The budget of all rounds is planned before the first: round t gets the share w_t.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..privacy.release import Rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..work import LocalWork, Report
from .algorithm import length, to_nodes
from .averaging import mean_over_clients
from .layout import Layout, Point
from .ldp_rounds import UnequalRounds
from .messages import Dense, Vector


class State(NamedTuple):
    """A client's last message, its dual, and its point, all (..., d)."""

    sent: Array
    dual: Array
    x: Array


class Server(NamedTuple):
    """The mean (..., d) of the last messages, and these messages, sent (..., N, d)."""

    mean: Array
    sent: Array


@dataclass(frozen=True)
class LDPPrimalDual(UnequalRounds, Dense):
    """The method; its settings are in `ldp_rounds.UnequalRounds`."""

    name: ClassVar[str] = "ldp-primal-dual"
    title: ClassVar[str] = "LDP primal-dual (Zhang 2023): composite, all clients, rounds share the budget unequally"

    weightings: ClassVar[tuple[str, ...]] = ("clients",)
    takes_local_steps: ClassVar[bool] = False
    needs_every_client: ClassVar[bool] = True
    needs_client_state: ClassVar[bool] = True
    closes: ClassVar[bool] = True

    state = Layout(State, Point("sent"), Point("dual"), Point("x"))

    def check_sum(self, steps: int) -> None:
        """Require gamma = 1: then x is the prox of the mean for every client, and the duals sum to 0 in the server's
        sum."""
        if self.privacy != "public-state":
            raise SettingError(f"trust sum needs privacy public-state; got {self.privacy}")
        if self.step_size != 1:
            raise SettingError(
                "trust sum needs step-size 1 with ldp-primal-dual: with any other, gradients are taken at points "
                f"that only the sites know; got {self.step_size:g}"
            )

    def init_client(self, start: Array) -> State:
        """Start as if the start had been sent, with Lambda = 0."""
        return State(start, np.zeros_like(start), start)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start as if every client had sent the start."""
        return Server(start, np.repeat(start[..., None, :], num_clients, axis=-2))

    def broadcast(self, server: Server, round_: int, node: Index) -> Vector:
        """Send the mean to every client."""
        return Vector(to_nodes(server.mean, node))

    def finish(self, state: State, inbox: Vector) -> State:
        """Update the dual and x once the mean of the client's last round has arrived."""
        apart = state.sent - inbox.x
        x = self._prox(state.sent - self.step_size * apart)                     # (7), third and fourth line
        return State(state.sent, state.dual + apart, x)                         # (7), second line

    def client_update(
        self, state: State, inbox: Vector, work: LocalWork
    ) -> tuple[State, Vector, Report]:
        """Finish the previous round, then take one (noisy) gradient step on the first batch."""
        _, dual, x = self.finish(state, inbox)
        slope = self.pull * work.gradient(x)
        sent = work.noise(x - self.step_size * (slope + dual))                       # (7), first line
        return State(sent, dual, x), Vector(sent), work.one_step()

    def rounding(
        self, state: State, inbox: Vector, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for x and the gradient step from it."""
        _, dual, x = self.finish(state, inbox)
        slope = self.pull * (bounds.gradient + bounds.steepest * length(x)) + length(dual)
        return Rounding(length(x) + self.step_size * slope, length(x))

    def server_update(self, server: Server, uploads: Vector, clients: Index, round_: int) -> Server:
        """Average the messages of all clients."""
        return Server(mean_over_clients(uploads.x), uploads.x)

    def model(self, server: Server) -> Array:
        """The prox of the mean (..., d)."""
        return self._prox(server.mean)

    def client_models(self, server: Server) -> Array:
        """The clients' x_i (..., N, d), computed from their messages."""
        return self._prox(server.sent - self.step_size * (server.sent - server.mean[..., None, :]))

    def _prox(self, z: Array) -> Array:
        """The prox of g. The paper's (6) has step gamma/n for s = 1; the box of Algorithm 1 agrees."""
        return self.regulariser.prox(z, self.step_size * self.pull)
