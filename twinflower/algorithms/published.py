"""The privacy that Li 2023 and Li 2024 publish for FedPDM (privacy "as-published"), and its actual guarantee.

Theorem 1 gives the sensitivity of one round's message. Li 2023 (20) and Li 2024 (36) give the epsilon of a round from
the total, and the classical Gaussian rule gives the noise. The modes "public-state" and "gradient" use none of this.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError
from ..privacy.accountant import classical_noise_multiplier
from ..privacy.plan import Plan, Sampled, draft
from ..privacy.release import geometric_sum, step_factor
from ..privacy.target import Target
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from .fedpdm import FedPDM, published_sensitivity


def published_true_sensitivities(
    bounds: Bounds, step_sizes: list[float], rho: float, steps: int
) -> list[float]:
    """The most by which one record can move the published message y of each round a client takes part in.

    Theorem 1 ignores the dual, which is private state kept between rounds, and the curvature of the smooth penalty.
    For two runs on neighbouring data let e_j be the difference of the local points, with e_0 = 0, E that of the duals,
    and delta_j that of the data gradients, of norm at most 2 G. By the mean value theorem the penalty's gradients
    differ by C_j e_j, where C_j is diagonal with entries in `bounds.penalty`, so

        e_{j+1} = M_j e_j - eta delta_j + eta E,    M_j = I - eta (rho + C_j)

    and with P_j = M_{Q-1} ... M_{j+1}, S = sum_j P_j, V = eta sum_j P_j delta_j the round ends in e_Q = eta S E - V.
    From y = 2 x - x0 - dual/rho and dual' = dual + rho (x0 - x) follow the differences

        of y: (2 eta S - 1/rho) E - 2 V        of dual': (1 - eta rho S) E + rho V.

    No entry of P_j exceeds k^(Q-1-j), k = max |1 - eta (rho + c)|, and S lies between the extremes of s <- m s + 1 over
    the allowed m. With D the bound on ||E||, 0 at first, and w = eta sum_{j<Q} k^j, hence ||V|| <= 2 w G,

        of y: at most 4 w G + max |2 eta s - 1/rho| D        of dual': at most D <- max |1 - eta rho s| D + 2 rho w G.

    The bound is attained if the penalty is l2 (a single c) and gradients have the norm G. Without a penalty, with
    eta rho <= 1 and constant steps, it tends to (2G/rho) max(1, 3 - 4a) with a = (1 - eta rho)^Q. The result is
    infinite or NaN if the loop overflows.
    """
    dual, moves = 0.0, []
    for step_size in step_sizes:
        w = step_size * geometric_sum(step_factor(bounds, step_size, rho, 0.0), steps)
        sums = _sums(bounds, step_size, rho, steps)
        moves.append(4 * w * bounds.gradient + max(abs(2 * step_size * s - 1 / rho) for s in sums) * dual)
        dual = max(abs(1 - step_size * rho * s) for s in sums) * dual + 2 * rho * w * bounds.gradient
    return moves


def _sums(bounds: Bounds, step_size: float, rho: float, steps: int) -> tuple[float, float]:
    """The least and the largest s after this number of steps s <- m s + 1 from 0, where m may differ between steps."""
    factors = [1 - step_size * (rho + c) for c in bounds.penalty]
    low = high = 0.0
    for _ in range(steps):
        products = [m * s for m in factors for s in (low, high)]
        low, high = 1 + min(products), 1 + max(products)
    return low, high


def published_epsilon(total: float, c0: float, q: float, p: float, rounds: int) -> float:
    """epsilon of one round from the papers' total privacy loss, total = c0 q^2 epsilon sqrt(p T / (1 - q)).

    Li 2023 (20), Li 2024 (36); q = Q b / m is the share of data used, p = K/N. The papers do not specify c0, and the
    formula is not a guarantee. Raises SettingError for q >= 1, where it is not defined.
    """
    if not 0 < q < 1:
        raise SettingError(
            f"the papers' budget needs a share of data Q b / m below 1; got {q:g}: lower local.max-steps"
        )
    return total / (c0 * q * q * math.sqrt(p * rounds / (1 - q)))


@dataclass(frozen=True)
class PublishedRule:
    """The papers' rule that turns a total epsilon into noise.

    c0: the constant that the papers do not specify. share: p = K/N, the share of clients that take part in a round.
    clips_means: whether the mean gradient of a batch is clipped instead of the gradient of each row.
    """

    c0: float
    share: float
    clips_means: bool = False

    def noise_multiplier(self, epsilon: float, delta: float, workload: Workload, rows: int, rounds: int) -> float:
        """sigma / `published_sensitivity` of a client with this number of rows. In (36) the share q_i differs between
        clients; the total epsilon is the same for all of them."""
        share = workload.steps * workload.rows / rows
        each = published_epsilon(epsilon, self.c0, share, self.share, rounds)
        return classical_noise_multiplier(each, delta)


@dataclass(frozen=True)
class PublishedPlan(Plan):
    """A `Plan` with noise as published. true_costs (N,): the sums over a client's planned rounds of (true / claimed
    sensitivity)^2, which make its cost, however many of the rounds are run."""

    true_costs: Array = field(kw_only=True)

    @property
    def mu_trained(self) -> Array:
        """See `Plan`."""
        return np.sqrt(self.true_costs) / self.multipliers  # type: ignore[no-any-return]


def published_plan(
    algorithm: FedPDM, bounds: Bounds, workloads: Sequence[Workload], sizes: Sequence[int] | Index,
    asked: Sampled, target: Target, rule: PublishedRule,
) -> PublishedPlan:  # fmt: skip
    """The noise of Li 2023 and Li 2024 for clients with these numbers of rows (N,), with its true cost."""
    z = np.full(len(workloads), target.noise_multiplier)
    if target.epsilon:
        of_client = (target.epsilon, target.delta)
        each = zip(workloads, sizes, strict=True)
        z = np.array([rule.noise_multiplier(*of_client, p, int(m), len(asked)) for p, m in each])
    claimed = draft(algorithm, bounds, workloads, asked, target, {}).with_noise(z)
    costs = true_costs(algorithm, bounds, workloads, asked)
    said, provable = caveat(algorithm, costs, rule.clips_means)
    return PublishedPlan(
        claimed.mode, claimed.delta, z, bounds, claimed.releases, claimed.participation, claimed.mu_limit, said,
        provable, target.epsilon or None, true_costs=costs,
    )  # fmt: skip


def true_costs(
    algorithm: FedPDM, bounds: Bounds, workloads: Sequence[Workload], asked: Sampled
) -> Array:
    """The sum over each client's rounds of (true / published sensitivity)^2, (N,). Divided by the squared noise
    multiplier it is mu^2 (Gaussian differential privacy).

    asked: the clients sampled in each round.
    """
    step_sizes: list[list[float]] = [[] for _ in workloads]
    for round_, clients in enumerate(asked, 1):
        for client in clients:
            step_sizes[client].append(algorithm.step(round_))
    each = zip(workloads, step_sizes, strict=True)
    return np.array([_true_cost(bounds, etas, algorithm.rho, workload.steps) for workload, etas in each])


def _true_cost(bounds: Bounds, step_sizes: list[float], rho: float, steps: int) -> float:
    claimed = np.array([published_sensitivity(bounds, eta, rho, steps) for eta in step_sizes])
    with np.errstate(over="ignore", invalid="ignore"):  # a cost that is not finite gives no guarantee
        ratios = np.array(published_true_sensitivities(bounds, step_sizes, rho, steps)) / claimed
        return float((ratios * ratios).sum())


def caveat(algorithm: FedPDM, costs: Array, clips_means: bool = False) -> tuple[str, bool]:
    """The flaw in the papers' guarantee, given the true costs, and whether any guarantee remains."""
    text, provable = _flaw(algorithm, costs)
    more = "; clip-norm bounds the mean gradient of a batch, not that of a record" if clips_means else ""
    return text + more, provable


def _flaw(algorithm: FedPDM, costs: Array) -> tuple[str, bool]:
    if algorithm.stopping_tolerance:
        return "no guarantee: the stopping rule's number of steps scales the noise, and is private", False
    if algorithm.uplink == "top-k" and algorithm.uplink_ratio < 1:
        return "no guarantee: the places of the k largest entries are released without noise", False
    if algorithm.local_start == "warm":
        return "no guarantee: a warm start carries the un-noised x from round to round", False
    if not np.isfinite(costs).all():
        return "no guarantee: the local steps stretch what one record changes without bound", False
    return (
        "the published dual carries un-noised private state from round to round, which the paper's Theorem 1 "
        "forgets along with the penalty's curvature; this is the worst case over the rounds instead"
    ), True
