"""Locally private composite primal-dual method with dynamic privacy allocation (Zhang 2023, Algorithm 1 in form (7)).

    minimise  (1/n) sum_i f_i(x) + g(x),     f_i smooth and strongly convex (l2 inside), g convex with an easy prox

client keeps     sent (..., d), its last message; dual Lambda (..., d); its own point x (..., d)
       receives  mean (..., d) of the messages of the round before; in the first round the public start
       sends     x - gamma ((s/n) grad f_i(x) + Lambda) + noise (..., d)
server keeps     mean (..., d) and the last messages, sent (..., N, d)
Every round needs every client, or the duals no longer sum to 0. The strategy repeats the request to a client that did
not reply, and that client sends its stored message again. If this fails, the run stops. A client finishes round t when
the mean of round t arrives with round t + 1; a closing message delivers the last mean.

The paper's box of Algorithm 1 reads x - gamma (1/n grad) + zeta + Lambda: with that sign it diverges. (6) and (7) have
everything inside gamma ( ), as here. The paper starts with x_i^1 = x_i^0. Here the prox is applied to the start as to
any other mean, x_i^1 = prox(start). The result is the same for a start at 0 with an l1 norm, a box around 0 or both;
any other start is moved to a point where g is finite. The paper's output is x_i, which differs between clients, need
not be sparse, and includes the client's own noise; the output here is the prox of the mean.

Privacy. The message, the dual and therefore x are functions of what was sent, so the noisy message of a round is its
only release. The budget of all rounds is planned before the first: round t gets the share w_t.
"""

import math
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index, Seeds
from ..errors import SettingError, require
from ..privacy.release import ALLOCATIONS, Release, Rounding, allocation, read_shares
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..problems.regularisers import ZERO, Regulariser
from ..settings import Rule, Setting, at_least, one_of
from ..work import LocalWork, Report
from .algorithm import NO_INFO, Algorithm, RunInfo, length, to_nodes
from .layout import Layout, Point
from .messages import Dense, Vector, mean_over_clients

_FORGOTTEN = 0.1  # share of the floor


class Outlook(NamedTuple):
    """The accuracy that a private run can expect, computed from public numbers alone, before the run starts.

    Each round reduces the distance to x* at least by the factor c = 1 - gamma min(mu_f, 1), and the mean of n messages
    adds noise of squared norm d sigma_t^2 / n. If f has the least possible curvature, theta_2, the error at the end is

        E ||xbar - x*||^2  <~  (d / n) sum_t c^(2 (T - t)) sigma_t^2

    (9) of the paper, telescoped, bounds all n clients together, including their duals. For long runs that bound is
    7.5 n^2 times as large for dynamic shares and 5 n^2 times as large for static ones. Directions of larger curvature
    contract faster, so the estimate tends to be too high.

    floor: the part of ||xbar - x*||^2 that is due to noise. begun: ||x* - start||^2, or a bound on it. enough: the
    number of rounds after which the start contributes only a tenth of the floor; more rounds cannot gain more than
    that.
    """

    floor: float
    begun: float
    enough: int


def look_out(sigmas: Array, log_contraction: float, d: int, n: int, begun: float) -> Outlook:
    """The forecast for releases with noise sigmas (T,) and the contraction c = exp(log_contraction) below 1."""
    ages = np.arange(len(sigmas))[::-1]
    left = np.where(ages, np.exp(np.maximum(2 * log_contraction, -1e3) * ages), 1.0)
    floor = d / n * float((left * sigmas**2).sum())
    rounds = math.log(max(begun / (_FORGOTTEN * floor), 1.0)) / (-2 * log_contraction)
    return Outlook(floor, begun, max(1, math.ceil(rounds)))


def in_words(outlook: Outlook, known: bool, rounds: int) -> list[tuple[str, str]]:
    """The forecast as rows of a table. known: whether `begun` is exact."""
    begun = f"{'' if known else 'at most '}{outlook.begun:.3g}"
    return [
        ("expected noise floor", f"||xbar - x*||^2 = {outlook.floor:.3g}, where the start has {begun}"),
        ("rounds that are enough", f"{outlook.enough}; the run has {rounds}"),
    ]


def warnings(outlook: Outlook, bounds: Bounds, step_size: float, pull: float, rounds: int) -> list[tuple[str, str]]:
    """Warnings about settings that are allowed but probably unintended. pull = s/n."""
    steepest = pull * (bounds.curvature + bounds.penalty[1])  # L_f
    largest = min(0.25, 1 / steepest)
    reasons = {
        "at this budget the result will be no better than the start: take more rows, clients or epsilon":
            outlook.floor >= outlook.begun,
        "the run ends before the start is forgotten: take more rounds, or scale = 0": rounds < outlook.enough,
        f"the theory wants a step-size of at most min(1/4, 1/L_f) = {largest:.3g}": step_size > largest,
    }
    return [("warning", text) for text, holds in reasons.items() if holds]


_STEPS = Rule("above 0 and below 4/3", lambda v: 0 < v < 4 / 3)


@dataclass(frozen=True)
class UnequalRounds(Algorithm):
    """The settings of the method, and how its rounds share the budget (section 4 of the paper).

    step_size: gamma in (0, 4/3). The theory requires at most 1/4; gamma = 1 is proximal gradient descent on all rows.
    scale: s, the factor that multiplies the losses and g; 0 means n. The paper has s = 1, which gives the same
    solution, but takes n times as many rounds.

    allocation: "dynamic" (11), geometric with the contraction of the method; "static", all rounds equal; "shares",
    geometric between the numbers of `shares`: "1, 10" gives the last round ten times the budget of the first.
    strong_convexity: theta_2 of f_i for the dynamic allocation, or 0 to use the value of the objective.
    """

    modes: ClassVar[tuple[str, ...]] = ("none", "public-state")
    works_on_sums: ClassVar[bool] = True

    regulariser: Regulariser = ZERO
    info: RunInfo = NO_INFO
    step_size: Annotated[
        float, Setting("gamma; the theory wants at most 1/4, and duals are unstable from 4/3 on", _STEPS)
    ] = 0.25
    scale: Annotated[float, Setting("s, by which losses and g are multiplied; 0: number of clients", at_least(0))] = 0.0
    privacy: str = "none"
    _: KW_ONLY
    allocation: Annotated[
        str, Setting("how rounds share the privacy budget: geometrically, evenly, or by `shares`", one_of(ALLOCATIONS))
    ] = "dynamic"
    shares: Annotated[
        str, Setting("shares of the budget for allocation shares, geometric in between: first, ..., last",
                     unit="comma-separated numbers", numbers=True)
    ] = ""
    strong_convexity: Annotated[
        float, Setting("strong convexity of every f_i for the dynamic allocation; 0: the objective's l2", at_least(0))
    ] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.allocation == "shares") != bool(self.shares):
            raise SettingError(
                f"shares belong to allocation 'shares', and it needs them; got '{self.shares}' with '{self.allocation}'"
            )
        read_shares(self.shares)

    @cached_property
    def pull(self) -> float:
        """s/n, the weight of grad f_i and of g."""
        return (self.scale or self.info.num_clients) / self.info.num_clients

    def sensitivity(self, bounds: Bounds, workload: Workload) -> float:
        """One record changes a message by at most gamma (s/n) 2 C / rows, several records by as many times that."""
        return self.step_size * self.pull * 2 * bounds.gradient * workload.replaced_in_batch / workload.rows

    def log_contraction(self, theta: float) -> float:
        """ln(1 - gamma min(mu_f, 1)) with mu_f = s theta / n, if every f_i is theta-strongly convex.

        (11) is the contraction of the squared distance to x*; `look_out` uses the same factor for the distance.
        """
        progress = self.step_size * min(self.pull * theta, 1.0)
        return math.log1p(-progress) if progress < 1 else -math.inf

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """One message, with the round's share of the budget (11).

        Raises SettingError for a round that the budget was not planned for.
        """
        rounds = self.info.rounds
        if not 1 <= round_ <= rounds:
            raise SettingError(f"the budget is shared between {rounds} rounds; round {round_} has no share")
        return Release(self.sensitivity(bounds, workload), weight=float(self.weights(bounds)[round_ - 1]))

    def weights(self, bounds: Bounds) -> Array:
        """Shares of the budget (T,) with mean 1; sigma_t ~ 1 / sqrt(w_t).

        (11) has xi_t^2 = sqrt(pi / q_t) with q_t = (1 - gamma min(mu_f, 1))^(T - t), so w_t ~ sqrt(q_t). This is
        computed with logarithms, because q_t underflows for long runs. Raises SettingError for a dynamic allocation
        without strong convexity.
        """
        theta = self._convexity(bounds)
        require(
            theta > 0 or self.allocation != "dynamic",
            "ldp-primal-dual.allocation = dynamic needs a strongly convex objective: set objective.l2 (or "
            "ldp-primal-dual.strong-convexity) above 0, or ldp-primal-dual.allocation to static",
        )
        return allocation(self.allocation, self.info.rounds, self.log_contraction(theta) / 2, self.shares)

    def _convexity(self, bounds: Bounds) -> float:
        """theta_2 of every f_i, or 0 if it is unknown."""
        return self.strong_convexity or max(bounds.penalty[0], 0.0)

    def forecast(
        self, bounds: Bounds, noise_multiplier: float, workload: Workload, start: Array, away: float | None = None
    ) -> list[tuple[str, str]]:
        """The noise floor and a sensible number of rounds. If the distance of the start from x* is unknown, ||x*|| <= C
        / theta_2 bounds it."""
        theta, rounds = self._convexity(bounds), self.info.rounds
        if not theta or not math.isfinite(bounds.curvature):
            return [("expected noise floor", "unknown: the objective is not strongly convex or not smooth")]
        sigmas = noise_multiplier * self.sensitivity(bounds, workload) / np.sqrt(self.weights(bounds))
        farthest = bounds.gradient / theta + float(np.linalg.norm(start))
        begun = farthest**2 if away is None else away
        outlook = look_out(sigmas, self.log_contraction(theta), len(start), self.info.num_clients, begun)
        words = in_words(outlook, away is not None, rounds)
        return words + warnings(outlook, bounds, self.step_size, self.pull, rounds)


class State(NamedTuple):
    """A client's last message, its dual, and its point, all (..., d)."""

    sent: Array
    dual: Array
    x: Array


class Server(NamedTuple):
    """The mean (..., d) of the last messages, and these messages, sent (..., N, d)."""

    mean: Array
    sent: Array


@dataclass(frozen=True)
class LDPPrimalDual(UnequalRounds, Dense):
    """The method; its settings are in `UnequalRounds`."""

    name: ClassVar[str] = "ldp-primal-dual"
    title: ClassVar[str] = "LDP primal-dual (Zhang 2023): composite, all clients, rounds share the budget unequally"

    weightings: ClassVar[tuple[str, ...]] = ("clients",)
    takes_local_steps: ClassVar[bool] = False
    needs_every_client: ClassVar[bool] = True
    needs_client_state: ClassVar[bool] = True
    closes: ClassVar[bool] = True

    state = Layout(State, Point("sent"), Point("dual"), Point("x"))

    def check_sum(self, steps: int) -> None:
        """Require gamma = 1: then x is the prox of the mean for every client, and the duals sum to 0 in the server's
        sum."""
        if self.privacy != "public-state":
            raise SettingError(f"trust sum needs privacy public-state; got {self.privacy}")
        if self.step_size != 1:
            raise SettingError(
                "trust sum needs step-size 1 with ldp-primal-dual: with any other, gradients are taken at points "
                f"that only the sites know; got {self.step_size:g}"
            )

    def init_client(self, start: Array) -> State:
        """Start as if the start had been sent, with Lambda = 0."""
        return State(start, np.zeros_like(start), start)

    def init_server(self, start: Array, num_clients: int, key: Seeds) -> Server:
        """Start as if every client had sent the start."""
        return Server(start, np.repeat(start[..., None, :], num_clients, axis=-2))

    def broadcast(self, server: Server, round_: int, node: Index) -> Vector:
        """Send the mean to every client."""
        return Vector(to_nodes(server.mean, node))

    def finish(self, state: State, inbox: Vector) -> State:
        """Update the dual and x once the mean of the client's last round has arrived."""
        apart = state.sent - inbox.x
        x = self._prox(state.sent - self.step_size * apart)                     # (7), third and fourth line
        return State(state.sent, state.dual + apart, x)                         # (7), second line

    def client_update(
        self, state: State, inbox: Vector, work: LocalWork
    ) -> tuple[State, Vector, Report]:
        """Finish the previous round, then take one (noisy) gradient step on the first batch."""
        _, dual, x = self.finish(state, inbox)
        slope = self.pull * work.gradient(x)
        sent = work.noise(x - self.step_size * (slope + dual))                       # (7), first line
        return State(sent, dual, x), Vector(sent), work.one_step()

    def rounding(
        self, state: State, inbox: Vector, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for x and the gradient step from it."""
        _, dual, x = self.finish(state, inbox)
        slope = self.pull * (bounds.gradient + bounds.steepest * length(x)) + length(dual)
        return Rounding(length(x) + self.step_size * slope, length(x))

    def server_update(self, server: Server, uploads: Vector, clients: Index, round_: int) -> Server:
        """Average the messages of all clients."""
        return Server(mean_over_clients(uploads.x), uploads.x)

    def model(self, server: Server) -> Array:
        """The prox of the mean (..., d)."""
        return self._prox(server.mean)

    def client_models(self, server: Server) -> Array:
        """The clients' x_i (..., N, d), computed from their messages."""
        return self._prox(server.sent - self.step_size * (server.sent - server.mean[..., None, :]))

    def _prox(self, z: Array) -> Array:
        """The prox of g. The paper's (6) has step gamma/n for s = 1; the box of Algorithm 1 agrees."""
        return self.regulariser.prox(z, self.step_size * self.pull)
