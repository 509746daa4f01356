"""FedMiD (Yuan, Zaheer and Reddi, ICML 2021): federated mirror descent, with the Euclidean mirror map.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, h convex (the paper: psi)
    prox_{s h}(u) = argmin_v h(v) + ||v - u||^2 / (2 s)

    client i in S:  x_i <- prox_{eta_c h}(x_i - eta_c grad f_i(x_i; batch)),  K times from x0
    server:         x0 <- prox_{eta_s eta_c K h}(x0 + eta_s mean_{i in S}(x_i - x0))

client keeps     nothing
       receives  x0 (..., d)
       sends     x_i - x0 (..., d), and its number of local steps K
server keeps     x0 (..., d)
What happens to missing clients and entries is in `ProximalSteps`; of an entry that nobody sent, the server takes the
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

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..privacy.release import MOST_DRAWN, Rounding, farthest, loop_rounding, step_factor
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds
from ..problems.regularisers import Zero, prox_each
from ..settings import Setting, above
from ..work import LocalWork, Report, no_noise
from .algorithm import length
from .local import LocalMethod, path_length
from .messages import Upload, mean_of_senders

_ROUNDED = 32  # values that a step with a prox rounds, none longer than its argument; groups of up to 40 classes


@dataclass(frozen=True)
class ProximalSteps(LocalMethod):
    """What FedMiD and FedDualAvg share: local steps with the prox of h, and a server that moves along the mean change.

        client i in S:  u_i <- a step along grad f_i(x; batch), with the prox of h before or after it,  K times from u
        server:         u <- u + eta_s mean_{i in S}(u_i - u)

    Clients keep nothing. A client that does not reply is left out of the mean, and so is one that did not send an
    entry; an entry that nobody sent does not move. The paper has one K for all; here the server's prox counts the mean
    K of the clients that replied, weighted as their messages, as the authors' program does.

    The settings are those of `LocalMethod` (step_size is eta_c; `missing` has no effect), and server_step, eta_s.
    """

    counts_steps: ClassVar[bool] = True

    server_step: Annotated[float, Setting("eta_s: the server's step along the mean change", above(0))] = 1.0

    def client_update(self, state: Any, inbox: Any, work: LocalWork) -> tuple[Any, Upload, Report]:
        """Take K local steps from the server's point and send the change."""
        start, steps = self.begin(inbox), work.batches.steps
        u = start
        for k, rows in enumerate(work.batches):
            moved = self.local_step(u, inbox, work, rows, k)
            u = np.where((k < steps)[..., None], moved, u)
        u = work.noise(u) if self.privacy == "public-state" else u
        report = Report(steps, np.zeros(steps.shape, dtype=bool))
        return state, self.message(u - start, inbox, report), report

    def begin(self, inbox: Any) -> Array:
        """The public point (..., d) where the local steps start."""
        raise NotImplementedError

    def local_step(self, u: Array, inbox: Any, work: LocalWork, rows: Batch, k: int) -> Array:
        """The point (..., d) after step k, counted from 0, at u."""
        raise NotImplementedError

    def slope(self, x: Array, work: LocalWork, rows: Batch, k: int) -> Array:
        """The gradient (..., d) at x, noisy with privacy "gradient"."""
        noise = work.noise if self.privacy == "gradient" else no_noise
        return noise(work.objective.grad(x, rows), k)

    def moved(self, u: Array, uploads: Upload, clients: Index, round_: int) -> tuple[Array, Array]:
        """The server's point u (..., d) after the mean change, and the length (...,) of that step: eta_s eta_c K."""
        shares = self.info.shares(clients)
        changes, sent = self.received(uploads, u.shape[-1])
        moved = u + self.server_step * mean_of_senders(changes, sent, shares=shares)
        length = self.server_step * np.average(path_length(self.step(round_), 0.0, uploads.steps), -1, shares)
        return moved.astype(u.dtype, copy=False), np.asarray(length, u.dtype)

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the local loop, or with privacy "gradient" for each of its gradients."""
        eta, start, constant = self.step(round_), *self.extent(inbox, workload, round_)
        widened, sensitivity = self.widened(bounds, workload, round_)
        if self.privacy != "gradient":
            loop = loop_rounding(widened, eta, 0.0, workload, sensitivity, start, constant)
            return loop._replace(size=_ROUNDED * loop.size)
        slope = bounds.gradient + MOST_DRAWN * sigma * math.sqrt(self.begin(inbox).size) + constant
        points = farthest(start, eta, step_factor(widened, eta, 0.0, 0.0), workload.steps - 1, slope)
        return Rounding(bounds.gradient + bounds.steepest * points, points)

    def extent(self, inbox: Any, workload: Workload, round_: int) -> tuple[float, float]:
        """(a, b): the points at which gradients are taken are no longer than those of a local loop that starts at a
        point of norm a and adds vectors of norm b to its gradients."""
        raise NotImplementedError

    def widened(self, bounds: Bounds, workload: Workload, round_: int) -> tuple[Bounds, str]:
        """Bounds for which `step_factor` bounds how far a local step drives two points apart, and the sensitivity,
        "coupled" or "norm", that follows from them."""
        return bounds, self.sensitivity


class Server(NamedTuple):
    """x0 (..., d); average (..., d) for `final_model`; and the key (...,) of the run's public random numbers."""

    x0: Array
    average: Array
    key: Seeds


@dataclass(frozen=True)
class FedMiD(ProximalSteps):
    """FedMiD with the settings of `ProximalSteps`."""

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
