"""From a run's settings to its privacy: noise multiplier, budget, what each client pays, and in words.

The statement, for every client: the joint law of all its messages over all rounds is mu-GDP under the
replacement of one record, hence (epsilon, delta)-DP on the whole curve. Sizes of the clients' data, settings and
participation are public; the server may choose its broadcasts adaptively.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from twinflower.algorithms import Page
from twinflower.algorithms.abilities import PlansNoise
from twinflower.algorithms.base import LocalMethod
from twinflower.algorithms.local import decayed
from twinflower.arrays import Array, Index
from twinflower.batches import Pace, Walk
from twinflower.errors import require
from twinflower.objectives import Bounds, Model
from twinflower.privacy import (
    Budget,
    best_guess,
    classical_noise_multiplier,
    detection,
    gdp_epsilon,
    gdp_mu,
)
from twinflower.privacy.accountant import zcdp_mu, zcdp_rho_papers
from twinflower.privacy.release import published_epsilon, published_sensitivity, published_true_sensitivities

from .settings import Config
from .settings.sections import AsPublished, Gradient, Private


@dataclass(frozen=True)
class Plan:
    """The privacy of a run before it starts.

    multipliers (N,): each client's noise multiplier, sigma / sensitivity of a release of weight 1. weights (T + 1,):
    of the rounds, by number.
    rounds_in (N,): in how many rounds each client takes part, and shares (N,): the sum of their weights. touched
    (N,): releases of a round that one of its records can touch. mu_limit: what no client may exceed in this run.
    As published: claimed_epsilon is the paper's total; true_costs (N,) are the sums over a client's planned
    rounds of (true / claimed sensitivity)^2; caveat says what is wrong, and provable whether anything is left.
    """

    mode: str
    delta: float
    multipliers: Array
    bounds: Bounds
    weights: Array
    rounds_in: Array
    shares: Array
    touched: Index
    mu_limit: float
    caveat: str = ""
    provable: bool = True
    claimed_epsilon: float | None = None
    true_costs: np.ndarray | None = None

    @property
    def budget(self) -> Budget:
        """A client's filter for this run."""
        return Budget(self.mu_limit**2)

    def budget_of(self, client: int) -> Budget:
        """The filter, with what this client is going to spend in all its rounds."""
        return replace(self.budget, planned=float(self.mu(self.shares)[client] ** 2))

    @property
    def epsilon_limit(self) -> float:
        """epsilon of mu_limit at the run's delta."""
        return gdp_epsilon(self.mu_limit, self.delta)

    def least_multiplier(self, client: int) -> float:
        """The smallest sigma / sensitivity of a client's releases."""
        return float(self.multipliers[client]) / math.sqrt(self.weights.max())

    def mu(self, shares: Array) -> Array:
        """mu of clients (N,) whose rounds have these sums of weights; as published, of all that were planned."""
        costs = shares * self.touched if self.true_costs is None else self.true_costs
        return np.sqrt(costs) / self.multipliers  # type: ignore[no-any-return]

    def shares_of(self, asked: Iterable[tuple[int, Sequence[int]]]) -> Array:
        """Sums of weights (N,) of the rounds in which each client was asked, from (round, clients) pairs."""
        return _shares(self.weights, asked, len(self.touched))


def _zcdp_mu(epsilon: float, delta: float) -> float:
    """mu by rho + 2 sqrt(rho ln 1/delta) = epsilon, which wastes noise (Zhang 2023, (13); Gauthier 2023)."""
    return zcdp_mu(zcdp_rho_papers(epsilon, delta))


CONVERSIONS: dict[str, Callable[[float, float], float]] = {"exact": gdp_mu, "zcdp": _zcdp_mu}


def make_plan(config: Config, page: Page, objective: Model, walk: Walk, sizes: Index) -> Plan | None:
    """The plan of a private run; None without privacy. SettingError for targets that make no sense."""
    target = config.privacy
    if not isinstance(target, Private):
        return None
    require(
        (target.epsilon > 0) != (target.noise_multiplier > 0),
        f"privacy needs either privacy.epsilon or privacy.noise-multiplier above 0; got {target.epsilon:g} and "
        f"{target.noise_multiplier:g}",
    )
    bounds = objective.bounds(config.data.row_norm)
    asked = _participation(config)
    releases = [page.release(bounds, walk.pace(int(m)), 1) for m in sizes]
    require(
        all(math.isfinite(r.sensitivity) for r in releases),
        "the releases of this run have no finite sensitivity, because its local steps stretch every difference: lower "
        "step-size, or local.max-steps",
    )
    touched = np.array([r.touched for r in releases])
    pace = walk.pace(int(sizes[0]))
    weights = np.array([0.0, *(page.release(bounds, pace, t).weight for t in range(1, config.rounds + 1))])
    rounds_in, shares = (_shares(w, asked, len(sizes)) for w in (np.ones_like(weights), weights))
    load = _Load(weights, rounds_in, shares, touched)
    if isinstance(target, AsPublished):
        return _published(config, target, page, walk, bounds, sizes, load)
    assert isinstance(target, Gradient)
    own_rule = _own_rule(target, page, rounds_in)
    multipliers = _multipliers(target, load) if own_rule is None else own_rule
    papers = target.epsilon and (own_rule is not None or target.conversion == "zcdp")
    claimed = target.epsilon if papers else None
    return Plan(
        target.mode, target.delta, multipliers, bounds, *load, load.mu(multipliers), claimed_epsilon=claimed
    )


class _Load(NamedTuple):
    """Weights of the rounds (T + 1,), and of each client (N,): rounds, their sum of weights, `touched`."""

    weights: Array
    rounds_in: Array
    shares: Array
    touched: Index

    def mu(self, multipliers: Array) -> float:
        """The largest mu of a client with these noise multipliers (N,)."""
        return float((np.sqrt(self.shares * self.touched) / multipliers).max())


def _multipliers(target: Gradient, load: _Load) -> Array:
    """Each client's noise multiplier (N,), planned for its own rounds, which are public: with a target, everybody
    spends all of it.

    A client that is never asked needs no noise; with what it has here it would keep the target if it were asked once.
    """
    if target.noise_multiplier:
        return np.full(len(load.shares), target.noise_multiplier)
    units = np.where(load.rounds_in > 0, load.shares, load.weights.max()) * load.touched
    return np.sqrt(units) / CONVERSIONS[target.conversion](target.epsilon, target.delta)  # type: ignore[no-any-return]


def _own_rule(target: Private, page: Page, rounds_in: Array) -> Array | None:
    """The noise multipliers (N,) of a method that has accounting of its own for a target; else None."""
    if not target.epsilon or not isinstance(page, PlansNoise):
        return None
    counts, place = np.unique(np.maximum(rounds_in, 1), return_inverse=True)
    known = [page.noise_multiplier(target.epsilon, target.delta, int(n)) for n in counts]
    return np.array(known)[place]


def _participation(config: Config) -> list[tuple[int, Index]]:
    """Whom each round asks, from the public sampling."""
    rounds = range(1, config.rounds + 1)
    return [(t, config.asked(t)) for t in rounds]


def _shares(weights: Array, asked: Iterable[tuple[int, Sequence[int] | Index]], num_clients: int) -> Array:
    shares = np.zeros(num_clients)
    for round_, clients in asked:
        shares[np.asarray(clients)] += weights[round_]
    return shares


def _published(
    config: Config, target: AsPublished, page: Any, walk: Walk, bounds: Bounds, sizes: Index, load: _Load
) -> Plan:
    """The papers' noise: (18) at the epsilon of (20)/(36), and what it really amounts to."""
    z = np.array([_published_multiplier(config, target, walk.pace(int(m)), int(m)) for m in sizes])
    true_costs = _true_costs(page, bounds, walk, sizes, config)
    caveat, provable = _published_caveat(page, true_costs)
    if config.objective.clip == "batch":
        caveat += "; clip-norm bounds the mean gradient of a batch, not that of a record"
    return Plan(
        target.mode, target.delta, z, bounds, *load, load.mu(z), caveat, provable, target.epsilon or None, true_costs,
    )  # fmt: skip


def _published_multiplier(config: Config, target: AsPublished, pace: Pace, rows: int) -> float:
    """A client's noise multiplier: (36) has a q_i and a p_i for each, and the same total is asked of all."""
    if target.noise_multiplier:
        return target.noise_multiplier
    share, p = pace.steps * pace.rows / rows, config.sampled / config.clients.count
    epsilon = published_epsilon(target.epsilon, target.c0, share, p, config.rounds)
    return classical_noise_multiplier(epsilon, target.delta)


def _published_caveat(page: Any, true_costs: Array) -> tuple[str, bool]:
    """What is wrong with the papers' statement, and whether a guarantee is left."""
    if page.stopping_tolerance:
        return "no guarantee: the stopping rule's number of steps scales the noise, and is private", False
    if getattr(page, "uplink", "") == "top-k" and page.uplink_ratio < 1:
        return "no guarantee: the places of the k largest entries are released without noise", False
    if page.local_start == "warm":
        return "no guarantee: a warm start carries the un-noised x from round to round", False
    if not np.isfinite(true_costs).all():
        return "no guarantee: the local steps stretch what one record changes without bound", False
    return (
        "the published dual carries un-noised private state from round to round, which the paper's Theorem 1 "
        "forgets along with the penalty's curvature; this is the worst case over the rounds instead"
    ), True


def _true_costs(page: Any, bounds: Bounds, walk: Walk, sizes: Index, config: Config) -> np.ndarray:
    """sum over each client's rounds of (true / claimed sensitivity)^2, (N,); over z^2 it is mu^2."""
    steps = walk.steps(sizes)
    mine: list[list[float]] = [[] for _ in range(config.clients.count)]
    for round_ in range(1, config.rounds + 1):
        for client in config.asked(round_):
            mine[client].append(decayed(page.step_size, page.step_decay, round_))
    return np.array([_true_cost(page, bounds, int(q), etas) for q, etas in zip(steps, mine, strict=True)])


def _true_cost(page: Any, bounds: Bounds, steps: int, etas: list[float]) -> float:
    claimed = np.array([published_sensitivity(bounds, eta, page.rho, steps) for eta in etas])
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is no guarantee
        ratios = np.array(published_true_sensitivities(bounds, etas, page.rho, steps)) / claimed
        return float((ratios * ratios).sum())


def uncoupled(plan: Plan, page: Any, walk: Walk, sizes: Index) -> list[str]:
    """Why a run with several local steps has the noise of the norm bound, and what to do about it."""
    pace = max((walk.pace(int(m)) for m in sizes), key=lambda pace: pace.steps)
    if plan.mode != "public-state" or not isinstance(page, LocalMethod) or page.sensitivity != "coupled":
        return []
    if pace.steps == 1 or math.isfinite(plan.bounds.curvature):
        return []
    now, one = (page.release(plan.bounds, p, 1).sensitivity for p in (pace, pace._replace(steps=1)))
    return [
        "this loss has no public curvature (a network, a kink, or clipped slopes of several scores), so the bound that "
        f"falls with the number of rows holds for one local step only: local.max-steps = 1 has sensitivity {one:.3g} "
        f"instead of {now:.3g}"
    ]


def spent(plan: Plan, shares: Array, seeded: bool = True) -> dict[str, Any]:
    """The privacy part of summary.json for clients (N,) with these sums of weights (`Plan.shares_of`).

    seeded: whether the noise was a simulation's.
    """
    mu = plan.mu(shares)
    worst = float(mu.max())
    epsilon = gdp_epsilon(worst, plan.delta) if plan.provable else None
    return {
        "unit": "per client, all rounds, replacement of one record",
        "mode": plan.mode,
        "epsilon": epsilon,
        "delta": plan.delta,
        "mu": worst if plan.provable else None,
        "mu_smallest": float(mu.min()) if plan.provable else None,
        "attacker_accuracy": best_guess(worst) if plan.provable else None,
        "noise_multiplier": float(plan.multipliers.max()),
        "noise_multiplier_smallest": float(plan.multipliers.min()),
        "claimed_epsilon": plan.claimed_epsilon,
        "guarantee": in_words(plan, epsilon, worst, seeded),
    }


def in_odds(mu: float) -> str:
    """What mu-GDP leaves to the best attacker."""
    return (
        "an attacker who knows all else and two candidates for a record is right about which of them it is in at most "
        f"{best_guess(mu):.1%} of the cases from even odds, and detects one in at most {detection(mu):.1%} at 5% false "
        "alarms"
    )


def in_words(plan: Plan, epsilon: float | None, mu: float, seeded: bool) -> str:
    """The guarantee as one sentence."""
    if epsilon is None:
        return plan.caveat
    text = (
        f"for each client, all its messages together are {mu:.4g}-GDP, hence ({epsilon:.4g}, {plan.delta:g})-DP, under "
        f"replacement of one of its records: {in_odds(mu)}"
    )
    if seeded:
        text += "; simulation: the noise is seeded, not secret"
    return f"{plan.caveat}; {text}" if plan.caveat else text
