"""FedAvg, or parallel restarted SGD (McMahan et al., AISTATS 2017); private: DP-FedAvg, as Li and Zhang compare it.

    minimise  (1/N) sum_i f_i(x) + h(x)

client keeps     nothing
       receives  x0 (..., d)
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d)
A client that is missing is left out of the mean. With F = sum_i (N_i/N) f_i (weighting = "rows") the means are weighted
by N_i over those that answered: parallel restarted SGD, as Ye 2021 compares it.

h is treated as `composite` says:
"server-prox"        x0 <- prox_h(mean x, s) with s the mean over the clients of `local.reach`, Q eta for FedAvg: as
                     far as the local steps go against a constant gradient. Its fixed point solves
                     0 in dh(x0) + (1/s)(x0 - mean x): the optimality condition, but with local gradients averaged
                     along the clients' paths from x0 rather than taken at x0. One full-batch step is exactly
                     proximal gradient descent; several steps, or unequal ones, stay O(s) away from the optimum.
"local-subgradient"  every local step adds a subgradient of h: the papers' benchmarks. Entries seldom become 0.

Privacy. "public-state" adds noise to the end of the local loop, which is the message. It is refused together with
local-subgradient: the bounds on how far one record moves x need steps that are Lipschitz in x, and
x -> x - eta dh(x) is not (two points on either side of 0 are driven across each other); only a
bound that grows with sqrt(d) would be left. "gradient" adds noise to every gradient of a round (DP-FedAvg of Zhang
2023: Q steps are Q releases); subgradients of h do not depend on data and are free.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import require
from ..regularisers import Subdifferentiable, Zero
from ..settings import Setting, one_of
from ..work import LocalWork, Report
from .base import LocalMethod
from .local import Subgradient, Walked, reach
from .messages import NOTHING, Nothing, Upload


class Server(NamedTuple):
    """x0 (..., d), the mean (..., d) it is the prox of, the average (..., d) of the x0 that `output` speaks of, and the
    key (...,) of the run's public coins."""

    x0: Array
    mean: Array
    average: Array
    key: Seeds


@dataclass(frozen=True)
class FedAvg(LocalMethod):
    """FedAvg with its settings: those of `base.LocalMethod` and `messages.Messages`, and composite, which is
    "server-prox" or "local-subgradient". step_decay = alpha gives the steps a / t^alpha."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg, DP-FedAvg: local SGD and averaging"
    counts_steps: ClassVar[bool] = True

    composite: Annotated[
        str, Setting("how h is handled: prox at the server, or subgradients in the local steps",
                     one_of(("server-prox", "local-subgradient")))
    ] = "server-prox"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.composite == "local-subgradient":
            self._check_subgradients()

    def _check_subgradients(self) -> None:
        h = type(self.regulariser).__name__
        require(
            isinstance(self.regulariser, Subdifferentiable),
            f"composite local-subgradient needs a regulariser that is finite everywhere (none, l1, elastic-net, "
            f"group-l1); got {h}, which holds an indicator: use composite server-prox",
        )
        require(
            self.privacy != "public-state" or isinstance(self.regulariser, Zero),
            f"composite must be server-prox with privacy public-state; got local-subgradient with {h}: a step "
            "along subgradients is not Lipschitz, so no useful bound on one record's influence holds: use "
            "server-prox, or privacy gradient",
        )

    state = NOTHING

    def init_client(self, start: Array) -> Any:
        """Nothing."""
        return Nothing()

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """x0 = start."""
        return Server(start, start, start, key)

    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Upload, Report]:
        """Q local steps; sends where they end."""
        x, report = self.descend(work, inbox.x0, 0.0)
        return state, self.message(x, inbox, report), report

    def descend(self, work: LocalWork, x0: Array, shift: Array | float) -> Walked:
        """The shared local loop, with subgradients of h where they belong there."""
        return self.local_loop(work, x0, shift, subgradient=self._subgradient)

    @property
    def _subgradient(self) -> Subgradient | None:
        h = self.regulariser
        local = self.composite == "local-subgradient" and not isinstance(h, Zero)
        return h.subgradient if local and isinstance(h, Subdifferentiable) else None

    def server_update(self, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """Mean over the sampled clients, then the prox of h unless the clients took care of it."""
        y, sent = self.received(uploads, server.x0.shape[-1])
        shares = self.facts.shares(clients)
        length = np.average(reach(self.step(round_), self.pull, uploads.steps), -1, shares)
        mean = self.mean(server, y, sent, shares)
        return self.averaged(server._replace(x0=self.proximal(mean, length), mean=mean), round_)

    def proximal(self, u: Array, step: Array | float) -> Array:
        """prox_h(u, step) with server-prox, else u; u (..., d), step a number or (...,)."""
        if self.composite != "server-prox":
            return u
        if np.ndim(step) == 0:
            return self.regulariser.prox(u, float(step))
        return np.stack([self.proximal(v, s) for v, s in zip(u, np.asarray(step), strict=True)])
