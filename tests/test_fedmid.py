"""FedMiD: the methods that it is, the wrong optimum it ends at, and its releases."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import central_optimum, convex_problem, last, random_shards, run, small
from test_feddualavg import PRIVATE
from tracking import FEATURES, FULL, ROWS, seeded_noise, summed_ratio

from twinflower.algorithms import FedAvg, FedDualAvg, FedMiD
from twinflower.algorithms.algorithm import RunInfo
from twinflower.errors import SettingError
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, Ball, Box, GroupL1
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runtimes import inprocess

N, K = 6, 2


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize(
    "keys", [{}, {"privacy": "public-state"}, {"privacy": "gradient"}, {"step_decay": 0.3}], ids=str
)
def test_without_h_it_is_fedavg_and_with_a_server_step_feddualavg(k, keys):
    shards, objective = convex_problem()
    noise = {} if keys.get("privacy", "none") == "none" else {"noise": seeded_noise}

    def points(kind, **more):
        steps = run(kind(step_size=0.5, **keys, **more), shards, objective, FULL, 15, k, **noise)
        return np.array([at.server.x0 for at in steps])

    assert_allclose(points(FedMiD), points(FedAvg), rtol=0, atol=1e-12)
    slow = points(FedMiD, server_step=0.5)
    assert_allclose(slow, points(FedDualAvg, server_step=0.5), rtol=0, atol=1e-12)
    assert np.abs(slow - points(FedMiD)).max() > 0.01


# ------------------------------------------------------------------------------------------- where it ends


def alike():
    """Six clients with the same rows."""
    shards, objective = random_shards([12], 5, 2, seed=1), make_objective("logistic", 5, 2, l2=0.1)
    many = [np.concatenate([a] * N) for a in (shards.features, shards.labels)]
    return type(shards).grouped(*many, np.arange(12 * N), np.arange(N + 1) * 12), objective


@pytest.mark.parametrize("server_step", [0.5, 1.0])
@pytest.mark.parametrize("h", [L1(0.01), GroupL1(0.01, 1)], ids=lambda h: type(h).__name__)
def test_with_equal_clients_and_one_step_it_ends_at_the_optimum_for_twice_h(h, server_step):
    shards, objective = alike()
    algorithm = FedMiD(h, step_size=0.5, server_step=server_step)
    end = last(run(algorithm, shards, objective, LocalSchedule(0, 1), 800)).server.x0
    once, twice = (
        central_optimum(objective, replace(h, weight=factor * h.weight), shards.everyone(), 3000)
        for factor in (1, 2)
    )
    assert_allclose(end, twice, rtol=0, atol=1e-9)
    assert np.linalg.norm(end - once) > 0.01


@pytest.mark.parametrize("h", [Box(-0.05, 0.1), ZERO], ids=lambda h: type(h).__name__)
def test_with_equal_clients_and_a_constraint_it_ends_at_the_optimum(h):
    shards, objective = alike()
    end = last(run(FedMiD(h, step_size=0.5), shards, objective, LocalSchedule(0, 1), 400)).server.x0
    assert_allclose(end, central_optimum(objective, h, shards.everyone(), 3000), rtol=0, atol=1e-9)
    if h is not ZERO:
        assert np.count_nonzero((end == h.lower) | (end == h.upper)) > 0


def test_different_clients_with_several_steps_end_elsewhere_than_at_either_optimum():
    """In proportion to the step size away from the optimum for 2h."""
    shards, objective = convex_problem()
    best = central_optimum(objective, L1(0.04), shards.everyone(), 3000)
    far, near = (
        np.linalg.norm(
            last(run(FedMiD(L1(0.02), step_size=s), shards, objective, FULL, 300)).server.x0 - best
        )
        for s in (0.2, 0.1)
    )
    assert 1e-4 < near < 0.7 * far


def test_a_run_warns_that_h_counts_twice():
    words = "fedmid applies the regulariser at the clients and at the server"
    told = {
        name: " ".join(warnings(small("fedmid", regulariser__name=name))) for name in ("l1", "box", "none")
    }
    assert {name for name, text in told.items() if words in text} == {"l1"}


# --------------------------------------------------------------------------------------------------- privacy


def moves_of(algorithm, schedule=FULL, number=8, far=0.0):
    """How far a record moves each release, given all before, at points around `far` e_0."""
    objective, (data, other) = make_objective("logistic", FEATURES, 2), neighbours(ROWS, FEATURES, 0.7)
    server = algorithm.init_server(np.zeros(FEATURES), 1, np.array(0, np.uint64))
    x0 = np.random.default_rng(0).normal(size=(number, FEATURES)) + far * np.eye(FEATURES)[0]
    inboxes = [algorithm.broadcast(server._replace(x0=x), t, np.array(0)) for t, x in enumerate(x0, 1)]
    return replay(algorithm, objective, data, other, schedule, objective.bounds(0.7), inboxes)


@pytest.mark.parametrize("h", [L1(0.1), GroupL1(0.1, 2), Ball(0.5)], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("schedule", [LocalSchedule(0, 5), LocalSchedule(2, 7), LocalSchedule(0, 1)])
@pytest.mark.parametrize("settings", PRIVATE, ids=str)
def test_a_record_moves_a_release_by_fedavgs_sensitivity_at_most(settings, schedule, h):
    algorithm = FedMiD(h, step_size=1.0, **settings)
    moves = moves_of(algorithm, schedule)
    assert 1e-3 < max(move.moved / move.sensitivity for move in moves) <= 1 + 1e-9
    bounds, workload = make_objective("logistic", FEATURES, 2).bounds(0.7), schedule.workload(ROWS)
    assert moves[0].sensitivity == FedAvg(step_size=1.0, **settings).release(bounds, workload, 1).sensitivity


@pytest.mark.parametrize("h", [L1(0.1), GroupL1(0.1, 2)], ids=lambda h: type(h).__name__)
@pytest.mark.parametrize("settings", [s for s in PRIVATE if "sensitivity" not in s], ids=str)
def test_one_step_where_all_slopes_are_saturated_attains_the_sensitivity(settings, h):
    moves = moves_of(FedMiD(h, step_size=1.0, **settings), LocalSchedule(0, 1), far=1e4)
    assert 0.99 <= max(move.moved / move.sensitivity for move in moves) <= 1 + 1e-9


class QuietStart(FedMiD):
    """A planted fault: the change is taken from the end of the local steps without noise."""

    def client_update(self, state, inbox, work):
        super().client_update(state, inbox, work)
        return super().client_update(
            state, inbox, work._replace(noise=lambda value, draw=0, shrink=1.0: value)
        )


@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_a_change_without_noise_is_caught_by_replay(privacy):
    good, bad = (kind(L1(0.01), step_size=1.0, privacy=privacy) for kind in (FedMiD, QuietStart))
    assert all(move.agrees for move in moves_of(good))
    assert not all(move.agrees for move in moves_of(bad))


def test_sums_are_enough_unless_noise_passes_through_a_prox():
    keys = {"regulariser": L1(0.01), "step_size": 1.5, "privacy": "public-state"}
    assert 0.05 < summed_ratio(FedMiD, 3, **keys) <= 1 + 1e-9
    FedMiD(L1(0.01), privacy="public-state").check_sum(5)
    FedMiD(privacy="gradient").check_sum(1)
    with pytest.raises(SettingError, match="trust sum needs privacy public-state, or regulariser none"):
        FedMiD(L1(0.01), privacy="gradient").check_sum(1)


def test_sums_give_the_iterates_of_the_method():
    setup = small("fedmid-sum", honest_sites=8, noise_multiplier=1e-5, epsilon=0.0)
    plain = small("fedmid", clients__per_round=0)
    assert_allclose(inprocess.train(setup).model, inprocess.train(plain).model, rtol=0, atol=1e-4)


def test_a_server_weights_changes_by_rows():
    shards, objective = random_shards([4, 12, 20], 5, 2), make_objective("logistic", 5, 2)
    algorithm = FedMiD(step_size=0.5, info=RunInfo(3, sizes=(4, 12, 20)))
    end = last(run(algorithm, shards, objective, LocalSchedule(4, 0), 3))
    same = last(
        run(
            FedAvg(step_size=0.5, info=RunInfo(3, sizes=(4, 12, 20))),
            shards,
            objective,
            LocalSchedule(4, 0),
            3,
        )
    )
    assert_allclose(end.server.x0, same.server.x0, atol=1e-12)
