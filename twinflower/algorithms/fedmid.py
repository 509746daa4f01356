"""FedMiD (Yuan, Zaheer and Reddi, ICML 2021): federated mirror descent, with the Euclidean mirror map.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, h convex (the paper: psi)
    prox_{s h}(u) = argmin_v h(v) + ||v - u||^2 / (2 s)

    client i in S:  x_i <- prox_{eta_c h}(x_i - eta_c grad f_i(x_i; batch)),  K times from x0
    server:         x0 <- prox_{eta_s eta_c K h}(x0 + eta_s mean_{i in S}(x_i - x0))

client keeps     nothing
       receives  x0 (..., d)
       sends     x_i - x0 (..., d), and its number of local steps K
server keeps     x0 (..., d)
What happens to missing clients and entries is in `proximal_steps`; of an entry that nobody sent, the server takes the
prox alone. The paper's own pages were not at hand: this is the authors' program (github hongliny/FCO-ICML21), whose
server's prox has the length of all steps of the round. Without a prox on the clients, an option of the program, it is
FedAvg. The paper allows any mirror map; here it is ||x||^2 / 2.

Fixed point. h is in the local steps and in the server's step, so it counts twice. With equal clients and one full-batch
step, x0 rests where 0 is in grad F + 2 dh, the optimum of F + 2h, for any eta_s, if h is l1 and the clients' entries
keep their signs. With an indicator h, whose projections repeat each other, it is that of F + h. Otherwise it is
O(eta_c K) away, even with one step: clients average points after the prox, and the mean of projections is not the
projection of the mean. For l1, run it with half the weight of h.

Relations. With h = 0 it is FedAvg whose server moves by eta_s times its step; with eta_s = 1, FedAvg.

Privacy. The paper has none. "public-state" adds the noise to x_i, from which x_i - x0 is computed, and "gradient" to
every gradient, of which x_i is then a function: nothing else leaves a client, and it keeps nothing. h is public and
convex, so its prox is nonexpansive: a step with it multiplies the distance between two runs by no more than the step
without, and adds no more. Hence the release is FedAvg's (`LocalMethod.release`).

Sums. Clients keep nothing, so "public-state" may run on sums, with any K. Noise in a gradient passes through the
prox, which is not affine: the sum of the messages does not follow from that of noisy gradients, unless h = 0.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..problems.batches import Workload
from ..problems.interfaces import Batch
from ..problems.regularisers import Zero, prox_each
from ..work import LocalWork
from .algorithm import length
from .messages import Upload
from .proximal_steps import ProximalSteps


class Server(NamedTuple):
    """x0 (..., d); average (..., d) for `final_model`; and the key (...,) of the run's public random numbers."""

    x0: Array
    average: Array
    key: Seeds


@dataclass(frozen=True)
class FedMiD(ProximalSteps):
    """FedMiD with the settings of `proximal_steps.ProximalSteps`."""

    name: ClassVar[str] = "fedmid"
    title: ClassVar[str] = "FedMiD: the prox of h in the local steps and at the server"
    doubles_regulariser: ClassVar[bool] = True

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start."""
        return Server(start, start, key)

    def begin(self, inbox: Any) -> Array:
        """x0."""
        return inbox.x0  # type: ignore[no-any-return]

    def local_step(self, u: Array, inbox: Any, work: LocalWork, rows: Batch, k: int) -> Array:
        """A proximal gradient step."""
        eta = self.step(work.round)
        return self.regulariser.prox(u - eta * self.slope(u, work, rows, k), eta)  # client

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Move along the mean change, then apply the prox of h with the round's total step."""
        moved, step = self.moved(server.x0, uploads, clients, round_)
        x0 = prox_each(self.regulariser, moved, step)                           # server
        return self.averaged(server._replace(x0=x0), round_)  # type: ignore[no-any-return]

    def extent(self, inbox: Any, workload: Workload, round_: int) -> tuple[float, float]:
        """As ||prox(u)|| <= ||u|| + ||prox(0)||, points are no longer than if a vector of norm ||prox(0)|| / eta_c were
        added to every gradient."""
        eta = self.step(round_)
        return length(inbox.x0), length(self.regulariser.prox(np.zeros_like(inbox.x0), eta)) / eta

    def check_sum(self, steps: int) -> None:
        """Require in addition that no noise passes through a prox."""
        super().check_sum(steps)
        if self.privacy != "public-state" and not isinstance(self.regulariser, Zero):
            raise SettingError(
                "trust sum needs privacy public-state, or regulariser none, because the sites' noise does not add up "
                f"behind a prox in the local steps; got privacy {self.privacy} with {type(self.regulariser).__name__}"
            )
