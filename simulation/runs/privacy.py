"""A run's privacy: the plan made from its settings, and the resulting guarantee in numbers and in words."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from twinflower.algorithms import Algorithm
from twinflower.algorithms.fedpdm import FedPDM
from twinflower.algorithms.published import PublishedRule, published_plan
from twinflower.arrays import Array, Index
from twinflower.errors import SettingError
from twinflower.privacy import best_guess, detection, gdp_epsilon
from twinflower.privacy.plan import COUNTS, EVALUATION, INTERVALS, TUNING, Plan
from twinflower.privacy.target import Target
from twinflower.privacy.unit import GROUP, RECORD, SITE, Unit
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Model
from twinflower.queries.query import Histogram, SiteQuery
from twinflower.sums.plan import SumPlan

from ..settings import Config
from ..settings.reader import listed
from ..settings.sections import AsPublished, Private

_INCLUDED = {
    TUNING: "those of the tuning before the run",
    COUNTS: "the counts before round 1",
    INTERVALS: "what it releases after the last round for intervals",
    EVALUATION: "those of the evaluation on held-out rows",
}
"""What a guarantee covers besides the rounds."""


def make_plan(
    config: Config,
    algorithm: Algorithm,
    objective: Model,
    schedule: LocalSchedule,
    sizes: Index,
    queries: Sequence[SiteQuery] = (),
) -> Plan | None:
    """The plan of a private run, None without privacy; SettingError for an invalid target (epsilon, delta, noise).

    queries: what sites answer besides the rounds.
    """
    if not isinstance(config.privacy, Private):
        return None
    target = _target(config.privacy)
    plan = _plan(config, config.privacy, algorithm, objective, schedule, sizes, target, queries)
    for query in queries:
        plan = query.charged(plan, target)
    return plan


def _shares(queries: Sequence[SiteQuery]) -> dict[str, float]:
    """The shares of the privacy budget for the answers before round 1, which are one release, and after the last."""
    shares: dict[str, float] = {}
    for query in queries:
        kind = COUNTS if isinstance(query, Histogram) else INTERVALS
        shares[kind] = shares.get(kind, 0.0) + query.share
    total = sum(shares.values())
    if not total < 1:
        keys = listed([query.share_key for query in queries if query.share], "and")
        raise SettingError(f"{keys} must add up to less than 1; got {total:g} in all")
    return shares


def _target(privacy: Private) -> Target:
    amount = privacy.epsilon, privacy.delta, privacy.noise_multiplier
    return Target(
        *amount,
        privacy.conversion,
        privacy.unit,
        privacy.tune_share,
        privacy.shares.evaluation_share,
        privacy.noise,
    )


def _plan(
    config: Config, privacy: Private, algorithm: Algorithm, objective: Model, schedule: LocalSchedule, sizes: Index,
    target: Target, queries: Sequence[SiteQuery],
) -> Plan:  # fmt: skip
    """The plan of the training and of the answers with shares."""
    bounds, workloads = objective.bounds(config.data.row_norm), schedule.workloads(sizes)
    asked = [config.asked(round_) for round_ in range(1, config.rounds + 1)]
    sums, shares = privacy.trust == "sum", _shares(queries)
    _check_answers(privacy, algorithm, target, queries)
    if sums:
        honest, d = privacy.honest_sites, algorithm.release_size(objective.d)
        return SumPlan.of_sums(
            algorithm, bounds, schedule, sizes, config.rounds, d, honest, target, privacy.lost_sites
        )
    if not isinstance(privacy, AsPublished):
        turns = partial(_turns, schedule, config.seed)
        return Plan.of(algorithm, bounds, workloads, asked, target, shares, turns)
    assert isinstance(algorithm, FedPDM)  # no other method has this mode
    rule = PublishedRule(
        privacy.c0,
        config.clients.sampled / config.clients.count,
        clips_means=config.objective.clip == "batch",
    )
    return published_plan(algorithm, bounds, workloads, sizes, asked, target, rule)


def _check_answers(
    privacy: Private, algorithm: Algorithm, target: Target, queries: Sequence[SiteQuery]
) -> None:
    """Raise SettingError for answers that have no place in the plan of such a run."""
    counted = [query for query in queries if isinstance(query, Histogram)]
    if counted and (privacy.trust == "sum" or isinstance(privacy, AsPublished)):
        raise _refusal(
            "privacy.trust = sum and privacy.mode = as-published have no plan for the counts for {names}: {remedies}",
            counted,
        )
    if counted and target.tune_share:
        raise _refusal(
            "privacy.tune-share and {names} share no budget, because every candidate would need counts of its own: set "
            "privacy.tune-share to 0, or {remedies}",
            counted,
        )
    charged = [query for query in queries if query.share]
    if charged and target.epsilon and algorithm.noise_multiplier(target.epsilon, target.delta, 1) is not None:
        raise _refusal(
            "this method plans its noise by an accounting of its own, which has no place for {names}: {remedies}, or "
            "set privacy.noise-multiplier in place of privacy.epsilon",
            charged,
        )


def _refusal(text: str, queries: Sequence[SiteQuery]) -> SettingError:
    """An error with {names} for what follows from the answers, and {remedies} for how a run does without them."""
    follows, otherwise = zip(*((query.follows, query.otherwise) for query in queries), strict=True)
    return SettingError(text.format(names=listed(follows, "and"), remedies=listed(otherwise, "and")))


def _turns(schedule: LocalSchedule, seed: int, clients: Index, round_: int) -> list[int]:
    """The turns of clients as their schedule counts them."""
    return schedule.turns.of([seed] * len(clients), clients, round_)


def spent(plan: Plan, seeded: bool = True) -> dict[str, Any]:
    """The privacy entry of summary.json for these releases, such as those so far (`Plan.so_far`).

    seeded: whether the noise was seeded, as in a simulation, and therefore not secret.
    """
    mu = plan.mu
    worst = float(mu.max())
    return {
        "mu_tuning": plan.mu_tuning if plan.provable else None,
        "mu_evaluation": float(np.sqrt(plan.cost(EVALUATION).max())),
        "mu_intervals": float(np.sqrt(plan.cost(INTERVALS).max())),
        "unit": f"per client, all rounds, replacement of {plan.unit.records}",
        "mode": plan.mode,
        "epsilon": gdp_epsilon(worst, plan.delta) if plan.provable else None,
        "delta": plan.delta,
        "mu": worst if plan.provable else None,
        "mu_smallest": float(mu.min()) if plan.provable else None,
        "attacker_accuracy": best_guess(worst) if plan.provable else None,
        "noise_multiplier": float(plan.multipliers.max()),
        "noise_multiplier_smallest": float(plan.multipliers.min()),
        "claimed_epsilon": plan.claimed_epsilon,
        "guarantee": in_words(plan, seeded),
        **(_spent_alone(plan) if isinstance(plan, SumPlan) else {}),
        **_correlated(plan),
    }


def _correlated(plan: Plan) -> dict[str, Any]:
    """The bandwidths of noise that is correlated over the steps, if it is."""
    widths = plan.participation.bandwidths
    return {} if widths is None else {"bandwidth": int(widths.max()), "bandwidth_smallest": int(widths.min())}


def accounts(plan: Plan) -> dict[str, Array]:
    """Each client's mu (N,); empty without a guarantee. In a run of sums also mu_alone (N,), against the server and all
    other clients together."""
    if not plan.provable:
        return {}
    return {"mu": plan.mu} | ({"mu_alone": plan.mu_alone} if isinstance(plan, SumPlan) else {})


def _spent_alone(plan: SumPlan) -> dict[str, Any]:
    """The second guarantee of a run of sums, against the server and all other clients together."""
    alone = float(plan.mu_alone.max())
    return {
        "trust": "sum",
        "honest_sites": plan.sums.honest,
        "attacker": plan.attacker,
        "mu_alone": alone,
        "epsilon_alone": gdp_epsilon(alone, plan.delta),
    }


def in_odds(mu: float, unit: Unit) -> str:
    """The success rates of the best possible attacker under mu-GDP, as a clause."""
    return (
        f"an attacker who knows everything else and has two equally likely candidates for {unit.target} picks the "
        f"right one with probability at most {best_guess(mu):.1%}, and detects {unit.given} with probability at most "
        f"{detection(mu):.1%} at a false-positive rate of 5%"
    )


def in_words(plan: Plan, seeded: bool) -> str:
    """The guarantee as one sentence; in a run of sums both, each with the attacker it holds against."""
    if not plan.provable:
        return plan.caveat
    sent, alone = f"all its messages together{_included(plan)} are", ""
    if isinstance(plan, SumPlan):
        sent = f"against {plan.attacker}, all that it sends{_included(plan)} is"
        alone = f"; against everybody else together it is {_cost_in_words(plan.mu_alone, plan.delta)}"
    text = (
        f"for each client, {sent} {_cost_in_words(plan.mu, plan.delta)}, under replacement of {plan.unit.records}: "
        f"{in_odds(float(plan.mu.max()), plan.unit)}{alone}"
    )
    if seeded:
        text += "; simulation: the noise is seeded, not secret"
    return f"{plan.caveat}; {text}" if plan.caveat else text


def _cost_in_words(mu: Array, delta: float) -> str:
    """The largest mu of a client (N,), and what follows from it."""
    worst = float(mu.max())
    return f"{worst:.4g}-GDP, hence ({gdp_epsilon(worst, delta):.4g}, {delta:g})-DP"


def _included(plan: Plan) -> str:
    """What the guarantee covers besides the rounds, as a clause; empty if there is nothing."""
    costs = [text for kind, text in _INCLUDED.items() if plan.releases.of_kind(kind)]
    return f", {' and '.join(costs)} included," if costs else ""


def large_delta(delta: float, rows: Sequence[float], unit: Unit) -> list[str]:
    """A remark on a delta above 1 / n, given the clients' public numbers of rows; n: how many records, persons (at
    least) or sites are protected."""
    n = int(sum(rows) / unit.rows) if unit.rows else len(rows)
    if delta * n <= 1:
        return []
    protected = {RECORD: "records", GROUP: "persons, at least", SITE: "sites"}[unit.kind]
    return [
        f"delta {delta:g} is above 1/n, {1 / n:.2g}, with n = {n:,} {protected}: publishing one of them at random "
        "would also have a delta of 1/n, so choose privacy.delta far below it; mu does not depend on delta"
    ]
