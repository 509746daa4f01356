"""ISRL-DP: mini-batch SGD with noisy mean gradients (Lowy and Razaviyayn, ICLR 2023, Algorithm 1).

    g_i = mean gradient of one batch at x0 + noise        inter-silo record-level DP: the server sees only noisy values
    server: x0 <- Pi( x0 - eta mean g_i ),   output the last x0 or a weighted mean of them

client keeps     nothing
       receives  x0 (..., d)
       sends     g (..., d)
server keeps     x0 (..., d) and the mean of its points so far, average (..., d)
A client that does not reply is left out of the mean.

Pi is prox_h with step eta ("server-prox"), so a box or a ball gives the paper's projection; with
"local-subgradient" the server adds a subgradient of h to the mean gradient. Without noise and with full batches this
is proximal gradient descent, and FedAvg with one local step is the same method. Only the first batch of a round is
used, regardless of local.max-steps. With sparsified messages, entries that nobody sent keep their values.

Privacy. "gradient" adds noise to the mean gradient, which is the only release of a round.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

from ..arrays import Array, Index, Seeds
from ..privacy.release import Release, gradient_release
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..settings import Setting, one_of
from ..work import LocalWork, Report
from .messages import Upload, mean_of_senders
from .server_prox import ServerProx


class Server(NamedTuple):
    """x0 (..., d), the current output average (..., d), and the key (...,) of the run's public random numbers."""

    x0: Array
    average: Array
    key: Seeds


@dataclass(frozen=True)
class ISRLDP(ServerProx):
    """ISRL-DP with FedAvg's settings and two more values of final_model: "average" weights all rounds equally;
    "weighted" gives round t the weight t, for strongly convex losses and steps ~ 1/t.

    The paper averages the points where gradients are taken; here the points after the steps are averaged.
    """

    name: ClassVar[str] = "isrl-dp"
    title: ClassVar[str] = "ISRL-DP: one (noisy) mean gradient per client and round"
    takes_local_steps: ClassVar[bool] = False
    modes: ClassVar[tuple[str, ...]] = ("none", "gradient")

    final_model: Annotated[
        str, Setting("model to evaluate and deploy: the last, the mean of all (weighted: by t) or of the last part",
                     one_of(("last", "average", "weighted", "tail-mean")))
    ] = field(default="last", kw_only=True)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Any:
        """Start with x0 = start."""
        return Server(start, start, key)

    def client_update(
        self, state: Any, inbox: Any, work: LocalWork
    ) -> tuple[Any, Upload, Report]:
        """Send the (noisy) mean gradient of the first batch at x0."""
        g = work.noise(work.gradient(inbox.x0))
        once = work.one_step()
        return state, self.message(g, inbox, once), once

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One noisy gradient, regardless of local.max-steps."""
        return gradient_release(bounds, workload._replace(steps=1))

    def check_sum(self, steps: int) -> None:
        """Check the settings for a single gradient, regardless of local.max-steps."""
        super().check_sum(1)

    def server_update(self, server: Any, uploads: Upload, clients: Index, round_: int) -> Any:
        """Take one step along the mean of the gradients."""
        g, sent = self.received(uploads, server.x0.shape[-1])
        return self.stepped(server, mean_of_senders(g, sent, shares=self.info.shares(clients)), round_)

    def stepped(self, server: Any, g: Array, round_: int) -> Any:
        """The server's state after a step along g (..., d), with the prox or a subgradient of h, and the average."""
        x0, eta = server.x0, self.step(round_)
        g = g.astype(x0.dtype, copy=False)
        if self.subgradient:
            g = g + self.subgradient(x0)
        return self.averaged(server._replace(x0=self.proximal(x0 - eta * g, eta)), round_)

    def _share(self, round_: int) -> float:
        """The weight of x0 of this round in the average: 1/t for "average", 2/(t + 1) for "weighted"."""
        shares = {"average": 1 / round_, "weighted": 2 / (round_ + 1)}
        return shares[self.final_model] if self.final_model in shares else super()._share(round_)
