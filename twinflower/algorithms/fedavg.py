"""FedAvg, or parallel restarted SGD (McMahan et al., AISTATS 2017); private: DP-FedAvg, the baseline of Li and Zhang.

    minimise  (1/N) sum_i f_i(x) + h(x)

    x <- x - eta grad f_i(x; batch),  Q times from x0
    server: x0 <- prox_h(mean x, Q eta), or the mean where h is in the local steps            (`server_prox`)
            with server momentum beta, mean x + beta (x0 - previous x0) takes the place of mean x

client keeps     nothing
       receives  x0 (..., d)
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d), and the x0 before it
A client that does not reply is left out of the mean. With F = sum_i (N_i/N) f_i (weighting = "rows") the mean over the
replies is weighted by N_i: this is the parallel restarted SGD that Ye 2021 compares with.

Server momentum is FedAvgM of Hsu et al. (2019) with a server step of 1: without h, v <- beta v + (x0 - mean x) and
x0 <- x0 - v are the line above. In this form the prox has the same fixed points as without momentum.

Privacy. "public-state" adds noise to the end point of the local loop, which is the message. "gradient" adds noise to
every gradient of a round (DP-FedAvg of Zhang 2023: Q steps are Q releases).
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..problems.regularisers import Zero
from ..settings import FRACTION, Setting
from ..work import LocalWork, Report
from .messages import Upload
from .server_prox import ServerProx


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; the x0 (..., d)
    before this one; and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    previous: Array
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
    """FedAvg's mathematics, shared with FedProx, whose local steps have a proximal term in addition."""

    averages_models: ClassVar[bool] = True

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start."""
        return Server(start, start, start, start, key)

    def check_average(self) -> None:
        """Require that h, if there is one, is handled in the local steps, and that messages are dense."""
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


@dataclass(frozen=True)
class FedAvg(PlainAveraging):
    """FedAvg with the settings of `server_prox.ServerProx`, and server_momentum, the beta above. With step_decay =
    alpha, round t has the step size step_size / t^alpha."""

    name: ClassVar[str] = "fedavg"
    title: ClassVar[str] = "FedAvg, DP-FedAvg: local SGD and averaging"

    server_momentum: Annotated[
        float, Setting("part of its last movement that the server adds to the mean; 0: no momentum", FRACTION)
    ] = field(default=0.0, kw_only=True)

    def step_to(self, mean: Array, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """The server's state after the momentum has been added to the mean (..., d) of the points."""
        if self.server_momentum:
            mean = mean + self.server_momentum * (server.x0 - server.previous)
        return super().step_to(mean, server._replace(previous=server.x0), uploads, clients, round_)  # type: ignore[no-any-return]

    def check_average(self) -> None:
        """In addition, require that there is no momentum."""
        super().check_average()
        if self.server_momentum:
            raise SettingError(
                "a server that only averages keeps no momentum: set server-momentum to 0; got "
                f"{self.server_momentum:g}"
            )
