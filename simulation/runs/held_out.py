"""Evaluation at the clients, on rows that are held out: what a private run releases, and what a simulation computes."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from twinflower.arrays import Array
from twinflower.data.columns import Target
from twinflower.models.evaluation import (
    COLUMNS,
    ERROR_COLUMNS,
    OWN_MODEL,
    SCORE_COLUMNS,
    Evaluation,
    Released,
    by_site,
    estimated,
    evaluate,
    pooled,
    private_columns,
)
from twinflower.models.intervals import LEVEL, share_interval
from twinflower.models.score_bins import Counted, ScoreBins
from twinflower.models.time_scores import TimeBins
from twinflower.privacy.counts import CountPlan, paid_twice, summed
from twinflower.privacy.mechanism import GaussianNoise, evaluation_draws

from .rows import held_rows
from .score_bins import score_bins
from .setup import PreparedRun


def counts(setup: PreparedRun) -> CountPlan | None:
    """The plan of the clients' evaluations in a private run; None if there are none."""
    return setup.plan.evaluation if setup.plan else None


def released(setup: PreparedRun) -> Sequence[int]:
    """The rounds after which the clients of a private run evaluate the model; empty if they do not."""
    plan = counts(setup)
    return plan.rounds if plan else ()


def columns(setup: PreparedRun) -> Sequence[str]:
    """The columns of metrics.csv that come from the clients' held-out rows; empty without such rows."""
    if setup.held is None:
        return ()
    own = setup.config.evaluation
    scores = SCORE_COLUMNS if own.bins else ()
    if setup.plan:
        return (*private_columns(own.loss_bound), *scores)
    personal = (OWN_MODEL,) if setup.method.personal else ()
    return (*COLUMNS, *personal, *scores, *(ERROR_COLUMNS if own.errors else ()))


def row(setup: PreparedRun, found: Mapping[str, float], by_site: Mapping[int, float]) -> dict[str, float]:
    """The values of `columns`, NaN for those that were not found in this round; errors in units of the label.

    by_site: the score on the rows of each site, of which the mean is that of the sites' own models.
    """
    units = dict.fromkeys(ERROR_COLUMNS[1:], _unit(setup))
    known = {**found, OWN_MODEL: fmean(by_site.values())} if by_site else found
    return {name: known.get(name, np.nan) * units.get(name, 1) for name in columns(setup)}


def _unit(setup: PreparedRun) -> float:
    """What the labels are divided by: half the width of the range in a schema, else 1."""
    label = setup.dataset.schema.label if setup.dataset.schema else None
    return label.range.half if isinstance(label, Target) else 1.0


def bins(setup: PreparedRun, x: Array) -> ScoreBins:
    """The bins in which clients count the scores of the model x (d,), which follow from public reference rows."""
    own = score_bins(setup.config, setup.dataset.num_classes)
    return own.around(own.scores(setup.objective, x, setup.reference_rows)) if own.number else own


class Found(NamedTuple):
    """What the clients found about a model: the `columns`, with bins the counts of every client, and without privacy
    the score on every client's rows."""

    columns: Mapping[str, float]
    scores: Mapping[int, Counted]
    by_site: Mapping[int, float]


def simulated(setup: PreparedRun, x: Array, round_: int, personal: Array | None = None) -> Found:
    """What all clients' evaluations of x (d,) after a round give; nothing without held-out rows.

    personal (N, d): the clients' own models, which they evaluate in place of x; x places the bins of the score.
    """
    if setup.held is None:
        return Found({}, {}, {})
    plan = counts(setup)
    if plan and round_ not in plan.rounds:
        return Found(row(setup, {}, {}), {}, {})
    models = [x] * setup.held.num_clients if personal is None else personal
    places = bins(setup, x)
    if plan is None:
        exact = {i: _exact(setup, own, i, places) for i, own in enumerate(models)}
        scores = by_site(exact)
        return Found(row(setup, pooled(list(exact.values())), scores), _scores(exact), scores)
    noisy = {i: _count(setup, plan, own, i, round_, places) for i, own in enumerate(models) if plan.sizes[i]}
    return Found(row(setup, estimated(list(noisy.values()), plan.bound), {}), _scores(noisy), {})


def _scores(sites: Mapping[int, Evaluation] | Mapping[int, Released]) -> dict[int, Counted]:
    return {client: site.scores for client, site in sites.items() if site.scores is not None}


def _exact(setup: PreparedRun, x: Array, client: int, places: ScoreBins) -> Evaluation:
    rows = held_rows(setup, client)
    assert rows is not None
    return evaluate(setup.objective, x, rows, places, setup.config.evaluation.errors)


def _count(
    setup: PreparedRun, plan: CountPlan, x: Array, client: int, round_: int, places: ScoreBins
) -> Released:
    """What a client releases about x (d,) after a round, with the same noise as in its `PrivateEvaluation`."""
    rows = held_rows(setup, client)
    assert rows is not None
    noise = GaussianNoise(plan.noise(client), evaluation_draws(setup.config.seed, client)(-round_))
    values = noise(summed(setup.objective, x, rows, plan.bound, places))
    return Released.of(values, len(rows.labels), plan.noise(client), places)


def split(setup: PreparedRun, number: int) -> str:
    """The identity of the division of a client's rows, by which its ledger recognises what is paid in parallel.

    It depends on all settings of the run, so no other run shares it, even if a server gives both the same session.
    Empty if there is no evaluation. Not shortened, because the server chooses the settings and could look for two with
    the same short digest.
    """
    if not released(setup):
        return ""
    return hashlib.sha256(f"{number} {setup.config.result_digest}".encode()).hexdigest()


# --- what the planner says


def planned(setup: PreparedRun) -> list[tuple[str, str]]:
    """The evaluations of a private run, as a row of `twinflower privacy`; empty without them."""
    plan = counts(setup)
    if plan is None:
        return []
    rows, sigma = int(plan.sizes.sum()), _total_sigma(plan)
    low, high = share_interval(rows / 2, rows, sigma)
    unit = "mean clipped loss" if plan.bound else "accuracy"
    text = (
        f"{_after(plan.rounds)}, on {rows} held-out rows with noise of {sigma:.4g} in the total: {unit} to "
        f"+- {(high - low) / 2 * (plan.bound or 1.0):.3g} at {LEVEL:.0%} in the worst case{_by_bin(plan)}"
    )
    return [("evaluation at the clients", text), ("spent by evaluation", share_of_budget(setup))]


def _by_bin(plan: CountPlan) -> str:
    """What the plan says about counts by bin; empty without them."""
    if not plan.bins.number:
        return ""
    own, sigma = plan.bins, plan.bins.weight * _total_sigma(plan)
    what = (
        f"time in {own.number} bins of the risk"
        if isinstance(own, TimeBins)
        else f"class in {own.number} bins of the score"
    )
    return f"; half of the cost is for counts by {what}, each with noise of {sigma:.4g}"


def share_of_budget(setup: PreparedRun) -> str:
    """The share of the budget that the evaluations take, and whether it adds to the cost of training."""
    plan = setup.plan
    assert plan and plan.evaluation
    share = plan.evaluation.mu**2 / (plan.mu_limit**2 + plan.mu_tuning**2)
    return f"{share:.3g} of the budget in mu^2, {_HOW[paid_twice(plan.unit)]}"


_HOW = {
    1: "in parallel with training: a record pays for one of the two",
    2: "in addition to training: a group can be in both parts",
}


def _after(rounds: Sequence[int]) -> str:
    if len(rounds) == 1:
        return f"after round {rounds[0]}"
    return f"after {len(rounds)} rounds, {rounds[0]} to {rounds[-1]}"


def _total_sigma(plan: CountPlan) -> float:
    """The standard deviation of the noise in the sum of all clients' counts."""
    return math.hypot(*(plan.sigma(int(client)) for client in np.flatnonzero(plan.sizes)))


def release_row(setup: PreparedRun) -> list[tuple[str, ...]]:
    """The evaluation with the largest noise, as a row under `forecast.NOISE_HEADINGS`; empty without evaluations."""
    plan = counts(setup)
    if plan is None:
        return []
    client = max(range(len(plan.sizes)), key=lambda number: plan.noise(number) if plan.sizes[number] else 0.0)
    numbers = plan.multiplier, plan.release(client).sensitivity, 1.0, plan.noise(client)
    return [("evaluation", str(plan.rounds[-1]), str(client), *(f"{number:.6g}" for number in numbers))]
