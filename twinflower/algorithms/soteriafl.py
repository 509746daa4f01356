"""SoteriaFL-SGD (Li, Zhao, Li and Chi, NeurIPS 2022): private gradients, compressed as differences from a shift.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, possibly non-convex (the paper: h = 0)

    g_i = grad f_i(x; batch) + noise                                     (1)
    v_i = C(g_i - s_i)                                                   (2)
    s_i <- s_i + gamma v_i                                               (3)
    server: x <- prox_h(x - eta (s + mean v_i), eta)                     (4)
            s <- s + gamma (1/N) sum_{sampled} v_i                       (5)

client keeps     s_i (..., d) before and after its last reply, and that reply's round (`echo`)
       receives  x (..., d), the last of its rounds that the server counted, and the seed of its entries
       sends     the k entries of g_i - s_i that C keeps (..., k)
server keeps     x (..., d), s (..., d) = (1/N) sum_i s_i, and the last counted round of each client
A client that misses a round keeps its s_i. If its reply was lost, the echo makes it discard that step of s_i. With rows
as weights s = sum_i (N_i/N) s_i, and the mean in (4) is weighted, too.

The paper's text was not at hand. The recursion is that of the authors' program, without h and with all clients in every
round; the equation numbers are ours.

C. With "rand-k" both sides draw the same k of d entries from a public seed, and multiply them by d/k, so that C is
unbiased with variance omega = d/k - 1. With "top-k" the largest entries are sent as they are: C is biased, and with all
clients and shift_step = 1 this is EF21 (Richtarik, Sokolov and Fatkhullin, NeurIPS 2021). The setting shift_step =
gamma (1 + omega) is the share of the difference by which s_i moves in an entry that is sent. The authors' gamma =
sqrt((1 + 2 omega) / (2 (1 + omega)^3)) is a share of .71 (omega = 0) to 1. With shift_step = 0 all s_i stay 0: this is
the compressed private SGD that the paper compares with.

Fixed point. s_i = grad f_i(x), v_i = 0, x = prox_h(x - eta grad F(x), eta): the optimum, however coarse C is and
however much clients differ. With whole messages of all clients s + mean v_i = mean g_i for any shift_step: this is
ISRL-DP, and FedAvg with one local step. With sampled clients it is not: the shifts stand for those that are absent.

Privacy. "gradient" adds noise to g_i, before C: what C keeps and s_i are functions of noisy values and public seeds.
The paper also has SAGA and SVRG estimators. With full batches both are the gradient itself, that is, this class. With
smaller ones a record affects more of a round (SVRG: the gradient at the snapshot, too), which only amplification by
secret batches makes up for; none is claimed here. SAGA's table of past gradients is a client's state without noise.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import require
from ..settings import Setting, between, one_of
from ..sparsifiers import SPARSIFIERS, kept_entries
from ..work import LocalWork, Report
from .echo import (
    EchoedProx,
    Unacknowledged,
    acknowledge,
    confirmed,
    nobody_heard,
    unacknowledged,
)
from .isrl_dp import ISRLDP
from .messages import Upload, mean_of_senders


class Server(NamedTuple):
    """x0 and the mean shift s (..., d); average (..., d) for `final_model`; heard (..., N), the last counted round of
    each client; and the key (...,) of the run's public random numbers."""

    x0: Array
    shift: Array
    average: Array
    heard: Index
    key: Seeds


@dataclass(frozen=True)
class SoteriaFL(EchoedProx, ISRLDP):
    """SoteriaFL with ISRL-DP's settings (`missing` has no effect), shift_step as above, and uplink "rand-k"."""

    name: ClassVar[str] = "soteriafl"
    title: ClassVar[str] = "SoteriaFL: (noisy) gradients, sent as compressed differences from a shift"

    uplink: Annotated[str, Setting("which entries of its message a client sends", one_of(SPARSIFIERS))] = field(
        default="rand-k", kw_only=True
    )
    shift_step: Annotated[
        float, Setting("share of the difference by which an entry that is sent moves its shift", between(0, 1))
    ] = field(default=1.0, kw_only=True)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start and s = 0."""
        return Server(start, np.zeros_like(start), start, nobody_heard(start, num_clients), key)

    def client_update(
        self, state: Unacknowledged, inbox: Any, work: LocalWork
    ) -> tuple[Unacknowledged, Upload, Report]:
        """Send entries of the difference between the (noisy) gradient at x0 and the shift, and move the shift."""
        shift, once = confirmed(state, inbox.heard), work.one_step()
        g = work.noise(work.gradient(inbox.x0))                                 # (1)
        upload = self.message(g - shift, inbox, once)                           # (2)
        after = shift + self.shift_step * self._difference(upload, shift)       # (3)
        return unacknowledged(shift, after, work.round), upload, once

    def _difference(self, upload: Upload, like: Array) -> Array:
        """v_i / (1 + omega) (..., d): the entries sent, and 0 elsewhere."""
        return self.received(upload, like.shape[-1])[0]

    def scale(self, d: int) -> float:
        """1 + omega, by which the entries sent are multiplied: d/k for "rand-k", 1 for "top-k"."""
        return d / kept_entries(self.uplink_ratio, d) if self.uplink == "rand-k" else 1.0

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Any:
        """Take one step along s + mean v_i, and move s."""
        shift = server.shift
        mean = mean_of_senders(self._difference(uploads, shift), None, shares=self.info.shares(clients))
        change = self.shift_step * self.weight(clients, server.heard.shape[-1]) * mean
        after = server._replace(
            shift=shift + change.astype(shift.dtype, copy=False),               # (5)
            heard=acknowledge(server.heard, clients, round_),
        )
        return self.stepped(after, shift + self.scale(shift.shape[-1]) * mean, round_)  # (4)

    def check_sum(self, steps: int) -> None:
        """Always raise SettingError: on sums, messages are whole, and the method is ISRL-DP."""
        require(
            False,
            "trust sum does not support soteriafl, because sums take whole messages of all sites, with which it is "
            "isrl-dp: set algorithm to isrl-dp",
        )
