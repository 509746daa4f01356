"""How much noise each client adds so that a run keeps its target, and what its rounds then cost.

The statement, for every client: the joint law of all its messages over all rounds is mu-GDP under the
replacement of one record, hence (epsilon, delta)-DP on the whole curve. Sizes of the clients' data, settings and
participation are public; the server may choose its broadcasts adaptively.

    plan = Plan.of(algorithm, objective.bounds(row_norm), schedule.paces(sizes), asked, Target(epsilon=8.0, delta=1e-4))
    guard = plan.guard(client, ledger)
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np

from ..algorithms.abilities import PlansNoise
from ..algorithms.fedpdm import FedPDM
from ..algorithms.published import PublishedRule, caveat, true_costs
from ..arrays import Array, Index
from ..batches import Workload
from ..errors import require
from ..objectives import Bounds
from .accountant import Budget, gdp_epsilon, gdp_mu, zcdp_mu, zcdp_rho_papers
from .guard import Guard
from .ledger import Ledger
from .mechanism import Draws, secret
from .release import Release

Asked = Sequence[Sequence[int] | Index]  # the clients of each round, from the public sampling


def _zcdp_mu(epsilon: float, delta: float) -> float:
    """mu by rho + 2 sqrt(rho ln 1/delta) = epsilon, which wastes noise (Zhang 2023, (13); Gauthier 2023)."""
    return zcdp_mu(zcdp_rho_papers(epsilon, delta))


CONVERSIONS: dict[str, Callable[[float, float], float]] = {"exact": gdp_mu, "zcdp": _zcdp_mu}


class Planned(Protocol):
    """An algorithm, as far as its privacy goes."""

    @property
    def privacy(self) -> str:
        """How the client's releases are protected."""

    def release(self, bounds: Bounds, workload: Workload, round_: int) -> Release:
        """What one round releases."""


@dataclass(frozen=True)
class Target:
    """How private a run is to be: a total epsilon for each client at delta, or a noise multiplier; the other is 0.

    conversion: how epsilon becomes mu, one of CONVERSIONS.
    """

    epsilon: float = 0.0
    delta: float = 1e-4
    noise_multiplier: float = 0.0
    conversion: str = "exact"

    def __post_init__(self) -> None:
        require(
            (self.epsilon > 0) != (self.noise_multiplier > 0),
            "privacy needs either privacy.epsilon or privacy.noise-multiplier above 0; got "
            f"{self.epsilon:g} and {self.noise_multiplier:g}",
        )

    @property
    def mu(self) -> float:
        """mu of epsilon."""
        mu = CONVERSIONS[self.conversion](self.epsilon, self.delta)
        require(mu**2 > 0, f"epsilon must be large enough for a finite noise; got {self.epsilon:g}")
        return mu


class Load(NamedTuple):
    """What a run asks of its clients.

    weights (T + 1,): of the rounds, by number. Of each client (N,): the rounds it takes part in, the sum of their
    weights, and how many releases of a round one of its records can touch.
    """

    weights: Array
    rounds_in: Array
    shares: Array
    touched: Index

    @classmethod
    def of(cls, algorithm: Planned, bounds: Bounds, workloads: Sequence[Workload], asked: Asked) -> "Load":
        """For clients of these paces. SettingError where a release has no finite sensitivity."""
        releases = {workload: algorithm.release(bounds, workload, 1) for workload in set(workloads)}
        require(
            all(math.isfinite(r.sensitivity) for r in releases.values()),
            "the releases of this run have no finite sensitivity, because its local steps stretch every difference: "
            "lower step-size, or local.max-steps",
        )
        touched = np.array([releases[workload].touched for workload in workloads])
        rounds = range(1, len(asked) + 1)
        weights = np.array([0.0, *(algorithm.release(bounds, workloads[0], t).weight for t in rounds)])
        rounds_in, shares = (
            _shares(w, enumerate(asked, 1), len(workloads)) for w in (np.ones_like(weights), weights)
        )
        return cls(weights, rounds_in, shares, touched)

    def mu(self, multipliers: Array) -> float:
        """The largest mu of a client with these noise multipliers (N,)."""
        return float((np.sqrt(self.shares * self.touched) / multipliers).max())


@dataclass(frozen=True)
class Plan:
    """The privacy of a run before it starts.

    multipliers (N,): each client's noise multiplier, sigma / sensitivity of a release of weight 1. weights, rounds_in,
    shares, touched: as in `Load`. mu_limit: what no client may exceed in this run.
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
    true_costs: Array | None = None

    @classmethod
    def of(
        cls, algorithm: Planned, bounds: Bounds, workloads: Sequence[Workload], asked: Asked, target: Target
    ) -> "Plan":
        """Clients have these workloads (`LocalSchedule.workloads`), and the objective these bounds on allowed rows.

        asked: the clients of each round, from 0. SettingError for a target, or an algorithm, that no noise can serve.
        """
        require(
            algorithm.privacy in ("public-state", "gradient"), f"no plan for privacy '{algorithm.privacy}'"
        )
        load = Load.of(algorithm, bounds, workloads, asked)
        own_rule = _own_rule(target, algorithm, load.rounds_in)
        multipliers = _multipliers(target, load) if own_rule is None else own_rule
        papers = target.epsilon and (own_rule is not None or target.conversion == "zcdp")
        return cls(
            algorithm.privacy, target.delta, multipliers, bounds, *load, load.mu(multipliers),
            claimed_epsilon=target.epsilon if papers else None,
        )  # fmt: skip

    @classmethod
    def as_published(
        cls, algorithm: FedPDM, bounds: Bounds, workloads: Sequence[Workload], sizes: Sequence[int] | Index,
        asked: Asked, target: Target, rule: PublishedRule,
    ) -> "Plan":  # fmt: skip
        """The noise of Li 2023 and Li 2024 for clients with these numbers of rows, and what it really amounts to."""
        load, costs = (
            Load.of(algorithm, bounds, workloads, asked),
            true_costs(algorithm, bounds, workloads, asked),
        )
        z = np.full(len(workloads), target.noise_multiplier)
        if target.epsilon:
            of_client = (target.epsilon, target.delta)
            each = zip(workloads, sizes, strict=True)
            z = np.array([rule.noise_multiplier(*of_client, p, int(m), len(asked)) for p, m in each])
        said, provable = caveat(algorithm, costs, rule.clips_means)
        return cls(
            algorithm.privacy,
            target.delta,
            z,
            bounds,
            *load,
            load.mu(z),
            said,
            provable,
            target.epsilon or None,
            costs,
        )

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

    def guard(
        self, client: int, ledger: Ledger, *, run: str = "", config: str = "", row_norm: float = math.inf
    ) -> Guard:
        """What protects one client: secret noise, charged to a ledger that lets no run begin that it could not finish.

        row_norm: the public bound on the norm of its rows. run, config: identities that stand in the ledger.
        """
        return Guard(
            self.bounds, float(self.multipliers[client]), self.budget_of(client), ledger, lambda round_: secret,
            secret=True, run=run, config=config, row_norm=row_norm,
        )  # fmt: skip

    def simulated_guard(
        self,
        client: int,
        ledger: Ledger,
        draws: Callable[[int], Draws],
        *,
        run: str = "",
        row_norm: float = math.inf,
    ) -> Guard:
        """The same with a simulation's noise, given by draws(round)."""
        multiplier = float(self.multipliers[client])
        return Guard(self.bounds, multiplier, self.budget, ledger, draws, run=run, row_norm=row_norm)


def _multipliers(target: Target, load: Load) -> Array:
    """Each client's noise multiplier (N,), planned for its own rounds, which are public: with a target, everybody
    spends all of it.

    A client that is never asked needs no noise; with what it has here it would keep the target if it were asked once.
    """
    if target.noise_multiplier:
        return np.full(len(load.shares), target.noise_multiplier)
    units = np.where(load.rounds_in > 0, load.shares, load.weights.max()) * load.touched
    return np.sqrt(units) / target.mu  # type: ignore[no-any-return]


def _own_rule(target: Target, algorithm: Planned, rounds_in: Array) -> Array | None:
    """The noise multipliers (N,) of a method that has accounting of its own for a target; else None."""
    if not target.epsilon or not isinstance(algorithm, PlansNoise):
        return None
    counts, place = np.unique(np.maximum(rounds_in, 1), return_inverse=True)
    known = [algorithm.noise_multiplier(target.epsilon, target.delta, int(n)) for n in counts]
    return np.array(known)[place]


def _shares(weights: Array, asked: Iterable[tuple[int, Sequence[int] | Index]], num_clients: int) -> Array:
    shares = np.zeros(num_clients)
    for round_, clients in asked:
        shares[np.asarray(clients)] += weights[round_]
    return shares
