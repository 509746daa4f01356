"""What a client releases in a round, and how far one record can move it.

Neighbouring data sets differ by the replacement of one record. A local loop starts at a public point,
with a public shift, and takes public numbers of steps and rows:

    x <- x - eta ( grad f(x; batch) + shift + mu (x - anchor) ),      Q times

Its end x^Q is the one place where private data enter, so its sensitivity is the sensitivity of the round.
The noise that goes with it is a `work.Noise`: algorithms call it on the value they release, and on nothing else.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from ..batches import Workload
from ..objectives import Bounds


class Release(NamedTuple):
    """What a round lets out: Gaussian releases of this sensitivity (Euclidean norm), of which one record can
    touch at most `touched`. A record sits in one batch per epoch, so other steps do not feel it.

    weight > 0 is the round's share of the budget in units of a plain round's: its sigma is
    noise_multiplier * sensitivity / sqrt(weight), and it costs weight times as much mu^2.
    """

    sensitivity: float
    touched: int = 1
    weight: float = 1.0

    @property
    def units(self) -> float:
        """Cost of the round in mu^2, times noise_multiplier^2."""
        return self.touched * self.weight

    @property
    def spread(self) -> float:
        """sigma / noise_multiplier."""
        return self.sensitivity / math.sqrt(self.weight)


class Rounding(NamedTuple):
    """How much a release may suffer from the rounding of floats, and what its noise is scaled by.

    Public numbers that are added to private ones on the way to a release round these: what the rounding takes away
    depends on the data, and no noise was planned for it. size: the norms of everything that is rounded between a
    private gradient and the noise, each times its effect on the release, in a sum. An operation errs by 2^-53 of
    what it rounds, so a release is off by a few times 2^-53 size. shrink: as in `work.Noise`.
    """

    size: float
    shrink: float = 1.0


def gradient_release(bounds: Bounds, workload: Workload) -> Release:
    """All noisy gradients of a round: one record moves a batch's mean by 2 C / n_b, once per epoch."""
    return Release(2 * bounds.gradient / workload.rows, -(-workload.steps // workload.per_epoch))


def norm_sensitivity(bounds: Bounds, step_size: float, mu: float, workload: Workload) -> float:
    """2 C eta sum_{j<Q} k^j with k the Lipschitz constant of x -> x - eta (mu x + penalty'(x)).

    Valid whatever the batches; without a penalty k = |1 - eta mu|. Every step's mean gradient may move by
    2 C, and earlier differences shrink by k.
    """
    return (
        2
        * bounds.gradient
        * step_size
        * geometric_sum(step_factor(bounds, step_size, mu, 0.0), workload.steps)
    )


def coupled_sensitivity(bounds: Bounds, step_size: float, mu: float, workload: Workload) -> float:
    """2 C eta / n_b times the largest possible sum of kappa^j over the steps that see the replaced record.

    Both runs use the same batch indices, so a step without the record only shrinks (or stretches) the
    difference, by kappa = max |1 - eta (mu + c)| over the curvatures c of loss and penalty. A record is in
    one batch per epoch; the worst place in each epoch is taken. Full batches see it in every step.

    One step starts where both runs agree, so nothing is there to be stretched: only the record's own share of the mean
    gradient differs, by 2 C / n_b at most, and Q = 1 gives 2 C eta / n_b whatever the curvature (kappa^0 = 1). With
    more steps and a curvature that is not known kappa is infinite, and so is this bound.
    """
    kappa = step_factor(bounds, step_size, mu, bounds.curvature)
    epochs = range(0, workload.steps, workload.per_epoch)
    last = [range(max(workload.steps - e - workload.per_epoch, 0), workload.steps - e) for e in epochs]
    worst = sum(max(_power(kappa, places[0]), _power(kappa, places[-1])) for places in last)
    return 2 * bounds.gradient * step_size / workload.rows * worst


def loop_rounding(
    bounds: Bounds,
    step_size: float,
    mu: float,
    workload: Workload,
    sensitivity: str,
    start: float,
    constant: float,
) -> float:
    """`Rounding.size` of the end of a local loop from a point of norm `start`; constant is the norm of what is added to
    every gradient besides mu x.

    With k the factor by which a step of the loop without data stretches a point, no x_j is longer than
    X = max(1, k^Q) start + eta (C + constant) sum k^j. A step rounds x, and eta times a slope of at most
    S = C + constant + (mu + |penalty| + curvature) X, and later steps stretch its error as they stretch differences
    between neighbours in the bound that the sensitivity is.
    """
    factor, steps = step_factor(bounds, step_size, mu, 0.0), workload.steps
    reached = geometric_sum(factor, steps)
    longest = max(1.0, _power(factor, steps)) * start + step_size * (bounds.gradient + constant) * reached
    curvature = (
        bounds.curvature if math.isfinite(bounds.curvature) else 0.0
    )  # a row's slope is bounded all the same
    slope = bounds.gradient + constant + (mu + bounds.steepest + curvature) * longest
    info = bounds, step_size, mu, workload
    coupled = sensitivity == "coupled" and coupled_sensitivity(*info) <= norm_sensitivity(*info)
    stretch = (
        geometric_sum(step_factor(bounds, step_size, mu, bounds.curvature), steps) if coupled else reached
    )
    return (longest + step_size * slope) * stretch


SENSITIVITIES: dict[str, Callable[[Bounds, float, float, Workload], float]] = {
    "coupled": lambda *info: min(coupled_sensitivity(*info), norm_sensitivity(*info)),
    "norm": norm_sensitivity,
}


def _power(base: float, exponent: int) -> float:
    """base^exponent, infinity where it overflows."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def geometric_sum(ratio: float, terms: int) -> float:
    """1 + ratio + ... with so many terms, infinity where it overflows."""
    try:
        return math.fsum(ratio**j for j in range(terms))
    except OverflowError:
        return math.inf


def step_factor(bounds: Bounds, step_size: float, mu: float, curvature: float) -> float:
    """The most by which a local step multiplies a difference: max |1 - eta (mu + c)| over the curvatures c of the
    penalty plus from 0 to `curvature`."""
    low, high = bounds.penalty
    return max(abs(1 - step_size * (mu + low)), abs(1 - step_size * (mu + curvature + high)))
