"""What a client releases in a round, and how far one record can move it.

Neighbouring data sets differ by the replacement of one record. A local loop starts at a public point,
with a public shift, and takes public numbers of steps and rows:

    x <- x - eta ( grad f(x; batch) + shift + mu (x - anchor) ),      Q times

Its end x^Q is the one place where private data enter, so its sensitivity is the sensitivity of the round.
The noise that goes with it is a `work.Noise`: pages call it on the value they release, and on nothing else.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

from ..batches import Pace
from ..errors import require
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


def gradient_release(bounds: Bounds, pace: Pace) -> Release:
    """All noisy gradients of a round: one record moves a batch's mean by 2 C / n_b, once per epoch."""
    return Release(2 * bounds.gradient / pace.rows, -(-pace.steps // pace.per_epoch))


def norm_sensitivity(bounds: Bounds, step_size: float, mu: float, pace: Pace) -> float:
    """2 C eta sum_{j<Q} k^j with k the Lipschitz constant of x -> x - eta (mu x + penalty'(x)).

    Valid whatever the batches; without a penalty k = |1 - eta mu|. Every step's mean gradient may move by
    2 C, and earlier differences shrink by k.
    """
    return (
        2 * bounds.gradient * step_size * _geometric(_shrink(bounds, step_size, mu, 0.0), range(pace.steps))
    )


def coupled_sensitivity(bounds: Bounds, step_size: float, mu: float, pace: Pace) -> float:
    """2 C eta / n_b times the largest possible sum of kappa^j over the steps that see the replaced record.

    Both runs use the same batch indices, so a step without the record only shrinks (or stretches) the
    difference, by kappa = max |1 - eta (mu + c)| over the curvatures c of loss and penalty. A record is in
    one batch per epoch; the worst place in each epoch is taken. Full batches see it in every step.

    One step starts where both runs agree, so nothing is there to be stretched: only the record's own share of the mean
    gradient differs, by 2 C / n_b at most, and Q = 1 gives 2 C eta / n_b whatever the curvature (kappa^0 = 1). With
    more steps and a curvature that is not known kappa is infinite, and so is this bound.
    """
    kappa = _shrink(bounds, step_size, mu, bounds.curvature)
    epochs = range(0, pace.steps, pace.per_epoch)
    last = [range(max(pace.steps - e - pace.per_epoch, 0), pace.steps - e) for e in epochs]
    worst = sum(max(_power(kappa, places[0]), _power(kappa, places[-1])) for places in last)
    return 2 * bounds.gradient * step_size / pace.rows * worst


def loop_rounding(
    bounds: Bounds, step_size: float, mu: float, pace: Pace, sensitivity: str, start: float, constant: float
) -> float:
    """`Rounding.size` of the end of a local loop from a point of norm `start`; constant is the norm of what is added to
    every gradient besides mu x.

    With k the factor by which a step of the loop without data stretches a point, no x_j is longer than
    X = max(1, k^Q) start + eta (C + constant) sum k^j. A step rounds x, and eta times a slope of at most
    S = C + constant + (mu + |penalty| + curvature) X, and later steps stretch its error as they stretch differences
    between neighbours in the bound that the sensitivity is.
    """
    factor, steps = _shrink(bounds, step_size, mu, 0.0), range(pace.steps)
    reached = _geometric(factor, steps)
    longest = (
        max(1.0, _power(factor, pace.steps)) * start + step_size * (bounds.gradient + constant) * reached
    )
    curvature = (
        bounds.curvature if math.isfinite(bounds.curvature) else 0.0
    )  # a row's slope is bounded all the same
    slope = bounds.gradient + constant + (mu + bounds.steepest + curvature) * longest
    facts = bounds, step_size, mu, pace
    coupled = sensitivity == "coupled" and coupled_sensitivity(*facts) <= norm_sensitivity(*facts)
    stretch = _geometric(_shrink(bounds, step_size, mu, bounds.curvature), steps) if coupled else reached
    return (longest + step_size * slope) * stretch


SENSITIVITIES: dict[str, Callable[[Bounds, float, float, Pace], float]] = {
    "coupled": lambda *facts: min(coupled_sensitivity(*facts), norm_sensitivity(*facts)),
    "norm": norm_sensitivity,
}


def published_sensitivity(bounds: Bounds, step_size: float, rho: float, steps: int) -> float:
    """s = 4 eta G sum_{j<Q} |1 - eta rho|^j: Theorem 1 of Li 2023 and Li 2024, true for one round only."""
    return 4 * bounds.gradient * step_size * _geometric(abs(1 - step_size * rho), range(steps))


def published_true_sensitivities(
    bounds: Bounds, step_sizes: list[float], rho: float, steps: int
) -> list[float]:
    """The most by which one record can move the published message y of each round a client takes part in.

    Theorem 1 forgets the carried dual, which is private state, and the curvature of the smooth penalty. Between two
    runs on neighbouring data let e_j be the difference of the local points, e_0 = 0, E that of the duals, and delta_j,
    of norm 2 G at most, that of the data gradients. By the mean value theorem the penalty's gradients differ by
    C_j e_j, C_j diagonal with entries in `bounds.penalty`, so

        e_{j+1} = M_j e_j - eta delta_j + eta E,    M_j = I - eta (rho + C_j)

    and with P_j = M_{Q-1} ... M_{j+1}, S = sum_j P_j, V = eta sum_j P_j delta_j the round ends in e_Q = eta S E - V.
    From y = 2 x - x0 - dual/rho and dual' = dual + rho (x0 - x) follow the differences

        of y: (2 eta S - 1/rho) E - 2 V        of dual': (1 - eta rho S) E + rho V.

    No entry of P_j exceeds k^(Q-1-j), k = max |1 - eta (rho + c)|, and S lies between the extremes of s <- m s + 1 over
    the allowed m. With D the bound on ||E||, 0 at first, and w = eta sum_{j<Q} k^j, hence ||V|| <= 2 w G,

        of y: at most 4 w G + max |2 eta s - 1/rho| D        of dual': at most D <- max |1 - eta rho s| D + 2 rho w G.

    Attained where the penalty is l2 (one c) and gradients saturate. Without a penalty, eta rho <= 1 and constant steps
    it is (2G/rho) max(1, 3 - 4a) in the long run, a = (1 - eta rho)^Q. Infinite or NaN where the loop overflows.
    """
    dual, moves = 0.0, []
    for step_size in step_sizes:
        w = step_size * _geometric(_shrink(bounds, step_size, rho, 0.0), range(steps))
        sums = _sums(bounds, step_size, rho, steps)
        moves.append(4 * w * bounds.gradient + max(abs(2 * step_size * s - 1 / rho) for s in sums) * dual)
        dual = max(abs(1 - step_size * rho * s) for s in sums) * dual + 2 * rho * w * bounds.gradient
    return moves


def _sums(bounds: Bounds, step_size: float, rho: float, steps: int) -> tuple[float, float]:
    """The least and the largest s after as many steps s <- m s + 1 from 0, m anew in every step."""
    factors = [1 - step_size * (rho + c) for c in bounds.penalty]
    low = high = 0.0
    for _ in range(steps):
        products = [m * s for m in factors for s in (low, high)]
        low, high = 1 + min(products), 1 + max(products)
    return low, high


def published_epsilon(total: float, c0: float, q: float, p: float, rounds: int) -> float:
    """epsilon of one round from the papers' total loss, total = c0 q^2 epsilon sqrt(p T / (1 - q)).

    Li 2023 (20), Li 2024 (36); q = Q b / m is the share of data used, p = K/N. The papers leave c0 open, and the
    formula is not a guarantee. Raises SettingError for q >= 1, where it is not defined.
    """
    require(
        0 < q < 1,
        f"the papers' budget needs a share of data Q b / m below 1; got {q:g}: lower local.max-steps",
    )
    return total / (c0 * q * q * math.sqrt(p * rounds / (1 - q)))


def _power(base: float, exponent: int) -> float:
    """base^exponent, infinity where it overflows."""
    try:
        return base**exponent
    except OverflowError:
        return math.inf


def _geometric(ratio: float, exponents: range) -> float:
    """sum of ratio^j, infinity where it overflows."""
    try:
        return math.fsum(ratio**j for j in exponents)
    except OverflowError:
        return math.inf


def _shrink(bounds: Bounds, step_size: float, mu: float, curvature: float) -> float:
    low, high = bounds.penalty
    return max(abs(1 - step_size * (mu + low)), abs(1 - step_size * (mu + curvature + high)))
