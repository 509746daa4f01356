"""The local loop that FedPDM and its benchmarks share, and their base class: its settings, noise and sensitivity.

FedAvg, FedProx, SCAFFOLD and FedDyn differ only in `shift` and `mu`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..privacy.release import (
    MOST_DRAWN,
    SENSITIVITIES,
    Release,
    Rounding,
    farthest,
    gradient_release,
    loop_rounding,
    step_factor,
)
from ..problems.batches import Batches, Workload
from ..problems.interfaces import Batch, Bounds, Objective, ScaledGrads
from ..problems.regularisers import ZERO, Regulariser
from ..settings import SHARE, Setting, above, at_least, between, check_choice, one_of
from ..work import LocalWork, Noise, Report, no_noise
from .algorithm import NO_INFO, RunInfo, length
from .messages import Messages

Subgradient = Callable[[Array], Array]


class LocalEnd(NamedTuple):
    """The end point x (..., d) of the local loop, and the report on it."""

    x: Array
    report: Report


def local_steps(
    objective: Objective,
    start: Array,
    anchor: Array,
    mu: float,
    shift: Array | float,
    step_size: float,
    batches: Batches,
    tolerance: float = 0.0,
    noise: Noise = no_noise,
    subgradient: Subgradient | None = None,
) -> LocalEnd:
    """Repeat x <- x - step_size g, g = grad f(x; batch) + shift + mu (x - anchor) (Li 2023 (10a), Li 2024 (8a)).

    The stopping rule tests the g that was just applied: a client stops after a step with ||g||^2 <= tolerance (Li 2023
    (11), Li 2024 (10)), and at the latest when its batches end. tolerance 0 disables the rule. noise(gradient, step),
    if given, is applied to every gradient before its first use. subgradient(x), if given, is added to g: this is how
    the benchmarks treat a non-smooth h.
    """
    drift = step_size * (shift - mu * anchor if mu else shift)
    move = _moves(objective, step_size, drift, noise, subgradient)
    steps = batches.steps
    if tolerance or steps.min() != steps.max():
        return _until_stopped(start, batches, move, step_size * mu, tolerance * step_size**2)
    x, keep = start.copy(), 1.0 - step_size * mu
    for step, rows in enumerate(batches):
        along = move(x, rows, step)
        if mu:
            x *= keep                                               # in place: memory bandwidth limits large cohorts
        x = np.subtract(x, along, out=along)
    return LocalEnd(x, Report(steps, np.zeros(steps.shape, dtype=bool)))


def _moves(
    objective: Objective, step_size: float, drift: Array | float, noise: Noise, subgradient: Subgradient | None
) -> Callable[[Array, Batch, int], Array]:
    """A function of x, rows and step that returns step_size (grad f(x; rows) + noise + subgradient(x)) + drift, a new
    array."""
    as_it_is = noise is no_noise and not subgradient
    drifts = np.ndim(drift) > 0 or drift != 0

    def move(x: Array, rows: Batch, step: int) -> Array:
        if as_it_is and isinstance(objective, ScaledGrads):
            along = objective.grad(x, rows, step_size)
        else:
            along = general(x, rows, step)
        if drifts:
            along += drift
        return along

    def general(x: Array, rows: Batch, step: int) -> Array:
        slope = noise(objective.grad(x, rows), step)
        if subgradient:
            slope += subgradient(x)
        slope *= step_size
        return slope

    return move


def _until_stopped(
    x: Array, batches: Batches, move: Callable[[Array, Batch, int], Array], pull: float, least: float
) -> LocalEnd:
    """Repeat x <- x - v, v = move(x) + pull x, until a client's batches end or ||v||^2 <= least, if least > 0."""
    steps = batches.steps
    running, fired = np.ones(steps.shape, dtype=bool), np.zeros(steps.shape, dtype=bool)
    taken = np.zeros_like(steps)
    for step, rows in enumerate(batches):
        along = move(x, rows, step)
        if pull:
            along += pull * x
        running = running & (step < steps)
        along = np.where(running[..., None], along, 0.0)
        taken = taken + running
        if least:
            fired = fired | (running & ((along * along).sum(-1) <= least))
        running = running & ~fired
        x = np.subtract(x, along, out=along)
        if not running.any():
            break
    return LocalEnd(x, Report(taken, fired))


def decayed(step_size: float, decay: float, round_: int) -> float:
    """The step size of a round, step_size / round_^decay; decay 1/2 gives the papers' eta / sqrt(1 + t)."""
    return step_size / round_**decay


def path_length(step_size: float, mu: float, steps: Index) -> Array:
    """The distance covered by Q steps along a constant unit gradient: eta sum_{j<Q} (1 - eta mu)^j, for steps (...,).

    It is Q eta for mu = 0. For mu > 0 it tends to 1/mu, the prox step of FedPDM and FedDyn.
    """
    counts = np.asarray(steps, dtype=np.float64)
    return counts * step_size if not mu else (1.0 - (1.0 - step_size * mu) ** counts) / mu


StepSize = Annotated[float, Setting("length of a step along the gradient in the first round", above(0))]
StepDecay = Annotated[
    float, Setting("the step of round t is step-size / t^step-decay; 0 keeps it constant", between(0, 1))
]
LocalStart = Annotated[
    str, Setting("where local steps start: the server's point, or the client's last", one_of(("server", "warm")))
]
StoppingTolerance = Annotated[
    float, Setting("a client stops once a gradient's squared norm is at most this; 0 never", at_least(0))
]
FinalModel = Annotated[
    str, Setting("model to evaluate and deploy: the last, or the mean of the last part of the rounds",
                 one_of(("last", "tail-mean")))
]


@dataclass(frozen=True)
class LocalMethod(Messages):
    """A method whose clients take local gradient steps from x0.

    info.sizes: the clients' numbers of rows N_i if F = sum_i (N_i / N) f_i (weighting = "rows"). The server then
    weights a client's message by its share among the clients that replied, as FedAvg and restarted SGD do (McMahan et
    al., 2017; Yu et al., 2019). A client's computation and its release are unaffected, so its sensitivity and noise are
    unaffected, too: sizes are public, and weighting at the server is post-processing.

    step_size, step_decay: the step of round t is step_size / t^step_decay.

    privacy: "none", "public-state" (noise is added to the end point of the local loop, and everything kept or sent is
    computed from that noisy point) or "gradient" (noise is added to every local gradient).

    sensitivity: "coupled" or "norm", the bound used for public-state noise.

    final_model: the model to evaluate and deploy. "last" is the last x0. "tail-mean" is the mean of x0 over the last
    rounds, a share `tail` in (0, 1] of all rounds (before these begin, the last x0). The mean of noisy points is less
    noisy than each of them, but lags behind while the run still moves. It is post-processing and costs no privacy.
    """

    regulariser: Regulariser = ZERO
    step_size: StepSize = 0.4
    step_decay: StepDecay = 0.0
    privacy: str = "none"
    sensitivity: str = "coupled"
    final_model: FinalModel = field(default="last", kw_only=True)
    tail: Annotated[float, Setting("last part of the rounds in a tail-mean", SHARE, "fraction of the rounds")] = field(
        default=0.5, kw_only=True
    )
    info: RunInfo = field(default=NO_INFO, kw_only=True)

    takes_local_steps: ClassVar[bool] = True
    works_on_sums: ClassVar[bool] = True
    weightings: ClassVar[tuple[str, ...]] = ("clients", "rows")
    modes: ClassVar[tuple[str, ...]] = ("none", "public-state", "gradient")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("sensitivity", self.sensitivity, tuple(SENSITIVITIES))

    @property
    def pull(self) -> float:
        """mu of the local loop, the weight of (mu/2) ||x - x0||^2."""
        return 0.0

    def step(self, round_: int) -> float:
        """The step size eta of a round."""
        return decayed(self.step_size, self.step_decay, round_)

    def local_loop(
        self,
        work: LocalWork,
        x0: Array,
        shift: Array | float,
        start: Array | None = None,
        tolerance: float = 0.0,
        subgradient: Subgradient | None = None,
    ) -> LocalEnd:
        """Run `local_steps` with anchor x0, starting at x0 if no start is given. Noise is added to every gradient
        ("gradient") or to the end point ("public-state")."""
        x, report = local_steps(
            work.objective, x0 if start is None else start, x0, self.pull, shift, self.step(work.round), work.batches,
            tolerance, work.noise if self.privacy == "gradient" else no_noise, subgradient,
        )
        return LocalEnd(work.noise(x) if self.privacy == "public-state" else x, report)

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The noisy gradients of all steps, or the noisy end point of the local loop."""
        if self.privacy == "gradient":
            return gradient_release(bounds, workload)
        return Release(SENSITIVITIES[self.sensitivity](bounds, self.step(round_), self.pull, workload))

    def local_start_and_shift(self, state: Any, inbox: Any) -> tuple[Array, Array | float]:
        """The starting point of a client's local loop (d,), and its public shift."""
        return inbox.x0, 0.0

    def rounding(
        self, state: Any, inbox: Any, bounds: Bounds, workload: Workload, round_: int, sigma: float
    ) -> Rounding:
        """The bound for the local loop, or with privacy "gradient" for each of its gradients."""
        start, shift = self.local_start_and_shift(state, inbox)
        constant, eta = length(np.asarray(shift - self.pull * inbox.x0)), self.step(round_)
        if self.privacy != "gradient":
            info = eta, self.pull, workload, self.sensitivity
            return loop_rounding(bounds, *info, length(start), constant)
        noisy = bounds.gradient + MOST_DRAWN * sigma * math.sqrt(start.size)
        kinks, curvature = self.subgradient_bounds(start.size)
        factor = step_factor(bounds, eta, self.pull, curvature)
        points = farthest(length(start), eta, factor, workload.steps - 1, noisy + constant + kinks)
        return Rounding(bounds.gradient + bounds.steepest * points, points)

    def subgradient_bounds(self, d: int) -> tuple[float, float]:
        """`Subdifferentiable.subgradient_bound` of the subgradients that are added to the local gradients."""
        return 0.0, 0.0

    def check_sum(self, steps: int) -> None:
        """Require dense messages, noise once per round, and a single local step if clients keep a dual variable.

        With one step from x0 all gradients are taken at x0, and the sum of the duals follows from the published sums.
        With several steps, a client's private dual influences the points where its later gradients are taken.
        """
        if self.uplink_ratio != 1:
            raise SettingError(
                "trust sum needs uplink-ratio 1: which entries a thinned message holds is not a sum, and differs by "
                f"site; got {self.uplink_ratio:g}"
            )
        if steps != 1 and self.state.fields:
            raise SettingError(
                "trust sum needs one local step a round where clients keep a dual variable: with several, that "
                "variable, which nobody sees, bends a client's path, and no bound is proved on what a record does to "
                f"later sums; got {steps}: set local.max-steps to 1, or choose a method whose clients keep nothing "
                "(fedavg, fedprox)"
            )
        if self.privacy != "public-state" and (self.privacy != "gradient" or steps != 1):
            raise SettingError(
                "trust sum needs privacy public-state, or gradient with one local step, so that the sites' noise "
                f"adds up; got privacy {self.privacy} with {steps} steps"
            )

    def weight(self, clients: Index, num_clients: int) -> Array | float:
        """The sum of p_i over clients (..., K), their weights in F among all num_clients clients: a number, or (..., 1)
        with rows as weights."""
        shares = self.info.shares(clients)
        if shares is None:
            return clients.shape[-1] / num_clients  # type: ignore[no-any-return]
        return shares.sum(-1, keepdims=True)  # type: ignore[no-any-return]

    def model(self, server: Any) -> Array:
        """x0 after the prox, or a mean of such points."""
        return server.x0 if self.final_model == "last" else server.average  # type: ignore[no-any-return]

    def averaged(self, server: Any, round_: int) -> Any:
        """The server's state after x0 of this round has been added to the average."""
        return server._replace(average=self.tail_mean(server.average, server.x0, round_))

    def tail_mean(self, average: Array, point: Array, round_: int) -> Array:
        """The average after the point of this round has been added; the point itself if final_model is "last"."""
        if self.final_model == "last":
            return point
        return average + self._share(round_) * (point - average)

    def _share(self, round_: int) -> float:
        """The weight with which x0 of a round enters the average."""
        rounds = self.info.rounds
        if not round_ <= rounds:
            raise SettingError(
                f"final-model tail-mean needs the run's number of rounds in info.rounds; got {rounds}"
            )
        return 1.0 / max(1, round_ - rounds + math.ceil(round(self.tail * rounds, 9)))


def check_pull(key: str, weight: float, step_size: float) -> None:
    """Raise SettingError if the proximal term (weight/2) ||x - x0||^2 makes the local steps diverge."""
    if not weight * step_size < 2:
        raise SettingError(
            f"{key} * step-size must be below 2, or local steps diverge; got {weight} * {step_size} = "
            f"{weight * step_size:g}: use a step-size below {2 / max(weight, 1e-300):g}"
        )


def check_tolerance(tolerance: float, privacy: str) -> None:
    """Raise SettingError for a stopping rule with "public-state" noise, which does not cover the number of steps."""
    if privacy == "public-state" and tolerance:
        raise SettingError(
            "stopping-tolerance must be 0 with privacy = public-state, because a number of steps that depends on "
            f"the data leaks information; got {tolerance}: use privacy = gradient for the stopping rule"
        )


def check_sum_start(local_start: str) -> None:
    """Raise SettingError for a warm start under trust = "sum"."""
    if local_start != "server":
        raise SettingError(
            "trust sum needs local-start server: a warm start takes the gradient at a point that only the site knows; "
            f"got {local_start}"
        )
