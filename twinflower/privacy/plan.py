"""How much noise each client adds so that a run meets its privacy target, and what its rounds then cost.

The guarantee, for every client: all its messages over all rounds together are mu-GDP under the replacement of one
record, or of the larger `Unit` that the run protects, hence (epsilon, delta)-DP on the whole curve. The sizes of the
clients' data, the settings and the participation are public, and the server may choose its broadcasts adaptively.

    target = Target(epsilon=8.0, delta=1e-4)
    plan = Plan.of(algorithm, objective.bounds(row_norm), schedule.workloads(sizes), asked, target)
    guard = plan.guard(client, ledger)
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError, require
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from .accountant import Budget, gdp_epsilon, gdp_mu, zcdp_mu, zcdp_rho_papers
from .charges import Ledger
from .counts import CountPlan, paid_twice
from .guard import Guard
from .load import NOTHING_ELSE, Participation, Planned, PrivacyLoad, Shares, shares_of
from .mechanism import secret, seeded
from .release import Release
from .unit import ONE_RECORD, Unit


def _zcdp_mu(epsilon: float, delta: float) -> float:
    """mu from rho + 2 sqrt(rho ln 1/delta) = epsilon (Zhang 2023, (13); Gauthier 2023); adds more noise than needed."""
    return zcdp_mu(zcdp_rho_papers(epsilon, delta))


CONVERSIONS: dict[str, Callable[[float, float], float]] = {"exact": gdp_mu, "zcdp": _zcdp_mu}


@dataclass(frozen=True)
class Target:
    """The privacy target of a run: either a total epsilon per client at delta, or a noise multiplier; the other is 0.

    conversion: how epsilon is converted to mu, one of CONVERSIONS. unit: what is protected; the workloads of the plan
    must be those of a `LocalSchedule` with group = unit.rows. tune_share: the share of the budget, in mu^2, that tuning
    has taken before the run. evaluation_share: the share that evaluations on held-out rows may take. Raises
    SettingError unless exactly one of epsilon and noise_multiplier is above 0, and for shares that do not add up.
    """

    epsilon: float = 0.0
    delta: float = 1e-4
    noise_multiplier: float = 0.0
    conversion: str = "exact"
    unit: Unit = ONE_RECORD
    tune_share: float = 0.0
    evaluation_share: float = 0.0

    def __post_init__(self) -> None:
        if (self.epsilon > 0) == (self.noise_multiplier > 0):
            raise SettingError(
                "privacy needs either privacy.epsilon or privacy.noise-multiplier above 0; got "
                f"{self.epsilon:g} and {self.noise_multiplier:g} (privacy.mode = none trains without privacy)"
            )
        if not 0 <= self.tune_share < 1:
            raise SettingError(f"privacy.tune-share must be from 0 to below 1; got {self.tune_share:g}")
        most = "at most 1" if paid_twice(self.unit) == 1 else "less than 1, because training pays separately"
        if not (self.evaluation_share <= 1 - self.tune_share and self.training_share > 0):
            raise SettingError(
                f"privacy.tune-share and privacy.evaluation-share must add up to {most}; got {self.tune_share:g} and "
                f"{self.evaluation_share:g} with {self.unit.setting}"
            )

    @property
    def training_share(self) -> float:
        """The share of the budget for training. What is paid in parallel takes nothing from it (`counts`)."""
        return 1 - self.tune_share - self.evaluation_share * (paid_twice(self.unit) - 1)

    @property
    def mu(self) -> float:
        """The mu of the training alone; SettingError if epsilon is too small for a finite noise."""
        return self._total * math.sqrt(self.training_share)

    @property
    def mu_tuning(self) -> float:
        """The mu of the tuning before the run."""
        return self._total * math.sqrt(self.tune_share) if self.tune_share else 0.0

    @property
    def _total(self) -> float:
        mu = CONVERSIONS[self.conversion](self.epsilon, self.delta)
        if not mu**2 > 0:
            raise SettingError(f"epsilon must be large enough for a finite noise; got {self.epsilon:g}")
        return mu


@dataclass(frozen=True)
class Plan:
    """The noise of a run and its privacy cost, computed before the run starts.

    mode: the algorithm's `privacy`. multipliers (N,): each client's noise multiplier, sigma / sensitivity of a release
    of weight 1. bounds: of the objective on allowed rows. weights, rounds_in, shares, affected_releases, first, last:
    as in `PrivacyLoad`.
    mu_limit: the largest mu that any client may reach in this run. unit: what is protected, to which every sensitivity
    refers. mu_tuning: the mu of the tuning before the run, which is in the totals `mu` and `epsilon_limit` and not in
    `budget`. evaluation: on the clients' held-out rows, which is in all totals; None for none.
    For noise as in the papers (`algorithms.published.published_plan`): claimed_epsilon is the paper's total; true_costs
    (N,) are the sums over a client's planned rounds of (true / claimed sensitivity)^2; caveat describes what is wrong
    with the claim, and provable is whether any guarantee remains.
    """

    mode: str
    delta: float
    multipliers: Array
    bounds: Bounds
    weights: Array
    rounds_in: Array
    shares: Array
    affected_releases: Index
    first: Array
    last: Array
    mu_limit: float
    caveat: str = ""
    provable: bool = True
    claimed_epsilon: float | None = None
    true_costs: Array | None = None
    unit: Unit = ONE_RECORD
    mu_tuning: float = 0.0
    evaluation: CountPlan | None = None

    @classmethod
    def of(
        cls, algorithm: Planned, bounds: Bounds, workloads: Sequence[Workload], asked: Participation, target: Target,
        others: Shares = NOTHING_ELSE,
    ) -> "Plan":  # fmt: skip
        """Plan the noise of clients with these workloads (`LocalSchedule.workloads`).

        bounds: of the objective on allowed rows. asked: for each round, the numbers of the sampled clients, from 0.
        others: the shares of the budget for what every client releases before round 1 and after the last one.
        Raises SettingError if no amount of noise can give this algorithm the target.
        """
        if algorithm.privacy not in ("public-state", "gradient"):
            raise SettingError(f"no plan for privacy '{algorithm.privacy}'")
        load = PrivacyLoad.of(algorithm, bounds, workloads, asked, others)
        own_rule = _own_rule(target, algorithm, load.rounds_in)
        require(
            own_rule is None or target.training_share == 1,
            "this method plans its noise by an accounting of its own, which has no place for tuning, nor for the "
            "evaluation of a group: set privacy.tune-share to 0, and evaluate only if records are protected",
        )
        require(
            own_rule is None or not others.total,
            "this method plans its noise by an accounting of its own, which has no place for the counts from which "
            "private ranges and survival curves follow, nor for intervals: give the schema's columns public ranges, "
            "leave evaluation.survival-curve empty and evaluation.standard-errors false, or set noise-multiplier",
        )
        multipliers = _multipliers(target, load) if own_rule is None else own_rule
        papers = target.epsilon and (own_rule is not None or target.conversion == "zcdp")
        return cls(
            algorithm.privacy, target.delta, multipliers, bounds, *load, load.mu(multipliers),
            claimed_epsilon=target.epsilon if papers else None, unit=target.unit, mu_tuning=target.mu_tuning,
        )  # fmt: skip

    def with_evaluation(
        self,
        rounds: Sequence[int],
        sizes: Index,
        target: Target,
        moved: float = 1.0,
    ) -> "Plan":
        """The plan with evaluations after these rounds on so many held-out rows (N,) of the clients.

        target: that of the plan; its evaluation_share is above 0. moved: see `CountPlan`.
        """
        share = target.evaluation_share / target.training_share
        counts = CountPlan(tuple(rounds), sizes, self.mu_limit * math.sqrt(share), self.unit, moved)
        limit = float(counts.with_training(np.full(len(sizes), self.mu_limit**2)).max())
        return replace(self, evaluation=counts, mu_limit=math.sqrt(limit))

    @property
    def budget(self) -> Budget:
        """A client's budget for this run, mu_limit^2."""
        return Budget(self.mu_limit**2)

    def budget_of(self, client: int) -> Budget:
        """The budget, with `planned` set to what this client will spend in all its rounds."""
        return replace(self.budget, planned=float(self._costs(self.shares)[client]))

    @property
    def mu_limit_alone(self) -> float:
        """The largest mu that any client may reach against all other parties together."""
        return self.mu_limit

    @property
    def epsilon_limit(self) -> float:
        """The epsilon, at the run's delta, of a client that reaches mu_limit, tuning included."""
        return gdp_epsilon(math.hypot(self.mu_limit, self.mu_tuning), self.delta)

    def least_multiplier(self, client: int) -> float:
        """The smallest sigma / sensitivity over all releases of a client."""
        others = max(self.first[client], self.last[client])
        largest = max(self.weights.max(), others * self.affected_releases[client])
        trained = float(self.multipliers[client]) / math.sqrt(largest)
        return min(trained, self.evaluation.multiplier) if self.evaluation else trained

    def release_of(self, part: Array, client: int, sensitivity: float) -> Release:
        """The release with this sensitivity for which a client has this part (N,) of `shares`: `first` or `last`."""
        return Release(sensitivity, weight=float(part[client] * self.affected_releases[client]))

    def mu(self, shares: Array, last: int | None = None) -> Array:
        """mu (N,) of clients whose rounds have these sums of weights (N,), tuning and evaluations included.

        last: the last round that was run, by default all. With noise as published, the result covers all planned
        rounds, whatever the shares.
        """
        own = np.sqrt(self._costs(shares, last)) if self.evaluation else self._own_mu(shares)
        return np.hypot(own, self.mu_tuning)  # type: ignore[no-any-return]

    def _costs(self, shares: Array, last: int | None = None) -> Array:
        """mu^2 (N,) of the run with its evaluations."""
        trained = self._own_mu(shares) ** 2
        return self.evaluation.with_training(trained, last) if self.evaluation else trained

    def _own_mu(self, shares: Array) -> Array:
        """`mu` of the training alone."""
        costs = shares * self.affected_releases if self.true_costs is None else self.true_costs
        return np.sqrt(costs) / self.multipliers  # type: ignore[no-any-return]

    def scaled_to(self, mu: float) -> "Plan":
        """The same plan with noise such that every client that takes part spends exactly mu."""
        now = self._own_mu(self.shares)
        return replace(self, multipliers=self.multipliers * np.where(now > 0, now, 1.0) / mu, mu_limit=mu)

    def shares_of(self, asked: Iterable[tuple[int, Sequence[int]]]) -> Array:
        """The sum of the weights (N,) of the rounds in which each client was sampled, of its counts before round 1 and,
        if the last round is among them, of what it releases afterwards.

        asked: (round, clients) pairs.
        """
        done = list(asked)
        ended = any(round_ == len(self.weights) - 1 for round_, _ in done)
        return self.first + ended * self.last + shares_of(self.weights, done, len(self.affected_releases))

    def guard(
        self, client: int, ledger: Ledger, *, seed: int | None = None, run: str = "", config: str = "",
        row_norm: float = math.inf, split: str = "",
    ) -> Guard:  # fmt: skip
        """The guard of one client, with secret noise. Its ledger refuses to start a run that the budget cannot finish.

        seed: that of a simulation, whose noise is addressed by (seed, client, round) and not secret. run, config:
        identities of the run and its settings, written to the ledger. row_norm: the public bound on the norm of the
        client's rows. split: see `charges.Charge`; ignored for groups and sites, which pay for both parts.
        """
        return Guard(
            self.bounds, float(self.multipliers[client]), self.budget_of(client) if seed is None else self.budget,
            ledger, (lambda round_: secret) if seed is None else partial(seeded, seed, client), secret=seed is None,
            run=run, config=config, row_norm=row_norm, split=split if paid_twice(self.unit) == 1 else "",
        )  # fmt: skip


def _multipliers(target: Target, load: PrivacyLoad) -> Array:
    """Each client's noise multiplier (N,), computed for its own rounds, which are public.

    With a target epsilon, every client spends exactly the target. A client that is never sampled needs no noise; its
    multiplier here would meet the target if it were sampled once.
    """
    if target.noise_multiplier:
        return np.full(len(load.shares), target.noise_multiplier)
    others = load.first + load.last
    units = np.where(load.rounds_in > 0, load.shares, load.weights.max() + others) * load.affected_releases
    return np.sqrt(units) / target.mu  # type: ignore[no-any-return]


def _own_rule(target: Target, algorithm: Planned, rounds_in: Array) -> Array | None:
    """The noise multipliers (N,) for a target by the algorithm's own accounting, or None without one."""
    if not target.epsilon:
        return None
    counts, place = np.unique(np.maximum(rounds_in, 1), return_inverse=True)
    known = [algorithm.noise_multiplier(target.epsilon, target.delta, int(n)) for n in counts]
    return None if None in known else np.array(known, dtype=float)[place]
