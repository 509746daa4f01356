"""FedADMM (Gong, Li and Freris, ICDE 2022, Algorithm 1): ADMM with inexact local steps; messages are differences.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, possibly non-convex (the paper: h = 0)
    L_i(w, y, x0) = f_i(w) + <y, w - x0> + rho/2 ||w - x0||^2

    w_i <- a few gradient steps on L_i(., y_i, x0),   y_i <- y_i + rho (w_i - x0)
    Delta_i = (w_i + y_i/rho)_new - (w_i + y_i/rho)_old
    server: x0 <- x0 + (eta/|S|) sum_{i in S} Delta_i

client keeps     y (..., d), z (..., d), the sum of its start and all it has sent, and w (..., d) for a warm start: each
                 before and after its last reply, and that reply's round (`echo`)
       receives  x0 (..., d), and the last of its rounds that the server counted
       sends     Delta (..., d) = w + y/rho - z
server keeps     mean (..., d), x0 (..., d) = prox_h(mean, 1/rho), and the last counted round of each client
A client that misses a round keeps all of it. If its reply was lost, the echo makes it discard that round. With whole
messages z_i = w_i + y_i/rho; entries that a sparsified message leaves out remain in later differences.

The server's step. With eta = |S|/N (server_step = 0, the default; with rows as weights the share of their rows), mean =
(1/N) sum_i z_i always. The fixed point then has w_i = x0, y_i = -grad f_i(x0) and x0 = prox_h(x0 - grad F(x0)/rho,
1/rho): it is the optimum of F + h. The paper also uses a constant eta. If all rounds have |S| replies, mean = start +
kappa ((1/N) sum_i z_i - start) with kappa = eta N/|S|. The fixed point is then a stationary point not of F but of
F + (rho/2) (1/kappa - 1) ||x - start||^2, and h would have the weight 1/kappa, so this step is refused with a prox.

Relations. FedPDM's dual is -y_i, and its message is w_i + y_i/rho. So FedADMM with eta = |S|/N is FedPDM with the
aggregation "memory" (if all clients take part in the first round), but its server keeps no vector per client. With all
clients in every round it is FedPDM and, with alpha = rho, FedDyn. If duals stayed 0, eta = 1 with all clients in every
round would be FedProx with mu = rho.

The paper's clients draw their numbers of local epochs. Here the steps of a round follow from a client's rows and batch
size or end at FedPDM's stopping rule (Li 2023 (11)). That clients draw their epochs and that eta may be constant is
what the authors' program does. It also starts at x0 and subtracts x0, not the old w_i, in Delta_i; this class follows
the recursion above.

Privacy. The paper has none. "public-state" adds the noise to w, and "gradient" to every gradient; y, z and the message
are computed from the noisy w and from x0, so that a client keeps only functions of public values. Its release is that
of a local loop with a public start and a public shift, and mu = rho (`LocalMethod.release`).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..problems.regularisers import Zero
from ..settings import Setting, above, at_least
from ..work import LocalWork, Report
from .echo import MeanServer, TracksMean, Unacknowledged, confirmed, initial, unacknowledged, vectors_of
from .layout import Layout
from .local import LocalStart, StoppingTolerance, check_pull, check_sum_start, check_tolerance
from .messages import Upload


@dataclass(frozen=True)
class FedADMM(TracksMean):
    """FedADMM with FedAvg's settings (`missing` has no effect: an entry that nobody sent does not change).

    rho > 0: penalty of the augmented Lagrangian, with rho * step_size < 2. server_step: eta, or 0 for |S|/N.
    stopping_tolerance, local_start: see `fedpdm.FedPDM`.
    """

    name: ClassVar[str] = "fedadmm"
    title: ClassVar[str] = "FedADMM: duals at the clients, differences as messages"

    rho: Annotated[float, Setting("penalty of the augmented Lagrangian", above(0))] = 0.1
    server_step: Annotated[
        float,
        Setting("eta: step along the mean message; 0 is the fraction of clients that reply", at_least(0)),
    ] = 0.0
    stopping_tolerance: StoppingTolerance = 0.0
    local_start: LocalStart = "server"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("rho", self.rho, self.step_size)
        check_tolerance(self.stopping_tolerance, self.privacy)
        if self.server_step and not isinstance(self.regulariser, Zero) and self.composite != "local-subgradient":
            raise SettingError(
                "server-step must be 0 with a regulariser and composite server-prox, because any other step changes "
                f"the regulariser's weight; got {self.server_step:g}: use 0, composite local-subgradient, or "
                "regulariser none"
            )

    @property
    def pull(self) -> float:
        """rho, the weight of the proximal term."""
        return self.rho

    @cached_property
    def state(self) -> Layout:
        """The layout of y and z, and of w for a warm start."""
        return vectors_of(3 if self.local_start == "warm" else 2)

    def init_client(self, start: Array) -> Unacknowledged:
        """Start with y = 0 and w = z = start."""
        return initial(np.concatenate([np.zeros_like(start), *self._kept(start, start)], -1))

    def client_update(
        self, state: Unacknowledged, inbox: Any, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Take local steps on L_i, then the dual step, and send the change of w + y/rho."""
        counted, x0 = confirmed(state, inbox.heard), inbox.x0
        y, z, start = self._parts(counted, x0)
        w, report = self.local_loop(work, x0, y, start, self.stopping_tolerance, self.subgradient)
        y = y + self.rho * (w - x0)
        upload = self.message(w + y / self.rho - z, inbox, report)
        z = z + self.received(upload, x0.shape[-1])[0]
        return unacknowledged(counted, np.concatenate([y, *self._kept(z, w)], -1), work.round), upload, report

    def _kept(self, z: Array, w: Array) -> tuple[Array, ...]:
        return (z, w) if self.local_start == "warm" else (z,)

    def _parts(self, counted: Array, x0: Array) -> tuple[Array, Array, Array]:
        """y, z and the point where the local steps start, (..., d) each."""
        y, z, *w = np.split(counted, counted.shape[-1] // x0.shape[-1], -1)
        return y, z, w[0] if w else x0

    def local_start_and_shift(self, state: Unacknowledged, inbox: Any) -> tuple[Array, Array]:
        """The local loop starts at x0, or at the last w for a warm start, with shift y."""
        y, _, start = self._parts(confirmed(state, inbox.heard), inbox.x0)
        return start, y

    def server_update(self, server: MeanServer, uploads: Upload, clients: Index, round_: int) -> MeanServer:
        """Add the mean message to the mean, and apply the prox with step 1/rho."""
        eta = self.server_step or self.weight(clients, server.heard.shape[-1])
        return self.moved(server, uploads, clients, round_, eta, 1.0 / self.rho)

    def check_sum(self, steps: int) -> None:
        """Require in addition that every local loop starts at x0."""
        super().check_sum(steps)
        check_sum_start(self.local_start)
