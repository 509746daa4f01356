"""TAMUNA: its masks, the rate at which it finds the optimum with a part of the entries, ProxSkip, and its refusals."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import bits_of, central_optimum, convex_problem, last, run, small

from twinflower.algorithms import ProxSkip, Tamuna
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.tamuna import Message, mask_of
from twinflower.errors import ReplyError, SettingError
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.regularisers import L1, ZERO
from twinflower.simulation.runs.advice import warnings

N, MANY = 6, LocalSchedule(0, 10_000)
INFO = RunInfo(N, key=7)


@pytest.mark.parametrize(("senders", "d"), [(2, 7), (3, 5), (2, 2), (6, 4)])
def test_each_entry_is_in_as_many_masks_and_masks_are_of_equal_size_but_for_one(senders, d):
    masks = mask_of(np.arange(N), senders, N, d)
    assert_array_equal(masks.sum(0), senders)
    assert np.ptp(masks.sum(1)) <= 1


@pytest.mark.parametrize("senders", [2, 3, 6])
def test_the_distance_from_the_optimum_falls_linearly(senders):
    """Clients that differ, several local steps, and down to a third of the entries: a straight line of logarithms."""
    shards, objective = convex_problem()
    optimum = central_optimum(objective, ZERO, shards.everyone())
    algorithm = Tamuna(ZERO, INFO, step_size=1.0, communication_probability=0.3, senders=senders)
    steps = run(algorithm, shards, objective, MANY, 600, start=np.ones(objective.d))
    logs = np.log([np.linalg.norm(at.server.x0 - optimum) for at in steps])
    falling = logs > np.log(1e-11)
    assert logs.min() < np.log(1e-9)
    rounds = np.flatnonzero(falling)
    slope, _ = np.polyfit(rounds, logs[falling], 1)
    assert np.corrcoef(rounds, logs[falling])[0, 1] < -0.98
    assert slope < -0.03


def test_the_control_variates_become_the_gradients_and_add_up_to_0():
    shards, objective = convex_problem()
    algorithm = Tamuna(ZERO, INFO, step_size=1.0, communication_probability=0.3)
    end = last(run(algorithm, shards, objective, MANY, 600))
    x = end.server.x0
    inbox = algorithm.broadcast(end.server, 601, np.arange(N))
    controls = algorithm._control(end.states, inbox)
    assert_allclose(controls, [objective.grad(x, shards.rows(i)) for i in range(N)], rtol=0, atol=1e-7)
    assert_allclose(controls.sum(0), 0, rtol=0, atol=1e-12)


def test_with_all_senders_it_is_proxskip():
    shards, objective = convex_problem()
    settings = {"step_size": 0.7, "communication_probability": 0.3}
    ours, theirs = (
        last(run(algorithm, shards, objective, MANY, 30)).server.x0
        for algorithm in (Tamuna(ZERO, INFO, senders=N, **settings), ProxSkip(ZERO, INFO, **settings))
    )
    assert_allclose(ours, theirs, rtol=0, atol=1e-13)


def test_a_message_costs_the_entries_of_the_mask_and_is_filled_up_with_0():
    algorithm = Tamuna(ZERO, INFO)
    assert bits_of(algorithm, 7) == (3 * 64, 7 * 64 + 64)
    inbox = Message(np.zeros(7), np.array(5))  # of 7 entries, 2 for each of 6 columns
    assert mask_of(inbox.column, 2, N, 7).sum() == 2
    assert_array_equal(algorithm.upload.unpack([np.array([1.0, 2.0, 0.0])], 7, inbox).x.nonzero()[0], [2, 5])
    with pytest.raises(ReplyError, match="filled up with 0"):
        algorithm.upload.unpack([np.array([1.0, 2.0, 3.0])], 7, inbox)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"senders": 1}, "senders must be at least 2; got 1"),
        ({"senders": 9}, "senders must be at most the number of clients, 8; got 9"),
        ({"regulariser.name": "l1"}, "tamuna has no regulariser; got L1: set regulariser.name to none"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        small("tamuna", **keys)
    with pytest.raises(SettingError):
        Tamuna(L1(0.1))


@pytest.mark.parametrize(
    ("control_step", "warned"), [(0.0, False), (0.05, True), (0.1, False), (0.1142, False), (0.115, True)]
)
def test_a_control_step_beyond_the_range_of_the_theory_is_warned_about(control_step, warned):
    """p = .2, s = 2, N = 8: from p/2 = .1 to p (8 * 1) / (2 * 7) = .1143; 0 is the end of it."""
    told = [
        text
        for text in warnings(small("tamuna", control_step=control_step, senders=2))
        if "control-step" in text
    ]
    assert len(told) == warned
    assert all("from p/2 = 0.1 to p N (s - 1) / (s (N - 1)) = 0.1143" in text for text in told)
