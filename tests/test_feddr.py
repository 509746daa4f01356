"""FedDR: against the paper's recursion, the methods that it is, what it converges to, and its releases."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import at_rest, central_optimum, convex_problem, last, run, small
from scipy.optimize import minimize
from tracking import (
    FEATURES,
    FULL,
    PRIVATE,
    ROWS,
    moves_of,
    seeded_noise,
    summed_ratio,
    with_quiet_part,
    x0_of,
)

from twinflower.algorithms import FedADMM, FedDR, FedPDM
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.echo import confirmed
from twinflower.errors import SettingError
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO
from twinflower.randomness import participants
from twinflower.rounds import Problem, rounds
from twinflower.simulation.runtimes import inprocess

N, K = 6, 2
LONG = LocalSchedule(0, 200)  # the minimum of the local problem, to rounding errors
SIZES = (5, 9, 12, 3, 7, 20)


def paper(algorithm, shards, objective, schedule, number, k, start):
    """Algorithm 1 in plain loops, started as if all had sent `start`: xbar, and the y_i, x_i and xhat_i of all."""
    eta, d, h = algorithm.eta, objective.d, algorithm.regulariser
    xtilde = xbar = start.copy()
    y, x, xhat = ([start.copy() for _ in range(N)] for _ in range(3))
    for t in range(1, number + 1):
        total = np.zeros(d)
        for i in (int(i) for i in participants(0, t, N, k)):
            y[i] = y[i] + algorithm.alpha * (xbar - x[i])
            point = x[i] if algorithm.local_start == "warm" else xbar
            for rows in schedule.batches(shards, i, 0, t):
                slope = objective.grad(point, rows) + (point - y[i]) / eta
                point = point - algorithm.step_size * slope
                if algorithm.stopping_tolerance and slope @ slope <= algorithm.stopping_tolerance:
                    break
            x[i], before = point, xhat[i]
            xhat[i] = 2 * x[i] - y[i]
            total += xhat[i] - before
        xtilde = xtilde + total / N
        xbar = h.prox(xtilde, eta)
        yield xbar, np.concatenate([y, x, xhat], -1)


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize("keys", [{"alpha": 0.6}, {}, {"alpha": 1.9}, {"stopping_tolerance": 1e-3}])
@pytest.mark.parametrize("schedule", [FULL, LocalSchedule(5, 4)])
def test_rounds_are_the_papers_algorithm(k, local_start, keys, schedule):
    shards, objective = convex_problem()
    algorithm = FedDR(L1(0.02), **({"alpha": 1.5} | keys), eta=2.5, step_size=0.5, local_start=local_start)
    start = np.linspace(-1, 1, objective.d)
    steps = run(algorithm, shards, objective, schedule, 12, k, start=start)
    printed = paper(algorithm, shards, objective, schedule, 12, k, start)
    for mine, (xbar, states) in zip(steps, printed, strict=True):
        assert_allclose(mine.server.x0, xbar, rtol=0, atol=1e-12)
        assert_allclose(mine.states.after, states, rtol=0, atol=1e-12)
    assert np.linalg.norm(xbar - start) > 0.1
    if algorithm.stopping_tolerance and schedule == FULL:
        counts = [at.report.steps for at in run(algorithm, shards, objective, schedule, 12, k, start=start)]
        assert np.min(counts) < schedule.max_local_steps == np.max(counts)


# ------------------------------------------------------------------------------------- the methods that it is


SAME = {"step_size": 0.5, "step_decay": 0.3}


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize(
    "keys",
    [
        {}, {"privacy": "public-state"}, {"info": RunInfo(N, sizes=SIZES)},
        {"uplink_ratio": 0.4, "downlink_ratio": 0.6}, {"composite": "local-subgradient"},
    ],
)  # fmt: skip
def test_without_relaxation_it_is_fedadmm(k, local_start, keys):
    """With alpha = 1 and rho = 1/eta."""
    common = SAME | keys | {"local_start": local_start}
    noise = {"noise": seeded_noise} if "privacy" in keys else {}
    mine = x0_of(FedDR(L1(0.01), eta=2.5, **common), k, **noise)
    assert_allclose(mine, x0_of(FedADMM(L1(0.01), rho=0.4, **common), k, **noise), rtol=0, atol=1e-12)
    relaxed = x0_of(FedDR(L1(0.01), eta=2.5, alpha=1.5, **common), k, **noise)
    assert np.abs(mine - relaxed).max() > 1e-3


def test_without_relaxation_and_with_all_clients_it_is_fedpdm():
    mine = x0_of(FedDR(L1(0.01), eta=2.5, **SAME))
    assert_allclose(mine, x0_of(FedPDM(L1(0.01), rho=0.4, **SAME)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("schedule", [FULL, LONG])
def test_with_full_reflection_it_is_fedsplit(schedule):
    """Pathak and Wainwright 2020, Algorithm 1: z_i <- z_i + 2 (prox_i(2 x - z_i) - x), x <- mean z_i, where prox_i
    takes gradient steps from x. Exact ones end at the optimum."""
    shards, objective = convex_problem()
    eta, start = 2.5, np.linspace(-1, 1, objective.d)
    algorithm = FedDR(ZERO, eta=eta, alpha=2.0, step_size=0.5)
    x, z = start, np.tile(start, (N, 1))
    for t, at in enumerate(run(algorithm, shards, objective, schedule, 40, start=start), 1):
        for i in range(N):
            half, centre = x, 2 * x - z[i]
            for rows in schedule.batches(shards, i, 0, t):
                half = half - 0.5 * (objective.grad(half, rows) + (half - centre) / eta)
            z[i] += 2 * (half - x)
        x = z.mean(0)
        assert_allclose(at.server.x0, x, rtol=0, atol=1e-11)
    if schedule is LONG:
        assert_allclose(x, central_optimum(objective, ZERO, shards.everyone()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.9])
def test_one_client_with_exact_minima_is_douglas_rachford_splitting(alpha):
    """Both proximal operators exact (SciPy), y <- y + alpha (prox_h(2 prox_f(y) - y) - prox_f(y))."""
    shards, objective = convex_problem(clients=1, rows=40)
    rows, eta, h = shards.rows(0), 1.5, L1(0.05)

    def prox(y):
        return minimize(
            lambda v: objective.value(v, rows) + (v - y) @ (v - y) / (2 * eta), y,
            jac=lambda v: objective.grad(v, rows) + (v - y) / eta, options={"gtol": 1e-11},
        ).x  # fmt: skip

    y = start = np.full(objective.d, 2.0)
    mine = run(FedDR(h, eta=eta, alpha=alpha, step_size=0.5), shards, objective, LONG, 10, start=start)
    for at in mine:
        x = prox(y)
        x0 = h.prox(2 * x - y, eta)
        assert_allclose(at.server.x0, x0, rtol=0, atol=1e-7)
        y = y + alpha * (x0 - x)
    assert np.linalg.norm(x0 - start) > 0.5


# ------------------------------------------------------------------------------------------------ invariants


@pytest.mark.parametrize("sizes", [(), SIZES])
@pytest.mark.parametrize(
    "keys",
    [
        {}, {"privacy": "public-state"}, {"privacy": "gradient", "local_start": "warm"},
        {"uplink_ratio": 0.4, "downlink_ratio": 0.6}, {"uplink_ratio": 0.4, "uplink": "rand-k"},
    ],
)  # fmt: skip
def test_the_mean_is_that_of_all_that_was_counted_whatever_is_lost(keys, sizes):
    """Half of the replies vanish after their clients have moved their own state."""
    shards, objective = convex_problem()
    shares = np.array(sizes or [1] * N) / sum(sizes or [1] * N)
    algorithm = FedDR(L1(0.01), eta=2.5, alpha=1.5, step_size=0.5, info=RunInfo(N, sizes=sizes), **keys)
    lost, d = np.random.default_rng(5).random((41, N)) < 0.5, objective.d
    noise = {} if algorithm.privacy == "none" else {"noise": seeded_noise}
    ends = run(
        algorithm, shards, objective, FULL, 40, 4, start=np.ones(d), lost=lambda t, who: lost[t, who], **noise
    )
    without_echo = []
    for server, states, *_ in ends:
        counted, kept = (shares @ variable for variable in (confirmed(states, server.heard), states.after))
        assert_allclose(server.mean, counted[2 * d :], rtol=0, atol=1e-12)
        without_echo.append(np.abs(kept[2 * d :] - server.mean).max())
    assert max(without_echo) > 0.05


def test_a_client_that_took_no_part_keeps_its_state():
    shards, objective = convex_problem()
    problem = Problem(objective, shards, np.full(objective.d, 0.5))
    states = last(rounds(FedDR(alpha=1.5), problem, FULL, 4, lambda t: np.array([0, 2]))).states.all()
    assert_array_equal(states.after[[1, 3, 4, 5]], np.full((4, 3 * objective.d), 0.5))
    assert (states.after[[0, 2]] != 0.5).all()


# ------------------------------------------------------------------------------------------- where it ends


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.9])
def test_with_exact_minima_and_all_clients_it_ends_at_the_composite_optimum(alpha):
    shards, objective = convex_problem()
    h = L1(0.02)
    end = at_rest(run(FedDR(h, eta=2.5, alpha=alpha, step_size=0.5), shards, objective, LONG, 300))
    assert_allclose(end.server.x0, central_optimum(objective, h, shards.everyone()), rtol=0, atol=1e-9)
    assert 0 < np.count_nonzero(end.server.x0) < objective.d


@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize("keys", [{"alpha": 1.0}, {"alpha": 1.9}, {"alpha": 1.5, "uplink_ratio": 0.6}])
@pytest.mark.parametrize("lost", [0.0, 0.3])
def test_with_few_steps_some_clients_and_lost_replies_it_ends_there_too(local_start, keys, lost):
    """x_i = x0 and y_i = x0 + eta grad f_i(x0) at the end; from a start that is far away."""
    shards, objective = convex_problem()
    h, d, eta = L1(0.02), objective.d, 1.5
    algorithm = FedDR(h, eta=eta, step_size=0.5, local_start=local_start, **keys)
    gone = np.random.default_rng(3).random((2001, N)) < lost
    end = at_rest(run(
        algorithm, shards, objective, FULL, 2000, K, start=np.full(d, 3.0), lost=lambda t, who: gone[t, who]
    ))  # fmt: skip
    x0 = end.server.x0
    slopes = np.array([objective.grad(x0, shards.rows(i)) for i in range(N)])
    counted = confirmed(end.states, end.server.heard)
    assert_allclose(x0, central_optimum(objective, h, shards.everyone()), rtol=0, atol=1e-8)
    assert_allclose(
        counted, np.concatenate([x0 + eta * slopes, x0 + 0 * slopes, x0 - eta * slopes], -1), atol=1e-7
    )
    assert np.abs(slopes).max() > 0.01


def test_rows_as_weights_end_at_the_optimum_of_all_rows():
    shards, objective = convex_problem()
    shares = np.array(SIZES) / sum(SIZES)
    algorithm = FedDR(eta=2.5, alpha=1.5, step_size=0.5, info=RunInfo(N, sizes=SIZES))
    x0 = last(run(algorithm, shards, objective, FULL, 600, 4)).server.x0
    slopes = np.array([objective.grad(x0, shards.rows(i)) for i in range(N)])
    assert_allclose(shares @ slopes, 0, atol=1e-10)
    assert np.linalg.norm(slopes.mean(0)) > 1e-3


@pytest.mark.parametrize("alpha", [0.7, 1.4])
def test_with_next_to_no_local_progress_moves_grow_by_two_minus_alpha(alpha):
    shards, objective = convex_problem()
    algorithm = FedDR(eta=1e6, alpha=alpha, step_size=1e-7)
    points = [at.server.x0 for at in run(algorithm, shards, objective, LocalSchedule(0, 1), 14)]
    moves = np.linalg.norm(np.diff(points, axis=0), axis=-1)
    grown = moves[1:] / moves[:-1]
    limit = 2 - alpha
    # each round adds the same small step s grad F, so that the ratio tends to max(2 - alpha, 1)
    assert_allclose(grown[-1], max(limit, 1), atol=0.02)


def test_a_block_of_the_servers_own_does_not_move_the_fixed_point():
    """y <- y + alpha (x0 - y), x0 <- prox_h((N mean + y)/(N+1), eta N/(N+1)) for quadratic f_i, in exact arithmetic."""
    rng, eta, alpha, h = np.random.default_rng(0), 0.8, 1.5, L1(0.1)
    curvature, centres = rng.uniform(0.5, 2, (N, 3)), rng.normal(size=(N, 3))
    own = x0 = np.ones(3)
    y = x = xhat = np.ones((N, 3))
    for _ in range(400):
        y = y + alpha * (x0 - x)
        x = (eta * curvature * centres + y) / (eta * curvature + 1)
        xhat = 2 * x - y
        own = own + alpha * (x0 - own)
        x0 = h.prox((N * xhat.mean(0) + own) / (N + 1), eta * N / (N + 1))
    slope = (curvature * (x0 - centres)).mean(0)
    assert_allclose(h.prox(x0 - eta * slope, eta), x0, rtol=0, atol=1e-12)


# --------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("alpha", [0.6, 1.9])
@pytest.mark.parametrize("schedule", [LocalSchedule(0, 5), LocalSchedule(2, 7)])
@pytest.mark.parametrize("settings", PRIVATE)
def test_given_what_was_released_a_record_moves_the_next_release_by_its_sensitivity_at_most(
    settings, schedule, alpha
):
    algorithm = FedDR(eta=2.0, alpha=alpha, step_size=1.0, **settings)
    moves = moves_of(algorithm, schedule)
    assert all(move.same_state for move in moves)
    ratio = max(move.moved / move.sensitivity for move in moves)
    assert 1e-3 < ratio <= 1 + 1e-9


def test_the_sensitivity_is_that_of_the_papers_local_loop():
    """One full-batch step moves by 2 step C / b; each further one adds it to at most |1 - step/eta| + step L times the
    distance so far, for a public centre y that differs from x0."""
    objective = make_objective("logistic", FEATURES, 2)
    algorithm = FedDR(eta=2.0, alpha=1.9, step_size=0.5, privacy="public-state")
    bounds, step = objective.bounds(0.7), 0.5
    moves = {q: moves_of(algorithm, LocalSchedule(0, q))[0].sensitivity for q in (1, 2)}
    assert_allclose(moves[1], 2 * step * bounds.gradient / ROWS, rtol=1e-6)
    assert moves[1] < moves[2] < 2 * moves[1]


@pytest.mark.parametrize("part", [1, 2])  # x, and the sum of all it has sent
@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_state_without_noise_is_caught_by_replay(part, local_start, privacy):
    faulty = with_quiet_part(FedDR, part)(
        eta=2.0, alpha=1.5, step_size=1.0, privacy=privacy, local_start=local_start
    )
    assert not all(move.same_state for move in moves_of(faulty))


SUMMED = {"regulariser": L1(0.01), "eta": 2.0, "alpha": 1.5, "step_size": 1.5, "privacy": "public-state"}


def test_with_one_local_step_sums_are_enough():
    """y moves the released value by a term that is affine in it (docs/sums.md); with three steps or a warm start it
    moves the points where gradients are taken."""
    assert 0.2 < summed_ratio(FedDR, 1, **SUMMED) <= 1 + 1e-9
    assert summed_ratio(FedDR, 1, **SUMMED | {"privacy": "gradient"}) <= 1 + 1e-9
    assert summed_ratio(FedDR, 3, **SUMMED) > 1.2
    assert summed_ratio(FedDR, 1, **SUMMED, local_start="warm") > 1.2


def test_sums_give_the_iterates_of_the_method():
    setup = small("feddr-sum", honest_sites=8, noise_multiplier=1e-5, epsilon=0.0)
    plain = small("feddr", clients__per_round=0, local__max_steps=1)
    assert_allclose(inprocess.train(setup).model, inprocess.train(plain).model, rtol=0, atol=1e-4)


# -------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"eta": 0.0}, "eta must be above 0; got 0.0"),
        ({"eta": 0.2}, "1/eta \\* step-size must be below 2"),
        ({"alpha": 0.0}, "alpha must be above 0 and at most 2; got 0.0"),
        ({"alpha": 2.1}, "alpha must be above 0 and at most 2; got 2.1"),
        ({"alpha": math.nan}, "alpha must be"),
        ({"local_start": "cold"}, "local-start must be one of server, warm; got 'cold'"),
        ({"privacy": "public-state", "stopping_tolerance": 0.1}, "stopping-tolerance must be 0"),
        ({"privacy": "as-published"}, "privacy.mode of feddr must be one of none, public-state, gradient"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        FedDR(**keys)


def test_sums_want_whole_messages_one_step_and_a_start_that_is_public():
    for steps, keys, words in (
        (1, {"local_start": "warm"}, "local-start server"),
        (1, {"uplink_ratio": 0.5}, "uplink-ratio 1"),
        (2, {}, "one local step"),
    ):
        with pytest.raises(SettingError, match=words):
            FedDR(ZERO, privacy="public-state", **keys).check_sum(steps)
