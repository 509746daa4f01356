"""What a client releases in a round, how far one record can move it (its sensitivity), and its share of the budget.

Neighbouring data sets differ by the replacement of one record, or of `Workload.replaced` records (`unit`). A local loop
starts at a public point, with a public shift, and the numbers of its steps and rows are public:

    x <- x - eta ( grad f(x; batch) + shift + mu (x - anchor) ),      Q times

Private data influence the release only through the end point x^Q, so its sensitivity is the sensitivity of the round.
The noise is a `work.Noise`; algorithms apply it to the value that they release and to nothing else.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from ..arrays import Array
from ..decimals import decimal
from ..errors import SettingError, require
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from ..settings import LARGEST, SMALLEST, moderate

MOST_DRAWN = 10.0
"""No draw of `mechanism.secret` is larger."""


class Release(NamedTuple):
    """The Gaussian releases of one round, each of this sensitivity (Euclidean norm).

    affected_releases: how many of them the replaced records can affect at most; a record is in one batch per epoch.
    weight > 0: the round's budget relative to a round of weight 1. The noise has sigma = noise_multiplier * sensitivity
    / sqrt(weight), and the round costs weight times as much mu^2.
    """

    sensitivity: float
    affected_releases: int = 1
    weight: float = 1.0

    @property
    def units(self) -> float:
        """The cost of the round in mu^2, multiplied by noise_multiplier^2."""
        return self.affected_releases * self.weight

    @property
    def spread(self) -> float:
        """sigma / noise_multiplier, in the unit of the released values."""
        return self.sensitivity / math.sqrt(self.weight)


class Planned(Protocol):
    """The part of an algorithm's interface that a privacy plan needs."""

    @property
    def privacy(self) -> str:
        """Where the noise is added: "public-state" or "gradient"; "none" for an algorithm without privacy."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """The release of a client with this workload in a round."""

    def noise_multiplier(self, epsilon: float, delta: float, releases: int) -> float | None:
        """sigma / sensitivity of a release of weight 1, where (epsilon, delta) is the total budget of all of a client's
        `releases`, by the method's own rule; None for exact accounting."""


class Rounding(NamedTuple):
    """A bound on the floating-point rounding errors in a release, and the scale of its noise.

    Adding public numbers to private ones rounds the result. The rounding error depends on the data, and the planned
    noise does not account for it. size: the sum of the norms of all values that are rounded between a private gradient
    and the noise, each multiplied by its effect on the release. An operation has a relative error of 2^-53, so the
    error of a release is a few times 2^-53 size. points: a bound on the norm of every point at which a gradient is
    taken; 0 if these are arrays of the state or the inbox, which are checked anyway. shrink: the scale of the noise, as
    in `work.Noise`.
    """

    size: float
    points: float
    shrink: float = 1.0


def gradient_release(bounds: Bounds, workload: Workload) -> Release:
    """The release of a round's noisy gradients: one record moves the mean of a batch by 2 C / n_b, once per epoch.

    If k_j of k replaced records are in batch j of an epoch, that batch moves by 2 C k_j / n_b, with k_j <= n_b and
    sum k_j <= k. The cost, proportional to sum k_j^2, is largest if as few batches as possible contain them all.
    """
    epochs, batches = (
        -(-a // b) for a, b in ((workload.steps, workload.per_epoch), (workload.replaced, workload.rows))
    )
    affected_releases = min(workload.steps, epochs * batches)
    return Release(2 * bounds.gradient * workload.replaced_in_batch / workload.rows, affected_releases)


def check_sensitivities(sensitivities: Array) -> None:
    """SettingError unless these sensitivities of a run's releases are finite and above SMALLEST."""
    require(
        bool(np.isfinite(sensitivities).all()),
        "the releases of this run have no finite sensitivity, because its local steps stretch every difference: "
        "lower step-size, or local.max-steps",
    )
    smallest = sensitivities.min()
    if not smallest > SMALLEST:
        raise SettingError(
            f"the sensitivity of a release must be above {SMALLEST:g}; got {smallest:g}: raise row-norm, clip-norm or "
            "step-size"
        )


@lru_cache
def norm_sensitivity(bounds: Bounds, step_size: float, mu: float, workload: Workload) -> float:
    """2 C eta sum_{j<Q} k^j with k the Lipschitz constant of x -> x - eta (mu x + penalty'(x)).

    The bound holds for any batches and any number of replaced records. It assumes that the mean gradient of every step
    moves by up to 2 C, and each later step multiplies the difference by at most k. Without a penalty k = |1 - eta mu|.
    """
    return (
        2
        * bounds.gradient
        * step_size
        * geometric_sum(step_factor(bounds, step_size, mu, 0.0), workload.steps)
    )


@lru_cache
def coupled_sensitivity(bounds: Bounds, step_size: float, mu: float, workload: Workload) -> float:
    """2 C eta / n_b times the largest possible sum of kappa^j over the steps that see the replaced record.

    The runs on both data sets use the same batch indices, so a step without the record multiplies the difference by at
    most kappa = max |1 - eta (mu + c)| over the curvatures c of loss and penalty. A record is in one batch per epoch,
    and the bound takes its worst position in each epoch. Full batches contain it in every step. By the triangle
    inequality k records move the end point at most k times as far as one.

    The first step starts at the same point in both runs, so there is no earlier difference to multiply: the mean
    gradient differs by 2 C / n_b at most, and Q = 1 gives 2 C eta / n_b for any curvature (kappa^0 = 1). With more
    steps and an unknown curvature, kappa is infinite, and so is this bound.
    """
    kappa = step_factor(bounds, step_size, mu, bounds.curvature)
    before, rest = divmod(workload.steps, workload.per_epoch)  # whole epochs, and steps of the last one
    epoch = _power(kappa, workload.per_epoch)
    if kappa > 1:  # the record is in the first batch of every epoch
        worst = _power(kappa, (workload.steps - 1) % workload.per_epoch) * geometric_sum(
            epoch, before + (rest > 0)
        )
    else:  # in the last one
        worst = (rest > 0) + _power(kappa, rest) * geometric_sum(epoch, before)
    return 2 * bounds.gradient * step_size / workload.rows * worst * workload.replaced


def loop_rounding(
    bounds: Bounds,
    step_size: float,
    mu: float,
    workload: Workload,
    sensitivity: str,
    start: float,
    constant: float,
) -> Rounding:
    """The rounding of the end point of a local loop.

    start: the norm of the first point. constant: the norm of what is added to every gradient besides mu x. Let k be the
    largest factor by which a step without data multiplies a point. Then no x_j is longer than
    X = max(1, k^Q) start + eta (C + constant) sum k^j. A step rounds x and eta times a slope of at most
    S = C + constant + (mu + |penalty| + curvature) X. Later steps multiply the rounding error by the same factors as
    the differences in the sensitivity bound.
    """
    factor, steps = step_factor(bounds, step_size, mu, 0.0), workload.steps
    longest = farthest(start, step_size, factor, steps, bounds.gradient + constant)
    curvature = (
        bounds.curvature if math.isfinite(bounds.curvature) else 0.0
    )  # the slope of a row is bounded even if its curvature is unknown
    slope = bounds.gradient + constant + (mu + bounds.steepest + curvature) * longest
    info = bounds, step_size, mu, workload
    coupled = sensitivity == "coupled" and coupled_sensitivity(*info) <= norm_sensitivity(*info)
    stretch = (
        geometric_sum(step_factor(bounds, step_size, mu, bounds.curvature), steps)
        if coupled
        else geometric_sum(factor, steps)
    )
    return Rounding((longest + step_size * slope) * stretch, points=longest)


def farthest(start: float, step_size: float, factor: float, steps: int, slope: float) -> float:
    """A bound on the norms of all points of a loop of so many steps that starts at a point of norm `start`:
    max(1, factor^steps) start + eta slope sum_{j<steps} factor^j.

    A step multiplies a point by at most `factor` and subtracts eta times a vector of norm at most `slope`.
    """
    return max(1.0, _power(factor, steps)) * start + step_size * slope * geometric_sum(factor, steps)


SENSITIVITIES: dict[str, Callable[[Bounds, float, float, Workload], float]] = {
    "coupled": lambda *info: min(coupled_sensitivity(*info), norm_sensitivity(*info)),
    "norm": norm_sensitivity,
}


def _power(base: float, exponent: int) -> float:
    """base^exponent, or infinity if it overflows."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def geometric_sum(ratio: float, terms: int) -> float:
    """1 + ratio + ... + ratio^(terms - 1), or infinity if it overflows; ratio >= 0, in O(log(terms)) operations."""
    total, summed = 0.0, 0  # how many terms are summed: the number of the first binary digits of `terms`
    for digit in f"{terms:b}":
        total, summed = total * (1.0 + _power(ratio, summed)), 2 * summed
        if digit == "1":
            total, summed = total + _power(ratio, summed), summed + 1
    return total


def step_factor(bounds: Bounds, step_size: float, mu: float, curvature: float) -> float:
    """The largest factor by which a local step multiplies a difference: max |1 - eta (mu + c)|, where c is a curvature
    of the penalty plus a number from 0 to `curvature`."""
    low, high = bounds.penalty
    return max(abs(1 - step_size * (mu + low)), abs(1 - step_size * (mu + curvature + high)))


# --- how rounds share a budget: by weights w_t (T,) with mean 1, so sigma_t ~ 1 / sqrt(w_t). The cost of a round is
# proportional to its weight, and the total cost does not depend on the choice of the weights.

LEAST_SHARE = 1e-3  # as a fraction of the mean weight


def geometric(rounds: int, log_ratio: float) -> Array:
    """Weights (T,) proportional to exp((T - t) log_ratio), so that later rounds get more; -inf <= log_ratio <= 0."""
    to_go = np.arange(rounds - 1, -1, -1.0)
    logs = np.zeros(rounds)
    logs[:-1] = to_go[:-1] * log_ratio
    return from_logs(logs)


def between(rounds: int, corners: list[float]) -> Array:
    """Weights (T,) interpolated geometrically between `corners`, which are evenly spaced over the run."""
    places = np.linspace(0, len(corners) - 1, rounds)
    return from_logs(np.interp(places, np.arange(len(corners)), np.log(corners)))


def from_logs(logs: Array) -> Array:
    """exp(logs), scaled to mean 1 and with no weight below about LEAST_SHARE.

    The paper lets the first noises grow without bound: to infinity, and far before that to a size whose rounding
    errors stay in the duals for good. All floors together take at most LEAST_SHARE of the budget from the other rounds,
    so what the allocation minimises, sum q_t xi_t^2, is at most 1 + LEAST_SHARE times its least value; and no noise is
    more than 32 times the static one.
    """
    weights = np.exp(logs - logs.max())
    weights = np.maximum(weights / weights.mean(), LEAST_SHARE)
    return weights / weights.mean()  # type: ignore[no-any-return]


def read_shares(text: str) -> list[float]:
    """Parse a setting such as "1, 10" into two or more numbers above 0; an empty text gives an empty list."""
    try:
        numbers = [decimal(word) for word in text.split(",")] if text else []
    except ValueError:
        numbers = [0.0]
    good = all(number > 0 and moderate(number) for number in numbers) and len(numbers) != 1
    if not good:
        raise SettingError(
            f"shares must be two or more comma-separated numbers from {SMALLEST:g} to {LARGEST:g}; got '{text}'"
        )
    return numbers


@lru_cache(maxsize=8)
def allocation(name: str, rounds: int, log_ratio: float = 0.0, shares: str = "") -> Array:
    """The weights (T,) of one of ALLOCATIONS. They are cached because every round needs them."""
    if name == "shares":
        return between(rounds, read_shares(shares))
    return geometric(rounds, log_ratio if name == "dynamic" else 0.0)


ALLOCATIONS = ("dynamic", "static", "shares")
