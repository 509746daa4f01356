"""A plan is a list of releases: what the list costs, what its entries cost, and what a finished run has charged."""

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import small

from twinflower.data.dataset import ARRAYS, Dataset
from twinflower.privacy import gdp_epsilon, gdp_mu, total_mu
from twinflower.privacy.plan import (
    COUNTS,
    EVALUATION,
    INTERVALS,
    ROUND,
    TRAINED,
    TUNING,
    Plan,
    PlannedRelease,
    Releases,
    Target,
)
from twinflower.privacy.release import Release
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Bounds
from twinflower.simulation.runs.setup import prepare_rows
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.survival_labels import signed

SIZES, ASKED = (40, 60, 80), [[0, 1], [1], [0, 1], [1]]  # client 2 is never sampled
SHARES = {COUNTS: 0.1, INTERVALS: 0.3}
UNITS = [ONE_RECORD, Unit("group", 3)]
KINDS = [ROUND, COUNTS, INTERVALS, EVALUATION, TUNING]


class Rising:
    """Rounds of rising weight, of whose releases a record can affect two."""

    privacy = "gradient"

    def release(self, bounds, workload, round_):
        return Release(2 * bounds.gradient / workload.rows, 2, float(round_) ** 0.5)

    def noise_multiplier(self, epsilon, delta, releases):
        return None


def rich(unit=ONE_RECORD, **more):
    """A plan with releases of every kind."""
    target = Target(3.0, 1e-5, unit=unit, tune_share=0.2, evaluation_share=0.3, **more)
    workloads = LocalSchedule(10, 5, group=unit.rows).workloads(np.array(SIZES))
    plan = Plan.of(Rising(), Bounds(1.0, 1.0), workloads, ASKED, target, SHARES)
    return plan.with_evaluation([2, 4], np.array([1, 2]), target)


def single(plan, entry):
    """What one entry of a plan costs every client, mu^2 (N,)."""
    return replace(plan, releases=replace(plan.releases, entries=(entry,))).cost(entry.what)


def costs(plan):
    """What all entries of a plan cost, (entries, N), with their kinds."""
    entries = plan.releases.entries
    return np.array([entry.what for entry in entries]), np.array([single(plan, entry) for entry in entries])


# ---------------------------------------------------------------------------------- the sum over the list


@pytest.mark.parametrize("unit", UNITS)
def test_the_cost_of_the_whole_is_the_sum_over_the_list(unit):
    """But for a record, which pays for training or for evaluation. Clients that are sampled spend the target."""
    plan = rich(unit)
    kinds, each = costs(plan)
    assert set(kinds) == set(KINDS)
    trained, evaluated = each[np.isin(kinds, TRAINED)].sum(0), each[kinds == EVALUATION].sum(0)
    both = np.maximum(trained, evaluated) if unit is ONE_RECORD else trained + evaluated
    assert_allclose(plan.mu**2, both + each[kinds == TUNING].sum(0))
    assert_allclose(trained[:2], plan.mu_trained[:2] ** 2)
    assert_allclose(plan.mu[1], gdp_mu(3.0, 1e-5))
    assert_allclose([plan.guard(i, None).budget.planned for i in range(3)], both)
    assert_allclose(plan.mu_limit**2, both.max())
    assert_allclose(plan.mu_tuning**2, 0.2 * gdp_mu(3.0, 1e-5) ** 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_cost_of_a_kind_is_the_sum_over_its_entries(kind):
    plan = rich()
    kinds, each = costs(plan)
    assert_allclose(plan.cost(kind), each[kinds == kind].sum(0))


def test_an_entry_costs_what_its_releases_cost():
    """A record moves two releases of each round, and in one of weight w the noise is z sensitivity / sqrt(w)."""
    plan = rich()
    for entry in plan.releases.of_kind(ROUND):
        mu = total_mu([1.0, 1.0], plan.multipliers[1] / math.sqrt(entry.weight))
        assert_allclose(single(plan, entry)[1], mu**2)
    for kind in (COUNTS, INTERVALS):
        release = plan.release_of(kind, 1, 5.0)
        sigma = plan.multipliers[1] * release.spread
        assert_allclose(plan.cost(kind)[1], total_mu([5.0], [sigma]) ** 2)
        assert_allclose(plan.share(kind), SHARES[kind])  # though client 2 spends nothing else


def test_the_cost_of_the_list_is_that_of_the_composition_by_dp_accounting():
    """All of a client's Gaussian releases but the evaluations, which this record is not in, one by one."""
    dp = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    plan = rich(conversion="exact")
    kinds, each = costs(plan)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for mu in np.sqrt(each[(kinds != EVALUATION) & (each[:, 1] > 0), 1]):
        accountant.compose(dp.GaussianDpEvent(1 / mu))
    assert_allclose(accountant.get_epsilon(1e-5), gdp_epsilon(plan.mu[1], 1e-5), rtol=1e-3)
    assert_allclose(accountant.get_epsilon(1e-5), 3.0, rtol=1e-3)


# ---------------------------------------------------------------------------- with and without an entry


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_plan_without_an_entry_is_one_with_an_entry_of_weight_0(kind, unit):
    plan = rich(unit)
    without = replace(plan, releases=plan.releases.without(kind))
    noise = 0.0 if kind in TRAINED else 1.0
    nothing = PlannedRelease(kind, 0, np.arange(3), 0.0, noise)
    listed = replace(without.releases, entries=(*without.releases.entries, nothing))
    zero = replace(without, releases=listed)
    for name in ("mu", "mu_trained", "mu_tuning", "epsilon_limit"):
        assert_array_equal(getattr(zero, name), getattr(without, name))
    for other in KINDS:
        assert_array_equal(zero.cost(other), without.cost(other))
    assert not zero.cost(kind).any()


def test_a_share_of_0_leaves_the_noise_of_the_rounds():
    workloads, target = LocalSchedule(10, 5).workloads(np.array(SIZES)), Target(3.0, 1e-5)
    bare, zero = (
        Plan.of(Rising(), Bounds(1.0, 1.0), workloads, ASKED, target, shares)
        for shares in (None, {COUNTS: 0.0, INTERVALS: 0.0})
    )
    assert_array_equal(bare.multipliers, zero.multipliers)
    assert {entry.what for entry in zero.releases.entries} == {ROUND}


# ------------------------------------------------------------------------------------- a run in progress


@pytest.mark.parametrize("last", range(len(ASKED) + 1))
def test_what_was_released_so_far_is_what_the_list_has_up_to_the_last_round(last):
    """Counts come before round 1, intervals after the last one, evaluations after theirs."""
    plan = rich()
    made = plan.so_far(enumerate(ASKED[:last], 1))
    assert_array_equal(made.releases.rounds_in, [sum(i in own for own in ASKED[:last]) for i in range(3)])
    kinds, each = costs(plan)
    rounds = np.array([entry.round for entry in plan.releases.entries])
    for kind in KINDS:
        assert_allclose(made.cost(kind), each[(kinds == kind) & (rounds <= last)].sum(0))
    assert made.cost(INTERVALS).any() == (last == len(ASKED))
    if last == len(ASKED):
        assert_array_equal(made.mu, plan.mu)


def test_a_client_that_was_not_asked_has_not_paid():
    plan = rich()
    made = plan.so_far([(1, [0, 1]), (2, [0])])
    assert_allclose(made.releases.weights(ROUND), [1 + math.sqrt(2), 1, 0])


def test_rounds_of_nobody_cost_nothing():
    assert not Releases(3, (PlannedRelease(ROUND, 1, np.empty(0, np.int64)),)).weights(ROUND).any()


# ------------------------------------------------------------------------------------------ the ledgers


def everything(**changes):
    """A run with counts, rounds, an evaluation and intervals."""
    draw, rows = np.random.default_rng(0), 240
    times, end = draw.exponential(700.0, rows), draw.exponential(900.0, rows)
    labels = signed(np.minimum(times, end), times <= end)
    features = draw.normal(size=(rows, 2)) / 4
    data = Dataset(ARRAYS, features, labels, features, labels, 0, sites=(60, 80, 100))
    keys = {
        "algorithm": "fedpdm", "fedpdm.step-size": 0.01, "rounds": 3, "regulariser.name": "none", "data.name": ARRAYS,
        "objective.name": "discrete-cox", "objective.intervals": "4 x 300", "evaluation.survival-curve": "4 x 300",
        "privacy.mode": "public-state", "privacy.epsilon": 8.0, "data.row-scaling": "all",
        "evaluation.held-out": 0.2, "privacy.evaluation-share": 0.3, "evaluation.loss-bound": 1.0,
        "evaluation.release-every": 2, "evaluation.standard-errors": True,
    }  # fmt: skip
    return prepare_rows(parse(keys | changes), data)


SUMS = {"privacy__trust": "sum", "privacy__honest_sites": 4, "clients__per_round": 0, "local__max_steps": 1}
HELD = {"evaluation__held_out": 0.3, "privacy__evaluation_share": 0.4}


@pytest.mark.parametrize(
    "setup",
    [
        everything,
        lambda: everything(**{"privacy.protects": "group", "privacy.group-size": 2, "clients.per-round": 2}),
        lambda: small("fedpdm-gradient", **HELD),
        lambda: small("ldp-private"),
        lambda: small("fedpdm-private", **SUMS, **HELD),
    ],
)
def test_a_finished_run_has_charged_the_list_entry_by_entry(setup):
    setup = setup()
    grid, last = InProcessGrid(setup), setup.config.rounds
    assert not run_strategy(setup, grid, "inprocess").failure
    charged_as = {
        ROUND: lambda t: t,
        COUNTS: lambda t: 0,
        INTERVALS: lambda t: last + 1,
        EVALUATION: lambda t: -t,
    }
    for client in range(setup.config.clients.count):
        planned = {
            charged_as[entry.what](entry.round): single(setup.plan, entry)[client]
            for entry in setup.plan.releases.entries
            if client in entry.clients
        }
        charges = grid.client(client + 1).guard.ledger.charges()
        assert len({charge.round for charge in charges}) == len(charges)
        found = {charge.round: charge.cost for charge in charges}
        assert found.keys() == planned.keys()
        assert_allclose([found[t] for t in planned], list(planned.values()), rtol=1e-12)
