"""FedAdam, FedYogi and FedAdagrad: against FedAvg, and where they end."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import central_optimum, convex_problem, last, run, small
from tracking import FULL, seeded_noise, summed_ratio

from twinflower.algorithms import FedAdam, FedAvg
from twinflower.errors import SettingError
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, Ball, Box, ElasticNet, GroupL1, WeightedL1Box
from twinflower.simulation.runtimes import inprocess

N, K = 6, 2
MOMENTS = ["adam", "yogi", "adagrad"]
SEPARABLE = [L1(0.02), ElasticNet(0.02, 0.1), Box(-0.05, 0.1), WeightedL1Box(0.02, -0.2, 0.3)]
GENTLE = {"server_step": 1.0, "adaptivity": 1.0}
HUGE = {
    "adam": {"server_step": 1e7, "adaptivity": 1e7, "memory": 0.0},
    "yogi": {"server_step": 2e7, "adaptivity": 1e7},
    "adagrad": {"server_step": 2e7, "adaptivity": 1e7},
}


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("kind", MOMENTS)
@pytest.mark.parametrize("keys", [{}, {"privacy": "public-state"}, {"downlink_ratio": 0.6}], ids=str)
def test_with_a_large_tau_it_is_fedavg(k, kind, keys):
    shards, objective = convex_problem()
    noise = {"noise": seeded_noise} if "privacy" in keys else {}
    mine = FedAdam(L1(0.02), step_size=0.5, second_moment=kind, momentum=0.0, **HUGE[kind], **keys)
    both = mine, FedAvg(L1(0.02), step_size=0.5, **keys)
    ends = [last(run(a, shards, objective, FULL, 8, k, **noise)).server.x0 for a in both]
    assert_allclose(*ends, rtol=0, atol=1e-6)


def test_an_entry_that_nobody_sent_does_not_move():
    shards, objective = convex_problem()
    algorithm = FedAdam(step_size=0.5, uplink_ratio=0.2, momentum=0.0)
    start = np.array([5.0, 1.0, 1.0, 1.0, 1.0])
    end = last(run(algorithm, shards, objective, FULL, 3, start=start)).server.x0
    assert end[0] != 5.0
    assert_allclose(end[1:], 1.0, rtol=0, atol=1e-15)


def test_with_a_large_tau_and_momentum_it_is_fedavgm_with_a_smaller_step():
    """x moves by (1 - beta) Delta + beta times its last move."""
    shards, objective = convex_problem()
    algorithm = FedAdam(step_size=0.5, momentum=0.6, **HUGE["adam"])
    steps = [np.zeros(5), *(at.server.x0 for at in run(algorithm, shards, objective, FULL, 12))]
    means = [at.server.mean for at in run(algorithm, shards, objective, FULL, 12)]
    moves = [b - a for a, b in pairwise(steps)]
    for t in range(1, 12):
        assert_allclose(moves[t], 0.4 * (means[t] - steps[t]) + 0.6 * moves[t - 1], rtol=0, atol=1e-6)


# ------------------------------------------------------------------------------------------- where it ends


@pytest.mark.parametrize("kind", ["adam", "yogi"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("h", [ZERO, *SEPARABLE], ids=lambda h: type(h).__name__)
def test_with_one_step_of_all_clients_it_ends_at_the_composite_optimum(kind, momentum, h):
    """For any steps of the entries; v differs between entries by far at the end."""
    shards, objective = convex_problem()
    algorithm = FedAdam(
        h, step_size=0.5, second_moment=kind, momentum=momentum, memory=0.9, server_step=0.3, adaptivity=0.05
    )
    server = last(run(algorithm, shards, objective, LocalSchedule(0, 1), 600)).server
    assert_allclose(server.x0, central_optimum(objective, h, shards.everyone(), 3000), rtol=0, atol=1e-7)


def test_a_small_tau_keeps_it_moving_around_the_optimum():
    """Q eta_c eta/tau times the curvature is far above 2 (1 + beta_1)/(1 - beta_1); a larger tau settles."""
    shards, objective = convex_problem()
    best = central_optimum(objective, ZERO, shards.everyone(), 3000)

    def away(tau):
        algorithm = FedAdam(step_size=0.5, momentum=0.0, memory=0.9, server_step=0.3, adaptivity=tau)
        return np.linalg.norm(
            last(run(algorithm, shards, objective, LocalSchedule(0, 1), 600)).server.x0 - best
        )

    assert away(0.05) < 1e-8 < 1e-5 < away(1e-4)


# --------------------------------------------------------------------------------------------------- privacy


class Quiet(FedAdam):
    """A planted fault: the message is the point without noise."""

    def client_update(self, state, inbox, work):
        super().client_update(state, inbox, work)
        return super().client_update(
            state, inbox, work._replace(noise=lambda value, draw=0, shrink=1.0: value)
        )


@pytest.mark.parametrize("kind", [FedAdam, Quiet])
@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_releases_are_fedavgs_and_a_message_without_noise_is_caught_by_replay(privacy, kind):
    objective, (data, other) = make_objective("logistic", 4, 2), neighbours(6, 4, 0.7)
    algorithm, bounds = kind(step_size=1.0, privacy=privacy), objective.bounds(0.7)
    server = algorithm.init_server(np.ones(4), 1, np.array(0, np.uint64))
    inboxes = [algorithm.broadcast(server, t, np.array(0)) for t in range(1, 5)]
    moves = replay(algorithm, objective, data, other, FULL, bounds, inboxes)
    fedavg = FedAvg(step_size=1.0, privacy=privacy).release(bounds, FULL.workload(6), 1)
    assert moves[0].sensitivity == fedavg.sensitivity
    assert all(move.moved <= move.sensitivity * (1 + 1e-9) for move in moves)
    assert all(move.agrees for move in moves) == (kind is FedAdam)


def test_sums_are_enough_and_give_the_iterates_of_the_method():
    keys = {"regulariser": L1(0.01), "step_size": 1.5, "privacy": "public-state", **GENTLE}
    assert 0.05 < summed_ratio(FedAdam, 3, **keys) <= 1 + 1e-9
    setup = small("fedadam-sum", honest_sites=8, noise_multiplier=1e-5, epsilon=0.0, adaptivity=0.1)
    plain = small("fedadam", clients__per_round=0, adaptivity=0.1, server_step=0.1)
    assert_allclose(inprocess.train(setup).model, inprocess.train(plain).model, rtol=0, atol=1e-4)


@pytest.mark.parametrize("h", [Ball(1.0), GroupL1(0.1, 1)], ids=lambda h: type(h).__name__)
def test_a_regulariser_that_is_no_sum_over_entries_is_refused(h):
    with pytest.raises(
        SettingError, match=f"needs a regulariser that is a sum over entries .*; got {type(h).__name__}"
    ):
        FedAdam(h)


def test_other_settings_that_make_no_sense():
    for keys, words in (
        ({"second_moment": "rmsprop"}, "second-moment must be one of adam, yogi, adagrad; got 'rmsprop'"),
        ({"adaptivity": 0.0}, "adaptivity must be above 0"),
        ({"momentum": 1.0}, "momentum must be"),
    ):
        with pytest.raises(SettingError, match=words):
            FedAdam(**keys)
    FedAdam(GroupL1(0.1, 1), composite="local-subgradient", privacy="gradient")
