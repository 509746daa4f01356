"""ProxSkip, in its federated form Scaffnew (Mishchenko, Malinovsky, Stich and Richtarik, ICML 2022, Algorithm 2).

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, h with an easy prox
    x_i <- x_i - gamma (grad f_i(x_i) - c_i);  then, with probability p, all clients communicate: x_i <- x0, update c_i

client keeps     sent (..., d), its last message
       receives  x0 (..., d)
       sends     x - (gamma/p) c_i (..., d)
server keeps     x0 (..., d)
Every round needs every client, because the prox is applied to the mean over all clients. A round is the time between
two communications. Its number of local steps is geometric with mean 1/p, public, the same for all clients, drawn from
the run's seed, and at most the run's `local.max-steps`. The fixed point does not depend on it: it is the optimum of the
whole problem, even for heterogeneous clients. The paper updates c_i right after communication. Here a client does so in
the next round, from the new x0 and its last message: c_i + (p/gamma) (x0 - x_i) = (p/gamma) (x0 - sent), so that c_i
need not be kept. In FedPDM's notation, rho is p/gamma, and -c_i is a dual that is updated with the new x0.

Privacy. "public-state" adds the noise to the end point of the local steps; sent and c_i are then functions of public
values.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from ..arrays import Array, Index, Seeds
from ..privacy.release import SENSITIVITIES, Release, Rounding, loop_rounding
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import ZERO, Regulariser
from ..randomness import stream
from ..settings import SHARE, Setting, above, check_choice
from ..work import LocalWork, Report
from .algorithm import NO_INFO, RunInfo, length, to_nodes
from .layout import Layout, Point
from .local import local_steps
from .messages import Dense, Vector, mean_over_clients


class State(NamedTuple):
    """A client's last message (..., d)."""

    sent: Array


class Server(NamedTuple):
    """x0 (..., d)."""

    x0: Array


@dataclass(frozen=True)
class ProxSkip(Dense):
    """ProxSkip with its settings. In theory step_size is at most 1/L, and the best communication_probability is sqrt(mu
    step_size) for mu-strongly convex f_i. info.key seeds the numbers of steps."""

    name: ClassVar[str] = "proxskip"
    title: ClassVar[str] = "ProxSkip, Scaffnew: random numbers of local steps, and control variates"
    weightings: ClassVar[tuple[str, ...]] = ("clients",)
    takes_local_steps: ClassVar[bool] = True
    needs_every_client: ClassVar[bool] = True
    needs_client_state: ClassVar[bool] = True
    draws_steps: ClassVar[bool] = True
    modes: ClassVar[tuple[str, ...]] = ("none", "public-state")

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    step_size: Annotated[float, Setting("gamma: length of a local step; the theory wants at most 1/L", above(0))] = 0.4
    communication_probability: Annotated[float, Setting("p: a round has 1/p local steps on average", SHARE)] = 0.2
    privacy: str = "none"
    sensitivity: str = "coupled"

    state = Layout(State, Point("sent"))

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("sensitivity", self.sensitivity, tuple(SENSITIVITIES))

    @property
    def rho(self) -> float:
        """p / gamma, in FedPDM's notation."""
        return self.communication_probability / self.step_size

    def steps_of(self, round_: int) -> int:
        """The number of local steps of a round: geometric with mean 1/p, not limited by `local.max-steps`."""
        if self.communication_probability == 1:
            return 1
        missed = 1.0 - stream(self.info.key, "steps", round_=round_).random()  # in (0, 1]
        return 1 + math.floor(math.log(missed) / math.log1p(-self.communication_probability))

    def init_client(self, start: Array) -> State:
        """Start with sent = start, so that c_i = 0."""
        return State(start)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start."""
        return Server(start)

    def broadcast(self, server: Server, round_: int, node: Index) -> Vector:
        """Send x0 to every client."""
        return Vector(to_nodes(server.x0, node))

    def client_update(self, state: State, inbox: Vector, work: LocalWork) -> tuple[State, Vector, Report]:
        """Update the control variate with the new x0, take the local steps, and send the point to be averaged."""
        x0, c = inbox.x, self._control(state, inbox)
        batches = work.batches.first(self.steps_of(work.round))
        x, report = local_steps(work.objective, x0, x0, 0.0, -c, self.step_size, batches)   # line 3
        sent = work.noise(x) - c / self.rho                                     # line 5
        return State(sent), Vector(sent), report

    def _control(self, state: State, inbox: Vector) -> Array:
        return self.rho * (inbox.x - state.sent)                                # line 8

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy end point of the local steps that this round actually takes."""
        return Release(SENSITIVITIES[self.sensitivity](bounds, self.step_size, 0.0, self._drawn(workload, round_)))

    def rounding(
        self, state: State, inbox: Vector, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the local steps."""
        loop = self.step_size, 0.0, self._drawn(workload, round_), self.sensitivity
        return loop_rounding(bounds, *loop, length(inbox.x), length(self._control(state, inbox)))

    def _drawn(self, workload: Workload, round_: int) -> Workload:
        return workload._replace(steps=min(workload.steps, self.steps_of(round_)))

    def server_update(self, server: Server, uploads: Vector, clients: Index, round_: int) -> Server:
        """Apply prox_{(gamma/p) h} to the mean of the messages."""
        return Server(self.regulariser.prox(mean_over_clients(uploads.x), 1.0 / self.rho))  # line 5

    def model(self, server: Server) -> Array:
        """The last x0 (..., d)."""
        return server.x0
