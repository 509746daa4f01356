"""ProxSkip: what it converges to, its coins, and its releases."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import central_optimum, convex_problem, last, run, small

from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.fedavg import FedAvg
from twinflower.algorithms.messages import Vector
from twinflower.algorithms.proxskip import ProxSkip, State
from twinflower.errors import SettingError
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO
from twinflower.simulation.runtimes import cohort

MANY = LocalSchedule(0, 10_000)  # full batches; no cap that a coin could reach
KEY = RunInfo(key=7)


@pytest.mark.parametrize("cap", [3, 10_000])
def test_it_finds_the_composite_optimum_of_clients_that_differ(cap):
    shards, objective = convex_problem()
    h = L1(0.02)
    optimum = central_optimum(objective, h, shards.everyone())
    end = last(run(ProxSkip(h, KEY, 1.0, 0.3), shards, objective, LocalSchedule(0, cap), 400))
    assert_allclose(end.server.x0, optimum, rtol=0, atol=1e-8)
    avg = last(run(FedAvg(h, step_size=1.0), shards, objective, LocalSchedule(0, 3), 400))
    assert np.linalg.norm(avg.server.x0 - optimum) > 1e-3


def test_the_control_variates_become_the_gradients_at_the_optimum():
    shards, objective = convex_problem()
    algorithm = ProxSkip(ZERO, KEY, 1.0, 0.3)
    end = last(run(algorithm, shards, objective, MANY, 400))
    x = end.server.x0
    slopes = [objective.grad(x, shards.rows(i)) for i in range(shards.num_clients)]
    assert_allclose(algorithm.rho * (x - end.states.sent), slopes, rtol=0, atol=1e-7)


def test_meeting_in_every_step_is_proximal_gradient_descent():
    shards, objective = convex_problem()
    h, x = L1(0.02), np.zeros(objective.d)
    for step in run(ProxSkip(h, KEY, 0.8, 1.0), shards, objective, MANY, 20):
        x = h.prox(x - 0.8 * objective.grad(x, shards.everyone()), 0.8)
        assert_allclose(step.server.x0, x, rtol=0, atol=1e-13)


@pytest.mark.parametrize("p", [0.05, 0.4, 0.9, 1.0])
def test_the_coins_are_geometric(p):
    rounds = 20_000
    steps = np.array([ProxSkip(info=KEY, communication_probability=p).steps_of(t) for t in range(rounds)])
    assert steps.min() == 1
    assert abs(steps.mean() - 1 / p) <= 5 * np.sqrt((1 - p) / rounds) / p
    for k in (1, 2, 5):
        share = (1 - p) ** (k - 1) * p
        assert abs((steps == k).mean() - share) <= 5 * np.sqrt(share * (1 - share) / rounds)


def test_coins_belong_to_seed_and_round_only():
    algorithm = ProxSkip(info=KEY, communication_probability=0.1, step_size=0.3)
    same, other = ProxSkip(info=KEY, communication_probability=0.1), ProxSkip(info=RunInfo(key=8))
    steps = [[one.steps_of(t) for t in (9, 3, 9)] for one in (algorithm, same, other)]
    assert steps[0] == steps[1] != steps[2]
    assert steps[0][0] == steps[0][2]


@pytest.mark.parametrize("schedule", [LocalSchedule(0, 6), LocalSchedule(4, 6)])
def test_a_single_client_takes_the_steps_of_the_coin(schedule):
    """Also where its rows are fetched in one go."""
    shards, _ = convex_problem()
    batches = schedule.batches(shards, 0, 0, 1)
    assert len(list(batches)) == 6
    assert len(list(batches.first(2))) == 2
    assert len(list(batches.first(9))) == 6
    for a, b in zip(batches.first(2), batches, strict=False):
        assert_array_equal(a.features, b.features)


FEATURES, ROWS = 4, 6


def moves_of(algorithm):
    objective, (data, other) = make_objective("logistic", FEATURES, 2), neighbours(ROWS, FEATURES, 0.7)
    inboxes = [Vector(np.full(FEATURES, 1.0) * t) for t in range(8)]
    return replay(algorithm, objective, data, other, LocalSchedule(0, 20), objective.bounds(0.7), inboxes)


def test_no_record_moves_a_release_further_than_the_steps_of_its_round_allow():
    algorithm = ProxSkip(info=KEY, step_size=1.0, communication_probability=0.3, privacy="public-state")
    moves = moves_of(algorithm)
    assert all(move.agrees and move.moved <= move.sensitivity * (1 + 1e-9) for move in moves)
    steps = np.array([algorithm.steps_of(t) for t in range(1, 9)])
    assert len(set(steps)) > 3
    assert_allclose([m.sensitivity for m in moves], steps * moves[0].sensitivity / steps[0], rtol=1e-12)


class Remembers(ProxSkip):
    """A planted fault: the control variate is computed from the exact end of the local steps."""

    def client_update(self, state, inbox, work):
        _, upload, report = super().client_update(state, inbox, work)
        quiet = super().client_update(
            state, inbox, work._replace(noise=lambda value, draw=0, shrink=1.0: value)
        )
        return State(quiet[1].x), upload, report


def test_a_control_variate_without_noise_is_caught_by_replay():
    settings = {"info": KEY, "step_size": 1.0, "communication_probability": 0.3, "privacy": "public-state"}
    assert not all(move.agrees for move in moves_of(Remembers(**settings)))


def test_stacked_seeds_have_the_coins_of_their_own():
    setups = [small("proxskip", seed=seed) for seed in (0, 1)]
    assert setups[0].algorithm.info.key != setups[1].algorithm.info.key
    for together, setup in zip(cohort.train(setups), setups, strict=True):
        (alone,) = cohort.train([setup])
        assert_array_equal(together.model, alone.model)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"communication_probability": 0.0},
            "communication-probability must be above 0 and at most 1; got 0.0",
        ),
        (
            {"communication_probability": 1.5},
            "communication-probability must be above 0 and at most 1; got 1.5",
        ),
        ({"step_size": 0.0}, "step-size must be above 0; got 0.0"),
        ({"privacy": "gradient"}, "privacy.mode of .* must be one of none, public-state; got 'gradient'"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        ProxSkip(**keys)
