"""FedADMM: against the paper's recursion, the methods that it is, what it converges to, and its releases."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import at_rest, central_optimum, convex_problem, last, run, small
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
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

from twinflower.algorithms import FedADMM, FedDyn, FedPDM, FedProx
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.echo import confirmed
from twinflower.errors import SettingError
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO
from twinflower.randomness import participants
from twinflower.rounds import Problem, rounds
from twinflower.simulation.runtimes import cohort, inprocess

N, K = 6, 2


def paper(algorithm, shards, objective, schedule, number, k, start):
    """Algorithm 1 in plain loops with eta = algorithm.server_step, or |S|/N; theta, and the w_i and y_i of all."""
    rho, step, d = algorithm.rho, algorithm.step_size, objective.d
    theta, w, y = start.copy(), [start.copy() for _ in range(N)], [np.zeros(d) for _ in range(N)]
    for t in range(1, number + 1):
        chosen, total = [int(i) for i in participants(0, t, N, k)], np.zeros(d)
        for i in chosen:
            old, point = w[i] + y[i] / rho, w[i] if algorithm.local_start == "warm" else theta
            for rows in schedule.batches(shards, i, 0, t):
                slope = objective.grad(point, rows) + y[i] + rho * (point - theta)
                point = point - step * slope
                if algorithm.stopping_tolerance and slope @ slope <= algorithm.stopping_tolerance:
                    break
            w[i], y[i] = point, y[i] + rho * (point - theta)
            total += w[i] + y[i] / rho - old
        theta = theta + (algorithm.server_step or k / N) / k * total
        yield theta, np.array(w), np.array(y)


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize("keys", [{}, {"server_step": 0.7}, {"stopping_tolerance": 1e-3}])
@pytest.mark.parametrize("schedule", [FULL, LocalSchedule(5, 4)])
def test_rounds_are_the_papers_algorithm(k, local_start, keys, schedule):
    shards, objective = convex_problem()
    algorithm = FedADMM(rho=0.4, step_size=0.5, local_start=local_start, **keys)
    start = np.linspace(-1, 1, objective.d)
    printed = paper(algorithm, shards, objective, schedule, 12, k, start)
    for mine, (theta, w, y) in zip(
        run(algorithm, shards, objective, schedule, 12, k, start=start), printed, strict=True
    ):
        duals, sent, *points = np.split(mine.states.after, mine.states.after.shape[-1] // objective.d, -1)
        assert_allclose(mine.server.x0, theta, rtol=0, atol=1e-12)
        assert_allclose(duals, y, rtol=0, atol=1e-12)
        assert_allclose(sent, w + y / algorithm.rho, rtol=0, atol=1e-12)
        if local_start == "warm":
            assert_allclose(points, [w], rtol=0, atol=1e-12)
    assert np.linalg.norm(theta - start) > 0.1 and np.linalg.norm(y) > 0.1


def test_the_stopping_rule_is_reached():
    """So that the transcription compares rounds of unequal lengths."""
    shards, objective = convex_problem()
    steps = [
        at.report.steps
        for at in run(FedADMM(rho=0.4, step_size=0.5, stopping_tolerance=1e-3), shards, objective, FULL, 12)
    ]
    assert np.min(steps) < FULL.max_local_steps == np.max(steps)


# ------------------------------------------------------------------------------------- the methods that it is


SAME = {"step_size": 0.5, "step_decay": 0.3}


@pytest.mark.parametrize("noise", [None, seeded_noise])
@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_with_all_clients_it_is_fedpdm_and_feddyn(eta, noise):
    """With eta = 1, which is |S|/N then; with private noise, too."""
    privacy = {"privacy": "public-state", "noise": noise} if noise else {"privacy": "none"}
    h, keys = ZERO if eta else L1(0.01), {"noise": noise} if noise else {}
    common = SAME | {"privacy": privacy["privacy"]}
    mine = x0_of(FedADMM(h, rho=0.4, server_step=eta, **common), **keys)
    assert_allclose(mine, x0_of(FedPDM(h, rho=0.4, **common), **keys), rtol=0, atol=1e-12)
    assert_allclose(mine, x0_of(FedDyn(h, alpha=0.4, **common), **keys), rtol=0, atol=1e-12)
    assert np.linalg.norm(mine[-1]) > 0.1


@pytest.mark.parametrize("local_start", ["server", "warm"])
@pytest.mark.parametrize("sizes", [(), (5, 9, 12, 3, 7, 20)])
def test_with_some_clients_it_is_fedpdm_with_memory(local_start, sizes):
    """After a first round of all clients; without a vector of every client on the server."""
    common = SAME | {"rho": 0.4, "local_start": local_start, "info": RunInfo(N, sizes=sizes)}

    def sampling(round_):
        return np.arange(N) if round_ == 1 else participants(0, round_, N, K)

    mine = x0_of(FedADMM(L1(0.01), **common), sampling=sampling)
    memory = x0_of(FedPDM(L1(0.01), **common, aggregation="memory"), sampling=sampling)
    sampled = x0_of(FedPDM(L1(0.01), **common), sampling=sampling)
    assert_allclose(mine, memory, rtol=0, atol=1e-12)
    assert np.abs(mine - sampled).max() > 1e-3


class Undual(FedADMM):
    """FedADMM whose duals stay 0."""

    def client_update(self, state, inbox, work):
        (tentative, upload, report), d = super().client_update(state, inbox, work), inbox.x0.shape[-1]
        _, before, _ = self._parts(confirmed(state, inbox.heard), inbox.x0)
        w = (before + upload.y + inbox.x0) / 2  # y = rho (w - x0), and z + Delta = w + y/rho
        after = np.concatenate([np.zeros_like(w), w], -1)
        assert after.shape[-1] == 2 * d
        return tentative._replace(after=after), upload._replace(y=w - before), report


def test_without_duals_it_is_fedprox_and_with_no_pull_fedavg():
    mine = x0_of(Undual(rho=0.4, server_step=1.0, **SAME))
    assert_allclose(mine, x0_of(FedProx(mu=0.4, **SAME)), rtol=0, atol=1e-12)
    weak = x0_of(Undual(rho=1e-9, server_step=1.0, **SAME))
    assert_allclose(weak, x0_of(FedProx(mu=0.0, **SAME)), rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------------ invariants


@pytest.mark.parametrize("sizes", [(), (5, 9, 12, 3, 7, 20)])
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
    algorithm = FedADMM(L1(0.01), rho=0.4, step_size=0.5, info=RunInfo(N, sizes=sizes), **keys)
    lost = np.random.default_rng(5).random((41, N)) < 0.5
    start, d = np.ones(objective.d), objective.d
    noise = seeded_noise if algorithm.privacy != "none" else None
    ends = run(
        algorithm, shards, objective, FULL, 40, 4, start=start, lost=lambda t, who: lost[t, who],
        **({"noise": noise} if noise else {}),
    )  # fmt: skip
    without_echo = []
    for server, states, *_ in ends:
        counted, kept = (shares @ variable for variable in (confirmed(states, server.heard), states.after))
        assert_allclose(server.mean, counted[d : 2 * d], rtol=0, atol=1e-12)
        without_echo.append(np.abs(kept[d : 2 * d] - server.mean).max())
    assert max(without_echo) > 0.05


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.7])
def test_a_constant_step_stretches_the_way_from_the_start(eta):
    """mean = start + kappa (mean z_i - start), kappa = eta N / |S|."""
    shards, objective = convex_problem()
    start, d, algorithm = np.ones(5), objective.d, FedADMM(rho=0.4, step_size=0.5, server_step=eta)
    for server, states, *_ in run(algorithm, shards, objective, FULL, 20, K, start=start):
        z = states.after[:, d : 2 * d]
        assert_allclose(server.mean - start, eta * N / K * (z.mean(0) - start), rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------------- where it ends


def gradients(shards, objective, x):
    return np.array([objective.grad(x, shards.rows(i)) for i in range(N)])


@pytest.mark.parametrize("k", [N, K])
@pytest.mark.parametrize("local_start", ["server", "warm"])
def test_it_ends_at_the_optimum_with_the_gradients_as_duals(k, local_start):
    """The optimum of scikit-learn; from a start that is far away, with some clients in each round, and few steps."""
    shards, objective = convex_problem()
    rows, d = shards.everyone(), objective.d
    ridge = LogisticRegression(
        C=1 / (objective.l2 * len(rows.labels)), fit_intercept=False, tol=1e-12, max_iter=10_000
    )
    optimum = ridge.fit(rows.features, rows.labels).coef_[0]
    algorithm = FedADMM(rho=0.4, step_size=1.0, local_start=local_start)
    end = at_rest(run(algorithm, shards, objective, FULL, 1500, k, start=np.full(d, 3.0)))
    assert_allclose(end.server.x0, optimum, rtol=0, atol=1e-6)
    assert_allclose(-end.states.after[:, :d], gradients(shards, objective, end.server.x0), rtol=0, atol=1e-6)
    assert np.abs(gradients(shards, objective, optimum)).max() > 0.01


def test_it_ends_at_the_composite_optimum():
    shards, objective = convex_problem()
    h = L1(0.02)
    end = last(run(FedADMM(h, rho=0.4, step_size=1.0), shards, objective, FULL, 1500, K))
    assert_allclose(end.server.x0, central_optimum(objective, h, shards.everyone()), rtol=0, atol=1e-8)
    assert 0 < np.count_nonzero(end.server.x0) < objective.d


def test_it_ends_at_the_optimum_with_thinned_messages():
    """What a message leaves out is part of a later one."""
    shards, objective = convex_problem()
    algorithm = FedADMM(rho=1.0, step_size=0.5, uplink_ratio=0.6)
    end = at_rest(run(algorithm, shards, objective, FULL, 3000, K))
    assert_allclose(end.server.x0, central_optimum(objective, ZERO, shards.everyone()), rtol=0, atol=1e-8)


@pytest.mark.parametrize(("eta", "k"), [(0.5, N), (1.0, K)])
def test_a_constant_step_ends_elsewhere(eta, k):
    """At a stationary point of F + (rho/2) (1/kappa - 1) ||x - start||^2 (SciPy), which is not the optimum."""
    shards, objective = convex_problem()
    rows, start, rho, kappa = shards.everyone(), np.full(objective.d, 2.0), 0.05, eta * N / k
    algorithm = FedADMM(rho=rho, step_size=1.0, server_step=eta)
    x = last(run(algorithm, shards, objective, FULL, 3000, k, start=start)).server.x0
    pull = rho * (1 / kappa - 1)
    found = minimize(
        lambda v: objective.value(v, rows) + pull / 2 * (v - start) @ (v - start), start,
        jac=lambda v: objective.grad(v, rows) + pull * (v - start), options={"gtol": 1e-12},
    )  # fmt: skip
    assert_allclose(x, found.x, rtol=0, atol=1e-6)
    assert np.linalg.norm(x - central_optimum(objective, ZERO, rows)) > 0.05


@pytest.mark.parametrize("train", [inprocess.train, lambda setup: cohort.train([setup])[0]])
def test_a_constant_step_is_a_setting(train):
    keys = {"regulariser.name": "none", "rounds": 3}
    models = [train(small("fedadmm", **keys, server_step=eta)).model for eta in (3 / 8, 0.0, 1.0)]
    assert_allclose(models[0], models[1], rtol=0, atol=1e-14)
    assert np.abs(models[2] - models[1]).max() > 1e-3


# --------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("schedule", [LocalSchedule(0, 5), LocalSchedule(2, 7)])
@pytest.mark.parametrize("settings", PRIVATE)
def test_given_what_was_released_a_record_moves_the_next_release_by_its_sensitivity_at_most(
    settings, schedule
):
    algorithm = FedADMM(rho=0.3, step_size=1.0, **settings)
    moves = moves_of(algorithm, schedule)
    assert len(moves) >= 8 and all(move.agrees for move in moves)
    ratios = [move.moved / move.sensitivity for move in moves]
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > (0.05 if settings.get("sensitivity") else 0.3)  # "norm" lets all records move


def test_the_sensitivity_is_that_of_gradient_steps_on_the_augmented_lagrangian():
    """2 eta C / n sum (1 - eta rho)^j for full batches of a loss that is linear in x."""
    bounds = make_objective("logistic", FEATURES, 2).bounds(0.7)._replace(curvature=0.0)
    claimed = FedADMM(rho=0.3, step_size=0.5, privacy="public-state").release(bounds, FULL.workload(ROWS), 1)
    steps = sum((1 - 0.5 * 0.3) ** j for j in range(FULL.max_local_steps))
    assert math.isclose(claimed.sensitivity, 2 * 0.5 * bounds.gradient / ROWS * steps, rel_tol=1e-12)


@pytest.mark.parametrize("part", [0, 2])  # the dual, and the warm start; the message has noise
@pytest.mark.parametrize("privacy", ["public-state", "gradient"])
def test_state_without_noise_is_caught_by_replay(part, privacy):
    faulty = with_quiet_part(FedADMM, part)(rho=0.3, step_size=1.0, privacy=privacy, local_start="warm")
    assert not all(move.same_state for move in moves_of(faulty))


SUMMED = {"regulariser": L1(0.01), "rho": 0.5, "step_size": 1.5, "privacy": "public-state"}


def test_with_one_local_step_sums_are_enough():
    """The dual moves the released value by a term that is affine in it (docs/sums.md); with three steps or a warm start
    it moves the points where gradients are taken."""
    assert 0.2 < summed_ratio(FedADMM, 1, **SUMMED) <= 1 + 1e-9
    assert summed_ratio(FedADMM, 1, **SUMMED | {"privacy": "gradient"}) <= 1 + 1e-9
    assert summed_ratio(FedADMM, 3, **SUMMED) > 1.2
    assert summed_ratio(FedADMM, 1, **SUMMED, local_start="warm") > 1.2


def test_sums_give_the_iterates_of_the_method():
    setup = small("fedadmm-sum", honest_sites=8, noise_multiplier=1e-5, epsilon=0.0)
    plain = small("fedadmm", clients__per_round=0, local__max_steps=1)
    assert_allclose(inprocess.train(setup).model, inprocess.train(plain).model, rtol=0, atol=1e-4)


# -------------------------------------------------------------------------------------------------- settings


def test_a_client_that_took_no_part_keeps_its_state():
    shards, objective = convex_problem()
    problem = Problem(objective, shards, np.zeros(objective.d))
    ends = rounds(FedADMM(step_size=0.5), problem, FULL, 4, lambda t: np.array([0, 2]))
    states = last(ends).states.all()
    d = objective.d
    untouched = [1, 3, 4, 5]
    assert_array_equal(states.after[untouched], np.zeros((4, 2 * d)))
    assert states.after[[0, 2]].any(-1).all()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"rho": 0.0}, "rho must be above 0; got 0.0"),
        ({"rho": 5.0}, "rho \\* step-size must be below 2"),
        ({"server_step": -1.0}, "server-step must be at least 0; got -1.0"),
        ({"regulariser": L1(0.1), "server_step": 1.0}, "server-step must be 0 with a regulariser"),
        ({"local_start": "cold"}, "local-start must be one of server, warm; got 'cold'"),
        ({"privacy": "public-state", "stopping_tolerance": 0.1}, "stopping-tolerance must be 0"),
        ({"privacy": "as-published"}, "privacy.mode of fedadmm must be one of none, public-state, gradient"),
    ],
)
def test_settings_that_make_no_sense(keys, words):
    with pytest.raises(SettingError, match=words):
        FedADMM(**keys)
    FedADMM(L1(0.1), server_step=1.0, composite="local-subgradient")


def test_sums_want_whole_messages_and_a_start_that_is_public():
    for keys, words in (
        ({"local_start": "warm"}, "local-start server"),
        ({"uplink_ratio": 0.5}, "uplink-ratio 1"),
    ):
        with pytest.raises(SettingError, match=words):
            FedADMM(privacy="public-state", **keys).check_sum(1)
    with pytest.raises(SettingError, match="one local step"):
        FedADMM(privacy="public-state").check_sum(2)
