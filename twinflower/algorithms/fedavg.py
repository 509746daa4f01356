"""FedAvg, or parallel restarted SGD (McMahan et al., AISTATS 2017); private: DP-FedAvg, the baseline of Li and Zhang.

    minimise  (1/N) sum_i f_i(x) + h(x)

    x <- x - eta grad f_i(x; batch),  Q times from x0
    server: x0 <- prox_h(mean x, Q eta), or the mean where h is in the local steps            (`server_prox`)
            with memory, mean x is x0 + eta mean_i G_i, G_i the last (x - x0)/eta of each client
            with server momentum beta, mean x + beta (x0 - previous x0) takes the place of mean x, or with nu > 0
            v <- beta v + (1 - beta)(mean x - x0),   x0 + (1 - nu)(mean x - x0) + nu v

client keeps     nothing
       receives  x0 (..., d)
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d), v or its last movement (..., d), and with memory every client's G_i (..., N, d)
A client that does not reply is left out of the mean, or stays in it with its last G_i. With F = sum_i (N_i/N) f_i
(weighting = "rows") the mean is weighted by N_i: this is the parallel restarted SGD that Ye 2021 compares with.

Server momentum is FedAvgM of Hsu et al. (2019) with a server step of 1: without h, v <- beta v + (x0 - mean x) and
x0 <- x0 - v are the line above. In this form the prox has the same fixed points as without momentum. It adds momentum
to points after the prox. The form with nu averages changes before the prox: the quasi-hyperbolic momentum of Ma and
Yarats (ICLR 2019), with nu = 1 the heavy ball and with nu = beta Nesterov's. With one local step of all clients it is
FedPDM: step 1/rho, beta = 1 - a, nu = (1 - 2a)/(1 - a), a = eta rho (docs/when-duals-help.md).

Memory is MIFA of Gu et al. (NeurIPS 2021). The paper asks every client in the first round (first-round = "all");
otherwise the mean is over the clients that have replied so far.

Privacy. "public-state" adds noise to the end point of the local loop, which is the message. "gradient" adds noise to
every gradient of a round (DP-FedAvg of Zhang 2023: Q steps are Q releases).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError, require
from ..problems.regularisers import Zero
from ..settings import FRACTION, Setting, at_least, between
from ..work import LocalWork, Report
from .memory import Aggregation, Memory, empty_memory, mean_of_memory, remember
from .messages import Upload
from .server_prox import ServerProx


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; momentum
    (..., d); the memory of the clients' last changes; and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    momentum: Array
    memory: Memory
    key: Seeds


@dataclass(frozen=True)
class Averaging(ServerProx):
    """FedAvg's clients, which take local steps and send the end point, and a server that averages these."""

    counts_steps: ClassVar[bool] = True

    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Upload, Report]:
        """Take Q local steps from x0 and send the end point."""
        x, report = self.descend(work, inbox.x0, 0.0)
        return state, self.message(x, inbox, report), report

    def server_update(self, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """Average over the clients that replied, then apply the prox of h."""
        return self.step_to_mean(server, uploads, clients, round_)


@dataclass(frozen=True)
class PlainAveraging(Averaging):
    """FedAvg's mathematics, shared with FedProx, whose local steps have a proximal term in addition. aggregation: over
    this round's points ("sampled"), or over the last changes of all clients ("memory")."""

    averages_models: ClassVar[bool] = True

    aggregation: Aggregation = field(default="sampled", kw_only=True)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start, at rest, and an empty memory."""
        memory = empty_memory(start, num_clients, self.aggregation == "memory", self.uplink_ratio == 1)
        return Server(start, start, start, np.zeros_like(start), memory, key)

    def step_to_mean(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """The server's state after averaging this round's points, or the last changes of all clients."""
        if self.aggregation == "sampled":
            return super().step_to_mean(server, uploads, clients, round_)  # type: ignore[no-any-return]
        y, sent = self.received(uploads, server.x0.shape[-1])
        x0, eta = self.thinned(server.x0)[0], self.step(round_)
        memory = remember(server.memory, (y - x0[..., None, :]) / eta, sent, clients)
        mean = x0 + eta * mean_of_memory(memory, 0.0, self.info)
        return self.step_to(mean, server._replace(memory=memory), uploads, clients, round_)  # type: ignore[no-any-return]

    def check_average(self) -> None:
        """Require that h, if there is one, is handled in the local steps, dense messages, and no memory."""
        if not isinstance(self.regulariser, Zero) and self.composite != "local-subgradient":
            raise SettingError(
                "a server that only averages takes no prox: set composite to local-subgradient, or regulariser to "
                f"none; got composite {self.composite}"
            )
        if not self.uplink_ratio == self.downlink_ratio == 1:
            raise SettingError(
                "a server that only averages takes and sends whole models: set uplink-ratio and downlink-ratio to 1; "
                f"got {self.uplink_ratio:g} and {self.downlink_ratio:g}"
            )
        if self.aggregation != "sampled":
            raise SettingError("a server that only averages keeps no memory: set aggregation to sampled; got memory")


@dataclass(frozen=True)
class FedAvg(PlainAveraging):
    """FedAvg with the settings of `server_prox.ServerProx`, server_momentum, the beta above, and momentum_weight, nu.
    With step_decay = alpha, round t has the step size step_size / t^alpha."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg, DP-FedAvg: local SGD and averaging"

    step_size: Annotated[
        float,
        Setting(
            "length of a step along the gradient in the first round; 0: by the noise of a private run", at_least(0)
        ),
    ] = 0.4
    server_momentum: Annotated[
        float, Setting("part of its last movement that the server adds to the mean; 0: no momentum", FRACTION)
    ] = field(default=0.0, kw_only=True)
    momentum_weight: Annotated[
        float,
        Setting("nu: weight of the mean of past changes, taken before the prox; 0: momentum after it", between(0, 1)),
    ] = field(default=0.0, kw_only=True)

    def step_to(self, mean: Array, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """The server's state after the momentum has been added to the mean (..., d) of the points."""
        beta, nu, change = self.server_momentum, self.momentum_weight, mean - server.x0
        momentum = beta * server.momentum
        if nu:
            momentum = momentum + (1 - beta) * change
            mean = server.x0 + (1 - nu) * change + nu * momentum
        elif beta:
            mean = mean + momentum
        new = super().step_to(mean, server, uploads, clients, round_)
        return new._replace(momentum=momentum if nu else new.x0 - server.x0)  # type: ignore[no-any-return]

    def check(self, objective: Any) -> None:
        """In addition, require a step size."""
        super().check(objective)
        require(
            self.step_size > 0,
            "fedavg.step-size must be above 0; 0, which lets it follow from the noise, needs privacy.mode gradient or "
            "public-state, and privacy.trust local; got 0",
        )

    def check_average(self) -> None:
        """In addition, require that there is no momentum."""
        super().check_average()
        if self.server_momentum:
            raise SettingError(
                "a server that only averages keeps no momentum: set server-momentum to 0; got "
                f"{self.server_momentum:g}"
            )
