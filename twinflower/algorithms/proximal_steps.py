"""What FedMiD and FedDualAvg (Yuan, Zaheer and Reddi, ICML 2021) share: local steps with the prox of h, and a server
that moves along the mean of the changes.

    client i in S:  u_i <- a step along grad f_i(x; batch), with the prox of h before or after it,  K times from u
    server:         u <- u + eta_s mean_{i in S}(u_i - u)

Clients keep nothing. A client that does not reply is left out of the mean, and so is one that did not send an entry; an
entry that nobody sent does not move. The paper has one K for all; here the server's prox counts the mean K of the
clients that replied, weighted as their messages, as the authors' program does.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ..arrays import Array, Index
from ..privacy.release import MOST_DRAWN, Rounding, farthest, loop_rounding, step_factor
from ..problems.batches import Workload
from ..problems.interfaces import Batch, Bounds
from ..settings import Setting, above
from ..work import LocalWork, Report, no_noise
from .averaging import mean_of_senders
from .base import LocalMethod
from .local import path_length
from .messages import NOTHING, Nothing, Upload

_ROUNDED = 32  # values that a step with a prox rounds, none longer than its argument; groups of up to 40 classes


@dataclass(frozen=True)
class ProximalSteps(LocalMethod):
    """The settings of `LocalMethod` (step_size is eta_c; `missing` has no effect), and server_step, eta_s."""

    counts_steps: ClassVar[bool] = True

    server_step: Annotated[float, Setting("eta_s: the server's step along the mean change", above(0))] = 1.0

    state = NOTHING

    def init_client(self, start: Array) -> Any:
        """The empty state: clients keep nothing."""
        return Nothing()

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
