"""In how many releases a record is: batches that go on from round to round, and what a plan and a ledger charge."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import small

from twinflower.algorithms import ISRLDP, FedAvg
from twinflower.algorithms.messages import Inbox
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.charges import Charge, total_cost
from twinflower.privacy.ledger import FileLedger
from twinflower.privacy.participation import Visit, most_batches, worst_cost
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.interfaces import Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.turns import MOST_ROUNDS, Turns
from twinflower.randomness import participants
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse

# rows, batch, steps: steps that divide an epoch or do not, are more than half of it, or more than all of it
SIZES = [(12, 3, 1), (12, 3, 2), (10, 2, 2), (11, 2, 4), (8, 2, 3), (6, 2, 5), (6, 2, 7), (9, 4, 1)]
walks = pytest.mark.parametrize("rows, batch, steps", SIZES)
orders = pytest.mark.parametrize("fresh", [True, False])


def shards_of(rows):
    return Shards.of([(np.ones((rows, 1)), np.arange(rows))])


def taken(schedule, rows, rounds, seed=0):
    """The numbers of the rows (rounds, steps, b) in each step of a client that takes part in every round."""
    shards = shards_of(rows)
    drawn = [schedule.batches(shards, 0, seed, t) for t in range(1, rounds + 1)]
    return np.array([[batch.labels for batch in own] for own in drawn])


def visits(load, turns, touched, most=1):
    return [Visit(load.span(t)._replace(most=most), 1.0, touched) for t in turns]


# --- which rows a round takes ---


@walks
def test_a_fixed_order_goes_on_through_all_batches(rows, batch, steps):
    """Round by round it is one sequence of period b; no batch and no row is left out."""
    schedule = LocalSchedule(batch, steps, fresh=False)
    load = schedule.workload(rows)
    walk = taken(schedule, rows, 9).reshape(-1, load.rows)
    assert_array_equal(walk[load.per_epoch :], walk[: -load.per_epoch])
    assert len(np.unique(walk[: load.per_epoch])) == rows


@walks
def test_rounds_share_a_permutation_until_it_has_no_whole_round_left(rows, batch, steps):
    schedule = LocalSchedule(batch, steps)
    together = max(1, rows // batch // steps)
    epochs = taken(schedule, rows, 6 * together).reshape(6, together * steps * batch)
    if steps <= rows // batch:
        assert (np.diff(np.sort(epochs), axis=1) > 0).all()  # no row twice
    assert len({tuple(epoch) for epoch in epochs}) == 6
    assert schedule.workload(rows).goes_on == (together > 1)


@orders
def test_a_client_goes_on_where_its_own_last_round_ended(fresh):
    """Its rounds are counted by the public sampling, for one client, a cohort and stacked seeds alike."""
    turns, shards = Turns(5, 2), Shards.of([(np.ones((12, 1)), np.arange(12))] * 5)
    every, sampled = (LocalSchedule(3, 1, fresh, turns=own) for own in (Turns(), turns))
    for seed, client in itertools.product((0, 3), range(5)):
        mine = [t for t in range(1, 40) if client in participants(seed, t, 5, 2)]
        for turn, round_ in enumerate(mine, 1):
            alone = next(iter(sampled.batches(shards, client, seed, round_))).labels
            assert_array_equal(alone, next(iter(every.batches(shards, client, seed, turn))).labels)
    asked = np.array([participants(seed, 7, 5, 2) for seed in (0, 3)])
    stacked = next(iter(sampled.batches(Shards.stacked([shards] * 2), asked, np.array([[0], [3]]), 7))).labels
    for s, seed in enumerate((0, 3)):
        together = next(iter(sampled.batches(shards, asked[s], seed, 7))).labels
        assert_array_equal(stacked[s], together)
        for k, client in enumerate(asked[s].tolist()):
            assert_array_equal(together[k], next(iter(sampled.batches(shards, client, seed, 7))).labels)


def test_rounds_may_be_asked_for_in_any_order():
    turns = Turns(6, 2, "all")
    forth = [turns.of([1] * 6, range(6), t) for t in range(1, 30)]
    back = [turns.of([1] * 6, range(6), t) for t in range(29, 0, -1)][::-1]
    assert forth == back and forth[1] == [2] * 6
    assert turns.of([1], [0], MOST_ROUNDS + 10**12)[0] == turns.of([1], [0], MOST_ROUNDS)[0] + 10**12


# --- what they cost, by brute force ---


@walks
@orders
@pytest.mark.parametrize("gradient", [True, False])
def test_the_worst_cost_is_that_of_the_record_in_most_releases(rows, batch, steps, fresh, gradient):
    """Over all records and all rounds that were released, counted in the batches that are drawn.

    Of new permutations the worst ones count, so there the largest count over many seeds is compared."""
    schedule, rounds = LocalSchedule(batch, steps, fresh), 5
    load = schedule.workload(rows)
    touched = -(-steps // load.per_epoch) if gradient else 1
    walked = np.array([taken(schedule, rows, rounds, seed) for seed in range(60)])
    hits = (walked[..., None] == np.arange(rows)).any(-2)  # seeds, rounds, steps, rows
    each = hits.sum(2) if gradient else hits.any(2)  # seeds, rounds, rows
    for released in itertools.product([False, True], repeat=rounds):
        turns = 1 + np.flatnonzero(released)
        cost = worst_cost(visits(load, turns, touched)) if load.goes_on else touched * len(turns)
        assert cost == each[:, list(released)].sum(1).max()


@orders
@pytest.mark.parametrize(
    "rows, batch, steps", [(6, 2, 1), (8, 2, 2), (8, 2, 1), (6, 3, 1), (7, 3, 1), (9, 2, 2), (5, 4, 1)]
)
@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_worst_cost_of_a_group_covers_every_place_of_its_rows(rows, batch, steps, fresh, k):
    """Rows k_s of the group in batch s move its mean gradient by 2 C k_s / b. It is attained if they fill batches."""
    algorithm, bounds = FedAvg(privacy="gradient"), Bounds(1.0, 1.0)
    load = LocalSchedule(batch, steps, fresh, group=k).workload(rows)
    release, most = algorithm.release(bounds, load, 1), most_batches(algorithm, bounds, load, [1])
    for turns in ([1], [1, 2, 3], [1, 2, 5], [2, 3, 4, 6]):
        seen = visits(load, turns, release.affected_releases, most)
        cost = worst_cost(seen) * release.sensitivity**2
        short = load.per_epoch * load.rows - rows if load.fixed else 0  # that many batches are a row short
        room = [load.rows - (s >= load.per_epoch - short) for s in range(load.per_epoch)]
        places = [p for p in itertools.product(*(range(n + 1) for n in room)) if sum(p) <= k]
        true = 0.0
        for order in {visit.span.order for visit in seen}:
            mine = [v.span for v in seen if v.span.order == order]
            steps_of = [(s.first + j) % s.per_epoch for s in mine for j in range(s.steps)]
            true += max(sum((2 * p[s] / load.rows) ** 2 for s in steps_of) for p in places)
        assert true <= cost * (1 + 1e-12)
        if k == 1 or (not short and (k % batch == 0 or k < batch)):
            assert_allclose(cost, true)


@orders
@pytest.mark.parametrize("privacy", ["gradient", "public-state"])
@pytest.mark.parametrize("batch, steps", [(2, 1), (2, 2), (3, 1)])
def test_replayed_over_all_records_the_whole_run_costs_what_is_planned(batch, steps, fresh, privacy):
    """sum (moved / sensitivity)^2 over the releases: never above the plan's units, .99^2 of them for some record."""
    algorithm, objective, rows, rounds = (
        FedAvg(step_size=0.5, privacy=privacy),
        make_objective("logistic", 3, 2),
        9,
        7,
    )
    bounds, schedule = objective.bounds(0.7), LocalSchedule(batch, steps, fresh)
    plan = Plan.of(algorithm, bounds, [schedule.workload(rows)], [[0]] * rounds, Target(2.0, 1e-5))
    inbox = Inbox(np.array([1e3, 0.0, 0.0]), np.empty(0, dtype=np.int64), np.zeros((), np.uint64))
    data, other = neighbours(rows, 3, 0.7)
    found = []
    for shift, seed in itertools.product(range(rows), range(3 if fresh else 1)):
        both = [own._replace(features=np.roll(own.features, shift, axis=0)) for own in (data, other)]
        moves = replay(algorithm, objective, *both, schedule, bounds, [inbox] * rounds, seed=seed)
        found.append(sum((m.moved / m.sensitivity) ** 2 for m in moves))
    assert max(found) <= plan.units[0] * (1 + 1e-9)
    if (
        privacy == "gradient" or steps == 1
    ):  # else a step after the record's multiplies the difference by less than 1
        assert max(found) >= 0.99**2 * plan.units[0]
    batches = math.ceil(rows / batch) if not fresh else rows // batch
    assert plan.units[0] == (
        math.ceil(rounds * steps / batches) if not fresh else {(2, 1): 2, (2, 2): 4, (3, 1): 3}[batch, steps]
    )


def test_noise_of_the_papers_mode_is_charged_in_every_round():
    """There a client keeps values without noise, so that all later rounds depend on a record."""
    algorithm, bounds = small("fedpdm-published").algorithm, Bounds(1.0, 1.0)
    assert algorithm.privacy == "as-published"
    assert most_batches(algorithm, bounds, LocalSchedule(2, 1).workload(10), [1]) == 0
    assert most_batches(FedAvg(privacy="public-state"), bounds, LocalSchedule(2, 1).workload(10), [1]) == 1


def test_the_batches_that_a_group_can_fill_are_those_of_the_round_with_most():
    """At a step of 1 the bound on the whole round is smaller than 3 times that of a record, and later it is not."""
    algorithm = FedAvg(step_size=1.0, step_decay=1.0, privacy="public-state")
    bounds, load = Bounds(1.0, 10.0), LocalSchedule(2, 2, group=3).workload(8)
    assert [most_batches(algorithm, bounds, load, rounds) for rounds in ([1], [29], range(1, 30))] == [
        3,
        1,
        3,
    ]
    plan = Plan.of(algorithm, bounds, [load], [[0]] * 4, Target(1.0, 1e-5))
    assert plan.participation.most == {load: 3}


# --- plans and ledgers ---


def charge(visit, round_, run="a", config="", z=2.0):
    return Charge(run, round_, 1.0, z, visit.touched, visit.touched / z**2, config, span=visit.span)


@orders
@pytest.mark.parametrize("order", list(itertools.permutations(range(5)))[::7])
def test_the_ledger_charges_what_was_released_in_any_order(fresh, order, tmp_path):
    """Charge by charge the running sums of the file are the worst cost of the rounds so far."""
    load = LocalSchedule(2, 1, fresh).workload(6)
    seen = visits(load, range(1, 6), 1)
    ledger, budget = FileLedger(tmp_path / "a.ledger", "data", 99.0, 1e-4), Target(9.0, 1e-4)
    plan = Plan.of(FedAvg(privacy="gradient"), Bounds(1.0, 1.0), [load], [[0]] * 5, budget)
    for n, place in enumerate(order, 1):
        ledger.charge(charge(seen[place], place + 1), plan.budget)
        known = [seen[i] for i in order[:n]]
        assert_allclose(total_cost(ledger.charges()), worst_cost(known) / 4)
        so_far = plan.so_far((i + 1, [0]) for i in order[:n])
        assert_allclose(so_far.units[0], worst_cost(known))
    assert f'"sum": {worst_cost(seen) / 4}' in ledger.path.read_text().splitlines()[-1]


def test_other_runs_and_other_settings_have_other_permutations():
    first, second = visits(LocalSchedule(2, 1).workload(6), [1, 2], 1)
    assert total_cost([charge(first, 1), charge(second, 2)]) == 0.25
    assert total_cost([charge(first, 1), charge(second, 2, run="b")]) == 0.5
    assert total_cost([charge(first, 1), charge(second, 2, config="b")]) == 0.5
    plain = replace(charge(second, 2), span=None)
    assert total_cost([charge(first, 1), plain]) == 0.5


@pytest.mark.parametrize(
    "privacy, goes_on",
    [
        ({"privacy.mode": "none"}, False),
        ({"privacy.mode": "as-published"}, False),
        ({"privacy.mode": "gradient", "privacy.trust": "sum", "privacy.honest-sites": 2}, False),
        ({"privacy.mode": "gradient"}, True),
        ({"privacy.mode": "public-state"}, True),
    ],
)
def test_new_batches_in_every_round_unless_a_record_is_charged_for_those_that_it_is_in(privacy, goes_on):
    """Papers draw anew in every round; where that gains nothing from the guarantee, so do we."""
    keys = {
        "local.batch-size": 10,
        "local.max-steps": 1,
        "clients.count": 3,
        "clients.per-round": 0,
        "seed": 1,
    }
    schedule = parse(keys | privacy).schedule
    (first, *others) = np.sort(taken(schedule, 40, 4).reshape(4, 10))
    assert schedule.workload(40).goes_on == goes_on
    assert (len(np.unique([first, *others])) == 40) == goes_on


@orders
@pytest.mark.parametrize("variant", ["fedpdm-private", "scaffold-gradient"])
@pytest.mark.parametrize("per_round", [0, 3])
def test_plan_ledgers_and_runtimes_agree(variant, per_round, fresh):
    """Eight clients of different sizes; every prefix of a run costs what the ledgers say."""
    setup = small(
        variant, rounds=7, epsilon=8.0, noise_multiplier=0.0, clients__per_round=per_round,
        **{"partition.name": "sizes", "partition.sizes": "400, 12, 90, 90, 90, 200, 30, 7",
           "local.max-steps": 2, "local.fresh-batches": fresh, "local.batch-size": 10},
    )  # fmt: skip
    assert (setup.plan.units < setup.plan.releases.rounds_in * setup.plan.participation.affected).any()
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    for last in (3, 7):
        asked = [(t, setup.config.asked(t)) for t in range(1, last + 1)]
        told = setup.plan.so_far(asked).mu ** 2
        for client in range(8):
            charges = [c for c in grid.client(client + 1).guard.ledger.charges() if c.round <= last]
            assert_allclose(total_cost(charges), told[client], rtol=1e-9)
    assert_allclose(setup.plan.mu[setup.plan.releases.rounds_in > 0], setup.plan.mu_limit)
    (stacked,) = cohort.train([setup])
    assert_allclose(stacked.model, result.model, rtol=1e-9, atol=1e-12)
    assert stacked.summary()["privacy"] == result.summary()["privacy"]


def test_a_run_below_an_epoch_has_the_noise_of_one_release_each_epoch():
    """Ten batches, one a round: 30 rounds take the noise of three."""

    def noise(batch, rounds):
        return small("fedpdm-private", rounds=rounds, epsilon=1.0, clients__count=2, clients__per_round=0,
                     **{"local.max-steps": 1, "local.batch-size": batch, "partition.name": "sizes",
                        "partition.sizes": "100, 100"}).plan.multipliers  # fmt: skip

    assert_allclose(noise(10, 30), noise(0, 3))
    assert_allclose(noise(10, 31), noise(0, 4))


def test_methods_of_one_step_charge_a_record_once_an_epoch():
    algorithm, load = ISRLDP(privacy="gradient"), LocalSchedule(2, 1).workload(8)
    plan = Plan.of(algorithm, Bounds(1.0, 1.0), [load], [[0]] * 9, Target(1.0, 1e-5))
    assert plan.units.tolist() == [3.0]
