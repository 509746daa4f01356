"""FedAdam, FedYogi and FedAdagrad (Reddi et al., ICLR 2021): FedAvg whose server takes an adaptive step.

    minimise  (1/N) sum_i f_i(x) + h(x)

    client i in S:  x_i <- x_i - eta_c grad f_i(x_i; batch),  Q times from x0                 (FedAvg's)
    server:         Delta <- mean_{i in S} x_i - x0
                    m <- beta_1 m + (1 - beta_1) Delta
                    v <- beta_2 v + (1 - beta_2) Delta^2                                      (adam)
                    v <- v - (1 - beta_2) Delta^2 sign(v - Delta^2)                           (yogi)
                    v <- v + Delta^2                                                          (adagrad)
                    x0 <- x0 + eta m / (sqrt(v) + tau)

client keeps     nothing
       receives  x0 (..., d)
       sends     x (..., d), and its number of local steps Q
server keeps     x0 (..., d), m (..., d), from 0, and v (..., d), from tau^2
A client that does not reply is left out of the mean; an entry that nobody sent has Delta = 0, so that only m moves it.
The paper has no correction for the zeros at which m starts, unlike Flower's FedAdam, and asks for v >= tau^2 before
round 1; the paper's own pages were not at hand.

h. The paper has none. Every entry has its own step, eta / D with D = sqrt(v) + tau. A prox with one step for all
entries would rest where m/D is in a multiple of dh(x0), at the optimum of another problem. So with "server-prox" the
prox is taken in the norm of D,

    x0 <- argmin_u s h(u) + ||u - x0 - eta m/D||_D^2 / (2 eta),     s = Q eta_c as for FedAvg,

which for a sum over entries is a prox with step eta s / D in each. It rests where Delta is in s dh(x0), for any D: at
FedAvg's fixed points, optimal for F + h with one full-batch step of all clients. Other h (ball, group-l1) have no such
prox and are refused. "local-subgradient" leaves h to the clients.

Where it ends. With h = 0 and all clients, Delta and v (not adagrad's) vanish at the optimum, and steps become eta/tau
times FedAvg's: x0 settles if Q eta_c eta/tau times the curvature is below 2 (1 + beta_1)/(1 - beta_1), and with a
smaller tau keeps moving around the optimum.

Relations. If tau is much larger than every change, D stays near the 2 tau at which it starts (adam's comes down to tau
as v forgets its start, with beta_2 = 0 at once). With eta = D it is then FedAvg if beta_1 = 0, and otherwise, without
h, FedAvg with server momentum beta_1 and 1 - beta_1 times the step.

Privacy. Clients are FedAvg's, and all that the server does is post-processing.
"""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError
from ..problems.regularisers import Separable
from ..settings import FRACTION, Setting, above, one_of
from .fedavg import Averaging
from .messages import Upload


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) of the points sent; average (..., d) for `final_model`; m (..., d) and v (..., d);
    and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    first: Array
    second: Array
    key: Seeds


@dataclass(frozen=True)
class FedAdam(Averaging):
    """FedAdam with FedAvg's settings (`missing` has no effect), and those of the server: second_moment, "adam", "yogi"
    or "adagrad"; server_step, eta; momentum, beta_1; memory, beta_2, without effect on adagrad; and adaptivity, tau."""

    name: ClassVar[str] = "fedadam"
    title: ClassVar[str] = "FedAdam, FedYogi, FedAdagrad: FedAvg with adaptive steps of the server"

    second_moment: Annotated[
        str, Setting("how the server follows the squares of the mean changes", one_of(("adam", "yogi", "adagrad")))
    ] = field(default="adam", kw_only=True)
    server_step: Annotated[float, Setting("eta: the server's step", above(0))] = field(default=0.1, kw_only=True)
    momentum: Annotated[float, Setting("beta_1: weight of earlier rounds in the mean change", FRACTION)] = field(
        default=0.9, kw_only=True
    )
    memory: Annotated[float, Setting("beta_2: weight of earlier rounds in the squares", FRACTION)] = field(
        default=0.99, kw_only=True
    )
    adaptivity: Annotated[
        float, Setting("tau: changes much smaller than this are not scaled up", above(0), "entries of the model")
    ] = field(default=1e-3, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        h = self.regulariser
        if self.composite != "local-subgradient" and not isinstance(h, Separable):
            raise SettingError(
                "composite server-prox of fedadam needs a regulariser that is a sum over entries (none, l1, l1-box, "
                f"elastic-net, box on all parameters), because each entry has its own step; got {type(h).__name__}: "
                "use composite local-subgradient, or fedavg"
            )

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start, m = 0 and v = tau^2."""
        return Server(start, start, start, np.zeros_like(start), np.full_like(start, self.adaptivity**2), key)

    def unheard(self, server: Server) -> Array:
        """The mean of an entry that nobody sent: where the clients started."""
        return self.thinned(server.x0)[0]

    def step_to(self, mean: Array, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """The server's state after an adaptive step along the mean change, and the prox of h in its norm."""
        start = self.thinned(server.x0)[0]
        change = mean - start
        first = self.momentum * server.first + (1 - self.momentum) * change
        second = self._squares(server.second, change**2)
        steps = self.server_step / (np.sqrt(second) + self.adaptivity)
        x0 = start + steps * first
        if self.composite == "server-prox" and isinstance(self.regulariser, Separable):
            s = np.asarray(self.reached(uploads, clients, round_), x0.dtype)
            x0 = self.regulariser.prox(x0, steps * s[..., None])
        return self.averaged(server._replace(x0=x0, mean=mean, first=first, second=second), round_)  # type: ignore[no-any-return]

    def _squares(self, v: Array, square: Array) -> Array:
        """v of this round, from that before and the squared mean change."""
        if self.second_moment == "adagrad":
            return v + square
        towards = square - v if self.second_moment == "adam" else square * np.sign(square - v)
        return v + (1 - self.memory) * towards
