"""FedPDM: federated primal-dual method (000: FedPDM-DP, Algorithm 1; 003: DP-FedPDM, Algorithm 1).

    minimise  (1/N) sum_i f_i(x) + h(x),     f_i smooth, possibly non-convex, h with an easy prox
    L_i(x, x0, dual) = f_i(x) + <dual, x0 - x> + rho/2 ||x0 - x||^2

client keeps     dual (..., d), and its last x (..., d) for a warm start
       receives  x0 (..., d)
       sends     y (..., d)
server keeps     x0 (..., d), and with aggregation = "memory" every client's last y (..., N, d)
A client that is not sampled keeps its dual as it is. One whose reply is lost has moved its dual with the
round it computed; nothing ties the duals of different clients together, and its next reply carries it.
The paper starts with all clients, S_0 = [N]; here the first round samples like the others.

Privacy. The paper adds noise to y and keeps a dual that has none: over the rounds Theorem 1's sensitivity
is then false. "public-state" adds the noise to x, so that dual and y are functions of what is public;
"gradient" adds it to every local gradient; "as-published" is the paper's way, for its figures.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Mask, Seeds
from ..batches import Batches
from ..errors import require
from ..objectives import Objective
from ..privacy.release import (
    SENSITIVITIES,
    Bounds,
    Noise,
    Pace,
    Release,
    gradient_release,
    no_noise,
    published_sensitivity,
)
from ..regularisers import ZERO, Regulariser
from ..sparsifiers import VALUE_BITS
from ..wire import checked, expect_arrays
from .averaging import Memory, empty_memory, mean_of_memory, mean_of_senders, remember
from .local import decayed, local_steps
from .page import Arrays, Report, to_nodes


class State(NamedTuple):
    """A client's dual (..., d); x (..., d) for a warm start, else (..., 0)."""

    dual: Array
    x: Array


class Inbox(NamedTuple):
    """x0 (..., d)."""

    x0: Array


class Upload(NamedTuple):
    """y (..., d)."""

    y: Array


class Server(NamedTuple):
    """x0 (..., d), the mean (..., d) it is the prox of, what `memory` needs, and the key (...,) of the run's
    public coins."""

    x0: Array
    mean: Array
    memory: Memory
    key: Seeds


@dataclass(frozen=True)
class FedPDM:
    """FedPDM with its settings.

    rho > 0: augmented-Lagrangian penalty. step_size, step_decay: the step of round t is
    step_size / t^step_decay, and rho * step_size < 2 or the local loop diverges. stopping_tolerance: nu
    of (11), 0 = off. aggregation: "sampled" averages this round's y as printed and stalls when not all
    clients take part; "memory" averages every client's last y and converges. local_start: "server" starts
    at x0 (003 line 6), "warm" at the client's last x. unstable_steps: "allow" lets rho * step_size >= 2
    through, to show what the printed setting does. privacy: "none", "public-state", "gradient" or
    "as-published". sensitivity: "coupled" or "norm", the bound behind public-state noise.
    """

    name: ClassVar[str] = "fedpdm"
    title: ClassVar[str] = "FedPDM (000, 003): primal-dual, non-smooth h on the server"
    dense: ClassVar[bool] = True  # whether a message holds every entry

    regulariser: Regulariser = ZERO
    rho: float = 0.1
    step_size: float = 0.5
    step_decay: float = 0.0
    stopping_tolerance: float = 0.0
    aggregation: str = "sampled"
    local_start: str = "server"
    unstable_steps: str = "refuse"
    privacy: str = "none"
    sensitivity: str = "coupled"

    def __post_init__(self) -> None:
        check_steps(self.step_size, self.step_decay)
        require(0 < self.rho < np.inf, f"rho must be finite and above 0; got {self.rho}")
        require(
            self.rho * self.step_size < 2 or self.unstable_steps == "allow",
            f"rho * step-size must be below 2, or local steps diverge; got {self.rho} * {self.step_size} = "
            f"{self.rho * self.step_size:g}: use a step-size below {2 / self.rho:g}",
        )
        require(
            0 <= self.stopping_tolerance < np.inf,
            f"stopping-tolerance must be finite and at least 0 (0 = off); got {self.stopping_tolerance}",
        )
        check_choice("aggregation", self.aggregation, ("sampled", "memory"))
        check_choice("local-start", self.local_start, ("server", "warm"))
        check_choice("unstable-steps", self.unstable_steps, ("refuse", "allow"))
        check_choice("privacy", self.privacy, ("none", "public-state", "gradient", "as-published"))
        check_choice("sensitivity", self.sensitivity, tuple(SENSITIVITIES))
        require(
            self.privacy != "public-state" or not self.stopping_tolerance,
            "stopping-tolerance must be 0 with privacy public-state: a number of steps chosen by the data "
            f"would leak; got {self.stopping_tolerance}: use privacy gradient for the rule",
        )

    def init_client(self, start: Array) -> State:
        """dual = 0; the first warm start is the public start."""
        return State(np.zeros_like(start), start if self.local_start == "warm" else start[..., :0])

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """x0 = start; nothing heard yet."""
        return Server(start, start, empty_memory(start, num_clients, self.aggregation == "memory", self.dense), key)

    def broadcast(self, server: Server, round_: int, node: Index) -> Any:
        """x0 to everybody."""
        return Inbox(to_nodes(server.x0, node))

    def client_update(
        self, state: State, inbox: Any, objective: Objective, batches: Batches, noise: Noise, round_: int
    ) -> tuple[State, Any, Report]:
        """Local steps on L_i, then the dual step; sends y. `privacy` says where noise enters."""
        x0, dual = inbox.x0, state.dual
        warm = self.local_start == "warm"
        eta = decayed(self.step_size, self.step_decay, round_)
        x, report = local_steps(
            objective, state.x if warm else x0, x0, self.rho, -dual, eta, batches, self.stopping_tolerance,
            noise if self.privacy == "gradient" else no_noise,
        )                                                                       # (10a), (11)
        if self.privacy == "public-state":
            x = noise(x)  # The paper: noise on y only; see the module's docstring
        dual = dual + self.rho * (x0 - x)                                       # (10c)
        y = x - dual / self.rho                                                 # (10d)
        shrink = self._share_of_noise(eta, report, batches)
        return State(dual, x if warm else state.x), self._message(y, inbox, noise, shrink), report

    def _message(self, y: Array, inbox: Any, noise: Noise, shrink: Array | float) -> Any:
        """y, with the paper's noise on it if that is the mode."""
        return Upload(noise(y, shrink=shrink) if self.privacy == "as-published" else y)     # (12)

    def release(self, bounds: Bounds, pace: Pace, round_: int) -> Release:
        """The noisy primal, all noisy gradients, or the published y with the sensitivity of Theorem 1."""
        eta = decayed(self.step_size, self.step_decay, round_)
        if self.privacy == "gradient":
            return gradient_release(bounds, pace)
        if self.privacy == "as-published":
            return Release(published_sensitivity(bounds, eta, self.rho, pace.steps))
        return Release(SENSITIVITIES[self.sensitivity](bounds, eta, self.rho, pace))

    def _share_of_noise(self, eta: float, report: Report, batches: Batches) -> Array | float:
        """Theorem 1 scales the noise by the steps really taken, which leaks when the rule chooses them."""
        if not self.stopping_tolerance:
            return 1.0
        decay = abs(1 - eta * self.rho)
        sums = np.cumsum(decay ** np.arange(batches.steps.max()))
        return sums[report.steps - 1] / sums[batches.steps - 1]

    def server_update(self, server: Server, uploads: Any, clients: Index, round_: int) -> Server:
        """Average and prox with step 1/rho: for h = gamma ||.||_1 a soft threshold at gamma/rho.

        (000 calls it prox_{rho h} and defines it as this; 003's (15) is the case gamma = 1.)
        """
        return self._prox_of_mean(server, uploads.y, None, clients, server.mean)

    def _prox_of_mean(
        self, server: Server, y: Array, sent: Mask | None, clients: Index, unheard: Array
    ) -> Server:
        if self.aggregation == "memory":
            memory = remember(server.memory, y, sent, clients)
            mean = mean_of_memory(memory, unheard)
        else:
            memory, mean = server.memory, mean_of_senders(y, sent, unheard)
        x0 = self.regulariser.prox(mean, 1.0 / self.rho)                        # (13)
        return server._replace(x0=x0, mean=mean, memory=memory)

    def model(self, server: Server) -> Array:
        """x0, already the result of the prox."""
        return server.x0

    def pack_inbox(self, inbox: Any) -> Arrays:
        """[x0]"""
        return [inbox.x0]

    def unpack_inbox(self, arrays: Arrays, d: int) -> Any:
        """x0 (d,)."""
        expect_arrays(arrays, 1)
        return Inbox(checked("x0", arrays[0], (d,)))

    def pack_upload(self, upload: Any, d: int) -> Arrays:
        """[y]"""
        return [upload.y]

    def unpack_upload(self, arrays: Arrays, inbox: Any) -> Any:
        """y (d,)."""
        expect_arrays(arrays, 1)
        return Upload(checked("y", arrays[0], inbox.x0.shape))

    def state_shapes(self, d: int) -> State:
        """dual (d,), x (d,) or (0,)."""
        return State((d,), (d if self.local_start == "warm" else 0,))  # type: ignore[arg-type]

    def bits(self, d: int) -> tuple[int, int]:
        """d numbers each way."""
        return d * VALUE_BITS, d * VALUE_BITS

    def paper_bits(self, d: int) -> int:
        """32 d."""
        return 32 * d


def check_steps(step_size: float, step_decay: float) -> None:
    """SettingError unless the step schedule is a positive, non-increasing one."""
    require(0 < step_size < np.inf, f"step-size must be above 0; got {step_size}")
    require(0 <= step_decay <= 1, f"step-decay must be in [0, 1]; got {step_decay}")


def check_choice(key: str, value: str, known: tuple[str, ...]) -> None:
    """SettingError unless the value is one of the known words."""
    require(value in known, f"{key} must be one of {', '.join(known)}; got '{value}'")
