"""SoteriaFL: against a slow loop, the methods that it is, what it converges to, and its releases."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import at_rest, bits_of, central_optimum, convex_problem, last, run
from tracking import FEATURES, ROWS, moves_of, seeded_noise, with_quiet_part, x0_of

from twinflower.algorithms import ISRLDP, SoteriaFL
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.echo import confirmed
from twinflower.algorithms.messages import Inbox
from twinflower.errors import SettingError
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1
from twinflower.randomness import participants, stream
from twinflower.sparsifiers import rand_k, top_k
from twinflower.work import Report

N, K, D = 6, 2, 5
FULL = LocalSchedule(0, 1)
SIZES = (5, 9, 12, 3, 7, 20)
RANDOM = {"uplink_ratio": 0.4}
LARGEST = {"uplink_ratio": 0.4, "uplink": "top-k"}


def chosen(algorithm, difference, i, t):
    """The entries that a client sends, from the addresses of the public seeds."""
    k = round(algorithm.uplink_ratio * D)
    if algorithm.uplink == "top-k":
        return top_k(difference, k)
    return rand_k(stream(0, "rand-k", i, t).integers(2**63), D, k)


def by_hand(algorithm, shards, objective, schedule, number, k):
    """The recursion of the authors' program in plain loops, with h and sampled clients: x and all s_i of each round."""
    x, own, eta = np.ones(D), np.zeros((N, D)), algorithm.step_size
    omega = D / round(algorithm.uplink_ratio * D) - 1 if algorithm.uplink == "rand-k" else 0.0
    gamma = algorithm.shift_step / (1 + omega)
    for t in range(1, number + 1):
        sampled, before, v = participants(0, t, N, k), own.mean(0), np.zeros((N, D))
        for i in (int(i) for i in sampled):
            g = objective.grad(x, next(iter(schedule.batches(shards, i, 0, t))))
            entries = chosen(algorithm, g - own[i], i, t)
            v[i, entries] = (1 + omega) * (g - own[i])[entries]
            own[i] = own[i] + gamma * v[i]
        x = algorithm.regulariser.prox(x - eta * (before + v[sampled].mean(0)), eta)
        yield x, own.copy()


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("shift_step", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("keys", [{}, RANDOM, LARGEST])
@pytest.mark.parametrize("schedule", [FULL, LocalSchedule(5, 1)])
def test_rounds_are_the_authors_recursion(k, shift_step, keys, schedule):
    shards, objective = convex_problem()
    algorithm = SoteriaFL(L1(0.02), step_size=0.3, shift_step=shift_step, **keys)
    steps = run(algorithm, shards, objective, schedule, 12, k, start=np.ones(D))
    for mine, (x, own) in zip(steps, by_hand(algorithm, shards, objective, schedule, 12, k), strict=True):
        assert_allclose(mine.server.x0, x, rtol=0, atol=1e-12)
        assert_allclose(mine.states.after, own, rtol=0, atol=1e-12)
    assert np.linalg.norm(x - 1) > 0.1


@pytest.mark.parametrize("ratio", [1.0, 0.4, 0.05])
def test_the_authors_gamma_is_a_share_of_seven_tenths_to_one(ratio):
    omega = SoteriaFL(uplink_ratio=ratio).scale(1000) - 1
    assert omega == pytest.approx(1 / ratio - 1)
    gamma = np.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3))
    assert np.sqrt(0.5) <= gamma * (1 + omega) < 1


def test_what_the_server_reads_from_random_entries_is_unbiased():
    algorithm, d, draws = SoteriaFL(uplink_ratio=0.25), 12, 4000
    y = np.linspace(-1, 2, d)
    seeds = np.random.default_rng(1).integers(2**63, size=draws, dtype=np.uint64)
    many = np.broadcast_to(y, (draws, d))
    sent = algorithm.message(many, Inbox(many, np.empty(0, int), seeds), Report(np.ones(draws, int), None))
    v = algorithm.scale(d) * algorithm.received(sent, d)[0]
    omega = algorithm.scale(d) - 1
    assert_allclose(v.mean(0), y, rtol=0, atol=5 * np.abs(y).max() * np.sqrt(omega / draws))
    assert_allclose(((v - y) ** 2).sum(-1).mean(), omega * (y @ y), rtol=0.1)


# ------------------------------------------------------------------------------------- the methods that it is


@pytest.mark.parametrize("shift_step", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "keys",
    [{}, {"privacy": "gradient"}, {"info": RunInfo(N, sizes=SIZES)}, {"composite": "local-subgradient"}],
)
def test_with_whole_messages_of_all_clients_it_is_isrl_dp(shift_step, keys):
    noise = {"noise": seeded_noise} if "privacy" in keys else {}
    mine = x0_of(SoteriaFL(L1(0.01), 0.5, shift_step=shift_step, **keys), **noise)
    assert_allclose(mine, x0_of(ISRLDP(L1(0.01), 0.5, **keys), **noise), rtol=0, atol=1e-12)


def test_with_sampled_clients_only_shifts_that_rest_at_0_make_it_isrl_dp():
    isrl = x0_of(ISRLDP(L1(0.01), 0.5), K)
    assert_allclose(x0_of(SoteriaFL(L1(0.01), 0.5, shift_step=0.0), K), isrl, rtol=0, atol=1e-12)
    assert np.abs(x0_of(SoteriaFL(L1(0.01), 0.5), K) - isrl).max() > 1e-2


def test_with_the_largest_entries_and_all_clients_it_is_ef21():
    """g_i <- g_i + C(grad f_i(x) - g_i), x <- x - eta mean g_i."""
    shards, objective = convex_problem()
    algorithm = SoteriaFL(step_size=0.4, **LARGEST)
    x, g = np.ones(D), np.zeros((N, D))
    for at in run(algorithm, shards, objective, FULL, 15, start=np.ones(D)):
        for i in range(N):
            change = objective.grad(x, shards.rows(i)) - g[i]
            entries = np.argsort(-np.abs(change))[:2]
            g[i, entries] += change[entries]
        x = x - 0.4 * g.mean(0)
        assert_allclose(at.server.x0, x, rtol=0, atol=1e-12)


# ------------------------------------------------------------------------------------------------ invariants


@pytest.mark.parametrize("sizes", [(), SIZES])
@pytest.mark.parametrize(
    "keys", [{}, RANDOM, LARGEST | {"shift_step": 0.5}, {"privacy": "gradient"} | RANDOM]
)
def test_the_servers_shift_is_the_mean_of_those_counted_whatever_is_lost(keys, sizes):
    """Half of the replies vanish after their clients have moved their own shift."""
    shards, objective = convex_problem()
    shares = np.array(sizes or [1] * N) / sum(sizes or [1] * N)
    algorithm = SoteriaFL(L1(0.01), step_size=0.2, info=RunInfo(N, sizes=sizes), **keys)
    lost = np.random.default_rng(5).random((41, N)) < 0.5
    noise = {} if algorithm.privacy == "none" else {"noise": seeded_noise}
    without_echo = []
    for server, states, *_ in run(
        algorithm, shards, objective, FULL, 40, 4, start=np.ones(D), lost=lambda t, who: lost[t, who], **noise
    ):
        assert_allclose(server.shift, shares @ confirmed(states, server.heard), rtol=0, atol=1e-12)
        without_echo.append(np.abs(shares @ states.after - server.shift).max())
    assert max(without_echo) > 0.02


@pytest.mark.parametrize("keys", [RANDOM, LARGEST])
@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_it_ends_at_the_composite_optimum_of_clients_that_differ(keys, lost):
    """Two of five entries of two of six clients in a round; s_i = grad f_i(x) at the end."""
    shards, objective = convex_problem()
    h, gone = L1(0.02), np.random.default_rng(3).random((3001, N)) < lost
    algorithm = SoteriaFL(h, step_size=0.1, **keys)
    end = at_rest(run(
        algorithm, shards, objective, FULL, 3000, K, start=np.full(D, 3.0), lost=lambda t, who: gone[t, who]
    ))  # fmt: skip
    x = end.server.x0
    slopes = np.array([objective.grad(x, shards.rows(i)) for i in range(N)])
    assert_allclose(x, central_optimum(objective, h, shards.everyone()), rtol=0, atol=1e-8)
    assert_allclose(confirmed(end.states, end.server.heard), slopes, rtol=0, atol=1e-7)
    assert np.abs(slopes).max() > 0.01


def test_without_shifts_compression_keeps_it_away_from_there():
    shards, objective = convex_problem()
    optimum = central_optimum(objective, L1(0.02), shards.everyone())
    *_, end = run(SoteriaFL(L1(0.02), 0.1, shift_step=0.0, **RANDOM), shards, objective, FULL, 2000)
    assert np.linalg.norm(end.server.x0 - optimum) > 1e-3


# --------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("keys", [{}, RANDOM | {"shift_step": 0.7}, LARGEST])
def test_given_what_was_released_a_record_moves_the_next_release_by_its_sensitivity_at_most(keys):
    moves = moves_of(SoteriaFL(privacy="gradient", **keys), FULL)
    bound = 2 * make_objective("logistic", FEATURES, 2).bounds(0.7).gradient / ROWS
    assert all(move.agrees for move in moves)
    assert_allclose([move.sensitivity for move in moves], bound)
    assert 0.1 * bound < max(move.moved for move in moves) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("keys", [{}, RANDOM, LARGEST])
def test_a_shift_without_noise_is_caught_by_replay(keys):
    faulty = with_quiet_part(SoteriaFL, 0, parts=1)(privacy="gradient", **keys)
    assert not all(move.same_state for move in moves_of(faulty, FULL))


# -------------------------------------------------------------------------------------------------- settings


def test_random_entries_need_no_indices_on_the_wire():
    up, down = bits_of(SoteriaFL(uplink_ratio=0.05), 120)
    assert up == 6 * 64
    assert down == 120 * 64 + 2 * 64  # x, the echo and the seed


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"shift_step": -0.1}, "shift-step must be from 0 to 1; got -0.1"),
        ({"shift_step": 1.1}, "shift-step must be from 0 to 1; got 1.1"),
        ({"uplink_ratio": 0.0}, "uplink-ratio must be above 0 and at most 1"),
        ({"privacy": "public-state"}, "privacy.mode of soteriafl must be one of none, gradient"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        SoteriaFL(**keys)


def test_sums_are_refused_with_the_method_to_take_instead():
    with pytest.raises(SettingError, match="set algorithm to isrl-dp"):
        SoteriaFL(privacy="gradient").check_sum(1)


def test_a_client_that_took_no_part_keeps_its_shift():
    shards, objective = convex_problem()
    states = last(
        run(SoteriaFL(**RANDOM), shards, objective, FULL, 4, sampling=lambda t: np.array([0, 2]))
    ).states
    assert_array_equal(states.after[[1, 3, 4, 5]], np.zeros((4, D)))
    assert states.after[[0, 2]].any(-1).all()
