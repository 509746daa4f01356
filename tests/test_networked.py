"""The networked methods of Gauthier 2023: edge-wise ADMM, sums of duals under faults, optima on graphs, privacy."""

import itertools
from dataclasses import replace
from functools import cached_property
from types import SimpleNamespace

import networkx as nx
import numpy as np
import problems
import pytest
from compositions import advanced_composition, basic_composition
from numpy.testing import assert_allclose, assert_array_equal
from problems import at_rest, keywords, last, random_shards, small
from scipy.optimize import minimize

from twinflower.algorithms import DPNFL, PADMM, ZCDPNFL, NetworkedSubgradient
from twinflower.algorithms.algorithm import RunInfo
from twinflower.algorithms.echo import confirmed
from twinflower.algorithms.relay import Relay
from twinflower.errors import DataError, ReplyError, RunError, SettingError
from twinflower.privacy.accountant import (
    classical_noise_multiplier,
    gdp_epsilon,
    zcdp_epsilon_papers,
)
from twinflower.privacy.audit import neighbours as neighbouring
from twinflower.privacy.audit import replay
from twinflower.problems.batches import Batches, LocalSchedule, Workload
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, ElasticNet
from twinflower.problems.topologies import TOPOLOGIES, adjacency, make_graph, spectrum
from twinflower.settings import settings_of
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.privacy import spent
from twinflower.simulation.runs.run import Run, own_columns
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.work import LocalWork

N, D, WALK = 6, 5, LocalSchedule(0, 1)
SHARDS = random_shards([7, 9, 8, 7, 10, 8], D, 0, seed=2)
RIDGE = make_objective("least-squares", D, 0, l2=0.2)
NAMED = [name for name in TOPOLOGIES if name != "file:PATH"]
FITTING = [name for name in NAMED if name != "torus"]  # which has no room for 6 clients


def graph_called(name, clients, **settings):
    """A graph with those of the settings that it has."""
    own = settings_of(TOPOLOGIES[name])
    return make_graph(name, clients, **{key: value for key, value in settings.items() if key in own})


def on(graph, algorithm, num_clients=N, rounds=200, **settings):
    return algorithm(info=RunInfo(num_clients, rounds, (), graph, row_norm=1.0), **settings)


def noise_of(round_, scale=0.1):
    def noise(value, draw=0, shrink=1.0):
        return value + scale * np.random.default_rng(round_).normal(size=value.shape)

    return noise


def run(algorithm, objective, number, noise=None, fate=lambda n, k: "fine", shards=SHARDS):
    """Server and states after every round; fate(n, k) is "fine", "lost reply" or "lost request"."""

    def asked(n):
        return np.flatnonzero([fate(n, k) != "lost request" for k in range(N)])

    def added(n, clients):
        return lambda value, **_: value + noise(n)(np.zeros((N, D)))[clients]

    def lost(n, clients):
        return np.array([fate(n, k) == "lost reply" for k in clients])

    keys = {"sampling": asked, "lost": lost, "noise": noise and added}
    return (step[:2] for step in problems.run(algorithm, shards, objective, WALK, number, **keys))


def duals_of(algorithm, server, states):
    """gamma_k of every client as it will be when the relay is heard again."""
    return np.split(confirmed(states, server.heard), 2, -1)[0] + algorithm.rho * server.gain


# --------------------------------------------------------------------------------- the paper's mathematics


def edgewise(graph, rho, eta, rounds, noise):
    """ADMM on (2) with z, mu and gamma for each directed edge, f linearised at w~ as in (5); plain loops."""
    edges = [(k, other) for k in range(N) for other in graph[k]]
    z, mu, gamma = ({e: np.zeros(D) for e in edges} for _ in range(3))
    sent = np.zeros((N, D))
    for n in range(1, rounds + 1):
        w = np.zeros((N, D))
        for k in range(N):
            slope = RIDGE.grad(sent[k], SHARDS.rows(k))
            right, weight = sent[k] / eta - slope, 1 / eta
            for other in graph[k]:
                right += rho * (z[k, other] + z[other, k]) - mu[k, other] - gamma[other, k]
                weight += 2 * rho
            w[k] = right / weight
        sent = noise(n)(w)
        for k, other in edges:
            middle = (sent[k] + sent[other]) / 2 + (mu[k, other] + gamma[k, other]) / (2 * rho)
            z[k, other] = middle
            mu[k, other] = mu[k, other] + rho * (sent[k] - middle)
            gamma[k, other] = gamma[k, other] + rho * (sent[other] - middle)
    return sent, np.array([sum(mu[k, o] + gamma[o, k] for o in graph[k]) for k in range(N)])


@pytest.mark.parametrize("name", FITTING)
def test_edgewise_admm_is_the_reduced_form(name):
    graph = graph_called(name, N, degree=2.0)
    algorithm = on(graph, ZCDPNFL, rho=0.3, step_size=0.7)
    server, states = last(run(algorithm, RIDGE, 30, noise_of))
    sent, duals = edgewise(graph, 0.3, 0.7, 30, noise_of)
    assert_allclose(server.w, sent, rtol=0, atol=1e-12)
    assert_allclose(duals_of(algorithm, server, states), duals, rtol=0, atol=1e-12)


def one_step_on(objective, rows):
    """The work of round 1 on all rows."""
    return LocalWork(objective, Batches(np.array(1), full=rows))


@pytest.mark.parametrize(
    ("method", "h"), [(ZCDPNFL, ZERO), (ZCDPNFL, L1(0.05)), (PADMM, L1(0.05)), (PADMM, ZERO)]
)
def test_the_primal_step_is_the_argmin_of_the_augmented_lagrangian(method, h):
    """(3) with f, or with its approximation (5), minimised by SciPy in split variables w = p - q."""
    rng = np.random.default_rng(3)
    own, dual, others = rng.normal(size=D), rng.normal(size=D), rng.normal(size=(3, D))
    steps = {} if method is PADMM else {"step_size": 0.6, "composite": "prox"}
    algorithm = method(h, rho=0.4, **steps)
    rows, eta = SHARDS.rows(0), 0.6
    pull = dual - 0.4 * (3 * own + others.sum(0))
    ours = algorithm.primal(one_step_on(RIDGE, rows), own, pull, np.array(3.0))
    slope = RIDGE.grad(own, rows)

    def lagrangian(pq):
        w = pq[:D] - pq[D:]
        f = RIDGE.value(w, rows) if method is PADMM else slope @ w + ((w - own) ** 2).sum() / (2 * eta)
        weight = h.weight if isinstance(h, L1) else 0.0
        return f + weight * pq.sum() + dual @ w + 0.4 * ((w - (own + others) / 2) ** 2).sum()

    found = minimize(lagrangian, np.full(2 * D, 0.1), bounds=[(0, None)] * (2 * D), tol=1e-14)
    assert_allclose(ours, found.x[:D] - found.x[D:], atol=2e-5)
    w = np.concatenate([np.maximum(ours, 0), np.maximum(-ours, 0)])
    assert lagrangian(w) <= found.fun + 1e-12


def test_the_paper_in_matrices():
    """L+ = D + A and L- = D - A of the definitions around (16), and (16) holds for our steps."""
    graph = make_graph("erdos-renyi", N, degree=2.5)
    a = adjacency(graph).toarray()
    edges = [(k, o) for k in range(N) for o in graph[k]]
    a1, a2 = (np.array([np.eye(N)[e[side]] for e in edges]) for side in (0, 1))
    plus, minus = ((a1 + s * a2).T @ (a1 + s * a2) / 2 for s in (1, -1))
    degrees = np.diag(a.sum(0))
    assert_array_equal(plus, degrees + a)
    assert_array_equal(minus, degrees - a)
    algorithm = on(graph, ZCDPNFL, rho=0.3, step_size=0.7)
    steps = list(run(algorithm, RIDGE, 6))
    for (server, states), (after, _) in itertools.pairwise(steps):
        slopes = np.array([RIDGE.grad(server.w[k], SHARDS.rows(k)) for k in range(N)])
        fhat = slopes + (after.w - server.w) / 0.7
        alpha = duals_of(algorithm, server, states)
        assert_allclose(fhat + alpha + 0.3 * (plus + minus) @ after.w, 0.3 * plus @ server.w, atol=1e-12)
    server, states = steps[-1]
    total = sum(s.w for s, _ in steps)
    assert_allclose(duals_of(algorithm, server, states), 0.3 * minus @ total, atol=1e-12)


def test_the_printed_appendix_diverges():
    """(A.1): rho/2 times differences and plus gamma/2, instead of sums and minus gamma."""
    graph, rho, eta = make_graph("ring", N), 0.3, 0.7
    a, w, dual = adjacency(graph).toarray(), np.zeros((N, D)), np.zeros((N, D))
    degrees = a.sum(0)[:, None]
    for _ in range(300):
        slopes = np.array([RIDGE.grad(w[k], SHARDS.rows(k)) for k in range(N)])
        w = (w / eta + rho / 2 * (degrees * w - a @ w) + dual / 2 - slopes) / (2 * rho * degrees + 1 / eta)
        dual = dual + rho * (degrees * w - a @ w)
    assert np.abs(w).max() > 1e6
    ours = last(run(on(graph, ZCDPNFL, rho=rho, step_size=eta), RIDGE, 300))[0]
    assert_allclose(ours.w, np.tile(minimise(RIDGE, ZERO, SHARDS.everyone(), np.zeros(D)), (N, 1)), atol=1e-6)


def test_metropolis_weights_after_a_death_are_those_of_the_graph_that_is_left():
    graph, dead = make_graph("complete", N), 2
    algorithm = on(graph, NetworkedSubgradient, step_size=0.3, dead_after=1)
    fate = lambda n, k: "lost request" if k == dead and n >= 3 else "fine"  # noqa: E731
    steps = list(run(algorithm, RIDGE, 6, noise_of, fate))
    rest = [k for k in range(N) if k != dead]
    for n in (4, 5, 6):
        w = steps[n - 2][0].w[rest]
        slopes = np.array([RIDGE.grad(x, SHARDS.rows(k)) for x, k in zip(w, rest, strict=True)])
        full = np.zeros((N, D))
        full[rest] = w.mean(0) - 0.3 * slopes  # five nodes, each with weight 1/5 for all
        assert_allclose(steps[n - 1][0].w[rest], noise_of(n)(full)[rest], atol=1e-13)


# --------------------------------------------------------------------------------- optima


ENDS = [(ZCDPNFL, name, h, 2000) for name in FITTING for h in [ElasticNet(0.05, 0.1)]]
ENDS += [(ZCDPNFL, "path", ZERO, 2000), (PADMM, "ring", ElasticNet(0.05, 0.1), 400)]


@pytest.mark.parametrize(("method", "name", "h", "rounds"), ENDS)
def test_all_nodes_reach_the_central_optimum(method, name, h, rounds):
    steps = {} if method is PADMM else {"step_size": 1.5, "composite": "prox"}
    algorithm = on(graph_called(name, N, degree=2.0), method, regulariser=h, rho=0.2, **steps)
    server, _ = at_rest(run(algorithm, RIDGE, rounds), "w")
    best = minimise(RIDGE, h, SHARDS.everyone(), np.zeros(D))
    assert_allclose(server.w, np.tile(best, (N, 1)), atol=1e-9)


def test_a_clipped_loss_ends_at_the_clipped_optimum():
    clipped = make_objective("least-squares", D, 0, l2=0.2, clip_norm=0.3)
    algorithm = on(make_graph("ring", N), ZCDPNFL, rho=0.2, step_size=1.5)
    server, _ = at_rest(run(algorithm, clipped, 1500), "w")
    ends = [minimise(f, ZERO, SHARDS.everyone(), np.zeros(D)) for f in (clipped, RIDGE)]
    assert_allclose(server.w, np.tile(ends[0], (N, 1)), atol=1e-9)
    assert np.linalg.norm(ends[0] - ends[1]) > 0.05


SEVERAL = ["regular", "path", "complete"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SEVERAL else pytest.mark.slow) for name in FITTING]
)
def test_least_absolute_deviation_comes_near_its_optimum(name):
    f, graph = make_objective("absolute", D, 0), graph_called(name, N, degree=4.0)
    algorithm = on(graph, ZCDPNFL, rho=0.2, step_size=2.0, step_decay=0.5, rounds=4000, tail=0.5)
    best = minimise(f, ZERO, SHARDS.everyone(), np.zeros(D))
    server, _ = last(run(algorithm, f, 4000))
    assert f.value(best, SHARDS.everyone()) <= f.value(algorithm.model(server), SHARDS.everyone())
    assert f.value(algorithm.model(server), SHARDS.everyone()) < f.value(best, SHARDS.everyone()) + 2e-3
    assert f.value(np.zeros(D), SHARDS.everyone()) > f.value(best, SHARDS.everyone()) + 0.02


def test_the_central_solver_of_absolute_deviations_beats_every_direction():
    f, rows, rng = (
        make_objective("absolute", D, 0, clip_norm=0.7),
        SHARDS.everyone(),
        np.random.default_rng(0),
    )
    best = minimise(f, L1(0.01), rows, np.zeros(D))
    scale = np.minimum(1, 0.7 / np.linalg.norm(rows.features, axis=1)) * rows.weights

    def value(x):
        return scale @ np.abs(rows.features @ x - rows.labels) + 0.01 * np.abs(x).sum()

    assert all(value(best + 10**-s * rng.normal(size=D)) >= value(best) for s in (1, 3, 5) for _ in range(50))
    with pytest.raises(SettingError, match="absolute"):
        minimise(make_objective("absolute", D, 0, l2=0.1), ZERO, rows, np.zeros(D))


@pytest.mark.parametrize(("rounds", "tail", "before"), [(20, 0.25, 15), (10, 0.8, 2)])
def test_the_tail_is_the_mean_of_the_last_releases(rounds, tail, before):
    algorithm = on(make_graph("ring", N), ZCDPNFL, rounds=rounds, tail=tail)
    steps = [server for server, _ in run(algorithm, RIDGE, rounds, noise_of)]
    assert_allclose(algorithm.client_models(steps[-1]), np.mean([s.w for s in steps[before:]], 0), atol=1e-14)
    assert_array_equal(algorithm.client_models(steps[before - 1]), steps[before - 1].w)


# --------------------------------------------------------------------------------- faults

FATES = ["fine", "lost reply", "lost request"]


def coins(missing, seed=0):
    draws = np.random.default_rng(seed).choice(3, (4001, N), p=[1 - missing, missing / 2, missing / 2])
    return lambda n, k: FATES[draws[n, k]]


@pytest.mark.parametrize("missing", [0.1, 0.3, 0.5])
def test_the_duals_sum_to_zero_after_every_round(missing):
    algorithm = on(make_graph("erdos-renyi", N, degree=2.5), ZCDPNFL, rho=0.3)
    largest = 0.0
    for server, states in run(algorithm, RIDGE, 200, noise_of, coins(missing)):
        duals = duals_of(algorithm, server, states)
        assert np.abs(duals.sum(0)).max() < 1e-9
        largest = max(largest, np.abs(duals).max())
    assert largest > 0.1


def test_missing_nodes_do_not_move_the_limit():
    algorithm = on(make_graph("erdos-renyi", N, degree=2.5), ZCDPNFL, rho=0.2, step_size=1.5)
    best = minimise(RIDGE, ZERO, SHARDS.everyone(), np.zeros(D))
    server, _ = last(run(algorithm, RIDGE, 1500, fate=coins(0.1)))
    assert np.abs(server.w - best).max() < 1e-10


class NoEcho(ZCDPNFL):
    """Every reply is taken for counted."""

    def client_update(self, state, inbox, work):
        return super().client_update(state, inbox._replace(heard=state.round), work)


class NoCatchingUp(ZCDPNFL):
    """Only the last round's dual step is told."""

    def server_update(self, server, uploads, clients, round_):
        server = super().server_update(server, uploads, clients, round_)
        return server._replace(gain=self.relay.live_degrees(server)[:, None] * server.w - server.neighbours)


class LeftOut(ZCDPNFL):
    """A missing node is left out of its neighbours' sums, and they count one neighbour less."""

    def server_update(self, server, uploads, clients, round_):
        server = super().server_update(server, uploads, clients, round_)
        there = (server.heard == round_)[:, None]
        near = adjacency(self.info.neighbours)
        gain = np.where(there, (near @ there) * server.w - near @ (there * server.w), 0.0)
        return server._replace(gain=gain)


class OnlyThoseAsked(ZCDPNFL):
    """A missing node takes no dual step for the rounds it missed, its neighbours do."""

    def server_update(self, server, uploads, clients, round_):
        before = server
        server = super().server_update(server, uploads, clients, round_)
        there = (server.heard == round_)[:, None]
        return server._replace(gain=np.where(there, server.gain, before.gain))


@pytest.mark.parametrize("wrong", [NoEcho, NoCatchingUp, LeftOut, OnlyThoseAsked])
def test_tempting_wrong_rules_end_elsewhere(wrong):
    algorithm = on(make_graph("erdos-renyi", N, degree=2.5), wrong, rho=0.2, step_size=1.5)
    best = minimise(RIDGE, ZERO, SHARDS.everyone(), np.zeros(D))
    server, states = last(run(algorithm, RIDGE, 1500, fate=coins(0.1)))
    assert not np.abs(server.w - best).max() < 1e-4
    assert not np.abs(duals_of(algorithm, server, states).sum(0)).max() < 1e-6


def without(lost):
    kept = [k for k in range(N) if k not in lost]
    rows = [SHARDS.rows(k) for k in kept]
    f = [make_objective("least-squares", D, 0, l2=0.2)] * len(kept)
    hessian = sum(r.features.T @ r.features / len(r.labels) + 0.2 * np.eye(D) for r in rows) / len(f)
    return np.linalg.solve(hessian, sum(r.features.T @ r.labels / len(r.labels) for r in rows) / len(f))


def dies(first, who=(2,)):
    return lambda n, k: "lost request" if k in who and n >= first else "fine"


@pytest.mark.parametrize("first", [1, 150])
def test_a_dead_node_leaves_with_its_duals(first):
    """Early or late, the others end at their own optimum; with its duals left behind they would not."""
    algorithm = on(make_graph("complete", N), ZCDPNFL, rho=0.2, step_size=1.5, dead_after=5)
    rest = [k for k in range(N) if k != 2]
    for server, states in run(algorithm, RIDGE, 1500, fate=dies(first)):
        alive = algorithm.alive(server)
        assert np.abs(duals_of(algorithm, server, states)[alive].sum(0)).max() < 1e-9
    assert_array_equal(np.flatnonzero(alive), rest)
    assert_allclose(server.w[rest], np.tile(without([2]), (N - 1, 1)), atol=1e-9)
    assert_allclose(algorithm.model(server), without([2]), atol=1e-9)
    assert algorithm.server_metrics(server)["alive"] == N - 1

    class KeepsDuals(Relay):
        def without_dead(self, before, server):
            return self.updated(server)

    class Wrong(ZCDPNFL):
        relay = cached_property(lambda self: KeepsDuals(self.info.neighbours, self.dead_after))

    wrong = on(make_graph("complete", N), Wrong, rho=0.2, step_size=1.5, dead_after=5)
    server, _ = last(run(wrong, RIDGE, 1500, fate=dies(first)))
    assert np.abs(server.w[rest] - without([2])).max() > 1e-3


def test_a_graph_that_splits_stops_the_run():
    algorithm = on(make_graph("path", N), ZCDPNFL, dead_after=3)
    with pytest.raises(
        RunError, match=r"without clients \[2\], silent for 3 rounds, the graph is not connected"
    ):
        last(run(algorithm, RIDGE, 10, fate=dies(4)))
    algorithm = on(make_graph("path", N), ZCDPNFL, dead_after=3)
    last(run(algorithm, RIDGE, 10, fate=dies(4, who=(0,))))  # an end may go


class Lossy(InProcessGrid):
    """Drops requests of the named nodes from a round on, and a share of all replies."""

    def __init__(self, setup, dead=(), first=1, luck=0.0):
        super().__init__(setup)
        self.dead, self.first, self.luck = dead, first, luck
        self.coin = np.random.default_rng(5)
        self.asked = []

    def push_messages(self, messages):
        return super().push_messages([m for m in messages if not self._gone(m)])

    def _gone(self, message):
        if message.metadata.message_type != "train":
            return False
        self.asked.append(message.metadata.dst_node_id - 1)
        return int(message.metadata.group_id) >= self.first and message.metadata.dst_node_id - 1 in self.dead

    def pull_messages(self, message_ids):
        replies = list(super().pull_messages(message_ids))
        return [m for m in replies if m.metadata.message_type != "train" or self.coin.random() >= self.luck]


def networked(**keys):
    base = {
        "algorithm": "zcdp-nfl", "data.name": "linear", "objective.name": "least-squares", "bias": False, "l2": 0.1,
        "regulariser.name": "none", "clients.count": 6, "samples-per-client": 30, "batch-size": 0,
        "step-size": 2.0, "rho": 0.05, "topology.name": "complete", "rounds": 40, "reference": True,
    }  # fmt: skip
    return prepare(parse(base, keywords(keys)))


def test_on_flowers_strategy_faults_do_not_move_the_limit_either():
    setup = networked(rounds=250, evaluation__every=250)
    result = run_strategy(setup, Lossy(setup, luck=0.1), "inprocess")
    assert result.failure == ""
    assert result.rows[-1]["rejected"] > 100
    assert result.rows[-1]["node_error"] < 1e-18


def test_on_flowers_strategy_the_dead_are_not_asked_again():
    setup = networked(dead_after=4)
    grid = Lossy(setup, dead=(1,), first=10)
    result = run_strategy(setup, grid, "inprocess")
    assert result.failure == ""
    assert grid.asked.count(1) == 13
    assert grid.asked.count(0) == 40
    assert result.rows[-1]["alive"] == 5
    split = networked(dead_after=4, topology__name="star")
    failed = run_strategy(split, Lossy(split, dead=(0,), first=10), "inprocess")
    assert "without clients [0]" in failed.failure


# --------------------------------------------------------------------------------- privacy


def test_total_zcdp_is_the_plan_and_both_conversions_are_told():
    setup = networked(
        privacy__mode="public-state", clip_norm=0.3, epsilon=2.0, budget_ratio=0.9, conversion="zcdp"
    )
    plan, algorithm = setup.plan, setup.algorithm
    phis = []
    for n in range(1, 41):
        release = algorithm.release(plan.bounds, Workload(1, 30, 1), n)
        sigma = plan.multipliers[0] * release.spread
        phis.append(release.sensitivity**2 / (2 * sigma**2))
    assert_allclose(np.divide(phis[1:], phis[:-1]), 1 / 0.9)
    assert_allclose(zcdp_epsilon_papers(sum(phis), plan.delta), 2.0, rtol=1e-9)
    told = spent(plan)
    assert_allclose(told["epsilon"], gdp_epsilon(np.sqrt(2 * sum(phis)), plan.delta), rtol=1e-9)
    assert told["claimed_epsilon"] == 2.0 > told["epsilon"]
    exact = networked(privacy__mode="public-state", clip_norm=0.3, epsilon=2.0, budget_ratio=0.9)
    assert (exact.plan.multipliers < plan.multipliers).all()
    assert_allclose(spent(exact.plan)["epsilon"], 2.0, rtol=1e-9)


@pytest.mark.parametrize("composition", ["basic", "advanced"])
def test_the_older_accounting_adds_up_to_its_claim_and_spends_far_less(composition):
    setup = networked(
        algorithm="dp-nfl", composition=composition, privacy__mode="public-state", clip_norm=0.3, epsilon=2.0
    )
    delta = setup.config.privacy.delta
    share = {"basic": delta / 40, "advanced": delta / 80}[composition]
    each = classical_noise_multiplier(1.0, share) / setup.plan.multipliers[0]
    rounds = np.full(40, each), np.full(40, share)
    total = basic_composition(*rounds) if composition == "basic" else advanced_composition(*rounds, delta / 2)
    assert_allclose(total, (2.0, delta), rtol=1e-6)
    told = spent(setup.plan)
    assert told["claimed_epsilon"] == 2.0
    assert told["epsilon"] < 1.0


def audited(algorithm, objective, rounds=12):
    """Replay of client 0 between neighbours that are far away."""
    data, neighbour = neighbouring(20, D, 1.0)
    rng = np.random.default_rng(1)
    server = algorithm.init_server(np.zeros(D), N, np.array(0, np.uint64))
    inboxes = []
    for n in range(1, rounds + 1):
        far = np.tile(3e3 * np.eye(D)[0], (N, 1))  # where the neighbours' gradients are furthest apart
        server = algorithm.relay.updated(server._replace(w=far, gain=rng.normal(size=(N, D))))
        inbox = algorithm.broadcast(server, n, np.array(0))
        inboxes.append(inbox._replace(heard=np.array(n - 1)) if hasattr(inbox, "heard") else inbox)
    return replay(algorithm, objective, data, neighbour, WALK, Bounds(1.0, 0.25), inboxes)


PRIVATE = {"privacy": "public-state", "rounds": 12, "budget_ratio": 0.9}
LOGISTIC = make_objective("logistic", D, 2)


@pytest.mark.parametrize("method", [ZCDPNFL, PADMM, NetworkedSubgradient])
def test_replay_moves_nothing_but_the_release_and_that_within_bounds(method):
    steps = {} if method is PADMM else {"step_size": 0.7}
    algorithm = on(make_graph("ring", N), method, regulariser=L1(0.01), **steps, **PRIVATE)
    moves = audited(algorithm, LOGISTIC)
    allowed = [m.sensitivity for m in moves]
    assert all(m.moved <= m.sensitivity * (1 + 1e-9) for m in moves)
    assert all(m.agrees for m in moves)
    formula = {ZCDPNFL: 2 * 0.1 * 2 + 1 / 0.7, PADMM: 2 * 0.1 * 2, NetworkedSubgradient: 1 / 0.7}
    assert_allclose(allowed, 2 / (20 * formula[method]))  # (11)
    assert max(m.moved / m.sensitivity for m in moves) > 0.95


class CleanModel(ZCDPNFL):
    """Goes on from the model without noise, as the paper's (A.1) has it in R'."""

    def client_update(self, state, inbox, work):
        clean = []

        def note(value, draw=0, shrink=1.0):
            clean.append(value)
            return work.noise(value, draw, shrink)

        new, upload, report = super().client_update(state, inbox, work._replace(noise=note))
        after = np.concatenate([np.split(new.after, 2, -1)[0], clean[0]], -1)
        return new._replace(after=after), upload, report


def test_replay_catches_a_client_that_goes_on_from_the_clean_model():
    algorithm = on(make_graph("ring", N), CleanModel, regulariser=L1(0.01), step_size=0.7, **PRIVATE)
    moves = audited(algorithm, LOGISTIC)
    assert not all(m.same_state for m in moves)
    assert any(m.moved > m.sensitivity * (1 + 1e-9) for m in moves)


@pytest.mark.parametrize(("name", "steps"), [("zcdp-nfl", {"step_decay": 0.5}), ("p-admm", {})])
def test_noise_follows_the_degree_and_the_schedule(name, steps):
    """(11), (12): the client draws sigma_k(n) = Delta_k(n) / sqrt(2 phi_n)."""
    setup = networked(
        algorithm=name, privacy__mode="public-state", clip_norm=0.3, epsilon=2.0, budget_ratio=0.8,
        topology__name="star", **steps,
    )  # fmt: skip
    algorithm, plan, kept = setup.algorithm, setup.plan, []
    state, batches = algorithm.init_client(setup.start), WALK.batches(setup.shards, 0, 0, 1)
    for degree, n in ((1.0, 3), (5.0, 3), (5.0, 30)):
        sigma = plan.multipliers[0] * algorithm.release(plan.bounds, Workload(1, 30, 1), n).spread
        drawn = []

        def note(value, draw=0, shrink=1.0, sigma=sigma, drawn=drawn):
            drawn.append(sigma * shrink)
            return value

        inbox = algorithm.broadcast(algorithm.init_server(setup.start, 6, np.uint64(0)), n, np.array(0))
        algorithm.client_update(
            state, inbox._replace(degree=np.array(degree)), LocalWork(setup.objective, batches, note, n)
        )
        proximal = np.sqrt(n) / 2.0 if name == "zcdp-nfl" else 0.0
        delta = 2 * 0.3 / (30 * (proximal + 2 * 0.05 * degree))
        phi = plan.mu_limit**2 / 2 * 0.8 ** (40 - n) * (1 - 0.8) / (1 - 0.8**40)
        kept.append((*drawn, delta / np.sqrt(2 * phi)))
    assert_allclose(*np.transpose(kept), rtol=1e-9)


def test_early_rounds_of_a_long_run_get_no_less_than_a_thousandth_of_a_plain_share():
    algorithm = on(make_graph("ring", N), ZCDPNFL, rounds=200, budget_ratio=0.9)
    shares = np.array(
        [algorithm.release(Bounds(1.0, 1.0), Workload(1, 30, 1), n).weight for n in range(1, 201)]
    )
    assert_allclose(shares.mean(), 1.0)
    assert shares.min() > 0.999e-3
    assert_allclose(shares[-80:-1] / shares[-79:], 0.9)  # (12)


# ---------------------------------------------------------------------- exact local steps, and privacy


def stretched(longest, others):
    """Rows of which one is replaced by another of this length; the others are short."""
    rng = np.random.default_rng(0)
    features = others * rng.normal(size=(20, D)) / np.sqrt(D)
    changed = features.copy()
    changed[0] = longest * np.eye(D)[0]
    labels = np.ones(20, dtype=np.int64)
    return Batch(features, labels), Batch(changed, labels)


@pytest.mark.parametrize("rho", [2e-5, 0.1])
@pytest.mark.parametrize("others", [1e-6, 0.7])
def test_exact_steps_move_within_bounds_also_where_they_take_long(rho, others):
    """The number of steps and their length are public: rows of other lengths change neither."""
    algorithm = on(make_graph("ring", N), PADMM, rho=rho, **PRIVATE)
    algorithm.check(LOGISTIC)
    data, other = stretched(1.0, others)
    pull = np.array([-1e3, *[0.0] * (D - 1)])
    ends = [
        algorithm.primal(one_step_on(LOGISTIC, rows), np.zeros(D), pull, np.array(2.0))
        for rows in (data, other)
    ]
    allowed = algorithm.sensitivity(Bounds(1.0, 0.25), Workload(1, 20, 1), 1) * algorithm.shrink(2.0, 1)
    assert np.linalg.norm(ends[0] - ends[1]) <= allowed * (1 + 1e-6)


def test_exact_steps_take_as_many_gradients_whatever_the_private_rows():
    algorithm, counts = on(make_graph("ring", N), PADMM, rho=1e-3, **PRIVATE), []
    for rows in stretched(1.0, 1e-6):
        asked = []
        objective = SimpleNamespace(
            curvature=LOGISTIC.curvature,
            penalty_curvature=(0.0, 0.0),
            grad=lambda x, batch, asked=asked: asked.append(1) or LOGISTIC.grad(x, batch),
        )
        algorithm.primal(one_step_on(objective, rows), np.zeros(D), np.ones(D), np.array(2.0))
        counts.append(len(asked))
    assert counts[0] == counts[1] > 100


@pytest.mark.parametrize(("rho", "heaviest"), [(1e-4, None), (0.1, None), (0.1, 100.0)])
def test_exact_steps_are_exact(rho, heaviest):
    algorithm, rows, rng = on(make_graph("ring", N), PADMM, rho=rho), SHARDS.rows(0), np.random.default_rng(4)
    own, pull, least = rng.normal(size=D), rng.normal(size=D), make_objective("least-squares", D, 0)
    weights = np.full(len(rows.labels), heaviest or 1.0)
    rows, least = rows._replace(row_weights=heaviest and weights), replace(least, heaviest=heaviest)
    weighted = weights[:, None] * rows.features / len(weights)
    hessian = rows.features.T @ weighted + 2 * rho * 2 * np.eye(D)
    best = np.linalg.solve(hessian, weighted.T @ rows.labels - pull)
    ours = algorithm.primal(one_step_on(least, rows), own, pull, np.array(2.0))
    assert_allclose(ours, best, rtol=1e-10 / rho)


@pytest.mark.parametrize("degree", [0.0, 1e-7, 1.5, N, np.inf])
def test_a_node_refuses_a_number_of_neighbours_that_it_cannot_have(degree):
    algorithm = on(make_graph("ring", N), PADMM, **PRIVATE)
    inbox = [np.zeros(D), np.zeros(D), np.array(degree), np.array(0)]
    with pytest.raises(ReplyError, match="degree must be"):
        algorithm.inbox.unpack(inbox, D)
    assert algorithm.inbox.unpack([*inbox[:2], np.array(2.0), np.array(0)], D).degree == 2


def test_exact_steps_are_refused_where_they_cannot_be_exact():
    private = {"algorithm": "p-admm", "privacy.mode": "public-state", "clip_norm": 0.3}
    with pytest.raises(SettingError, match="public bound on the norm of rows: set row-norm above 0"):
        networked(row_norm=0.0, **private)
    for keys in ({}, private):
        with pytest.raises(SettingError, match=r"rho = 1e-08 is too small for p-admm here: .* steps"):
            networked(**{"algorithm": "p-admm", "rho": 1e-8, "l2": 0.0} | keys)
    algorithm, far = on(make_graph("ring", N), PADMM, rho=1e-8), stretched(1.0, 0.7)[0]
    with pytest.raises(RunError, match="the local problem would take .* steps: raise rho"):
        algorithm.primal(one_step_on(LOGISTIC, far), np.zeros(D), np.zeros(D), np.array(2.0))


# --------------------------------------------------------------------------------- messages and the door


def test_one_message_of_2d_numbers_down_and_d_up():
    setup = networked(rounds=7)
    grid = Lossy(setup)
    result = run_strategy(setup, grid, "inprocess")
    assert len(grid.asked) == 6 * 7
    d = setup.objective.d
    assert result.rows[-1]["uplink_bits"] == 6 * 7 * 64 * d
    assert result.rows[-1]["downlink_bits"] == 6 * 7 * 64 * (2 * d + 2)


def test_watch_and_reference_columns():
    setup = networked(rounds=1)
    server = setup.algorithm.init_server(setup.start, 6, np.array(0, np.uint64))
    told = own_columns(Run(setup=setup, runtime="inprocess"), server)
    assert told["node_error"] == pytest.approx(1.0)
    assert told["alive"] == 6


@pytest.mark.parametrize("keys", [{}, {"tail": 0.4}, {"algorithm": "p-admm"}])
def test_a_run_folder_has_every_clients_own_model(tmp_path, keys):
    """What the server last heard of each client, whose error is the column's, under one seed or several."""
    private = {"privacy.mode": "public-state", "clip_norm": 1.0, "epsilon": 50.0, "rounds": 12}
    setups = [networked(seed=seed, **private, **keys) for seed in (0, 1)]
    together = cohort.train(setups)
    for setup, stacked in zip(setups, together, strict=True):
        best, alone = setup.central.optimum, cohort.train([setup])[0]
        for place, result in enumerate((inprocess.train(setup), alone, stacked)):
            with np.load(write_run(result, tmp_path / f"{setup.config.seed}-{place}") / "model.npz") as file:
                points, x = file["points"], file["x"]
            assert points.shape == (6, setup.objective.d)
            assert_allclose(points.mean(0), x, atol=1e-12)
            assert np.ptp(points, axis=0).min() > 0
            errors = ((points - best) ** 2).sum(1) / (best @ best)
            assert_allclose(errors.mean(), result.rows[-1]["node_error"], rtol=1e-12)
            assert_allclose(points, alone.points, rtol=1e-9, atol=1e-12)


def test_a_run_folder_has_no_models_of_clients_that_the_server_does_not_know(tmp_path):
    folder = write_run(inprocess.train(small("fedavg", rounds=1)), tmp_path)
    with np.load(folder / "model.npz") as file:
        assert set(file) == {"x", "shape", "shapes", "description"}


@pytest.mark.parametrize("name", NAMED)
def test_graphs_are_what_they_say(name):
    graph = graph_called(name, 12, degree=4.0, rewiring=0.3, seed=1)
    assert graph == graph_called(name, 12, degree=4.0, rewiring=0.3, seed=1)
    assert all(k in graph[o] and k not in graph[k] for k in range(12) for o in graph[k])
    numbers = spectrum(graph)
    assert numbers.connectivity > 1e-9
    expected = {"regular": 24, "small-world": 24, "ring": 12, "path": 11, "star": 11, "complete": 66}
    expected |= {"grid": 17, "torus": 24}  # 3 by 4
    assert numbers.edges == expected.get(name, numbers.edges)
    closed = {
        "ring": 2 - 2 * np.cos(2 * np.pi / 12), "path": 2 - 2 * np.cos(np.pi / 12), "star": 1.0, "complete": 12.0,
        "grid": 2 - 2 * np.cos(np.pi / 4), "torus": 2.0,  # of a path and a cycle of 4
    }  # fmt: skip
    assert_allclose(numbers.connectivity, closed.get(name, numbers.connectivity))


@pytest.mark.parametrize(
    ("name", "clients", "rows", "columns"),
    [("grid", 4, 2, 2), ("grid", 14, 2, 7), ("grid", 36, 6, 6), ("torus", 9, 3, 3), ("torus", 20, 4, 5)],
)
def test_neighbours_in_a_lattice(name, clients, rows, columns):
    """Client row * columns + column has those above, below, left and right of it; on a torus around the edge, too."""
    wanted = []
    for row, column in np.ndindex(rows, columns):
        around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        if name == "torus":
            around = [(i % rows, j % columns) for i, j in around]
        inside = [(i, j) for i, j in around if 0 <= i < rows and 0 <= j < columns]
        wanted.append(tuple(sorted(i * columns + j for i, j in inside)))
    assert make_graph(name, clients) == tuple(wanted)


@pytest.mark.parametrize("name", ["grid", "torus"])
@pytest.mark.parametrize("clients", [2, 3, 5, 13, 127])
def test_a_lattice_needs_rows_and_columns(name, clients):
    with pytest.raises(
        SettingError, match=rf"clients.count = rows \* columns with at least \d of each.*got {clients}$"
    ):
        make_graph(name, clients)


@pytest.mark.parametrize("clients", [6, 8, 10, 14])
def test_a_torus_has_at_least_three_rows(clients):
    with pytest.raises(SettingError, match="at least 3 of each, such as 9 or 12"):
        make_graph("torus", clients)


def test_the_degree_of_a_random_geometric_graph():
    """Mean degree of 300 graphs of 40 clients that are connected nearly always: within four standard errors of 14."""
    graphs = [make_graph("random-geometric", 40, degree=14.0, seed=s) for s in range(300)]
    means = np.array([np.mean([len(others) for others in graph]) for graph in graphs])
    assert abs(means.mean() - 14.0) < 4 * means.std(ddof=1) / np.sqrt(len(means))


def test_random_geometric_graphs_follow_their_seed():
    graphs = [make_graph("random-geometric", 20, degree=6.0, seed=s) for s in (0, 0, 1)]
    assert graphs[0] == graphs[1] != graphs[2]


def test_a_random_geometric_graph_closes_triangles():
    """In the plane 1 - sqrt(27) / (4 pi) = 0.59 of a client's neighbours are neighbours; 6 in 39 in a random graph."""
    graphs = [make_graph(name, 40, degree=6.0, seed=3) for name in ("random-geometric", "erdos-renyi")]
    near, far = (nx.transitivity(nx.from_scipy_sparse_array(adjacency(graph))) for graph in graphs)
    assert near > 0.45 > 0.3 > far


@pytest.mark.parametrize(
    ("clients", "degree", "says"),
    [
        (2, 3.0, "at most 0.9749; got 3"),
        (10, 0.0, "must be above 0"),
        (10, 9.0, "at most 8.774; got 9"),
        (
            60,
            2.0,
            "no random geometric graph of 60 clients with degree 2 of 200 was connected: raise topology.degree",
        ),
    ],
)
def test_impossible_random_geometric_graphs(clients, degree, says):
    with pytest.raises(SettingError, match=says):
        make_graph("random-geometric", clients, degree=degree)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 1\n2 3\n", "2 parts, and 2 cannot be reached"),
        ("0 1\n1 2\n2 3\n3 3\n", "itself; node \\[3\\]"),
        ("0 1\n1 2\n", "nodes 0 to 3"),
        ("a b\n", "cannot be read"),
        ("", "nodes 0 to 3"),
    ],
)
def test_bad_graphs_are_refused_in_a_sentence(tmp_path, text, says):
    file = tmp_path / "graph.txt"
    file.write_text(text)
    with pytest.raises(SettingError, match=says):
        make_graph(f"file:{file}", 4)


def test_a_graph_from_a_file(tmp_path):
    file = tmp_path / "graph.txt"
    file.write_text("# a path\n0 1\n1 2\n2 3\n")
    assert make_graph(f"file:{file}", 4) == make_graph("path", 4)
    with pytest.raises(SettingError, match="cannot be read"):
        make_graph(f"file:{tmp_path / 'none.txt'}", 4)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"rho": 0.0}, "rho must be above 0"),
        ({"step_size": 0.0}, "step-size must be above 0"),
        ({"step_size": float("inf")}, "step-size"),
        ({"step_decay": 1.5}, "step-decay"),
        ({"budget_ratio": 0.0}, "budget-ratio must be above 0 and at most 1"),
        ({"tail": 2.0}, "tail must be from 0 to 1"),
        ({"dead_after": -1}, "dead-after"),
        ({"topology.name": "donut"}, "topology.name must be one of"),
        ({"topology.name": "erdos-renyi", "degree": 9.0}, "topology.degree must be above 0"),
        ({"topology.name": "regular", "degree": 2.5}, "integer topology.degree"),
        ({"topology.name": "small-world", "degree": 3.0}, "even topology.degree"),
        ({"composite": "box"}, "composite"),
        ({"algorithm": "p-admm", "objective.name": "absolute", "l2": 0.0}, "smooth"),
        ({"algorithm": "dp-nfl", "budget-ratio": 0.9}, "this run has algorithm dp-nfl"),
        ({"algorithm": "dp-nfl", "composition": "renyi"}, "composition"),
        ({"clients.count": 1}, "at least 2 clients"),
        ({"clients.count": 4000, "topology.name": "ring"}, "rows"),
        (
            {"clients.count": 60, "topology.name": "erdos-renyi", "degree": 1.0, "samples_per_client": 0},
            "hardly ever",
        ),
        ({"privacy.mode": "public-state", "epsilon": 1.0}, "clip-norm"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(keys, says):
    with pytest.raises((SettingError, DataError), match=says) as caught:
        networked(**keys)
    assert "\n" not in str(caught.value)


def test_facts_must_hold_the_graph():
    with pytest.raises(SettingError, match="graph"):
        ZCDPNFL().init_server(np.zeros(D), N, np.array(0, np.uint64))


def test_dp_nfl_is_zcdp_nfl_with_other_noise():
    graph = make_graph("ring", N)
    ours, theirs = (last(run(on(graph, m, rho=0.2), RIDGE, 9, noise_of))[0] for m in (ZCDPNFL, DPNFL))
    assert_array_equal(ours.w, theirs.w)


def test_the_digits_variant_runs_in_all_states_of_the_relay():
    setup = small("zcdp-nfl", clients__per_round=0, dead_after=2)
    assert inprocess.train(replace(setup)).rows[-1]["alive"] == 8
