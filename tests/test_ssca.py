"""Ye 2021: surrogates against their history, closed forms against solvers, unequal clients, bounds met or not."""

import math
from dataclasses import replace

import numpy as np
import problems
import pytest
from numpy.testing import assert_allclose
from problems import last, random_shards, small
from scipy.optimize import minimize

from twinflower.algorithms.algorithm import RunInfo, stack
from twinflower.algorithms.messages import Vector
from twinflower.algorithms.ssca import SSCA
from twinflower.algorithms.ssca_constrained import ConstrainedSSCA, multipliers
from twinflower.clients.records import record_of
from twinflower.errors import RunError, SettingError
from twinflower.known_objectives import make_model
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule, Workload
from twinflower.problems.constraints import parse_constraints
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of
from twinflower.simulation.settings import parse
from twinflower.work import LocalWork, no_noise

SIZES = [20, 13, 31, 20, 8]
N = len(SIZES)


def run(algorithm, shards, objective, number, batch=0, start=None):
    """One gradient step of all clients in every round."""
    return problems.run(algorithm, shards, objective, LocalSchedule(batch, 1), number, start=start)


@pytest.fixture
def problem():
    shards = random_shards(SIZES, 4, 3)
    objective = make_model("swish-network", 4, 3, hidden_units=5)
    return shards, objective, objective.start(np.random.default_rng(3))


def info(rounds=50):
    return RunInfo(N, rounds, tuple(SIZES))


def weighted(values):
    return np.average(values, axis=0, weights=SIZES)


# ------------------------------------------------------------------------------------------ Algorithm 1


@pytest.mark.parametrize("reading", ["exact", "literal"])
def test_the_recursion_is_the_papers(problem, reading):
    """(4), (12)-(17) letter by letter, lambda with its own beta; exact divides by the weights that (2) really has."""
    shards, objective, start = problem
    lam, tau, a1, a2, alpha = 0.03, 0.2, 0.6, 0.9, 0.3
    ours = SSCA(info=info(), averaging=a1, step_size=a2, step_decay=alpha, curvature=tau, surrogate=reading)
    regularised = make_model("swish-network", 4, 3, hidden_units=5, l2=2 * lam)
    server, *_ = last(run(ours, shards, regularised, 30, batch=6, start=start))
    w, slope, beta, kappa = start, 0.0, 0.0, 0.0
    for t in range(1, 31):
        rho, gamma = a1 / t**alpha, a2 / t ** (alpha + 0.05)
        g = np.zeros_like(w)
        for i, size in enumerate(SIZES):
            (batch,) = LocalSchedule(6, 1).batches(shards, i, 0, t)
            g += size / sum(SIZES) * objective.grad(w, batch)
        slope = (1 - rho) * slope + rho * (g - 2 * tau * w)
        beta = (1 - rho) * beta + rho * w
        kappa = (1 - rho) * kappa + rho
        lowest = -(slope + 2 * lam * beta) / (2 * tau * (1.0 if reading == "literal" else kappa))
        w = (1 - gamma) * w + gamma * lowest
    assert_allclose(server.x, w, rtol=1e-12, atol=1e-13)


def test_x_moves_to_the_minimum_of_the_whole_history(problem):
    """The surrogate from all gradients so far, with the weights of (2), minimised by SciPy."""
    shards, objective, start = problem
    algorithm = SSCA(info=info(), averaging=0.7, curvature=0.3, step_decay=0.4)
    w, terms, weights = start, [], []
    for server, _, told, _ in run(algorithm, shards, objective, 6, start=start):
        t = len(terms) + 1
        rho, gamma = 0.7 / t**0.4, 0.9 / t**0.45
        weights = [(1 - rho) * each for each in weights] + [rho]
        terms.append((weighted(told.x), w))

        def surrogate(v, terms=tuple(terms), weights=tuple(weights)):
            return sum(
                r * (g @ (v - u) + 0.3 * (v - u) @ (v - u)) for r, (g, u) in zip(weights, terms, strict=True)
            )

        lowest = minimize(surrogate, np.zeros_like(w), options={"gtol": 1e-9}).x
        w = (1 - gamma) * w + gamma * lowest
        assert_allclose(server.x, w, atol=1e-5)
        assert server.kappa == pytest.approx(sum(weights))
        w = server.x


def test_readings_agree_when_the_first_weight_is_one(problem):
    shards, objective, start = problem
    ends = [
        last(run(SSCA(averaging=1.0, surrogate=reading), shards, objective, 9, start=start))[0].x
        for reading in ("exact", "literal")
    ]
    assert_allclose(*ends, rtol=1e-12)


def test_it_is_heavy_ball(problem):
    """x_{t+1} = x_t - step g_t + momentum (x_t - x_{t-1}), steps by rho, gamma and kappa (exact reading)."""
    shards, objective, start = problem
    tau = 0.4
    algorithm = SSCA(info=info(), averaging=0.7, step_size=0.6, step_decay=0.3, curvature=tau)
    points, kappa = [start], 0.0
    before = None
    for t, (server, _, told, _) in enumerate(run(algorithm, shards, objective, 25, start=start), 1):
        rho, gamma = 0.7 / t**0.3, 0.6 / t**0.35
        old, kappa = kappa, (1 - rho) * kappa + rho
        x, pull = points[-1], (1 - rho) * old / kappa
        step = gamma * rho / (2 * tau * kappa)
        momentum = 0.0 if before is None else gamma * pull * (1 - before) / before
        past = 0.0 if before is None else x - points[-2]
        assert_allclose(server.x, x - step * weighted(told.x) + momentum * past, atol=1e-12)
        points.append(server.x)
        before = gamma


def test_h_stays_whole_in_the_surrogate(problem):
    """With full batches and a long run x is stationary for F + h: its prox step does not move it."""
    shards = random_shards(SIZES, 4, 3)
    objective, h = make_objective("softmax", 4, 3, l2=0.1), L1(0.01)
    algorithm = SSCA(h, info(4000), averaging=0.9, step_size=0.9, step_decay=0.2, curvature=1.0)
    x = last(run(algorithm, shards, objective, 4000, start=np.zeros(12)))[0].x
    g = objective.grad(x, Batch(shards.features, shards.labels))
    assert_allclose(h.prox(x - g, 1.0), x, atol=1e-4)
    assert np.abs(x).max() > 0.1


@pytest.mark.parametrize("k", [N, 2])
def test_the_mean_of_unequal_clients_is_unbiased(problem, k):
    """Over random batches, and random clients, the mean gradient is F's over all rows; Flower's weights agree."""
    shards, objective, start = problem
    algorithm, rng = SSCA(info=info()), np.random.default_rng(0)
    whole = objective.grad(start, Batch(shards.features, shards.labels))
    draws = []
    for t in range(1, 1501):
        who = np.sort(rng.choice(N, k, replace=False))
        inbox = algorithm.broadcast(algorithm.init_server(start, N, np.array(0)), t, who)
        batches = LocalSchedule(3, 1).batches(shards, who, 0, t)
        told = algorithm.client_update(
            stack([algorithm.init_client(start)] * k), inbox, LocalWork(objective, batches, no_noise, t)
        )[1]
        draws.append(algorithm.mean(told.x, who))
        if k == N:
            assert_allclose(draws[-1], weighted(told.x), rtol=1e-12, atol=1e-15)
    error = np.std(draws, axis=0, ddof=1) / math.sqrt(len(draws))
    assert (np.abs(np.mean(draws, axis=0) - whole) < 4.5 * error).all()
    naive = np.mean([objective.grad(start, shards.rows(i)) for i in range(N)], axis=0)
    assert (np.abs(naive - whole) > 4.5 * error).any()  # a plain mean of clients would be seen


def test_zero_weights_of_a_network_are_refused(problem):
    shards, objective, start = problem
    with pytest.raises(RunError, match="zero weights of a network"):
        last(run(SSCA(), shards, objective, 1, start=np.zeros_like(start)))
    setup = small("ssca", objective__name="swish-network", hidden_units=4)
    assert setup.start.any()
    with pytest.raises(RunError, match="all gradients are 0"):
        strategy_of(setup).start(InProcessGrid(setup), record_of([0 * setup.start]), num_rounds=2)


def test_a_gradient_of_zero_elsewhere_is_no_reason_to_stop():
    """No row of the bounded class in the batches, at 0 and later on; and rows that are fitted exactly."""
    class_bound = {"constraints": "class 3 <= 1.2", "batch_size": 1, "rounds": 20}
    setup = small("ssca-constrained", **class_bound)
    result = inprocess.train(setup)
    assert not result.failure
    assert result.model.any()
    fitted = Batch(np.eye(2), np.array([1.0, 2.0]))
    objective, x = make_objective("least-squares", 2, 0), np.array([1.0, 2.0])
    algorithm = SSCA()
    algorithm.refuse_rest(x, objective.grad(x, fitted))
    with pytest.raises(RunError, match="all gradients are 0"):
        algorithm.refuse_rest(0 * x, 0 * x)


# ------------------------------------------------------------------------------------------ Algorithm 2


def primal(slopes, constants, curvature, penalty):
    """Problem 5 by SciPy: variables x and slacks."""
    m, d = slopes.shape

    def bound(v):
        x, s = v[:d], v[d:]
        return s - (slopes @ x + curvature * x @ x + constants)

    found = minimize(
        lambda v: v[:d] @ v[:d] + penalty * v[d:].sum(), np.concatenate([np.zeros(d), np.maximum(constants, 0) + 1]),
        jac=lambda v: np.concatenate([2 * v[:d], np.full(m, penalty)]), method="SLSQP",
        bounds=[(None, None)] * d + [(0, None)] * m,
        constraints={"type": "ineq", "fun": bound,
                     "jac": lambda v: np.hstack([-slopes - 2 * curvature * v[:d], np.eye(m)])},
        options={"maxiter": 500, "ftol": 1e-14},
    )  # fmt: skip
    assert found.success or found.status == 8
    return found.x[:d]


def point(slopes, nu, curvature):
    return -(nu @ slopes) / (2 * (1 + curvature * nu.sum()))


@pytest.mark.parametrize("m", [1, 2, 4])
def test_multipliers_solve_the_convex_problem(m):
    """All regimes: no constraint active (nu = 0), inside, and out of reach (nu = c)."""
    rng, seen = np.random.default_rng(m), set()
    for _ in range(60):
        slopes, curvature = rng.normal(size=(m, 3)), rng.uniform(0.05, 0.8)
        constants, penalty = rng.normal(size=m) * rng.choice([0.1, 1.0, 3.0]), rng.choice([0.5, 20.0])
        nu = multipliers(slopes, constants, np.array(curvature), np.array(penalty))
        x, best = point(slopes, nu, curvature), primal(slopes, constants, curvature, penalty)

        def cost(v, s=slopes, a=constants, k=curvature, c=penalty):
            return v @ v + c * np.maximum(s @ v + k * v @ v + a, 0).sum()

        assert cost(x) <= cost(best) * (1 + 1e-12) + 1e-12  # no other point is better
        assert_allclose(x, best, atol=2e-3)
        seen |= {"none" if each == 0 else "all" if each == penalty else "inside" for each in np.round(nu, 9)}
    assert seen == {"none", "inside", "all"}


def left_over(slopes, constants, curvature, penalty, nu):
    """The largest violation of a KKT condition of Problem 5, relative to the terms that it is the sum of."""
    x, norms = point(slopes, nu, curvature), np.linalg.norm(slopes, axis=1)
    values = slopes @ x + curvature * x @ x + constants
    reach = norms @ nu / (2 * (1 + curvature * nu.sum()))  # of x, if no slopes cancelled
    size = np.abs(constants) + norms * reach + curvature * reach**2
    wrong = np.where(nu == 0, values, np.where(nu == penalty, -values, np.abs(values)))
    return (np.maximum(wrong, 0) / np.where(size, size, 1)).max()


def alone(rng, slopes, constants):
    return slopes, constants


def repeated(rng, slopes, constants):
    """The same slopes twice, with the same bound or another."""
    half = len(slopes) // 2
    slopes[half:] = slopes[: len(slopes) - half]
    if rng.random() < 0.5:
        constants[half:] = constants[: len(slopes) - half]
    return slopes, constants


def nearly_repeated(rng, slopes, constants):
    return slopes[0] + 10 ** rng.uniform(-12, -3) * slopes, constants


def opposed(rng, slopes, constants):
    """Bounds that exclude each other, or nearly."""
    half = len(slopes) // 2
    slopes[half:] = -slopes[: len(slopes) - half] * (1 + 10 ** rng.uniform(-16, -3))
    return slopes, constants


def on_a_line(rng, slopes, constants):
    return np.outer(slopes[:, 0], slopes[0]), constants


def of_all_sizes(rng, slopes, constants):
    sizes = 10 ** rng.uniform(-8, 8, len(slopes))
    return sizes[:, None] * slopes, sizes * constants


def partly_zero(rng, slopes, constants):
    return np.where(rng.random((len(slopes), 1)) < 0.4, 0.0, slopes), constants


@pytest.mark.parametrize("scale", [1e-40, 1e-5, 1.0, 1e40])
@pytest.mark.parametrize(
    "shape", [alone, repeated, nearly_repeated, opposed, on_a_line, of_all_sizes, partly_zero]
)
def test_multipliers_leave_no_residual(shape, scale):
    """Random problems of up to 12 bounds, degenerate Gram matrices included; multipliers at every limit and between."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(60):
        m, d = rng.integers(1, 13), rng.choice([1, 2, 5, 20])
        slopes, constants = shape(rng, rng.normal(size=(m, d)), rng.normal(size=m) * 10 ** rng.uniform(-2, 1))
        slopes, constants = scale * slopes, scale**2 * constants  # the same multipliers for every scale
        curvature, penalty = 10 ** rng.uniform(-3, 1), 10.0 ** rng.choice([-3, 0, 1, 5, 9])
        nu = multipliers(slopes, constants, np.array(curvature), np.array(penalty))
        assert ((nu >= 0) & (nu <= penalty)).all()
        assert left_over(slopes, constants, curvature, penalty, nu) < 1e-12
        seen |= {"none" if each == 0 else "all" if each == penalty else "inside" for each in nu}
    assert seen == {"none", "inside", "all"}


@pytest.mark.parametrize("tiny", [1e-9, 1e-15])
def test_tiny_multipliers_are_right(tiny):
    """Two orthogonal slopes, both bounds exceeded by next to nothing: with u = nu / (1 + m k nu) the
    slope of the dual is a - 0.01 u / 2 + 0.01 m k u^2 / 4 = 0.
    """
    for m, k in ((1, 0.1), (2, 0.1), (2, 5.0)):
        nu = multipliers(0.1 * np.eye(m), np.full(m, tiny), np.array(k), np.array(1e5))
        u = 2 * tiny / 0.01
        for _ in range(9):  # a contraction by k u
            u = 2 * tiny / 0.01 + k * u**2 * m / 2
        assert_allclose(nu, u / (1 - k * m * u), rtol=1e-13)


def test_one_bound_by_the_closed_form_is_one_bound_by_the_dual():
    rng = np.random.default_rng(0)
    for _ in range(50):
        slope, a, curvature, c = (
            rng.normal(size=4),
            rng.normal(),
            rng.uniform(0.05, 1.0),
            rng.choice([1.0, 1e3]),
        )
        closed = multipliers(slope[None], np.array([a]), np.array(curvature), np.array(c))[0]
        # the same bound twice: the multipliers share what one has
        twice = multipliers(np.stack([slope, slope]), np.array([a, a]), np.array(curvature), np.array(c / 2))
        assert twice.sum() == pytest.approx(closed, rel=1e-9)


def test_multipliers_that_are_not_found_end_the_run(monkeypatch):
    monkeypatch.setattr("twinflower.algorithms.ssca_constrained._STEPS", 1)
    problem = np.eye(3), np.array([1e-3, 1e-3, 1.0]), np.array(0.1), np.array(1e5)
    with pytest.raises(RunError, match="the multipliers of 3 bounds were not found"):
        multipliers(*problem)
    monkeypatch.undo()
    assert (multipliers(*problem) > 0).all()
    assert multipliers(np.nan * np.eye(2), np.ones(2), np.array(0.1), np.array(9.0)).tolist() == [9.0, 9.0]


def papers_step(shards, objective, start, u, rounds, tau=0.1, c=1e5, sign=+1, a1=0.9):
    """Algorithm 2 by (14), (15), (20)-(23) with kappa = 1; sign -1: A-bar as printed."""
    w, slope, a = start, 0.0, 0.0
    for t in range(1, rounds + 1):
        rho, gamma = a1 / t**0.3, 0.9 / t**0.35
        g = weighted([objective.grad(w, shards.rows(i)) for i in range(N)])
        f = weighted([objective.value(w, shards.rows(i)) for i in range(N)])
        slope = (1 - rho) * slope + rho * (g - 2 * tau * w)
        a = (1 - rho) * a + rho * (sign * f + tau * w @ w - g @ w)
        b = slope @ slope
        room = b + 4 * tau * (u - a)
        nu = c if room <= 0 else min(max((math.sqrt(b / room) - 1) / tau, 0), c)
        w = (1 - gamma) * w + gamma * (-nu * slope / (2 * (1 + nu * tau)))
    return w


def test_the_literal_recursion_is_the_papers(problem):
    shards, objective, start = problem
    algorithm = ConstrainedSSCA(
        info=info(), constraints="cost <= 1.05", surrogate="literal", averaging=0.4, step_decay=0.3
    )
    servers = [server for server, *_ in run(algorithm, shards, objective, 25, start=start)]
    assert any(0 < server.nu < 1e5 for server in servers)  # else neither A nor U matters
    x = papers_step(shards, objective, start, 1.05, 25, a1=0.4)
    assert_allclose(servers[-1].x, x, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("clip", [0.0, 1.2, 50.0])
def test_the_exact_recursion_and_what_it_reports(problem, clip):
    """Two bounds, U inside the average, losses clipped: x, the largest multiplier, and the slack of the last step."""
    shards, objective, start = problem
    text, tau, c = "cost <= 1.07, class 1 <= 1.05", 0.1, 1e5
    algorithm = ConstrainedSSCA(
        info=info(),
        constraints=text,
        averaging=0.4,
        step_decay=0.3,
        penalties=str(c),
        loss_clip=clip,
        curvature=tau,
    )
    groups, limits = [lambda y: np.ones(len(y)), lambda y: y == 1], [1.07, 1.05]
    w, slopes, a, kappa, inside = start, np.zeros((2, len(start))), np.zeros(2), 0.0, 0
    open_ = 0
    for t, (server, *_) in enumerate(run(algorithm, shards, objective, 25, start=start), 1):
        rho, gamma = 0.4 / t**0.3, 0.9 / t**0.35
        kappa = (1 - rho) * kappa + rho
        for m, (group, limit) in enumerate(zip(groups, limits, strict=True)):
            g, f = np.zeros_like(w), 0.0
            for i in range(N):
                rows = shards.rows(i)
                member = group(rows.labels) / len(rows.labels)
                losses = objective.losses(w, rows)
                losses = np.minimum(losses, clip) if clip else losses
                g += SIZES[i] / sum(SIZES) * objective.grad(w, rows._replace(weights=member))
                f += SIZES[i] / sum(SIZES) * (member * (losses - limit)).sum()
            slopes[m] = (1 - rho) * slopes[m] + rho * (g - 2 * tau * w)
            a[m] = (1 - rho) * a[m] + rho * (f + tau * w @ w - g @ w)
        nu = multipliers(slopes, a, np.array(tau * kappa), np.array(c))
        lowest = point(slopes, nu, tau * kappa)
        slack = np.maximum(slopes @ lowest + tau * kappa * lowest @ lowest + a, 0).sum()
        w = (1 - gamma) * w + gamma * lowest
        assert_allclose(server.x, w, rtol=1e-6, atol=1e-9)
        assert_allclose((server.nu, server.slack), (nu.max(), slack), rtol=1e-5, atol=1e-7)
        inside, open_ = inside + (nu.min() < nu.max() < c), open_ + (slack > 1e-4)
    assert inside > 3
    assert open_ > 1


def test_the_printed_sign_of_the_cost_kills_the_model(problem):
    """With + y log Q the surrogate believes the bound is met: x shrinks to 0 and the cost is ln 3."""
    shards, objective, start = problem
    rows = Batch(shards.features, shards.labels)
    printed = papers_step(shards, objective, start, 0.9, 200, sign=-1)
    right = papers_step(shards, objective, start, 0.9, 200)
    assert objective.value(printed, rows) == pytest.approx(math.log(3), abs=1e-3)
    assert printed @ printed < 1e-3 < right @ right
    assert objective.value(right, rows) < 1.0


@pytest.mark.parametrize("sizes", [(), (1, 1)])
def test_a_reachable_bound_is_met_by_the_smallest_model(sizes):
    """Convex cost: the constrained optimum by SciPy."""
    shards = random_shards([40, 40], 4, 3)
    rows, objective = Batch(shards.features, shards.labels), make_objective("softmax", 4, 3)
    algorithm = ConstrainedSSCA(info=RunInfo(2, 1000, sizes), constraints="cost <= 1.05", step_decay=0.2)
    x = last(run(algorithm, shards, objective, 1000, start=np.full(12, 0.1)))[0].x
    best = minimize(
        lambda v: v @ v, np.full(12, 0.1), jac=lambda v: 2 * v, method="SLSQP",
        constraints={"type": "ineq", "fun": lambda v: 1.05 - objective.value(v, rows),
                     "jac": lambda v: -objective.grad(v, rows)}, options={"ftol": 1e-13},
    ).x  # fmt: skip
    assert_allclose(x, best, atol=1e-5)
    assert algorithm.satisfied(algorithm.model_metrics(x, objective, rows))


def test_bounds_on_groups_hold_for_every_group():
    """A rare class is what a bound on the whole cost gives up first."""
    shards = random_shards([60, 60], 4, 3, seed=5)
    labels = np.where(shards.features[:, 0] > 0.3, 1, np.where(shards.features[:, 1] > 0.7, 2, 0))
    shards = replace(shards, labels=labels)
    rows, objective = Batch(shards.features, labels), make_objective("softmax", 4, 3)
    free = "cost <= 0.6"
    fair = "cost <= 0.6, class 0 <= 0.62, class 1 <= 0.62, class 2 <= 0.62"
    costs = {}
    for text in (free, fair):
        algorithm = ConstrainedSSCA(info=RunInfo(2, 1000), constraints=text, step_decay=0.2)
        x = last(run(algorithm, shards, objective, 1000, start=np.full(12, 0.1)))[0].x
        losses = objective.losses(x, rows)
        costs[text] = [losses[labels == c].mean() for c in range(3)]
        assert algorithm.model_metrics(x, objective, rows)["excess"] < 1e-3
    assert max(costs[free]) > 0.7
    assert max(costs[fair]) < 0.621


def test_members_of_groups():
    rows = Batch(np.array([[1.0, -1.0], [0.0, 2.0], [3.0, 4.0]]), np.array([0, 1, 1]))
    cost, one, positive = parse_constraints("cost <= 1, class 1 <= 0.5,feature 1 <= 2e-1")
    assert cost.members(rows).tolist() == [True] * 3
    assert one.members(rows).tolist() == [False, True, True]
    assert positive.members(rows).tolist() == [False, True, True]
    assert one.excess(np.array([9.0, 1.0, 2.0]), rows) == pytest.approx(1.0)
    with pytest.raises(SettingError, match="feature 7 must be below 2"):
        parse_constraints("feature 7 <= 1")[0].members(rows)


@pytest.mark.parametrize(
    ("dataset", "objective", "classes"),
    [("digits", "softmax", 10), ("digits", "swish-network", 10), ("breast-cancer", "logistic", 2)]
    + [("diabetes", "least-squares", 0)],
)
def test_a_class_that_is_not_there_has_no_bound(dataset, objective, classes):
    keys = {
        "data.name": dataset,
        "objective.name": objective,
    } | ({"hidden-units": 4} if objective.endswith("network") else {})
    keys |= {"algorithm": "ssca-constrained", "regulariser.name": "none", "clients.count": 3}
    with pytest.raises(SettingError, match=f"class {classes} must be below {classes}, the number of classes"):
        prepare(parse(keys | {"constraints": f"cost <= 1, class {classes} <= 1"}))
    if classes:
        prepare(parse(keys | {"constraints": f"class {classes - 1} <= 1"}))


def test_a_bound_out_of_reach_is_reported_as_not_met():
    keys = {"constraints": "cost <= 0.01", "rounds": 10, "batch_size": 0}
    setup = small("ssca-constrained", clients__per_round=0, **keys)
    result = inprocess.train(setup)
    assert result.summary()["bounds_met"] is False
    assert result.rows[-1]["excess"] > 1
    assert result.rows[-1]["slack"] > 0
    easy = inprocess.train(small("ssca-constrained", constraints="cost <= 2.31", rounds=10))
    assert easy.summary()["bounds_met"] is True


def test_a_group_without_rows_keeps_its_bound():
    rows, (bound,) = Batch(np.ones((3, 2)), np.zeros(3, int)), parse_constraints("class 1 <= 0.4")
    assert bound.excess(np.ones(3), rows) == -0.4


def test_a_penalty_follows_a_stage_with_slack():
    """Penalties so small that the first stage must leave slack; the second is enough."""
    shards = random_shards([40, 40], 4, 3)
    objective, start = make_objective("softmax", 4, 3), np.full(12, 0.1)
    settings = {"constraints": "cost <= 1.05", "step_decay": 0.2}
    algorithm = ConstrainedSSCA(info=RunInfo(2, 900), penalties="1, 1e4, 1e5", **settings)
    servers = [server for server, *_ in run(algorithm, shards, objective, 900, start=start)]
    assert [int(servers[t].level) for t in (299, 300, 599, 600, 899)] == [0, 1, 1, 1, 1]
    assert servers[299].slack > 0.01 > servers[599].slack
    assert servers[299].nu == 1.0
    alone = ConstrainedSSCA(info=RunInfo(2, 300), penalties="1", **settings)
    assert_allclose(last(run(alone, shards, objective, 300, start=start))[0].x, servers[299].x)


def test_a_stage_begins_anew_also_when_its_first_round_is_void():
    algorithm = ConstrainedSSCA(
        info=RunInfo(2, 4), penalties="1, 1e4", constraints="cost <= 1.05", curvature=0.5
    )
    told, both = Vector(np.random.default_rng(0).normal(size=(2, 4))), np.arange(2)
    server = algorithm.init_server(np.full(3, 0.1), 2, np.uint64(0))
    for round_ in (1, 2):
        server = algorithm.server_update(server, told, both, round_)
    anew = server._replace(surrogate=0 * server.surrogate, kappa=0 * server.kappa, level=np.array(1))
    after = algorithm.server_update(server, told, both, 4)  # round 3 had too few replies
    assert_allclose(after.x, algorithm.server_update(anew._replace(stage=np.array(1)), told, both, 4).x)
    assert_allclose(after.kappa, algorithm.averaging / 2**algorithm.step_decay)
    assert after.level == 1


# ---------------------------------------------------------------------------------------------- privacy


def swapped_records(classes=3, count=3000):
    """Data sets of five rows, and the same with one record replaced, near and far; points that are small and large.

    All are stacked: the points x (count, d), and two batches (count, 5, 3).
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count, 5, 3))
    features /= np.linalg.norm(features, axis=-1, keepdims=True)
    x = 10 ** rng.uniform(-1, 3, (count, 1)) * rng.normal(size=(count, 3 * classes))
    data = Batch(features, rng.integers(classes, size=(count, 5)))
    other = Batch(features.copy(), data.labels.copy())
    near = rng.random((count, 1)) < 0.7
    signs, mixed = rng.choice([-1.0, 1.0], (count, 1)), rng.permuted(features[:, 0], axis=-1)
    other.features[:, 0] = np.where(near, signs * features[:, 0], mixed)
    other.labels[:, 0] = rng.integers(classes, size=count)
    return x, data, other


def largest_move(algorithm, objective):
    """How far a replaced record moves what a client sends, as a share of the sensitivity."""
    sensitivity = algorithm.release(objective.bounds(1.0), Workload(1, 5, 1), 1).sensitivity
    x, data, other = swapped_records()
    moves = algorithm.estimate(objective, x, data) - algorithm.estimate(objective, x, other)
    return np.linalg.norm(moves, axis=-1).max() / sensitivity


@pytest.mark.parametrize(
    ("text", "clip_norm", "least"),
    [
        ("cost <= 2, class 0 <= 2, class 0 <= 3, feature 1 <= 2", 0.0, 0.75),
        ("class 0 <= 0.1, class 1 <= 0.1", 0.1, 0.95),  # another class, two groups: 2 (C^2 + 1) rules
        ("class 0 <= 0.1, class 1 <= 0.1", 0.3, 0.95),
        ("cost <= 0.1, class 0 <= 0.1, class 1 <= 0.1", 0.3, 0.8),
        ("cost <= 0.1", 0.3, 0.9),  # always the same group
        ("cost <= 0.1, feature 1 <= 0.1", 0.3, 0.9),
        ("cost <= 0.1", 1.4, 0.85),
    ],
)
def test_one_record_moves_gradients_and_values_by_no_more_than_the_sensitivity(text, clip_norm, least):
    """Replaced records, near and far, in and out of the groups; nearly attained."""
    algorithm = ConstrainedSSCA(constraints=text, privacy="gradient", loss_clip=4.0)
    assert least < largest_move(algorithm, make_objective("softmax", 3, 3, clip_norm=clip_norm)) <= 1 + 1e-12


@pytest.mark.parametrize("text", ["cost <= 0.1", "class 0 <= 0.1, class 1 <= 0.1"])
def test_a_users_own_loss_below_zero_moves_the_values_no_further(text):
    """Such as a negative log-density: 80 below its cross-entropy for two of the classes."""

    class Density:
        def __init__(self, inner):
            self.bounds, self.grad, self._inner = inner.bounds, inner.grad, inner

        def losses(self, x, rows):
            return self._inner.losses(x, rows) - 80.0 * (rows.labels > 0)

    algorithm = ConstrainedSSCA(constraints=text, privacy="gradient", loss_clip=4.0)
    assert 0.9 < largest_move(algorithm, Density(make_objective("softmax", 3, 3, clip_norm=0.1))) <= 1 + 1e-12


@pytest.mark.parametrize(
    "algorithm",
    [
        SSCA(privacy="gradient"),
        ConstrainedSSCA(constraints="cost <= 1, feature 1 <= 2", privacy="gradient", loss_clip=4.0),
    ],
)
@pytest.mark.parametrize("schedule", [LocalSchedule(0, 4), LocalSchedule(4, 3)])
def test_a_replay_moves_no_release_by_more_than_its_sensitivity(algorithm, schedule):
    """Over several rounds, on neighbours that pull apart; what is sent is a function of what was released."""
    objective, (data, other) = make_objective("logistic", 4, 2), neighbours(8, 4, 0.7)
    points = [1e3 * np.eye(4)[0], 1e3 * np.eye(4)[1], np.full(4, 0.3)]
    inboxes = [algorithm.broadcast(algorithm.init_server(x, 1, np.array(0)), 1, np.array(0)) for x in points]
    moves = replay(algorithm, objective, data, other, schedule, objective.bounds(0.7), inboxes)
    assert len(moves) == len(points)  # one release per round, however many local steps
    assert 0.2 < max(m.moved / m.sensitivity for m in moves) <= 1 + 1e-9
    assert all(m.agrees for m in moves)


def test_a_private_run_spends_its_target_and_tells_noisy_numbers_only():
    setup = small("ssca-groups-private", noise_multiplier=0.0, epsilon=8.0, rounds=8, clients__per_round=0)
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    assert result.summary()["privacy"]["epsilon"] == pytest.approx(8.0, rel=1e-9)
    charges = grid.client(1).guard.ledger.charges()
    assert [charge.touched for charge in charges] == [1] * 8
    clean = small("ssca-groups-private", privacy__mode="none", clients__per_round=0)
    told = [InProcessGrid(s).client(1).fit([s.start], {"round": 1})[0][0] for s in (setup, clean)]
    gap = told[0] - told[1]
    sigma = (
        setup.plan.multipliers[0]
        * setup.algorithm.release(setup.plan.bounds, setup.schedule.workload(143), 1).sensitivity
    )
    assert gap.std() == pytest.approx(sigma, rel=5 / math.sqrt(2 * len(gap)))
    assert np.abs(gap[-3:]).max() > 0


@pytest.mark.parametrize(
    ("variant", "keys", "sentence"),
    [
        ("ssca", {"averaging": 1.5}, "averaging must be above 0 and at most 1"),
        ("ssca", {"step_size": 1.1}, "step-size must be above 0 and at most 1"),
        ("ssca", {"step_decay": 0.99}, "ssca.step-decay must be from 0 to 0.95"),
        ("ssca", {"curvature": 0.0}, "ssca.curvature must be above 0"),
        ("ssca", {"surrogate": "loose"}, "surrogate must be one of exact, literal"),
        ("ssca-constrained", {"constraints": "cost < 1"}, "constraints must be like"),
        (
            "ssca-constrained",
            {"constraints": "cost <= -1"},
            "a bound on the loss must be a number from 1e-100 to",
        ),
        ("ssca-constrained", {"constraints": "group 1 <= 2"}, "constraints must be like"),
        ("ssca-constrained", {"regulariser.name": "l1"}, "set regulariser to none"),
        ("ssca-constrained", {"l2": 0.1}, "set l2 and nonconvex to 0"),
        ("ssca-constrained", {"penalties": "10, 5"}, "penalties must increase"),
        ("ssca-constrained", {"penalties": "many"}, "penalties must be numbers from 1e-100 to"),
        (
            "ssca-constrained",
            {"surrogate": "literal", "constraints": "class 1 <= 1"},
            "only one constraint, a bound on the cost",
        ),
        (
            "ssca-constrained",
            {"privacy.mode": "gradient", "epsilon": 1.0},
            "loss-clip must be above every bound",
        ),
        ("ssca-constrained", {"loss_clip": 1.0}, "loss-clip must be above every bound"),
        ("ssca-constrained", {"tolerance": -1.0}, "tolerance must be at least 0"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(variant, keys, sentence):
    with pytest.raises(SettingError, match=sentence) as caught:
        small(variant, **keys)
    assert "\n" not in str(caught.value)
