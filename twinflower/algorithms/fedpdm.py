"""FedPDM: federated primal-dual method (Li 2023: FedPDM-DP, Algorithm 1; Li 2024: DP-FedPDM, Algorithm 1), and
BSDP-FedPDM, its sparsified form (Li 2024, Algorithm 2). Numbers at the margin without a paper are those of Li 2023.

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, possibly non-convex, h with an easy prox
    L_i(x, x0, dual) = f_i(x) + <dual, x0 - x> + rho/2 ||x0 - x||^2

client keeps     dual (..., d), and its last x (..., d) for a warm start
       receives  x0 (..., d)
       sends     y (..., d)
server keeps     x0 (..., d), and with aggregation = "memory" every client's last y (..., N, d)
A client that is not sampled keeps its dual unchanged. A client whose reply is lost has already updated its dual.
This does no harm: no condition links the duals of different clients, and its next reply includes the update.
The papers sample all clients in the first round, S_0 = [N]. That is a setting of the run (first-round = "all"); by
default the first round samples like the others.

With rows as weights, F = sum_i p_i f_i, p_i = N_i / N, the augmented Lagrangian is sum_i p_i L_i + h. A client's
minimisation and dual step stay the same; the server takes the prox of sum_i p_i y_i with the same step 1/rho.

Privacy. The paper adds noise to y and keeps a dual without noise: Theorem 1's sensitivity then does not hold over
several rounds. "public-state" adds the noise to x, so that dual and y are functions of public values;
"gradient" adds it to every local gradient; "as-published" follows the paper, to reproduce its figures.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..privacy.release import Release, geometric_sum
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..settings import Setting, above, one_of
from ..work import LocalWork, Report
from .layout import Layout, Point
from .local import LocalMethod, LocalStart, StoppingTolerance, check_pull, check_sum_start, check_tolerance
from .memory import Aggregation, Memory, empty_memory, mean_of_memory, remember
from .messages import Ratio, Upload


class State(NamedTuple):
    """A client's dual (..., d), and its last x (..., d) for a warm start, otherwise (..., 0)."""

    dual: Array
    x: Array


class Server(NamedTuple):
    """x0 (..., d); the mean (..., d) before the prox that gives x0; average (..., d) for `final_model`; the memory of
    the last messages; and the key (...,) of the run's public random numbers."""

    x0: Array
    mean: Array
    average: Array
    memory: Memory
    key: Seeds


@dataclass(frozen=True)
class FedPDM(LocalMethod):
    """FedPDM.

    rho > 0: penalty of the augmented Lagrangian; with rho * step_size >= 2 the local loop diverges. stopping_tolerance:
    nu of (11), 0 = off. aggregation: "sampled" averages this round's y, as in the paper, and does not converge to the
    optimum unless all clients take part; "memory" averages every client's last y and converges. local_start: "server"
    starts at x0 (Li 2024 line 6), "warm" at the client's last x. unstable_steps: "allow" accepts rho * step_size >= 2,
    to show the effect of the published setting. privacy has an additional value, "as-published". All other settings are
    in `local.LocalMethod` and, for sparsified messages, `messages.Messages`.
    """

    name: ClassVar[str] = "fedpdm"
    title: ClassVar[str] = "FedPDM (Li 2023, Li 2024): primal-dual, non-smooth h on the server"
    modes: ClassVar[tuple[str, ...]] = ("none", "public-state", "gradient", "as-published")

    rho: Annotated[float, Setting("penalty of the augmented Lagrangian", above(0))] = 0.05
    stopping_tolerance: StoppingTolerance = 0.0
    aggregation: Aggregation = "sampled"
    local_start: LocalStart = "server"
    unstable_steps: Annotated[
        str, Setting("whether rho * step-size of 2 and more, which diverges, is allowed", one_of(("refuse", "allow")))
    ] = "refuse"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unstable_steps == "refuse":
            check_pull("rho", self.rho, self.step_size)
        check_tolerance(self.stopping_tolerance, self.privacy)

    @property
    def pull(self) -> float:
        """rho, the weight of the proximal term."""
        return self.rho

    def check_sum(self, steps: int) -> None:
        """Require in addition that every local loop starts at x0."""
        super().check_sum(steps)
        check_sum_start(self.local_start)

    @cached_property
    def state(self) -> Layout:
        """The layout of the dual, and of x for a warm start."""
        return Layout(State, Point("dual"), Point("x", per_entry=self.local_start == "warm"))

    def init_client(self, start: Array) -> State:
        """Start with dual = 0; the first warm start is the public start."""
        return State(np.zeros_like(start), start if self.local_start == "warm" else start[..., :0])

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start with x0 = start and an empty memory."""
        memory = empty_memory(start, num_clients, self.aggregation == "memory", self.uplink_ratio == 1)
        return Server(start, start, start, memory, key)

    def client_update(
        self, state: State, inbox: Any, work: LocalWork
    ) -> tuple[State, Upload, Report]:
        """Take local steps on L_i, then the dual step, and send y. `privacy` determines where noise is added."""
        x0, dual = inbox.x0, state.dual
        warm = self.local_start == "warm"
        x, report = self.local_loop(
            work, x0, -dual, state.x if warm else x0, self.stopping_tolerance
        )                                                                       # (10a), (11)
        dual = dual + self.rho * (x0 - x)                                       # (10c)
        y = x - dual / self.rho                                                 # (10d)
        upload = self.message(y, inbox, report)
        if self.privacy == "as-published":  # after sparsification: Li 2024 (18), (19)
            rate = self.rho * self.step(work.round)
            shrink = share_of_noise(rate, report.steps, work.batches.steps) if self.stopping_tolerance else 1.0
            upload = upload._replace(y=work.noise(upload.y, shrink=shrink))     # (12)
        return State(dual, x if warm else state.x), upload, report

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy x, the noisy gradients of all steps, or the published y with the sensitivity of Theorem 1."""
        if self.privacy == "as-published":
            return Release(published_sensitivity(bounds, self.step(round_), self.rho, workload.steps))
        return super().release(bounds, workload, round_)

    def local_start_and_shift(self, state: State, inbox: Any) -> tuple[Array, Array]:
        """The local loop starts at x0, or at the last x for a warm start, with shift -dual."""
        return state.x if self.local_start == "warm" else inbox.x0, -state.dual

    def server_update(self, server: Server, uploads: Upload, clients: Index, round_: int) -> Server:
        """Average y and apply the prox with step 1/rho: for h = gamma ||.||_1 a soft threshold at gamma/rho.

        (Li 2023 calls it prox_{rho h} and defines it in this way; Li 2024's (15) is the case gamma = 1.)
        """
        y, sent = self.received(uploads, server.x0.shape[-1])
        memory, mean = self._average(server, y, sent, clients)
        x0 = self.regulariser.prox(mean, 1.0 / self.rho)                        # (13)
        return self.averaged(server._replace(x0=x0, mean=mean, memory=memory), round_)

    def _average(self, server: Server, y: Array, sent: Mask | None, clients: Index) -> tuple[Memory, Array]:
        if self.aggregation == "sampled":
            return server.memory, self.mean(server, y, sent, self.info.shares(clients))
        memory = remember(server.memory, y, sent, clients)
        return memory, mean_of_memory(memory, self.unheard(server), self.info)


@dataclass(frozen=True, kw_only=True)
class BSDPFedPDM(FedPDM):
    """BSDP-FedPDM: FedPDM with bidirectional sparsification (Li 2024, Algorithm 2).

    A client's round and the settings are FedPDM's; only the messages are sparsified (`messages.Messages`): a client
    receives the top-k' of x0, zero-padded, and sends k = round(uplink_ratio d) entries of y, top-k or rand-k, by
    default half of them. uplink_ratio = downlink_ratio = 1 is DP-FedPDM.
    """

    name: ClassVar[str] = "bsdp-fedpdm"
    title: ClassVar[str] = "BSDP-FedPDM (Li 2024): FedPDM with top-k or rand-k up and top-k down"

    uplink_ratio: Ratio = 0.5


def published_sensitivity(bounds: Bounds, step_size: float, rho: float, steps: int) -> float:
    """s = 4 eta G sum_{j<Q} |1 - eta rho|^j: Theorem 1 of Li 2023 and Li 2024, true for one round only."""
    return 4 * bounds.gradient * step_size * geometric_sum(abs(1 - step_size * rho), steps)


def share_of_noise(rate: float, taken: Index, planned: Index) -> Array:
    """The factor (...,) by which Theorem 1 scales the noise of a client that stopped after `taken` of its `planned`
    steps, rate = rho * eta.

    The stopping rule chooses `taken` from the data, so the factor itself leaks information.
    """
    sums = np.cumsum(abs(1 - rate) ** np.arange(planned.max()))
    return sums[taken - 1] / sums[planned - 1]  # type: ignore[no-any-return]
