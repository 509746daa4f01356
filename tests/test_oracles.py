"""FedPDM and BSDP-FedPDM with all their options, on Flower's strategy and clients and in the cohort, against a
transcription of the papers entry by entry; and which replies count."""

import numpy as np
import pytest
from grids import Faulty, Refused, arrays_of, garbage, rewrite
from numpy.testing import assert_allclose, assert_array_equal
from problems import small, state_of
from transcription import slow_run_of

from twinflower.algorithms import BSDPFedPDM
from twinflower.algorithms.local import local_steps
from twinflower.clients.records import record_of
from twinflower.problems.batches import Batches
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LOSSES, LinearModel
from twinflower.randomness import participants
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of


def models_of(setup, grid):
    """The strategy's model after every round, and its rounds."""
    strategy, models = strategy_of(setup), []

    def evaluate(round_, arrays):
        models.append(arrays["0"].numpy().copy())

    strategy.start(grid, record_of([setup.start]), setup.config.rounds, evaluate_fn=evaluate)
    return models[1:], strategy.rounds


def assert_equal_runs(setup, rejected=frozenset()):
    """Every model, and what the clients have at the end; returns the slow rounds."""
    slow = list(slow_run_of(setup, rejected))
    grid = Refused(setup, rejected)
    models, rounds = models_of(setup, grid)
    assert_allclose(models, [s.x0 for s in slow], rtol=0, atol=1e-11)
    assert [sorted(r.rejected) for r in rounds] == [s.lost for s in slow]
    for i, dual in slow[-1].duals.items():
        state = state_of(grid.client(i + 1))
        assert_allclose(state.dual, dual, rtol=0, atol=1e-11)
        if setup.algorithm.local_start == "warm":
            assert_allclose(state.x, slow[-1].own[i], rtol=0, atol=1e-11)
    if not rejected:
        (stacked,) = cohort.train([setup])
        assert_allclose(stacked.model, slow[-1].x0, rtol=0, atol=1e-11)
    assert 0 < np.count_nonzero(slow[-1].x0) < setup.objective.d
    return slow


LONG = {"rounds": 12, "seed": 3, "clients.per-round": 3, "regulariser.weight": 0.002}


# --------------------------------------------------------------------------------------- the transcriptions


@pytest.mark.parametrize("start_scale", [0.0, 0.3])
@pytest.mark.parametrize("step_decay", [0.0, 1.0])
def test_a_warm_client_starts_at_its_own_x_and_is_pulled_to_x0(start_scale, step_decay):
    setup = small("fedpdm", local_start="warm", step_decay=step_decay, start_scale=start_scale, **LONG)
    slow = assert_equal_runs(setup)
    times = np.bincount([i for s in slow for i in s.asked], minlength=8)
    assert times.max() > 2  # warm starts happened
    assert all(not np.allclose(slow[-1].own[i], s.x0) for i in slow[-1].own for s in slow)


@pytest.mark.parametrize("tolerance", [0.0, 0.03, 0.05])
def test_the_step_decays_and_the_rule_stops(tolerance):
    slow = assert_equal_runs(
        small("fedpdm", rho=1.0, step_decay=0.5, stopping_tolerance=tolerance, local__max_steps=0, **LONG)
    )
    fired = [f for s in slow for f in s.fired]
    assert (tolerance > 0) == any(fired)
    assert not all(fired)


@pytest.mark.parametrize("aggregation", ["sampled", "memory"])
def test_the_first_round_asks_all_clients_as_both_papers_print(aggregation):
    """S_0 = [N]: a full round of local steps and duals; the later rounds ask whom they would have asked anyway."""
    setup = small("fedpdm-all-first", aggregation=aggregation, final_model="last", **LONG)
    assert_equal_runs(setup)
    _, rounds = models_of(setup, InProcessGrid(setup))
    assert rounds[0].asked == tuple(range(8))
    usual = slow_run_of(small("fedpdm", aggregation=aggregation, **LONG))
    assert [r.asked for r in rounds[1:]] == [tuple(s.asked) for s in list(usual)[1:]]


@pytest.mark.parametrize("missing", ["zero", "keep"])
@pytest.mark.parametrize("uplink", ["top-k", "rand-k"])
@pytest.mark.parametrize("aggregation", ["sampled", "memory"])
def test_the_server_averages_entry_by_entry(aggregation, uplink, missing):
    """Of every entry the senders', or everybody's last one; what nobody sent is 0 or the mean it had."""
    setup = small(
        "bsdp-top-k", uplink=uplink, aggregation=aggregation, missing=missing, start_scale=0.3,
        uplink_ratio=0.15, downlink_ratio=1.0, **LONG,
    )  # fmt: skip
    slow = assert_equal_runs(setup)
    always = aggregation == "sampled" and missing == "keep"
    assert all(s.nobody > 0 for s in (slow if always else slow[:1]))


@pytest.mark.parametrize("aggregation", ["sampled", "memory"])
@pytest.mark.parametrize("variant", ["fedpdm", "bsdp-top-k"])
def test_clients_weigh_by_their_rows(variant, aggregation):
    """sum_i p_i L_i + h with p_i = N_i / N: the senders of an entry count in proportion to their rows."""
    sizes = {
        "partition.name": "sizes",
        "partition.sizes": "15,300,30,12,90,400,60,25",
        "aggregation": aggregation,
    }
    by_rows = assert_equal_runs(small(variant, weighting="rows", **sizes, **LONG))
    by_clients = slow_run_of(small(variant, **sizes, **LONG))
    assert not np.allclose(by_rows[-1].x0, [*by_clients][-1].x0, atol=1e-3)


@pytest.mark.parametrize("uplink", ["top-k", "rand-k"])
def test_the_downlink_is_thinned_but_the_servers_x0_is_not(uplink):
    setup = small(
        "bsdp-top-k", uplink=uplink, downlink_ratio=0.3, uplink_ratio=0.6, start_scale=0.3,
        local_start="warm", **(LONG | {"regulariser.weight": 1e-4}),
    )  # fmt: skip
    slow = assert_equal_runs(setup)
    assert all(s.dropped > 50 for s in slow)


@pytest.mark.parametrize("variant", ["fedpdm", "bsdp-top-k", "bsdp-rand-k"])
def test_memory_keeps_the_last_accepted_y_of_a_client_that_is_rejected_later(variant):
    setup = small(variant, aggregation="memory", **LONG)
    heard, rejected = set(), set()
    for t in range(1, 13):
        old = [int(i) for i in participants(3, t, 8, 3) if i in heard]
        rejected |= {(t, i) for i in old[:1] if t % 2}  # heard before, refused now
        heard |= {int(i) for i in participants(3, t, 8, 3)}
    assert len(rejected) > 3
    assert_equal_runs(setup, rejected)


# ------------------------------------------------------------------------------------------------ coins


def test_rand_k_coins_differ_over_clients_rounds_and_runs():
    algorithm, nodes = BSDPFedPDM(uplink="rand-k", uplink_ratio=0.5), np.arange(5)
    coins = [
        int(coin)
        for key in (0, 1, 2)
        for round_ in (1, 2, 3, 4)
        for coin in algorithm.broadcast(
            algorithm.init_server(np.zeros(4), 5, np.array(key, np.uint64)), round_, nodes
        ).seed
    ]
    assert len(set(coins)) == 3 * 4 * 5
    stacked = algorithm.init_server(np.zeros((3, 4)), 5, np.arange(3, dtype=np.uint64))
    seeds = algorithm.broadcast(stacked, 1, np.tile(nodes, (3, 1))).seed
    assert sorted(seeds.ravel()) == sorted(c for place, c in enumerate(coins) if place // 5 % 4 == 0)


# ------------------------------------------------------------------------------------------- which replies


@pytest.mark.parametrize(
    ("round_", "stamp"), [(2, 3), (2, 1), (2, 0), (2, -2), (1, True), (2, 2.0), (2, "2"), (2, [2])]
)
def test_only_this_rounds_own_number_is_a_stamp(round_, stamp):
    setup = small("fedpdm", rounds=2)
    victim = int(participants(0, round_, 8, 3)[1])
    grid = Faulty(setup, lambda reply: rewrite(reply, metrics={"round": stamp}), (victim,), (round_,))
    _, rounds = models_of(setup, grid)
    assert rounds[round_ - 1].rejected == {victim: f"the reply belongs to round {stamp!r}, not {round_}"}
    assert [len(r.rejected) for r in rounds if r.round != round_] == [0]


def scaled(reply):
    return rewrite(reply, record_of([10.0 * a for a in arrays_of(reply)]))


class Twice(InProcessGrid):
    """One node answers round 2 twice."""

    def __init__(self, setup, first, second):
        super().__init__(setup)
        self.answers, self.victim = (first, second), int(participants(0, 2, 8, 3)[1])

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        twice = [
            r for r in replies if r.metadata.group_id == "2" and r.metadata.src_node_id - 1 == self.victim
        ]
        others = [r for r in replies if r not in twice]
        return [answer(r) for answer in self.answers[:1] for r in twice] + others + [
            answer(r) for answer in self.answers[1:] for r in twice
        ]  # fmt: skip


def test_of_two_replies_the_first_decides():
    setup = small("fedpdm", rounds=2)

    def same(reply):
        return reply

    honest, _ = models_of(setup, InProcessGrid(setup))
    good_first, rounds = models_of(setup, Twice(setup, same, scaled))
    assert_array_equal(good_first, honest)
    assert (rounds[1].accepted, rounds[1].rejected) == (3, {})
    grid = Twice(setup, garbage, same)
    _, rounds = models_of(setup, grid)
    assert (rounds[1].accepted, list(rounds[1].rejected)) == (2, [grid.victim])
    good_then_bad, rounds = models_of(setup, Twice(setup, same, garbage))
    assert_array_equal(good_then_bad, honest)
    assert (rounds[1].accepted, rounds[1].rejected) == (3, {})


# ------------------------------------------------------------------------------------------ stopping rule


class Slope:
    """An objective with the gradient (3, 4), of squared norm 25, everywhere."""

    d = 2

    def grad(self, x, rows):
        return np.zeros_like(x) + np.array([3.0, 4.0])


def test_local_steps_use_a_gradient_that_a_subclass_replaces():
    class Flat(LinearModel):
        def grad(self, x, rows, scale=1.0):
            return scale * np.ones_like(x)

    objective = Flat(LOSSES["least-squares"], 1, 2)
    batches = Batches(np.array(3), full=Batch(np.zeros((1, 2)), np.zeros(1)))
    x, _ = local_steps(objective, np.zeros(2), np.zeros(2), 0.0, 0.0, 0.5, batches)
    assert_array_equal(x, [-1.5, -1.5])


@pytest.mark.parametrize(
    ("tolerance", "steps"), [(25.0, 1), (np.nextafter(25, 26), 1), (np.nextafter(25, 24), 4)]
)
def test_a_client_stops_where_its_squared_slope_is_at_most_the_tolerance(tolerance, steps):
    rows = Batch(np.zeros((1, 2)), np.zeros(1, int))
    batches = Batches(np.full(3, 4), full=rows)
    start = np.zeros((3, 2))
    x, report = local_steps(Slope(), start, start, 0.0, 0.0, 0.5, batches, tolerance)
    assert_array_equal(report.steps, [steps] * 3)
    assert_array_equal(report.fired, [steps == 1] * 3)
    assert_array_equal(x, [[-1.5 * steps, -2.0 * steps]] * 3)  # the step that fires is taken
