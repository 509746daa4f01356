"""How much noise each client adds so that a run meets its privacy target, and what that costs: a plan is a list of
releases, and the cost of anything is the sum over this list.

The guarantee, for every client: all its messages over all rounds together are mu-GDP under the replacement of one
record, or of the larger `Unit` that the run protects, hence (epsilon, delta)-DP on the whole curve. The sizes of the
clients' data, the settings and the participation are public, and the server may choose its broadcasts adaptively.

    target = Target(epsilon=8.0, delta=1e-4)
    plan = Plan.of(algorithm, objective.bounds(row_norm), schedule.workloads(sizes), asked, target)
    guard = plan.guard(client, ledger)

Costs add up, with two exceptions. Where rounds go on through one permutation of a client's rows, a record is in few of
them (`participation`). And evaluations on held-out rows concern other rows. Which rows are held out depends on the seed
and on public numbers only. A record is therefore either trained on or held out. If it is trained on, it affects the
evaluation only through what training releases, which pays for that; if it is held out, it does not affect training. So
a record pays the larger of the two costs (parallel composition). Without a group column a group of records can be
partly in both parts, and pays for both (`Unit.parts`).
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple, Self

import numpy as np

from ..arrays import Array, Index
from ..errors import SettingError, require
from ..problems.batches import Workload
from ..problems.interfaces import Bounds
from .accountant import Budget, gdp_epsilon
from .charges import Ledger
from .correlated import MOST_STEPS
from .guard import Guard
from .mechanism import secretly, seeded
from .participation import CountsTurns, Participation, every_round, most_batches
from .release import Planned, Release, check_sensitivities
from .target import Target
from .unit import ONE_RECORD, Unit

Sampled = Sequence[Sequence[int] | Index]  # the clients of each round, from the public sampling

ROUND, COUNTS, INTERVALS, EVALUATION, TUNING = "round", "counts", "intervals", "evaluation", "tuning"
TRAINED = ROUND, COUNTS, INTERVALS
"""What is released about the rows that are trained on, with the noise of the plan."""


class PlannedRelease(NamedTuple):
    """An entry of a plan: what these clients (K,) release in a round, or after it.

    what: a ROUND of the training; COUNTS of the training rows, before round 1; what INTERVALS follow from, after the
    last round; an EVALUATION on held-out rows; all of a TUNING before the run. round: 0 for before round 1. weight: the
    budget relative to a release of weight 1, a number or (K,); the release costs weight times as much mu^2, and a round
    that costs for every release that a record can affect. multiplier: sigma / sensitivity of a release of weight 1; 0
    if it is the client's multiplier of the plan.
    """

    what: str
    round: int
    clients: Index
    weight: Array | float = 1.0
    multiplier: float = 0.0


@dataclass(frozen=True)
class Releases:
    """A list of releases of so many clients, with the rounds in order."""

    num_clients: int
    entries: tuple[PlannedRelease, ...]

    @cached_property
    def _by_kind(self) -> Mapping[str, list[PlannedRelease]]:
        kinds: dict[str, list[PlannedRelease]] = {}
        for entry in self.entries:
            kinds.setdefault(entry.what, []).append(entry)
        return kinds

    def of_kind(self, *kinds: str) -> list[PlannedRelease]:
        """The releases of these kinds."""
        return [entry for kind in kinds for entry in self._by_kind.get(kind, ())]

    def without(self, *kinds: str) -> "Releases":
        """The list without the releases of these kinds."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.what not in kinds))

    def so_far(self, asked: Iterable[tuple[int, Sequence[int] | Index]]) -> "Releases":
        """What a run has released whose rounds so far are these: (round, clients) pairs."""
        done = {t: np.asarray(clients, dtype=np.int64) for t, clients in asked}
        last, nobody = max(done, default=0), np.empty(0, dtype=np.int64)
        made = [entry for entry in self.entries if entry.round <= last]
        return replace(self, entries=tuple(
            entry._replace(clients=done.get(entry.round, nobody)) if entry.what == ROUND else entry for entry in made
        ))  # fmt: skip

    def weights(self, *kinds: str) -> Array:
        """The sum of the weights (N,) of every client's releases of these kinds."""
        return self.total((entry.clients, entry.weight) for entry in self.of_kind(*kinds))

    def total(self, weights: Iterable[tuple[Index, Array | float]]) -> Array:
        """The sum (N,) of these weights of clients."""
        total = np.zeros(self.num_clients)
        for clients, weight in weights:
            total[clients] += weight
        return total

    @property
    def rounds(self) -> list[tuple[int, Index, float]]:
        """The rounds of the training, with their clients and weights."""
        return [(entry.round, entry.clients, float(entry.weight)) for entry in self.of_kind(ROUND)]

    @cached_property
    def rounds_in(self) -> Array:
        """The number of rounds (N,) that each client takes part in."""
        return self.total((entry.clients, 1.0) for entry in self.of_kind(ROUND))

    @property
    def heaviest(self) -> float:
        """The largest weight of a round."""
        return max((float(entry.weight) for entry in self.of_kind(ROUND)), default=0.0)


@dataclass(frozen=True)
class Plan:
    """The noise of a run and its privacy cost, computed before the run starts.

    mode: the algorithm's `privacy`. multipliers (N,): each client's noise multiplier, sigma / sensitivity of a release
    of weight 1. bounds: of the objective on allowed rows. releases: all of the run. participation: in how many of them
    a record can be. mu_limit: the largest mu that any client may reach in this run, without the tuning before it. unit:
    what is protected, to which every sensitivity refers. claimed_epsilon: the total that a paper's rule claims for its
    noise; caveat: what is wrong with that claim; provable: whether any guarantee remains.
    """

    mode: str
    delta: float
    multipliers: Array
    bounds: Bounds
    releases: Releases
    participation: Participation
    mu_limit: float
    caveat: str = ""
    provable: bool = True
    claimed_epsilon: float | None = None
    unit: Unit = ONE_RECORD

    @classmethod
    def of(
        cls, algorithm: Planned, bounds: Bounds, workloads: Sequence[Workload], asked: Sampled, target: Target,
        shares: Mapping[str, float] | None = None, turns: CountsTurns = every_round,
    ) -> "Plan":  # fmt: skip
        """Plan the noise of clients with these workloads (`LocalSchedule.workloads`).

        bounds: of the objective on allowed rows. asked: for each round, the numbers of the sampled clients, from 0.
        shares: those of the budget for COUNTS and INTERVALS, below 1 in all. turns: must count the rounds of clients as
        their `LocalSchedule` does. Raises SettingError if no amount of noise can give this algorithm the target.
        """
        if algorithm.privacy not in ("public-state", "gradient"):
            raise SettingError(f"no plan for privacy '{algorithm.privacy}'")
        plan = draft(algorithm, bounds, workloads, asked, target, shares or {}, turns)
        rule = _rule_of(algorithm, target, plan.releases.rounds_in)
        _check_rule(rule, target, bool(shares and any(shares.values())))
        papers = target.epsilon and (rule is not None or target.conversion == "zcdp")
        plan = replace(plan, claimed_epsilon=target.epsilon if papers else None)
        return plan.with_noise(_multipliers(plan, target) if rule is None else rule)

    def with_noise(self, multipliers: Array) -> Self:
        """The plan with these noise multipliers (N,) and the `mu_limit` that follows from them."""
        plan = replace(self, multipliers=multipliers)
        return replace(plan, mu_limit=float(plan.mu_trained.max()))

    def with_evaluation(self, rounds: Sequence[int], clients: Index, target: Target) -> Self:
        """The plan with evaluations of these clients, which hold out rows, after these rounds.

        target: that of the plan; its evaluation_share is above 0.
        """
        share = target.evaluation_share / target.training_share
        multiplier = math.sqrt(len(rounds)) / (self.mu_limit * math.sqrt(share))
        added = (PlannedRelease(EVALUATION, t, clients, 1.0, multiplier) for t in rounds)
        plan = replace(self, releases=replace(self.releases, entries=(*self.releases.entries, *added)))
        limit = plan._with_evaluations(np.full_like(self.multipliers, self.mu_limit**2)).max()
        return replace(plan, mu_limit=math.sqrt(limit))

    def so_far(self, asked: Iterable[tuple[int, Sequence[int] | Index]]) -> Self:
        """The plan of what a run has released whose rounds so far are these: (round, clients) pairs."""
        return replace(self, releases=self.releases.so_far(asked))

    # --- what the list costs

    @cached_property
    def units(self) -> Array:
        """The cost (N,) of all rounds in units of a release of weight 1: how many of their releases a record can be
        in."""
        return self.participation.units(self.releases.rounds)

    @property
    def units_trained(self) -> Array:
        """The same (N,) of all releases in TRAINED."""
        return self.units + self.releases.weights(COUNTS, INTERVALS)

    def cost(self, kind: str) -> Array:
        """The cost mu^2 (N,) of the releases of this kind."""
        weights, entries = self.releases.weights(kind), self.releases.of_kind(kind)
        if entries and entries[0].multiplier:
            return weights / entries[0].multiplier ** 2
        return (self.units if kind == ROUND else weights) / self.multipliers**2

    def share(self, kind: str) -> float:
        """The share of the budget for COUNTS or INTERVALS of every client that is ever sampled."""
        busiest = self.releases.rounds_in.argmax()
        return float(self.releases.weights(kind)[busiest] / self.units_trained[busiest])

    @property
    def mu_trained(self) -> Array:
        """mu (N,) of all releases in TRAINED."""
        return np.sqrt(self.units_trained) / self.multipliers  # type: ignore[no-any-return]

    def _with_evaluations(self, trained: Array) -> Array:
        """The cost mu^2 (N,) of releases about the rows that are trained on together with the evaluations."""
        evaluated = self.cost(EVALUATION)
        return np.maximum(trained, evaluated) if self.unit.parts == 1 else trained + evaluated

    @property
    def mu_tuning(self) -> float:
        """The mu of the tuning before the run."""
        return math.sqrt(self.cost(TUNING).max())

    @property
    def mu(self) -> Array:
        """mu (N,) of all releases together."""
        return np.hypot(np.sqrt(self._with_evaluations(self.mu_trained**2)), self.mu_tuning)  # type: ignore[no-any-return]

    @property
    def budget(self) -> Budget:
        """A client's budget for this run, mu_limit^2."""
        return Budget(self.mu_limit**2)

    @property
    def mu_limit_alone(self) -> float:
        """The largest mu that any client may reach against all other parties together."""
        return self.mu_limit

    @property
    def epsilon_limit(self) -> float:
        """The epsilon, at the run's delta, of a client that reaches mu_limit, tuning included."""
        return gdp_epsilon(math.hypot(self.mu_limit, self.mu_tuning), self.delta)

    # --- a client's part

    def release_of(self, kind: str, client: int, sensitivity: float) -> Release:
        """A client's release of COUNTS or INTERVALS with this sensitivity."""
        return Release(sensitivity, weight=float(self.releases.weights(kind)[client]))

    def least_multiplier(self, client: int) -> float:
        """The smallest sigma / sensitivity over all releases of a client, whatever rounds the server asks for."""
        others = (self.release_of(kind, client, 1.0).weight for kind in (COUNTS, INTERVALS))
        trained = float(self.multipliers[client]) / math.sqrt(max(self.releases.heaviest, *others))
        return min([trained, *(entry.multiplier for entry in self.releases.of_kind(EVALUATION))])

    def guard(
        self, client: int, ledger: Ledger, *, seed: int | None = None, run: str = "", config: str = "",
        row_norm: float = math.inf, split: str = "",
    ) -> Guard:  # fmt: skip
        """The guard of one client, with secret noise. Its ledger refuses to start a run that the budget cannot finish.

        seed: that of a simulation, whose noise is addressed by (seed, client, round) and not secret. run, config:
        identities of the run and its settings, written to the ledger. row_norm: the public bound on the norm of the
        client's rows. split: see `charges.Charge`; ignored for groups and sites, which pay for both parts.
        """
        planned = float(self._with_evaluations(self.mu_trained**2)[client]) if seed is None else 0.0
        return Guard(
            self.bounds, float(self.multipliers[client]), replace(self.budget, planned=planned), ledger,
            secretly if seed is None else partial(seeded, seed, client), secret=seed is None, run=run,
            config=config, row_norm=row_norm, split=split if self.unit.parts == 1 else "",
            window=self.participation.window(client),
        )  # fmt: skip


def draft(
    algorithm: Planned, bounds: Bounds, workloads: Sequence[Workload], asked: Sampled, target: Target,
    shares: Mapping[str, float], turns: CountsTurns = every_round,
) -> Plan:  # fmt: skip
    """The plan of `Plan.of` with noise multiplier 1, without `mu_limit`; SettingError for sensitivities that are not
    finite."""
    releases = {workload: algorithm.release(bounds, workload, 1) for workload in set(workloads)}
    check_sensitivities(np.array([release.sensitivity for release in releases.values()]))
    affected = np.array([releases[workload].affected_releases for workload in workloads])
    rounds_of_run = range(1, len(asked) + 1) or [1]
    most = {workload: most_batches(algorithm, bounds, workload, rounds_of_run) for workload in releases}
    participation = Participation(affected, workloads, most, turns)
    weights = [algorithm.release(bounds, workloads[0], t).weight for t in range(1, len(asked) + 1)]
    clients = [np.asarray(sampled, dtype=np.int64) for sampled in asked]
    each = enumerate(zip(clients, weights, strict=True), 1)
    rounds = Releases(len(workloads), tuple(PlannedRelease(ROUND, t, *own) for t, own in each))
    if target.noise == "banded":
        _check_banded(algorithm, workloads)
        participation = participation.correlated(rounds.rounds_in)
        longest = max(
            n * load.steps * load.per_epoch for n, load in zip(rounds.rounds_in, workloads, strict=True)
        )
        require(
            longest <= MOST_STEPS,
            f"privacy.noise = banded needs at most {MOST_STEPS:,} steps times batches of an epoch for each client; got "
            f"{longest:,.0f}: take larger batches, or fewer rounds",
        )
    noise = np.ones(len(workloads))
    plan = Plan(
        algorithm.privacy, target.delta, noise, bounds, rounds, participation, math.inf, unit=target.unit
    )
    return replace(plan, releases=_with_others(plan, shares, target.mu_tuning))


def _check_banded(algorithm: Planned, workloads: Sequence[Workload]) -> None:
    """Raise SettingError unless the noise is added to gradients on batches in a fixed order."""
    require(
        algorithm.privacy == "gradient",
        f"privacy.noise = banded needs privacy.mode = gradient; got {algorithm.privacy}: change one of the two",
    )
    require(
        all(load.fixed for load in workloads),
        "privacy.noise = banded needs batches in a fixed order: set local.fresh-batches to false, and "
        "local.batch-size below a client's number of rows; got fresh batches",
    )
    largest = max(load.rows for load in workloads)
    require(
        any(load.goes_on for load in workloads),
        "privacy.noise = banded helps only if a record is in few of a client's steps: set local.batch-size below the "
        f"number of rows of the largest client ({largest:,}), or privacy.noise to independent; got all rows in a step",
    )


def _with_others(plan: Plan, shares: Mapping[str, float], mu_tuning: float) -> Releases:
    """The releases of a plan of rounds together with the others, without evaluations."""
    rounds, everybody = plan.releases, np.arange(plan.releases.num_clients)
    whole = (plan.units + _once(plan)) / (1 - sum(shares.values()))
    when = {COUNTS: 0, INTERVALS: len(rounds.entries)}
    others = [
        PlannedRelease(what, when[what], everybody, whole * part) for what, part in shares.items() if part
    ]
    tuning = [PlannedRelease(TUNING, 0, everybody, mu_tuning**2, 1.0)] if mu_tuning else []
    return replace(rounds, entries=(*tuning, *rounds.entries, *others))


def _once(plan: Plan) -> Array:
    """The units (N,) of a single round for a client that is never sampled, which needs no noise: its other releases,
    and its multiplier, are those of a client that is sampled once. 0 for the others."""
    listed = plan.releases
    return np.where(listed.rounds_in > 0, 0.0, listed.heaviest * plan.participation.affected)


def _multipliers(plan: Plan, target: Target) -> Array:
    """Each client's noise multiplier (N,), computed for its own rounds, which are public.

    With a target epsilon, every client that is ever sampled spends exactly the target.
    """
    if target.noise_multiplier:
        return np.full(plan.releases.num_clients, target.noise_multiplier)
    return np.sqrt(plan.units_trained + _once(plan)) / target.mu  # type: ignore[no-any-return]


def _rule_of(algorithm: Planned, target: Target, rounds_in: Array) -> Array | None:
    """The noise multipliers (N,) for a target by the algorithm's own accounting, or None without one."""
    if not target.epsilon:
        return None
    counts, place = np.unique(np.maximum(rounds_in, 1), return_inverse=True)
    known = [algorithm.noise_multiplier(target.epsilon, target.delta, int(n)) for n in counts]
    return None if None in known else np.array(known, dtype=float)[place]


def _check_rule(rule: Array | None, target: Target, others: bool) -> None:
    """Raise SettingError if an accounting of the algorithm's own has no place for a release besides the rounds."""
    require(
        rule is None or target.training_share == 1,
        "this method plans its noise by an accounting of its own, which has no place for tuning, nor for the "
        "evaluation of a group: set privacy.tune-share to 0, and evaluate only if records are protected",
    )
    require(
        rule is None or target.noise == "independent",
        "this method plans its noise by an accounting of its own, which has no place for noise that is correlated: set "
        "privacy.noise to independent",
    )
    require(
        rule is None or not others,
        "this method plans its noise by an accounting of its own, which has no place for answers besides the rounds: "
        "leave them out, or set a noise multiplier",
    )
