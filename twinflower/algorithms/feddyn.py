"""FedDyn (Acar et al., ICLR 2021, Algorithm 1), with a server prox for h.

    x <- x - eta (grad f_i(x; batch) - dual_i + alpha (x - x0)),  Q times from x0
    dual_i <- dual_i - alpha (x - x0)
    server: drift <- drift - (alpha/N) sum_{sampled} (x_i - x0),   x0 <- prox_h(mean x_i - drift/alpha, 1/alpha)

client keeps     dual (..., d) before and after its last reply, and that reply's round (`echo`)
       receives  x0 (..., d), and the last of its rounds that the server counted
       sends     x (..., d)
server keeps     x0 (..., d), drift (..., d), and the last counted round of each client
A client that misses a round keeps its dual. If its reply was lost, the echo makes it discard that dual step. So
drift = (1/N) sum_i dual_i always holds (the paper calls it h and has gradients where we have duals). If x is
sparsified, duals and drift change only in the entries that were sent.

The prox step is 1/alpha: with all clients taking part this is FedPDM with rho = alpha, whose y_i = x_i - dual_i/alpha
has the mean above. Its fixed point is the optimum: all x_i = x0, dual_i = grad f_i(x0), -drift in dh(x0). With rows as
weights drift = sum_i (N_i/N) dual_i, and the optimum is that of sum_i (N_i/N) f_i + h.

Privacy. "public-state" computes the dual from the noisy x that is sent; "gradient" adds noise to every gradient.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..settings import Setting, above
from ..work import LocalWork, Report
from .echo import EchoedProx, Unacknowledged, acknowledge, confirmed, nobody_heard, unacknowledged
from .local import check_pull
from .messages import Upload, mean_of_senders


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; drift (..., d);
    heard (..., N), the last counted round of each client; and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    drift: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class FedDyn(EchoedProx):
    """FedDyn with FedAvg's settings, and alpha > 0, the weight of the dynamic regulariser, with alpha * step_size < 2.
    """

    name: ClassVar[str] = "feddyn"
    title: ClassVar[str] = "FedDyn: duals at the clients, their mean at the server"

    alpha: Annotated[float, Setting("weight of the dynamic regulariser", above(0))] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pull("alpha", self.alpha, self.step_size)

    @property
    def pull(self) -> float:
        """alpha, the weight of the proximal term."""
        return self.alpha

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start and drift = 0."""
        return Server(start, start, start, np.zeros_like(start), nobody_heard(start, num_clients), key)

    def client_update(
        self, state: Unacknowledged, inbox: Any, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Take the local steps, then update the dual in the entries that are sent."""
        dual = confirmed(state, inbox.heard)
        x, report = self.descend(work, inbox.x0, -dual)
        upload = self.message(x, inbox, report)
        return unacknowledged(dual, dual + self._change(upload, inbox.x0), work.round), upload, report

    def local_start_and_shift(self, state: Unacknowledged, inbox: Any) -> tuple[Array, Array]:
        """The local loop starts at x0 with shift -dual."""
        return inbox.x0, -confirmed(state, inbox.heard)

    def _change(self, upload: Upload, x0: Array) -> Array:
        """The change of the dual, -alpha (x - x0) (..., d), computed from a message and the x0 it replies to; 0 for
        entries that were not sent."""
        x, sent = self.received(upload, x0.shape[-1])
        change = -self.alpha * (x - x0)
        return change if sent is None else np.where(sent, change, 0.0)

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Update the drift from the messages, then x0 is the prox of mean - drift/alpha with step 1/alpha."""
        x0, n = self.thinned(server.x0)[0], server.heard.shape[-1]
        x, sent = self.received(uploads, x0.shape[-1])
        shares = self.info.shares(clients)
        points = self.exact_mean(server, x, sent, shares)
        way = points - x0 if sent is None else _mean_way(x, sent, x0, shares)
        change = self.alpha * self.weight(clients, n) * way
        drift = server.drift - change.astype(x.dtype, copy=False)
        arrived = sent is None or sent.any(-2)
        mean = np.where(arrived, points - drift / self.alpha, points).astype(x.dtype, copy=False)
        heard = acknowledge(server.heard, clients, round_)
        x0 = self.proximal(mean, 1.0 / self.alpha)
        return self.averaged(server._replace(x0=x0, mean=mean, drift=drift, heard=heard), round_)


def _mean_way(x: Array, sent: Mask, x0: Array, shares: Array | None) -> Array:
    """The mean (..., d) of x_i - x0 over all clients (..., K) of a round, which is 0 in entries that were not sent."""
    return mean_of_senders(np.where(sent, x - x0[..., None, :], 0.0), None, shares=shares)
