"""FedDR (Tran-Dinh, Pham, Phan and Nguyen, NeurIPS 2021, Algorithm 1): randomised Douglas-Rachford splitting.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, possibly non-convex, h convex (the paper: g)
    prox_{eta f}(y) = argmin_x f(x) + ||x - y||^2 / (2 eta)

    client i in S:  y_i <- y_i + alpha (x0 - x_i),   x_i <- a few gradient steps towards prox_{eta f_i}(y_i)
                    xhat_i <- 2 x_i - y_i,           Delta_i = xhat_i - xhat_i before
    server:         mean <- mean + (1/N) sum_{i in S} Delta_i,   x0 <- prox_{eta h}(mean)

client keeps     y (..., d), x (..., d) and z (..., d), the sum of its start and all it has sent: each before and after
                 its last reply, and that reply's round (`echo`)
       receives  x0 (..., d), and the last of its rounds that the server counted
       sends     Delta (..., d) = 2x - y - z
server keeps     mean (..., d), x0 (..., d) = prox_{eta h}(mean), and the last counted round of each client
A client that misses a round keeps all of it, and the mean keeps its z. If its reply was lost, the echo makes it discard
that round. So mean = (1/N) sum_i z_i always (rows as weights: N_i/N). If messages are whole, z_i = xhat_i.

Fixed point. y_i rests only if x_i = x0, and gradient steps at x0 only if y_i = x0 + eta grad f_i(x0). Then xhat_i =
x0 - eta grad f_i(x0) and x0 = prox_{eta h}(x0 - eta grad F(x0)): the optimum of F + h, for any number of local steps.
If these start at x0 and are few, alpha should be at least 1: as they shorten, x_i tends to x0, and with all clients and
h = 0 each move of x0 tends to 2 - alpha times the one before it.

Relations. With N = 1 and exact minima it is relaxed Douglas-Rachford splitting of f + h. With alpha = 1 it is FedADMM
with rho = 1/eta, also for sampled clients: y_i = x0 - dual_i/rho, and xhat_i = x_i + dual_i/rho for the next dual.
With alpha = 2, all clients and h = 0 it is FedSplit (Pathak and Wainwright, NeurIPS 2020, Algorithm 1), which is
Peaceman-Rachford splitting with z_i = xhat_i and s = eta. It need not converge unless all f_i are strongly convex.

The paper asks all clients for prox_{eta f_i}(start) before round 1, which first_round = "all" can add, and bounds the
error of x_i, where this class counts steps or has FedPDM's stopping rule (Li 2023 (11)). Its authors' program has alpha
= 1.9, warm starts and the server's step above. fl-sim reads lines 7 and 8 with one more block, y <- y + alpha (x0 - y),
x0 <- prox_h((N mean + y)/(N+1), eta N/(N+1)), which has the same fixed points. asyncFedDR is left out.

Privacy. The paper has none. "public-state" adds the noise to x, "gradient" to every gradient; y, z and Delta follow
from noisy x and x0: a client keeps only functions of public values. As (x - y)/eta = (x - x0)/eta + (x0 - y)/eta, its
release is that of a local loop with public start and shift, and mu = 1/eta, for any alpha (`LocalMethod.release`).
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, Index
from ..settings import Rule, Setting, above
from ..work import LocalWork, Report
from .echo import MeanServer, TracksMean, Unacknowledged, confirmed, initial, unacknowledged, vectors_of
from .local import LocalStart, StoppingTolerance, check_pull, check_sum_start, check_tolerance
from .messages import Upload


@dataclass(frozen=True)
class FedDR(TracksMean):
    """FedDR with FedAvg's settings (`missing` has no effect: an entry that nobody sent does not change), FedPDM's
    stopping_tolerance and local_start, eta > step_size/2, the step of both prox, and 0 < alpha <= 2, the relaxation."""

    name: ClassVar[str] = "feddr"
    title: ClassVar[str] = "FedDR: Douglas-Rachford splitting with relaxation, differences as messages"

    eta: Annotated[float, Setting("step of the proximal operators", above(0))] = 10.0
    alpha: Annotated[float, Setting("relaxation", Rule("above 0 and at most 2", lambda v: 0 < v <= 2))] = 1.0
    stopping_tolerance: StoppingTolerance = 0.0
    local_start: LocalStart = "server"

    state = vectors_of(3)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("1/eta", self.pull, self.step_size)
        check_tolerance(self.stopping_tolerance, self.privacy)

    @property
    def pull(self) -> float:
        """1/eta, the weight of the proximal term."""
        return 1.0 / self.eta

    def init_client(self, start: Array) -> Unacknowledged:
        """Start with y = x = z = start."""
        return initial(np.concatenate([start, start, start], -1))

    def client_update(
        self, state: Unacknowledged, inbox: Any, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Move y, take local steps towards prox_{eta f}(y), and send the change of 2x - y."""
        counted, x0 = confirmed(state, inbox.heard), inbox.x0
        y, start, z = self._moved(counted, x0)                                  # line 5
        shift = self.pull * (x0 - y)
        x, report = self.local_loop(work, x0, shift, start, self.stopping_tolerance, self.subgradient)  # line 5
        upload = self.message(2 * x - y - z, inbox, report)                     # lines 5, 6
        z = z + self.received(upload, x0.shape[-1])[0]
        return unacknowledged(counted, np.concatenate([y, x, z], -1), work.round), upload, report

    def _moved(self, counted: Array, x0: Array) -> tuple[Array, Array, Array]:
        """The moved y, the point where the local steps start, and z, (..., d) each."""
        y, x, z = np.split(counted, 3, -1)
        return y + self.alpha * (x0 - x), x if self.local_start == "warm" else x0, z

    def local_start_and_shift(self, state: Unacknowledged, inbox: Any) -> tuple[Array, Array]:
        """The local loop starts at x0, or at the last x for a warm start, with shift (x0 - y)/eta for the moved y."""
        y, start, _ = self._moved(confirmed(state, inbox.heard), inbox.x0)
        return start, self.pull * (inbox.x0 - y)

    def server_update(self, server: MeanServer, uploads: Upload, clients: Index, round_: int) -> MeanServer:
        """Add (1/N) sum Delta to the mean, and apply the prox of h with step eta."""
        weight = self.weight(clients, server.heard.shape[-1])
        return self.moved(server, uploads, clients, round_, weight, self.eta)   # lines 7, 8

    def check_sum(self, steps: int) -> None:
        """Require in addition that every local loop starts at x0."""
        super().check_sum(steps)
        check_sum_start(self.local_start)
