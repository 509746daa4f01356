"""The step size of a private FedAvg that nobody has tuned, from public numbers alone.

With noise but without gradients, T steps of size eta move an entry of the model by normal noise of standard deviation
eta W / (1 - beta). Here W is that of the sum, over all steps of the run, of the noise in the mean of the clients'
gradients, and beta the server momentum. It follows from the plan: from the numbers of rows, the clip norm, the rounds
and the budget.

    eta = (1 - beta) min(NOISE / W, FARTHEST / C)                                       C: the bound on a row's gradient

The step is as long as it can be while the noise leaves a model usable. This minds neither the clip norm nor the
number of rows or rounds: with less noise, steps are longer. The second term ends that where noise is no longer
what limits a step. docs/pytorch.md shows how far models are from tuned ones.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from ..arrays import Array
from ..privacy.correlated import left_in_sum
from ..privacy.plan import Plan
from .fedavg import FedAvg

NOISE = 0.5
FARTHEST = 30.0


def with_step(method: Any, plan: Plan) -> Any:
    """FedAvg with the step size for the noise of its plan."""
    lag = 1.0 if method.momentum_weight else 1.0 - method.server_momentum
    return replace(method, step_size=lag * min(NOISE / noise_in_model(method, plan), FARTHEST / plan.bounds.gradient))


def noise_in_model(method: FedAvg, plan: Plan) -> float:
    """W: the standard deviation, in an entry, of the noise of all steps in the mean of the clients."""
    noise, variance = _of_a_round(replace(method, step_size=1.0), plan), 0.0
    for _, clients, _ in plan.releases.rounds:
        shares = method.info.shares(clients)
        weights = np.ones(len(clients)) if shares is None else shares
        variance += float(np.sum((weights / weights.sum() * noise[clients]) ** 2))
    return math.sqrt(variance)


def _of_a_round(method: FedAvg, plan: Plan) -> Array:
    """That (N,) of a client's steps of one round, for step size 1; where noise is correlated, an equal part of what all
    its rounds leave."""
    part, loads = plan.participation, plan.participation.workloads
    releases = [method.release(plan.bounds, load, 1).spread for load in loads]
    steps = np.array([load.steps for load in loads])
    each = np.sqrt(steps) if plan.mode == "gradient" else 1.0
    asked = plan.releases.rounds_in
    left = [left_in_sum(part.bandwidth(i), max(1, int(asked[i]) * load.steps)) for i, load in enumerate(loads)]
    return plan.multipliers * np.array(releases) * each * np.array(left)
