"""The local loop that FedPDM and its benchmarks share: FedAvg, FedProx, SCAFFOLD and FedDyn differ only in `shift` and
`mu`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..batches import Batches
from ..objectives import Objective
from ..work import Noise, Report, no_noise

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
    x = start
    steps = batches.steps
    running, fired = np.ones(steps.shape, dtype=bool), np.zeros(steps.shape, dtype=bool)
    taken = np.zeros_like(steps)
    alike = not tolerance and steps.min() == steps.max()  # all clients take the same number of steps
    constant = shift - mu * anchor if mu else shift
    moves = np.ndim(constant) > 0 or constant != 0
    for step, rows in enumerate(batches):
        slope = noise(objective.grad(x, rows), step)
        if moves:
            slope += constant                               # in place: memory bandwidth limits large cohorts
        if mu:
            slope += mu * x
        if subgradient:
            slope += subgradient(x)
        if not alike:
            running = running & (step < steps)
            slope = np.where(running[..., None], slope, 0.0)
            taken = taken + running
            fired = fired | (running & ((slope * slope).sum(-1) <= tolerance)) if tolerance else fired
            running = running & ~fired
        slope *= step_size
        x = np.subtract(x, slope, out=slope)
        if not alike and not running.any():
            break
    return LocalEnd(x, Report(steps if alike else taken, fired))


def decayed(step_size: float, decay: float, round_: int) -> float:
    """The step size of a round, step_size / round_^decay; decay 1/2 gives the papers' eta / sqrt(1 + t)."""
    return step_size / round_**decay


def reach(step_size: float, mu: float, steps: Index) -> Array:
    """The distance covered by Q steps along a constant unit gradient: eta sum_{j<Q} (1 - eta mu)^j, for steps (...,).

    It is Q eta for mu = 0. For mu > 0 it tends to 1/mu, the prox step of FedPDM and FedDyn.
    """
    counts = np.asarray(steps, dtype=np.float64)
    return counts * step_size if not mu else (1.0 - (1.0 - step_size * mu) ** counts) / mu
