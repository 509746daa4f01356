"""The local loop that FedPDM and its benchmarks share: FedAvg, FedProx, SCAFFOLD and FedDyn differ only in `shift` and
`mu`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..problems.batches import Batches
from ..problems.interfaces import Batch, Objective, ScaledGrads
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
