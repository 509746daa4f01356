"""FedAvg, FedProx, SCAFFOLD, FedDyn and ISRL-DP: against each other, and what they converge to."""

import numpy as np
import pytest
from flwr.app import Error, Message
from numpy.testing import assert_allclose, assert_array_equal
from problems import (
    at_rest,
    bits_of,
    central_optimum,
    convex_problem,
    last,
    method,
    methods_of,
    random_shards,
    run,
    small,
    state_of,
    variants_of,
)

from twinflower.algorithms import ALGORITHMS, ISRLDP, FedAvg, FedDyn, FedPDM, FedProx, Scaffold, SoteriaFL
from twinflower.algorithms.echo import Echoed, confirmed
from twinflower.algorithms.local import LocalMethod, path_length
from twinflower.algorithms.server_prox import ServerProx
from twinflower.clients.records import record_of
from twinflower.errors import SettingError
from twinflower.privacy.release import coupled_sensitivity, gradient_release
from twinflower.problems.batches import LocalSchedule, Shards, Workload
from twinflower.problems.interfaces import Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, Ball, Box, ElasticNet, GroupL1, WeightedL1Box
from twinflower.randomness import participants
from twinflower.rounds import rounds
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import strategy_of
from twinflower.work import LocalWork, no_noise

KEY = np.array(0, dtype=np.uint64)


def seeded_noise(scale):
    """The same noise for every method: a function of round and draw."""

    def of_round(t, clients=None):
        def noise(value, draw=0, shrink=1.0):
            return value + scale * np.random.default_rng((t, draw)).normal(size=value.shape)

        return noise

    return of_round


# ------------------------------------------------------------------------------------------- reductions


def test_fedprox_without_a_pull_is_fedavg():
    shards, objective = convex_problem()
    settings = {"step_size": 0.5, "step_decay": 0.3}
    avg = last(run(FedAvg(L1(0.01), **settings), shards, objective, LocalSchedule(4, 5), 20, k=3))
    prox = last(run(FedProx(L1(0.01), **settings, mu=0.0), shards, objective, LocalSchedule(4, 5), 20, k=3))
    assert_array_equal(prox[0].x0, avg[0].x0)


@pytest.mark.parametrize("composite", ["server-prox", "local-subgradient"])
def test_fedavg_with_one_local_step_is_isrl_dp(composite):
    shards, objective = convex_problem()
    settings = {"step_size": 0.5, "step_decay": 0.5, "composite": composite, "privacy": "gradient"}
    schedule, noise = LocalSchedule(4, 1), seeded_noise(0.3)
    avg = last(run(FedAvg(L1(0.02), **settings), shards, objective, schedule, 30, k=3, noise=noise))
    isrl = last(run(ISRLDP(L1(0.02), **settings), shards, objective, schedule, 30, k=3, noise=noise))
    assert_allclose(isrl[0].x0, avg[0].x0, rtol=0, atol=1e-14)
    assert np.linalg.norm(avg[0].x0) > 0.1


def test_scaffold_with_equal_clients_is_fedavg():
    one = random_shards([12], 4, 2)
    shards = Shards(one.features, one.labels, np.tile(one.order, 5), 12 * np.arange(5), np.full(5, 12))
    objective = make_objective("logistic", 4, 2, l2=0.1)
    settings = {"step_size": 0.8, "step_decay": 0.3}
    avg = last(run(FedAvg(L1(0.01), **settings), shards, objective, LocalSchedule(0, 6), 30))
    scaffold = last(run(Scaffold(L1(0.01), **settings), shards, objective, LocalSchedule(0, 6), 30))
    assert_allclose(scaffold[0].x0, avg[0].x0, rtol=0, atol=1e-13)
    assert np.linalg.norm(scaffold[0].control) > 1e-3


@pytest.mark.parametrize("k", [6, 3])
@pytest.mark.parametrize("h", [ZERO, ElasticNet(0.01, 0.1), Ball(0.5)])
def test_feddyn_is_fedpdm_when_all_take_part(k, h):
    shards, objective = convex_problem()
    dyn = last(run(FedDyn(h, alpha=0.4, step_size=0.9), shards, objective, LocalSchedule(4, 5), 40, k=k))
    pdm = last(run(FedPDM(h, rho=0.4, step_size=0.9), shards, objective, LocalSchedule(4, 5), 40, k=k))
    agrees = np.allclose(dyn[0].x0, pdm[0].x0, rtol=0, atol=1e-12)
    agrees &= np.allclose(dyn[1].after, pdm[1].dual, rtol=0, atol=1e-12)
    assert agrees == (k == 6)


@pytest.mark.parametrize("algorithm", [FedAvg, FedProx, Scaffold, ISRLDP])
def test_one_full_batch_step_of_everybody_is_proximal_gradient_descent(algorithm):
    shards, objective = convex_problem()
    h, eta, x = L1(0.02), 0.7, np.zeros(5)
    rows = shards.everyone()
    for server, *_ in run(algorithm(h, step_size=eta), shards, objective, LocalSchedule(0, 1), 50):
        x = h.prox(x - eta * objective.grad(x, rows), eta)
        assert_allclose(server.x0, x, rtol=0, atol=1e-13)
    assert 0 < np.count_nonzero(x) < 5


# ------------------------------------------------------------------------------------------- h and momentum


PROBLEM = {"sizes": [20, 13, 31, 20, 8], "features": 4, "classes": 2}
ETA, WALK, N, K, ROUNDS = 0.8, LocalSchedule(batch_size=4), 5, 3, 25


def problem():
    return random_shards(**PROBLEM), make_objective("logistic", 4, 2, l2=0.1)


def test_server_momentum_leaves_the_optimum_where_it_is():
    """With h and one full-batch step, the limit is the optimum with and without momentum."""
    (shards, objective), full = problem(), LocalSchedule(0, 1)
    plain, heavy, before = (
        last(run(FedAvg(L1(0.02), step_size=ETA, **keys), shards, objective, full, 3000))[0].x0
        for keys in ({}, {"server_momentum": 0.8}, {"server_momentum": 0.8, "momentum_weight": 1.0})
    )
    assert_allclose(heavy, plain, rtol=0, atol=1e-9)
    assert_allclose(before, plain, rtol=0, atol=1e-9)
    assert np.any(plain)


@pytest.mark.parametrize("name", methods_of(ServerProx, without=(SoteriaFL,)))  # whose shifts leave h out
def test_subgradients_in_local_steps_are_a_loss_with_h_inside(name):
    """One extra term in every local gradient and no prox: the same method on f_i + h."""
    shards, objective = problem()
    h = L1(0.03)

    class Inside:
        d = 4

        def grad(self, x, rows):
            return objective.grad(x, rows) + 0.03 * np.sign(x)

    settings = {"step_size": ETA, "privacy": "none", "composite": "local-subgradient"}
    inside, outside = (method(name, regulariser=r, **settings) for r in (h, ZERO))
    ours = last(run(inside, shards, objective, WALK, ROUNDS, k=K))
    theirs = last(run(outside, shards, Inside(), WALK, ROUNDS, k=K))
    assert_allclose(ours[0].x0, theirs[0].x0, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------ what they converge to


def quadratics():
    """Least squares over clients that disagree: shards, objective, Hessians A (N, d, d), minima b (N, d)."""
    n, rows, d, l2 = 6, 12, 4, 0.05
    shards = random_shards([rows] * n, d, 0, seed=3)
    labels = shards.labels + np.repeat(np.linspace(-2, 2, n), rows)
    shards = Shards.grouped(shards.features, labels, shards.order, np.arange(0, n * rows + 1, rows))
    a = shards.features.reshape(n, rows, d)
    hessians = a.swapaxes(1, 2) @ a / rows + l2 * np.eye(d)
    minima = np.linalg.solve(hessians, (a.swapaxes(1, 2) @ labels.reshape(n, rows, 1)) / rows)[..., 0]
    return shards, make_objective("least-squares", d, 0, l2=l2), hessians, minima


def test_fedavg_stops_at_its_biased_fixed_point_and_scaffold_at_the_optimum():
    """Q steps on a quadratic: x_i = b_i + M_i (x0 - b_i), M_i = (I - eta A_i)^Q. So FedAvg rests where
    (I - mean M_i) x = mean (I - M_i) b_i, away from the optimum (mean A_i)^-1 mean A_i b_i."""
    shards, objective, a, b = quadratics()
    eta, steps, eye = 0.9, 30, np.eye(4)
    m = np.linalg.matrix_power(eye - eta * a, steps)
    biased = np.linalg.solve(eye - m.mean(0), ((eye - m) @ b[..., None]).mean(0)[:, 0])
    optimum = np.linalg.solve(a.mean(0), (a @ b[..., None]).mean(0)[:, 0])
    gap = np.linalg.norm(biased - optimum)
    assert gap > 0.1 * np.linalg.norm(optimum)

    def end(algorithm):
        return last(run(algorithm, shards, objective, LocalSchedule(0, steps), 600))[0].x0

    assert np.linalg.norm(end(FedAvg(step_size=eta)) - biased) < 1e-9 * gap
    assert np.linalg.norm(end(Scaffold(step_size=eta)) - optimum) < 1e-9 * gap
    assert np.linalg.norm(end(FedDyn(step_size=eta, alpha=0.3)) - optimum) < 1e-9 * gap


@pytest.mark.parametrize("algorithm", [Scaffold(step_size=0.1), FedDyn(step_size=0.5, alpha=0.3)])
def test_scaffold_and_feddyn_reach_the_optimum_with_sampled_clients(algorithm):
    shards, objective = convex_problem()
    best = central_optimum(objective, ZERO, shards.everyone())
    server, *_ = at_rest(run(algorithm, shards, objective, LocalSchedule(0, 5), 4000, k=2))
    assert_allclose(server.x0, best, atol=1e-8)


def test_with_a_server_prox_scaffold_keeps_a_bias_of_its_step_and_feddyn_none():
    """At the optimum c = -dh is not 0, and the clients' Q steps along it cost O(Q eta)."""
    shards, objective = convex_problem()
    h = L1(0.02)
    best = central_optimum(objective, h, shards.everyone())

    def distance(algorithm, rounds):
        return np.linalg.norm(
            last(run(algorithm, shards, objective, LocalSchedule(0, 5), rounds))[0].x0 - best
        )

    biases = [distance(Scaffold(h, step_size=eta), int(80 / eta)) for eta in (0.4, 0.2, 0.1)]
    assert biases[0] > 1e-3
    assert_allclose(np.divide(biases[:-1], biases[1:]), 2, rtol=0.1)
    assert distance(FedDyn(h, step_size=0.9, alpha=0.4), 1000) < 1e-10


@pytest.mark.parametrize(("mu", "steps"), [(0.0, [1, 4, 9]), (0.7, [1, 2, 50])])
def test_reach_is_the_way_against_a_constant_gradient(mu, steps):
    ways = []
    for count in steps:
        x = 0.0
        for _ in range(count):
            x -= 0.3 * (1.0 + mu * x)
        ways.append(-x)
    assert_allclose(path_length(0.3, mu, np.array(steps)), ways, rtol=1e-13)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(L1(0.02), step_size=0.4), FedProx(L1(0.02), step_size=0.4, mu=0.5)]
)
def test_the_server_prox_rests_where_mean_local_gradients_balance_h(algorithm):
    """0 in dh(x0) + (x0 - mean x) / s; and x0 - mean x is s times a mean of local gradients."""
    shards, objective = convex_problem()
    server, *_ = at_rest(run(algorithm, shards, objective, LocalSchedule(0, 5), 3000))
    inbox = algorithm.broadcast(server, 1, np.arange(6))
    batches = LocalSchedule(0, 5).batches(shards, np.arange(6), 0, 1)
    _, uploads, _ = algorithm.client_update(None, inbox, LocalWork(objective, batches, no_noise, 1))
    x0 = server.x0
    pull = (uploads.y.mean(0) - x0) / path_length(0.4, algorithm.pull, np.array(5))
    assert_allclose(pull[x0 != 0], 0.02 * np.sign(x0[x0 != 0]), atol=1e-10)
    assert (np.abs(pull) <= 0.02 + 1e-10).all()
    assert 0 < np.count_nonzero(x0) < 5


# ----------------------------------------------------------------------------------------------- invariants

SPARSE = {"uplink_ratio": 0.5, "downlink_ratio": 0.75, "missing": "keep"}
WITH_SUMS = {
    "scaffold": Scaffold(step_size=0.3),
    "scaffold, noisy": Scaffold(step_size=0.3, privacy="public-state"),
    "scaffold, noisy gradients": Scaffold(step_size=0.3, privacy="gradient"),
    "scaffold, top-k": Scaffold(step_size=0.3, **SPARSE),
    "feddyn": FedDyn(L1(0.01), step_size=0.3, alpha=0.5),
    "feddyn, noisy": FedDyn(L1(0.01), step_size=0.3, alpha=0.5, privacy="public-state"),
    "feddyn, rand-k": FedDyn(L1(0.01), step_size=0.3, alpha=0.5, uplink="rand-k", **SPARSE),
}


def total(server):
    return server.control if hasattr(server, "control") else server.drift


@pytest.mark.parametrize("algorithm", WITH_SUMS.values(), ids=WITH_SUMS)
def test_the_server_keeps_the_mean_of_the_clients_variables_whatever_is_lost(algorithm):
    """Half of the replies vanish after their clients have moved their own state."""
    shards, objective = problem()
    coins = np.random.default_rng(5)
    lost = np.array(coins.random((61, N)) < 0.5)
    noise = seeded_noise(0.1)
    steps = run(algorithm, shards, objective, WALK, 60, k=K, noise=noise, lost=lambda t, who: lost[t, who])
    for server, states, *_ in steps:
        mine = confirmed(states, server.heard)
        assert_allclose(mine.mean(0), total(server), rtol=0, atol=1e-13)
    assert np.linalg.norm(total(server)) > 1e-3
    assert np.linalg.norm(states.after.mean(0) - total(server)) > 1e-3  # without the echo it would be lost


class Leaky(InProcessGrid):
    """Replies vanish, or come back as errors, at random, after the client stored its state."""

    def __init__(self, setup):
        super().__init__(setup)
        self.coins = np.random.default_rng(0)

    def pull_messages(self, message_ids):
        return [r for r in map(self._maybe, super().pull_messages(message_ids)) if r is not None]

    def _maybe(self, reply):
        luck = self.coins.random() if reply.metadata.message_type == "train" else 1.0
        if luck < 0.2:
            return None
        return Message(error=Error(3, "lost"), metadata=reply.metadata) if luck < 0.4 else reply


@pytest.mark.parametrize("variant", variants_of(Echoed))
def test_faults_on_the_wire_are_lost_replies_of_the_arrays(variant):
    """So the server keeps the mean of the clients' variables on the wire as it does above."""
    setup = small(variant, rounds=12, clients__per_round=5)
    grid, strategy, arrays = Leaky(setup), strategy_of(setup), cohort.Cohort([setup])
    strategy.start(grid, record_of([setup.start]), num_rounds=12)
    lost = {done.round: list(done.rejected) for done in strategy.rounds}
    assert sum(map(len, lost.values())) > 10
    end = last(rounds(
        setup.algorithm, arrays.problem, setup.schedule, 12, arrays._asked, arrays._noise(),
        lost=lambda t, who: np.isin(who, lost[t]),
    ))  # fmt: skip
    for wire, array in zip(strategy.server, end.server, strict=True):
        assert_allclose(wire, array, rtol=0, atol=1e-11)
    kept = end.states.all()
    for node, context in grid.contexts.items():
        if len(context.state):
            state = state_of(grid.client(node))
            assert_allclose(state.before, kept.before[node - 1], rtol=0, atol=1e-11)
            assert_allclose(state.after, kept.after[node - 1], rtol=0, atol=1e-11)


# ------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize("algorithm", WITH_SUMS.values(), ids=WITH_SUMS)
def test_a_clients_variable_is_a_function_of_its_messages(algorithm):
    """An onlooker who sees the wire knows every c_i and every dual: nothing private is carried."""
    shards, objective = problem()
    known, server = np.zeros((N, 4)), algorithm.init_server(np.zeros(4), N, KEY)
    for after, states, uploads, _ in run(
        algorithm, shards, objective, WALK, 20, k=K, noise=seeded_noise(0.3)
    ):
        t = int(after.heard.max())
        clients = participants(0, t, N, K)
        x0 = algorithm.thinned(server.x0)[0]
        if isinstance(algorithm, Scaffold):
            known[clients] += algorithm._change(uploads, x0, algorithm.thinned(server.control)[0], t)
        else:
            known[clients] += algorithm._change(uploads, x0)
        assert_allclose(states.after, known, rtol=0, atol=1e-13)
        server = after


PUBLIC_STATE = [name for name in methods_of(LocalMethod) if "public-state" in ALGORITHMS[name].modes]


def released(algorithm, state, inbox, work):
    """The value to which a client would add its noise."""
    values = []

    def noise(value, draw=0, shrink=1.0):
        values.append(value.copy())
        return value

    algorithm.client_update(state, inbox, work._replace(noise=noise))
    (value,) = values
    return value


@pytest.mark.parametrize("schedule", [LocalSchedule(0, 6), LocalSchedule(4, 5)])
@pytest.mark.parametrize("name", PUBLIC_STATE)
def test_one_record_moves_the_release_by_no_more_than_its_sensitivity(name, schedule):
    """The same public state and batches on neighbouring data, in every round of a noisy run."""
    algorithm = method(name, step_size=1.1, privacy="public-state")
    rows, l2 = 12, 0.1
    shards = random_shards([rows], 4, 2, seed=2)
    features, labels = shards.features.copy(), shards.labels.copy()
    features[5], labels[5] = -features[5], labels[5]  # the opposite record
    other = Shards.grouped(features, labels, shards.order, np.array([0, rows]))
    objective = make_objective("logistic", 4, 2, l2=l2)
    server, state = algorithm.init_server(np.zeros(4), 1, KEY), algorithm.init_client(np.zeros((1, 4)))
    bounds, client, moved = Bounds(1.0, 0.25, (l2, l2)), np.array([0]), []
    for t in range(1, 16):
        inbox = algorithm.broadcast(server, t, client)
        here, there = (schedule.batches(s, client, 0, t) for s in (shards, other))
        exact, twin = (
            released(algorithm, state, inbox, LocalWork(objective, batches, round=t))
            for batches in (here, there)
        )
        moved.append(np.linalg.norm(exact - twin))
        state, upload, _ = algorithm.client_update(
            state, inbox, LocalWork(objective, here, seeded_noise(0.5)(t), t)
        )
        server = algorithm.server_update(server, upload, client, t)
    sensitivity = algorithm.release(bounds, schedule.workload(rows), 1).sensitivity
    assert sensitivity == coupled_sensitivity(bounds, 1.1, algorithm.pull, schedule.workload(rows))
    assert 0.1 * sensitivity < max(moved) <= sensitivity


@pytest.mark.parametrize("name", methods_of(LocalMethod, without=("constrained",)))
def test_gradient_noise_enters_every_step_and_is_charged_so(name):
    shards, objective = problem()
    draws = []

    def noise(value, draw=0, shrink=1.0):
        draws.append(draw)
        return value

    noisy = method(name, privacy="gradient")
    last(run(noisy, shards, objective, LocalSchedule(4, 3), 1, noise=lambda *_: noise))
    assert draws == ([0, 1, 2] if noisy.takes_local_steps else [0])
    workload, bounds = Workload(6 if noisy.takes_local_steps else 1, 4, 3), Bounds(1.0, 0.25)
    assert noisy.release(bounds, Workload(6, 4, 3), 1) == gradient_release(bounds, workload)


def test_isrl_dp_has_no_state_to_make_public():
    with pytest.raises(
        SettingError, match="privacy.mode of .* must be one of none, gradient; got 'public-state'"
    ):
        ISRLDP(privacy="public-state")


# ----------------------------------------------------------------------------------- settings, messages, h


@pytest.mark.parametrize("h", [ZERO, L1(0.3), ElasticNet(0.2, 0.5), GroupL1(0.4, 2)])
def test_subgradients_support_h_from_below(h):
    rng = np.random.default_rng(0)
    for _ in range(200):
        x, y = rng.normal(size=(2, 6)) * (rng.random((2, 6)) < 0.6)
        assert h.value(y) >= h.value(x) + h.subgradient(x) @ (y - x) - 1e-12
    block = rng.normal(size=(3, 2, 6))
    assert_array_equal(h.subgradient(block)[1, 1], h.subgradient(block[1, 1]))


@pytest.mark.parametrize("h", [Box(-1, 1), Ball(1.0), WeightedL1Box(1.0, -1, 1)])
@pytest.mark.parametrize("name", methods_of(ServerProx))
def test_an_indicator_has_no_subgradient_for_local_steps(name, h):
    with pytest.raises(
        SettingError, match=f"got {type(h).__name__}, which holds an indicator: use composite"
    ):
        method(name, regulariser=h, composite="local-subgradient")


def test_public_state_noise_is_refused_where_its_bound_does_not_hold():
    with pytest.raises(SettingError, match="composite must be server-prox with privacy public-state; got"):
        FedAvg(L1(0.1), composite="local-subgradient", privacy="public-state")
    FedAvg(L1(0.1), composite="local-subgradient", privacy="gradient")
    FedAvg(composite="local-subgradient", privacy="public-state")


def test_subgradient_steps_break_the_coupled_bound():
    """Why that is refused: two points across 0 are driven apart by 2 eta gamma, whatever the curvature."""
    h, eta = L1(1.0), 0.5
    x, y = np.array([1e-9]), np.array([-1e-9])
    apart = np.abs((x - eta * h.subgradient(x)) - (y - eta * h.subgradient(y)))
    assert apart > 0.99 * 2 * eta * h.weight > 1e6 * np.abs(x - y)


@pytest.mark.parametrize(
    ("algorithm", "settings", "text"),
    [
        (
            FedAvg,
            {"composite": "prox"},
            "composite must be one of server-prox, local-subgradient; got 'prox'",
        ),
        (FedAvg, {"uplink_ratio": 0.0}, "ratio must be above 0"),
        (FedProx, {"mu": -1.0}, "mu must be at least 0; got -1.0"),
        (FedProx, {"mu": 4.0, "step_size": 0.5}, "mu .* step-size must be below 2, .* below 0.5"),
        (FedDyn, {"alpha": 0.0}, "alpha must be above 0; got 0.0"),
        (FedDyn, {"alpha": 4.0, "step_size": 0.5}, "alpha .* step-size must be below 2"),
        (
            ISRLDP,
            {"final_model": "first"},
            "final-model must be one of last, average, weighted, tail-mean; got 'first'",
        ),
        (
            Scaffold,
            {"privacy": "as-published"},
            "privacy.mode of .* must be one of none, public-state, gradient",
        ),
    ],
)
def test_bad_settings_are_named(algorithm, settings, text):
    with pytest.raises(SettingError, match=text):
        algorithm(**settings)


def test_bits_of_the_messages():
    """SCAFFOLD's control variates cost nothing on the way up, and as much as x0 on the way down."""
    d, number = 7850, 64
    assert bits_of(FedAvg(), d) == bits_of(FedProx(), d) == ((d + 1) * number, d * number)
    assert bits_of(Scaffold(), d) == ((d + 1) * number, (2 * d + 1) * number)
    assert bits_of(FedDyn(), d) == (d * number, (d + 1) * number)
    assert bits_of(ISRLDP(), d) == (d * number, d * number)
    thin = Scaffold(uplink_ratio=0.1, downlink_ratio=0.5)
    assert bits_of(thin, d) == (785 * (number + 13) + number, 2 * 3925 * (number + 13) + number)
    assert thin.upload.paper_bits(d) == 32 * 785
