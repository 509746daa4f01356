"""FedDualAvg: against the authors' recursion, the methods that it is, what it converges to, and its releases."""

from functools import lru_cache

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import central_optimum, convex_problem, last, random_shards, run, small
from tracking import FEATURES, FULL, ROWS, seeded_noise, summed_ratio

from twinflower.algorithms import FedAvg, FedDualAvg
from twinflower.algorithms.algorithm import RunInfo
from twinflower.errors import ReplyError, SettingError
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import (
    L1,
    ZERO,
    Ball,
    Box,
    ElasticNet,
    GroupL1,
    WeightedL1Box,
    prox_each,
)
from twinflower.randomness import participants
from twinflower.simulation.runtimes import inprocess

N, K = 6, 2
SIZES = (5, 9, 12, 3, 7, 20)
PENALTIES = [
    L1(0.02),
    ElasticNet(0.02, 0.1),
    GroupL1(0.05, 1),
    Box(-0.3, 0.2),
    WeightedL1Box(0.02, -0.2, 0.3),
    Ball(0.3),
]
PRIVATE = [
    {"privacy": "public-state"},
    {"privacy": "public-state", "sensitivity": "norm"},
    {"privacy": "public-state", "uplink_ratio": 0.5},
    {"privacy": "gradient"},
]


def the_authors(h, eta_c, eta_s, shards, objective, schedule, number, k, start):
    """The authors' program in plain loops: the server's primal and dual point, and the length of all steps."""
    dual, elapsed = start.copy(), 0.0
    for t in range(1, number + 1):
        deltas, lengths = [], []
        for i in (int(i) for i in participants(0, t, N, k)):
            mine, passed = dual.copy(), elapsed
            for rows in schedule.batches(shards, i, 0, t):
                primal = h.prox(mine, passed)
                mine = mine - eta_c * objective.grad(primal, rows)
                passed += eta_c
            deltas.append(mine - dual)
            lengths.append(passed - elapsed)
        dual = dual + eta_s * np.mean(deltas, 0)
        elapsed = elapsed + eta_s * np.mean(lengths)
        yield h.prox(dual, elapsed), dual, elapsed


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("h", PENALTIES, ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("schedule", [FULL, LocalSchedule(5, 4)])
def test_rounds_are_the_authors_program(k, h, schedule):
    shards, objective = convex_problem()
    start = np.array([1.0, 0.0, -1.0, 0.5, 0.0])  # a column that is 0 before the first step of a group's prox
    algorithm = FedDualAvg(h, step_size=0.5, server_step=0.7)
    mine = run(algorithm, shards, objective, schedule, 12, k, start=start)
    theirs = the_authors(h, 0.5, 0.7, shards, objective, schedule, 12, k, start)
    for at, (primal, dual, elapsed) in zip(mine, theirs, strict=True):
        assert_allclose(at.server.x0, primal, rtol=0, atol=1e-12)
        assert_allclose(at.server.z, dual, rtol=0, atol=1e-12)
        assert_allclose(at.server.elapsed, elapsed, rtol=1e-12)
    assert np.linalg.norm(at.server.x0 - start) > 0.1


def test_clients_of_different_sizes_count_their_own_steps():
    """With epochs of batches: the change is weighted by rows, and so is the length that h is weighted by."""
    shards, objective = random_shards([4, 12, 20], 5, 2), make_objective("logistic", 5, 2)
    algorithm = FedDualAvg(L1(0.02), step_size=0.5, info=RunInfo(3, sizes=(4, 12, 20)))
    end = last(run(algorithm, shards, objective, LocalSchedule(4, 0), 3))
    steps = end.report.steps
    assert len({*steps}) == 3
    assert_allclose(end.server.elapsed, 3 * 0.5 * (steps * [4, 12, 20]).sum() / 36)


# ------------------------------------------------------------------------------------- the methods that it is


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"privacy": "public-state"},
        {"privacy": "gradient"},
        {"info": RunInfo(N, sizes=SIZES)},
        {"step_decay": 0.3},
    ],
    ids=str,
)
def test_without_h_and_with_a_server_step_of_one_it_is_fedavg(k, keys):
    shards, objective = convex_problem()
    noise = {} if keys.get("privacy", "none") == "none" else {"noise": seeded_noise}
    ends = [
        [at.server.x0 for at in run(kind(step_size=0.5, **keys), shards, objective, FULL, 15, k, **noise)]
        for kind in (FedDualAvg, FedAvg)
    ]
    assert_allclose(*ends, rtol=0, atol=1e-12)


def test_with_one_step_it_minimises_the_linearised_losses_and_their_share_of_h():
    """x0 is the minimiser of <sum of gradients, x> + s h(x) + ||x - start||^2/2, found here by its subgradient."""
    shards, objective = convex_problem()
    h, start = L1(0.02), np.linspace(-1, 1, 5)
    x, gradients = start, np.zeros(5)
    for t, at in enumerate(
        run(FedDualAvg(h, step_size=0.5), shards, objective, LocalSchedule(0, 1), 60, start=start), 1
    ):
        gradients = gradients + 0.5 * np.mean([objective.grad(x, shards.rows(i)) for i in range(N)], 0)
        x = at.server.x0
        slope = (start - x - gradients) / (0.5 * t)  # a subgradient of h at x
        assert_allclose(slope[x != 0], h.weight * np.sign(x[x != 0]), atol=1e-12)
        assert np.abs(slope).max() <= h.weight + 1e-12


# ------------------------------------------------------------------------------------------- where it ends


@lru_cache
def optimum(h):
    """The minimiser of F + h."""
    shards, objective = convex_problem()
    return central_optimum(objective, h, shards.everyone(), 3000)


def distance(h, steps, step_size, number, kind=FedDualAvg):
    """The distance from the optimum after so many rounds of all clients."""
    shards, objective = convex_problem()
    best = optimum(h)
    end = last(run(kind(h, step_size=step_size), shards, objective, LocalSchedule(0, steps), number))
    return np.linalg.norm(end.server.x0 - best)


@pytest.mark.parametrize(
    "h", [ZERO, L1(0.02), GroupL1(0.05, 1), Box(-0.3, 0.2)], ids=lambda h: type(h).__name__
)
def test_with_one_step_of_all_clients_it_ends_at_the_composite_optimum(h):
    assert distance(h, 1, 0.5, 400) < 1e-9


def test_a_strongly_convex_h_slows_it_down_to_a_power_of_the_rounds():
    """Steps shorten like 1/(1 + s l2): the rate is a power of s, -(1 + curvature of f/l2) at best."""
    h = ElasticNet(0.02, 0.1)
    far, near = distance(h, 1, 0.5, 100), distance(h, 1, 0.5, 400)
    assert 1e-6 < near < far / 8 < 1e-2


def test_several_steps_of_different_clients_stop_in_proportion_to_the_step_size():
    """Where h is smooth, paths are those of gradient descent on f_i + h; FedAvg's go on in the other entries, too."""
    far, near = (distance(L1(0.02), 5, step, 250) for step in (0.2, 0.1))
    assert 1e-5 < near < far
    assert_allclose(far / near, 2, rtol=0.1)
    assert distance(L1(0.02), 5, 0.2, 250, FedAvg) > 5 * far


def test_several_steps_with_a_strongly_convex_h_end_at_the_optimum():
    """The growing weight of h shortens the paths; FedAvg stays away, however many rounds there are."""
    h = ElasticNet(0.02, 0.1)
    far, near = distance(h, 5, 0.5, 50), distance(h, 5, 0.5, 400)
    assert near < far / 4 < 1e-3
    assert distance(h, 5, 0.5, 400, FedAvg) > 20 * far


def test_a_sparsified_broadcast_with_the_support_is_the_exact_one():
    """Entries of z below the threshold are 0 after the prox, whether they are sent or not, if one step is taken."""
    shards, objective = convex_problem()
    h = L1(0.05)
    whole, thin = (
        last(
            run(FedDualAvg(h, step_size=0.5, downlink_ratio=r), shards, objective, LocalSchedule(0, 1), 60)
        ).server
        for r in (1.0, 0.8)
    )
    assert 0 < np.count_nonzero(whole.x0) <= 3
    assert_allclose(thin.z, whole.z, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------- privacy


def moves_of(algorithm, schedule=FULL, number=8, far=0.0):
    """How far a record moves each release, given all before, at points around `far` e_0; h cuts some entries off."""
    objective, (data, other) = make_objective("logistic", FEATURES, 2), neighbours(ROWS, FEATURES, 0.7)
    server = algorithm.init_server(np.zeros(FEATURES), 1, np.array(0, np.uint64))
    z = np.random.default_rng(0).normal(size=(number, FEATURES)) + far * np.eye(FEATURES)[0]
    servers = [server._replace(z=z[t], elapsed=np.array(2.0 * t)) for t in range(number)]
    inboxes = [algorithm.broadcast(at, t, np.array(0)) for t, at in enumerate(servers, 1)]
    return replay(algorithm, objective, data, other, schedule, objective.bounds(0.7), inboxes)


@pytest.mark.parametrize("h", [ZERO, L1(0.1), GroupL1(0.1, 2), Ball(0.5)], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("schedule", [LocalSchedule(0, 5), LocalSchedule(2, 7), LocalSchedule(0, 1)])
@pytest.mark.parametrize("settings", PRIVATE, ids=str)
def test_a_record_moves_a_release_by_its_sensitivity_at_most(settings, schedule, h):
    moves = moves_of(FedDualAvg(h, step_size=1.0, **settings), schedule)
    assert 1e-3 < max(move.moved / move.sensitivity for move in moves) <= 1 + 1e-9


@pytest.mark.parametrize("h", [ZERO, L1(0.1), GroupL1(0.1, 2)], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("settings", [s for s in PRIVATE if "sensitivity" not in s], ids=str)
def test_one_step_where_all_slopes_are_saturated_attains_the_sensitivity(settings, h):
    moves = moves_of(FedDualAvg(h, step_size=1.0, **settings), LocalSchedule(0, 1), far=1e4)
    assert 0.99 <= max(move.moved / move.sensitivity for move in moves) <= 1 + 1e-9


def test_the_sensitivity_counts_one_plus_eta_l_for_every_later_step():
    """2 eta C/b sum_j (1 + eta L)^j, or 2 eta C K if that is less; FedAvg's without h, and with one step."""
    bounds, eta, gradient = Bounds(1.0, 0.25), 0.4, 1.0
    factor = 1 + eta * 0.25

    def released(h, steps, rows, kind=FedDualAvg):
        algorithm = kind(h, step_size=eta, privacy="public-state")
        return algorithm.release(bounds, LocalSchedule(0, steps).workload(rows), 1).sensitivity

    one = 2 * eta * gradient / 10
    assert_allclose(released(L1(0.1), 1, 10), one)
    assert_allclose(released(L1(0.1), 3, 10), one * (1 + factor + factor**2))
    assert_allclose(released(L1(0.1), 90, 10), 2 * eta * gradient * 90)
    assert released(ZERO, 7, 10) == released(ZERO, 7, 10, FedAvg)


def test_the_penaltys_slope_is_taken_at_the_prox_too():
    """With an l2 in the loss: the norm bound multiplies by 1 + eta l2, not by 1 - eta l2 as for FedAvg."""
    bounds = Bounds(1.0, 0.25, (0.1, 0.1))
    algorithm = FedDualAvg(L1(0.1), step_size=1.0, privacy="public-state", sensitivity="norm")
    release = algorithm.release(bounds, LocalSchedule(0, 3).workload(10), 1)
    assert_allclose(release.sensitivity, 2 * (1 + 1.1 + 1.1**2))


class QuietEnd(FedDualAvg):
    """A planted fault: the message holds the change without noise."""

    def client_update(self, state, inbox, work):
        *_, report = super().client_update(state, inbox, work)
        _, upload, _ = super().client_update(
            state, inbox, work._replace(noise=lambda value, draw=0, shrink=1.0: value)
        )
        return state, upload, report


@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_a_message_without_noise_is_caught_by_replay(privacy):
    good, bad = (kind(L1(0.1), step_size=1.0, privacy=privacy) for kind in (FedDualAvg, QuietEnd))
    assert all(move.agrees for move in moves_of(good))
    assert not all(move.agrees for move in moves_of(bad))


SUMMED = {"regulariser": L1(0.01), "step_size": 1.5}


def test_sums_are_enough_with_any_number_of_steps():
    assert 0.05 < summed_ratio(FedDualAvg, 3, **SUMMED, privacy="public-state") <= 1 + 1e-9
    assert 0.2 < summed_ratio(FedDualAvg, 1, **SUMMED, privacy="gradient") <= 1 + 1e-9


def test_sums_give_the_iterates_of_the_method():
    setup = small("feddualavg-sum", honest_sites=8, noise_multiplier=1e-5, epsilon=0.0)
    plain = small("feddualavg", clients__per_round=0)
    assert_allclose(inprocess.train(setup).model, inprocess.train(plain).model, rtol=0, atol=1e-4)


# -------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(("elapsed", "words"), [(-1.0, "at least 0"), (np.inf, "must be finite")])
def test_a_length_that_makes_no_sense_is_refused(elapsed, words):
    algorithm = FedDualAvg(L1(0.1))
    inbox = algorithm.broadcast(algorithm.init_server(np.ones(3), 2, np.array(0, np.uint64)), 1, np.array(0))
    wire = algorithm.inbox.pack(inbox._replace(elapsed=np.array(elapsed)), 3)
    with pytest.raises(ReplyError, match=words):
        algorithm.inbox.unpack(wire, 3)


@pytest.mark.parametrize("h", PENALTIES, ids=lambda h: type(h).__name__)
def test_a_prox_for_each_point_is_that_of_each(h):
    u, steps = np.random.default_rng(0).normal(size=(3, 2, 4)), np.array([[0.0], [0.5], [1e3]])
    expected = [[h.prox(v, float(step[0])) for v in row] for row, step in zip(u, steps, strict=True)]
    assert_array_equal(prox_each(h, u, steps), expected)


def test_settings_that_make_no_sense():
    with pytest.raises(SettingError, match="server-step must be above 0; got 0.0"):
        FedDualAvg(server_step=0.0)
