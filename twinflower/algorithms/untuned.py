"""The step size of a private FedAvg that nobody has tuned, from public numbers alone.

With noise but without gradients, a run with step size eta moves an entry of the model by normal noise of standard
deviation W(eta) / (1 - beta). Here W is that of the sum of what the noise of all rounds moves the mean of the clients'
points, and beta the server momentum. It follows from the plan: from the numbers of rows, the clip norm, the rounds and
the budget.

    eta = the largest with  W(eta) <= (1 - beta) NOISE  and  eta <= (1 - beta) FARTHEST / C

C is the bound on a row's gradient. The step is as long as it can be while the noise leaves a model usable. This minds
neither the clip norm nor the number of rows or rounds: with less noise, steps are longer. The second condition ends
that where noise is no longer what limits a step. docs/pytorch.md shows how far models are from tuned ones.

W is proportional to eta if every gradient is noisy, or if a round has one step. The end point of several steps has more
noise than that if a step is too long for the curvature, and W is a bound if steps decay. Means with memory and sparse
messages count as if they were neither.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from .. import special
from ..arrays import Array
from ..errors import require
from ..privacy.correlated import left_in_sum
from ..privacy.plan import Plan
from ..problems.batches import Workload
from ..settings import LARGEST, SMALLEST
from .fedavg import FedAvg

NOISE = 0.5
FARTHEST = 30.0


def with_step(method: Any, plan: Plan) -> Any:
    """FedAvg with the step size for the noise of its plan; SettingError if no step is short enough."""

    def stepping(logarithm: float) -> Any:
        return replace(method, step_size=math.exp(logarithm))

    def excess(logarithm: float) -> float:
        return math.log(min(noise_in_model(stepping(logarithm), plan), LARGEST) / NOISE)

    shortest, longest = math.log(2 * SMALLEST), math.log(_lag(method) * FARTHEST / plan.bounds.gradient)
    require(
        longest > shortest and excess(shortest) < 0,
        "fedavg.step-size = 0 finds no step that is short enough for the noise: set privacy.epsilon higher, or "
        "privacy.noise-multiplier or objective.clip-norm lower",
    )
    return stepping(longest if excess(longest) <= 0 else special.root(excess, shortest, longest, 1e-12))


def _lag(method: FedAvg) -> float:
    """1 - beta if momentum multiplies in the end what a step does, 1 if it is a mean of changes."""
    return 1.0 if method.momentum_weight else 1.0 - method.server_momentum


def noise_in_model(method: FedAvg, plan: Plan) -> float:
    """W / (1 - beta): the standard deviation of the noise in an entry of the model, for the method's step size."""
    noise, variance = _of_first_round(method, plan), 0.0
    for round_, clients, _ in plan.releases.rounds:
        shares = method.info.shares(clients)
        weights = np.ones(len(clients)) if shares is None else shares
        part = method.step(round_) / method.step_size * weights / weights.sum()
        variance += float(np.sum((part * noise[clients]) ** 2))
    return math.sqrt(variance) / _lag(method)


def _of_first_round(method: FedAvg, plan: Plan) -> Array:
    """That (N,) of a client's steps of the first round; where noise is correlated, an equal part of what all its rounds
    leave."""
    loads = plan.participation.workloads
    known = {load: _of_steps(method, plan, load) for load in set(loads)}
    return plan.multipliers * np.array([known[load] for load in loads]) * _left(plan)  # type: ignore[no-any-return]


def _of_steps(method: FedAvg, plan: Plan, load: Workload) -> float:
    """The same of a client with this workload and multiplier 1, if noise is independent."""
    each = method.step_size * math.sqrt(load.steps) if plan.mode == "gradient" else 1.0
    return method.release(plan.bounds, load, 1).spread * each


def _left(plan: Plan) -> Array | float:
    """What is left (N,) of the noise of all rounds of a client in their sum, beside independent noise."""
    part = plan.participation
    if part.bandwidths is None:
        return 1.0
    steps = zip(part.bandwidths.tolist(), plan.releases.rounds_in.tolist(), part.workloads, strict=True)
    return np.array([left_in_sum(p, max(1, int(rounds) * load.steps)) for p, rounds, load in steps])
