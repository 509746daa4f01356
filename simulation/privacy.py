"""From a run's settings to its privacy: noise multiplier, budget, what each client pays, and in words.

The statement, for every client: the joint law of all its messages over all rounds is mu-GDP under the
replacement of one record, hence (epsilon, delta)-DP on the whole curve. Sizes of the clients' data, settings and
participation are public; the server may choose its broadcasts adaptively.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from twinflower.algorithms import Page
from twinflower.arrays import Index
from twinflower.batches import Walk
from twinflower.errors import require
from twinflower.objectives import LinearModel
from twinflower.privacy import Budget, classical_noise_multiplier, gdp_epsilon, gdp_mu
from twinflower.privacy import noise_multiplier as equal_releases
from twinflower.privacy.release import (
    Bounds,
    published_epsilon,
    published_sensitivity,
    published_true_sensitivities,
)
from twinflower.randomness import participants

from .config import Config, kebab


@dataclass(frozen=True)
class Plan:
    """The privacy of a run before it starts.

    noise_multiplier: sigma / sensitivity of every release. costs: mu^2 that each client (N,) will have paid when
    the run ends. rounds_in (N,): in how many rounds it takes part. mu_limit: what no client may exceed in this
    run. caveat: why the printed guarantee is not the real one, or "".
    """

    mode: str
    delta: float
    noise_multiplier: float
    bounds: Bounds
    rounds_in: Index
    touched: Index
    mu_limit: float
    caveat: str = ""
    claimed_epsilon: float | None = None
    true_costs: np.ndarray | None = None

    @property
    def budget(self) -> Budget:
        """A client's filter for this run."""
        return Budget(self.mu_limit**2)

    @property
    def epsilon_limit(self) -> float:
        """epsilon of mu_limit at the run's delta."""
        return gdp_epsilon(self.mu_limit, self.delta)

    def mu(self, rounds_in: Index) -> np.ndarray:
        """mu of clients (N,) that took part in so many rounds, as accounted by the mechanism."""
        return np.sqrt(rounds_in * self.touched) / self.noise_multiplier


def make_plan(config: Config, page: Page, objective: LinearModel, walk: Walk, sizes: Index) -> Plan | None:
    """The plan of a private run; None without privacy. SettingError for targets that make no sense."""
    if page.privacy == "none":
        chosen = [k for k in ("epsilon", "noise_multiplier") if getattr(config, k)]
        require(
            not chosen,
            f"{', '.join(map(kebab, chosen))} needs a privacy mode: set privacy, e.g. public-state",
        )
        return None
    require(
        (config.epsilon > 0) != (config.noise_multiplier > 0),
        f"privacy needs either epsilon or noise-multiplier above 0; got {config.epsilon:g} and "
        f"{config.noise_multiplier:g}",
    )
    bounds = objective.bounds(config.row_norm)
    rounds_in = _participation(config)
    touched = np.array([page.release(bounds, walk.pace(int(m)), 1).touched for m in sizes])
    if page.privacy == "as-published":
        return _published(config, page, walk, bounds, sizes, rounds_in, touched)
    most = int((rounds_in * touched).max())
    z = config.noise_multiplier or equal_releases(gdp_mu(config.epsilon, config.delta), most)
    return Plan(page.privacy, config.delta, z, bounds, rounds_in, touched, math.sqrt(most) / z)


def _participation(config: Config) -> Index:
    """Rounds in which each client is asked, from the public sampling."""
    counts = np.zeros(config.num_clients, dtype=np.int64)
    for round_ in range(1, config.rounds + 1):
        counts[participants(config.seed, round_, config.num_clients, config.sampled)] += 1
    return counts


def _published(
    config: Config, page: Any, walk: Walk, bounds: Bounds, sizes: Index, rounds_in: Index, touched: Index
) -> Plan:
    """The papers' noise: (18) at the epsilon of (20)/(36), and what it really amounts to."""
    pace = walk.pace(int(sizes.min()))
    if config.noise_multiplier:
        z = config.noise_multiplier
    else:
        share = pace.steps * pace.rows / int(sizes.min())
        p = config.sampled / config.num_clients
        epsilon = published_epsilon(config.epsilon, config.published_c0, share, p, config.rounds)
        z = classical_noise_multiplier(epsilon, config.delta)
    most = int((rounds_in * touched).max())
    etas = [page.step_size / t**page.step_decay for t in range(1, config.rounds + 1)]
    return Plan(
        "as-published", config.delta, z, bounds, rounds_in, touched, math.sqrt(most) / z,
        _published_caveat(page), config.epsilon or None, _true_costs(page, bounds, etas, pace.steps, config),
    )  # fmt: skip


def _published_caveat(page: Any) -> str:
    if page.stopping_tolerance:
        return "no guarantee: the stopping rule's number of steps scales the noise, and is private"
    if getattr(page, "uplink", "") == "top-k" and page.uplink_ratio < 1:
        return "no guarantee: the places of the k largest entries are released without noise"
    return (
        "the published dual carries un-noised private state from round to round, which Theorem 1 forgets: mu is the "
        "one that follows from the worst case over the rounds"
    )


def _true_costs(page: Any, bounds: Bounds, etas: list[float], steps: int, config: Config) -> np.ndarray:
    """sum over its rounds of (true / claimed sensitivity)^2 for each client (N,), to be divided by z^2."""
    costs = np.zeros(config.num_clients)
    rounds: list[list[int]] = [[] for _ in range(config.num_clients)]
    for t in range(1, config.rounds + 1):
        for i in participants(config.seed, t, config.num_clients, config.sampled):
            rounds[i].append(t - 1)
    for i, mine in enumerate(rounds):
        own = [etas[t] for t in mine]
        true = published_true_sensitivities(bounds, own, page.rho, steps)
        claimed = [published_sensitivity(bounds, eta, page.rho, steps) for eta in own]
        costs[i] = sum((a / b) ** 2 for a, b in zip(true, claimed, strict=True))
    return costs


def spent(plan: Plan, rounds_in: Sequence[int] | Index) -> dict[str, Any]:
    """The privacy part of summary.json for clients (N,) that were asked in so many rounds."""
    mu = plan.mu(np.asarray(rounds_in))
    if plan.true_costs is not None:
        mu = np.sqrt(plan.true_costs) / plan.noise_multiplier
    worst = float(mu.max())
    epsilon = gdp_epsilon(worst, plan.delta)
    return {
        "unit": "per client, all rounds, replacement of one record",
        "mode": plan.mode,
        "epsilon": epsilon,
        "delta": plan.delta,
        "mu": worst,
        "mu_smallest": float(mu.min()),
        "noise_multiplier": plan.noise_multiplier,
        "claimed_epsilon": plan.claimed_epsilon,
        "guarantee": in_words(plan, epsilon, worst),
    }


def in_words(plan: Plan, epsilon: float, mu: float) -> str:
    """The guarantee as one sentence."""
    text = (
        f"for each client, all its messages together are {mu:.4g}-GDP, hence ({epsilon:.4g}, {plan.delta:g})-DP, under "
        "replacement of one of its records; simulation: the noise is seeded, not secret"
    )
    return f"{plan.caveat}; {text}" if plan.caveat else text
