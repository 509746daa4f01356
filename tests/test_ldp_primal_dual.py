"""Zhang 2023: the recursion against the paper's, its rate, its limits, and its budget."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import problems
import pytest
from grids import Lossy
from numpy.testing import assert_allclose, assert_array_equal
from problems import central_optimum, convex_problem, last, random_shards, small, state_of

from twinflower.algorithms.algorithm import RunInfo, stack
from twinflower.algorithms.ldp_primal_dual import LDPPrimalDual, look_out
from twinflower.clients.records import record_of
from twinflower.errors import SettingError
from twinflower.privacy import gdp_epsilon
from twinflower.privacy.accountant import zcdp_epsilon_papers, zcdp_mu, zcdp_rho_papers
from twinflower.privacy.audit import neighbours, replay
from twinflower.privacy.charges import total_cost
from twinflower.privacy.mechanism import CohortDraws, GaussianNoise
from twinflower.privacy.release import geometric
from twinflower.problems.batches import LocalSchedule, Workload
from twinflower.problems.interfaces import Bounds
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, WeightedL1Box
from twinflower.simulation.runs.advice import outlook, warnings
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of

N, D = 6, 5


def algorithm_for(h=ZERO, rounds=60, n=N, **settings):
    return LDPPrimalDual(h, RunInfo(n, rounds), **settings)


def run(algorithm, shards, objective, number, noise=None, start=None):
    """Server and states after every round, all clients at once; the states are finished."""
    clients, noises = np.arange(shards.num_clients), noise and (lambda t, _: noise(t))
    steps = problems.run(algorithm, shards, objective, LocalSchedule(0, 1), number, noise=noises, start=start)
    for t, (server, states, *_) in enumerate(steps, 1):
        yield server, algorithm.finish(states, algorithm.broadcast(server, t + 1, clients))


def paper_loop(shards, objective, h, gamma, s, rounds, noises, start):
    """(6) with the explicit dual y and the matrix L = I - 1 1^T / n; x^1 = prox of the start."""
    n = shards.num_clients
    lap = np.eye(n) - 1 / n
    x = np.stack([h.prox(start, gamma * s / n)] * n)
    y = np.zeros_like(x)
    for t in range(rounds):
        slopes = np.stack([s / n * objective.grad(x[i], shards.rows(i)) for i in range(n)])
        sent = x - gamma * (slopes + noises[t] + lap @ y)
        y = y + lap @ sent
        z = sent - gamma * lap @ sent
        x = np.stack([h.prox(z[i], gamma * s / n) for i in range(n)])
    return sent, x, lap @ y


@pytest.mark.parametrize(("gamma", "scale"), [(0.25, 1.0), (0.25, 0.0), (1.0, 3.0), (1.2, 0.0)])
def test_the_page_is_the_papers_recursion(gamma, scale):
    shards, objective = convex_problem()
    h, start = WeightedL1Box(0.01, -0.3, 0.3), np.linspace(-0.2, 0.4, D)
    algorithm, s = algorithm_for(h, step_size=gamma, scale=scale), scale or N
    zeta = 0.1 * np.random.default_rng(1).normal(size=(40, N, D))

    def noise(t):
        return lambda value, *_: value - gamma * zeta[t - 1]

    server, states = last(run(algorithm, shards, objective, 40, noise, start))
    sent, x, dual = paper_loop(shards, objective, h, gamma, s, 40, zeta, start)
    assert_allclose(states.sent, sent, atol=1e-12)
    assert_allclose(states.x, x, atol=1e-12)
    assert_allclose(states.dual, dual, atol=1e-12)
    assert_array_equal(algorithm.client_models(server), states.x)
    assert np.abs(states.dual.sum(0)).max() < 1e-12


def test_the_first_point_is_the_prox_of_the_start():
    """x^1 = prox_{gamma s / n g}(start): the first gradient is taken there, and round 0's points lie there."""
    shards, objective = convex_problem()
    h, start = WeightedL1Box(0.4, -0.3, 0.3), np.linspace(-0.2, 0.4, D)
    algorithm = algorithm_for(h)
    first = h.prox(start, 0.25)
    assert np.abs(first - start).max() > 0.05
    server = algorithm.init_server(start, N, np.array(0, np.uint64))
    assert_array_equal(algorithm.client_models(server), np.stack([first] * N))
    server, _ = next(run(algorithm, shards, objective, 1, start=start))
    slopes = np.stack([objective.grad(first, shards.rows(i)) for i in range(N)])
    assert_allclose(server.sent, first - 0.25 * slopes, atol=1e-14)


def test_the_box_of_algorithm_1_as_printed_diverges():
    """x - gamma (1/n grad) + zeta + Lambda: the dual pushes the wrong way, without any noise."""
    shards, objective = convex_problem()
    gamma, x, dual = 0.25, np.zeros((N, D)), np.zeros((N, D))
    sizes = []
    for _ in range(60):
        slopes = np.stack([objective.grad(x[i], shards.rows(i)) / N for i in range(N)])
        sent = x - gamma * slopes + dual
        apart = sent - sent.mean(0)
        dual, x = dual + apart, sent - gamma * apart
        sizes.append(np.linalg.norm(x))
    assert sizes[-1] > 1e6 > 1e3 > sizes[9]
    right, _ = last(run(algorithm_for(), shards, objective, 60))
    assert np.linalg.norm(right.mean) < 10


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_the_lyapunov_function_falls_at_the_theorys_rate(scale):
    """Lemma 4.4 without noise: Phi <= (1 - gamma min(mu_f, 1)) Phi, round by round; duals included."""
    shards, objective = convex_problem()
    h, gamma, s = L1(0.02), 0.25, scale or N
    best = central_optimum(objective, h, shards.everyone())
    slopes = np.stack([s / N * objective.grad(best, shards.rows(i)) for i in range(N)])
    dual = slopes.mean(0) - slopes  # at the optimum, where all messages agree
    mu = s * objective.l2 / N
    steepest = (
        s / N * max(0.25 * (shards.rows(i).features ** 2).sum(1).max() + objective.l2 for i in range(N))
    )
    assert gamma <= min(0.25, 1 / steepest) or scale == 0.0
    gamma = min(gamma, 1 / steepest)
    before = N * best @ best + gamma * (dual**2).sum()
    for _, states in run(algorithm_for(h, step_size=gamma, scale=scale), shards, objective, 200):
        phi = ((states.x - best) ** 2).sum() + gamma * ((states.dual - dual) ** 2).sum()
        assert phi <= (1 - gamma * min(mu, 1)) * before + 1e-15
        before = phi


@pytest.mark.parametrize(
    ("gamma", "scale", "rounds"), [(0.25, 1.0, 9000), (0.25, 0.0, 1500), (1.0, 0.0, 400)]
)
def test_it_reaches_the_optimum(gamma, scale, rounds):
    shards, objective = convex_problem()
    h = L1(0.02)
    best = central_optimum(objective, h, shards.everyone())
    algorithm = algorithm_for(h, step_size=gamma, scale=scale)
    server, states = last(run(algorithm, shards, objective, rounds))
    assert_allclose(algorithm.model(server), best, atol=1e-10)
    assert_allclose(states.x, np.broadcast_to(best, (N, D)), atol=1e-10)


def test_gamma_1_is_central_proximal_gradient():
    shards, objective = convex_problem()
    h, x = L1(0.02), np.zeros(D)
    algorithm = algorithm_for(h, step_size=1.0, scale=4.0)
    for server, _ in run(algorithm, shards, objective, 60):
        x = h.prox(x - 4 / N * objective.grad(x, shards.everyone()), 4 / N)
        assert_allclose(algorithm.model(server), x, atol=1e-12)


def test_the_support_is_the_optimums():
    shards, objective = convex_problem()
    h = WeightedL1Box(0.03, -0.1, 0.1)
    best = central_optimum(objective, h, shards.everyone())
    assert 0 < np.count_nonzero(best) < D
    assert np.abs(best).max() == 0.1
    algorithm = algorithm_for(h)
    x = algorithm.model(last(run(algorithm, shards, objective, 1500))[0])
    assert_array_equal(np.flatnonzero(x), np.flatnonzero(best))
    assert_allclose(x, best, atol=1e-10)


@pytest.mark.parametrize(("gamma", "stable"), [(1.32, True), (1.345, False)])
def test_duals_are_stable_below_four_thirds(gamma, stable):
    """Where clients disagree the recursion is (x, Lambda) -> ((1 - gamma) t, Lambda + t), t = x - gamma Lambda."""
    step = np.array([[1 - gamma, -gamma * (1 - gamma)], [1.0, 1 - gamma]])
    assert (np.abs(np.linalg.eigvals(step)).max() < 1) == stable
    if stable:
        algorithm_for(step_size=gamma)
    else:
        with pytest.raises(SettingError, match="below 4/3"):
            algorithm_for(step_size=gamma)


# --------------------------------------------------------------------------------------------- the budget

BOUNDS = Bounds(1.0, 0.25, (0.1, 0.1))


@pytest.mark.parametrize("conversion", ["exact", "zcdp"])
@pytest.mark.parametrize(
    "allocation",
    [{"allocation": "dynamic"}, {"allocation": "static"}, {"allocation": "shares", "shares": "1, 9, 2"}],
)
def test_what_is_spent_is_the_target(allocation, conversion):
    setup = small("ldp-private", rounds=25, conversion=conversion, delta=1e-5, epsilon=2.0, **allocation)
    grid = InProcessGrid(setup)
    result = run_strategy(setup, grid, "inprocess")
    for node in range(1, 9):
        charges = grid.client(node).guard.ledger.charges()
        mu = math.sqrt(total_cost(charges))
        epsilon = gdp_epsilon(mu, 1e-5) if conversion == "exact" else zcdp_epsilon_papers(mu**2 / 2, 1e-5)
        assert epsilon == pytest.approx(2.0, rel=1e-10)
        assert len(charges) == 25
    told = result.summary()["privacy"]
    assert told["claimed_epsilon"] == (2.0 if conversion == "zcdp" else None)
    assert told["epsilon"] == pytest.approx(2.0, rel=1e-9) or told["epsilon"] < 2.0 == told["claimed_epsilon"]


def papers_variances(rho, bound, n, m, gamma, mu, rounds):
    """(11), letter by letter."""
    q = [(1 - gamma * min(mu, 1)) ** (rounds - t) for t in range(1, rounds + 1)]
    root_pi = 2 * bound**2 * sum(map(math.sqrt, q)) / (rho * n**2 * m**2)
    return np.array([root_pi / math.sqrt(each) for each in q])


@pytest.mark.parametrize("scale", [1.0, 0.0])
def test_the_dynamic_noise_is_the_papers(scale):
    """sigma_t = gamma xi_t of (11) with s B in the place of B."""
    rho, m, rounds, gamma = zcdp_rho_papers(1.0, 1e-4), 20, 30, 0.25
    algorithm = algorithm_for(step_size=gamma, scale=scale, rounds=rounds, privacy="public-state")
    z = math.sqrt(rounds) / zcdp_mu(rho)
    ours = [z * algorithm.release(BOUNDS, Workload(1, m, 1), t).spread for t in range(1, rounds + 1)]
    s = scale or N
    theirs = gamma * np.sqrt(papers_variances(rho, s * 1.0, N, m, gamma, s * 0.1 / N, rounds))
    assert_allclose(ours, theirs, rtol=1e-12)


def test_allocations_too_long_for_the_literal_formula():
    """q_1 underflows, and with gamma mu_f = 1 the last round would get everything."""
    with pytest.raises(ZeroDivisionError):
        papers_variances(1.0, 1.0, 6, 20, 0.9, 1.0, 8000)
    for gamma, theta in ((0.9, 1.0), (1.0, 1.0), (0.25, 0.1)):
        algorithm = algorithm_for(step_size=gamma, rounds=8000, strong_convexity=theta)
        weights = algorithm.weights(BOUNDS)
        assert np.isfinite(1 / np.sqrt(weights)).all()
        assert weights.sum() == pytest.approx(8000, rel=1e-12)
        assert (np.diff(weights) >= -1e-12).all()
    assert 1e-3 / 1.001 <= weights.min() <= 1e-3  # the floor
    assert weights[-1] / weights[-2] == pytest.approx((1 - 0.025) ** -0.5, rel=1e-9)


@pytest.mark.parametrize("log_ratio", [-0.5, -0.01, -1e-3, -math.inf])
def test_the_floor_of_the_shares_costs_a_thousandth(log_ratio):
    """sum q_t xi_t^2 ~ (sum q_t / w_t)(sum w_t), least and (sum sqrt(q_t))^2 at w_t ~ sqrt(q_t)."""
    ages = np.arange(2000)[::-1]
    roots = np.where(ages, np.exp(np.maximum(log_ratio, -700) * ages), 1.0)
    weights = geometric(2000, log_ratio)
    least, ours = roots.sum() ** 2, (roots**2 / weights).sum() * weights.sum()
    assert least * (1 - 1e-12) <= ours <= least * (1 + 1e-3)
    assert 1 / weights.min() <= 1.001e3


def test_the_papers_shares_leave_four_thirds_of_the_least_noise():
    """Lemma 4.4 has the rate c; where clients agree it is c^2, for which w_t ~ c^(T - t) would be best."""
    sigmas = 1 / np.sqrt(geometric(4000, -0.01 / 2))
    best = 1 / np.sqrt(geometric(4000, -0.01))
    papers, least = (look_out(each, -0.01, 1, 1, 1.0).floor for each in (sigmas, best))
    assert papers / least == pytest.approx(4 / 3, rel=0.01)


def test_huge_early_noise_does_not_stay_in_the_duals():
    """A run whose literal first noise is e^50 times the last one: the duals still sum to 0, and the end is near x*."""
    shards, objective = convex_problem()
    algorithm = algorithm_for(rounds=8000, privacy="public-state")
    bounds, workload = objective.bounds(2.0), Workload(1, 12, 1)
    rng = np.random.default_rng(0)

    def noise(t):
        sigma = 1e-3 * algorithm.release(bounds, workload, t).spread
        return lambda value, *_: value + sigma * rng.normal(size=value.shape)

    server, states = last(run(algorithm, shards, objective, 8000, noise))
    assert algorithm.log_contraction(0.1) / 4 * 8000 < -50
    assert np.abs(states.dual.sum(0)).max() < 1e-12
    best = central_optimum(objective, ZERO, shards.everyone())
    assert ((server.mean - best) ** 2).sum() < 1e-3 * (best @ best)


def test_a_round_beyond_the_plan_has_no_share():
    algorithm = algorithm_for(rounds=5, privacy="public-state")
    for round_ in (0, 6):
        with pytest.raises(SettingError, match=f"between 5 rounds; round {round_} has no share"):
            algorithm.release(BOUNDS, Workload(1, 20, 1), round_)


def test_gamma_1_contracts_like_proximal_gradient():
    """||x - x*||^2 falls by 1 - mu_f a round with s = 1 / L, whatever the duals are."""
    shards, objective = convex_problem()
    h = L1(0.02)
    best = central_optimum(objective, h, shards.everyone())
    steepest = 0.25 * max((shards.rows(i).features ** 2).sum(1).max() for i in range(N)) + objective.l2
    algorithm, before = algorithm_for(h, step_size=1.0, scale=N / steepest), best @ best
    for server, _ in run(algorithm, shards, objective, 150):
        after = ((algorithm.model(server) - best) ** 2).sum()
        assert after <= (1 - objective.l2 / steepest) * before + 1e-15
        before = after


def test_shares_pass_through_their_corners():
    weights = algorithm_for(rounds=9, allocation="shares", shares="1, 16, 4").weights(BOUNDS)
    assert_allclose(weights / weights[0], [1, 2, 4, 8, 16, 2**3.5, 8, 2**2.5, 4], rtol=1e-12)


def test_the_noise_of_every_round_has_the_planned_variance():
    rounds, seeds = 12, 400
    shards = random_shards([10] * N, D, 2)
    objective = make_objective("logistic", D, 2, l2=0.1)
    algorithm = algorithm_for(rounds=rounds, privacy="public-state", step_size=1.2)
    z = 0.7
    bounds, workload = objective.bounds(1.0), Workload(1, 10, 1)
    moved = np.zeros((rounds, seeds))
    clients = np.arange(N)
    for seed in range(seeds):

        def noise(t, seed=seed):
            sigma = z * algorithm.release(bounds, workload, t).spread
            return GaussianNoise(np.full((N, 1), sigma), CohortDraws([seed], clients, t))

        clean = []

        def note(t, noise=noise, clean=clean):
            def add(value, *_):
                noisy = noise(t)(value)
                clean.append(((noisy - value) ** 2).mean())
                return noisy

            return add

        list(run(algorithm, shards, objective, rounds, note))
        moved[:, seed] = clean
    planned = [(z * algorithm.release(bounds, workload, t).spread) ** 2 for t in range(1, rounds + 1)]
    error = 5 * math.sqrt(2 / (seeds * N * D))
    assert_allclose(moved.mean(1), planned, rtol=error)
    assert planned[0] / planned[-1] == pytest.approx((1 - 1.2 * 0.1) ** (-(rounds - 1) / 2))


def test_replay_over_a_whole_run():
    """Given what was sent, a replaced record moves each message by its sensitivity and leaves the duals alone."""
    data, other = neighbours(12, 3, 1.0)
    objective = make_objective("logistic", 3, 2, l2=0.1)
    algorithm = algorithm_for(L1(0.01), rounds=40, privacy="public-state", step_size=1.1)
    rng = np.random.default_rng(0)
    starts = [1e3 * np.eye(3)[0] + rng.normal(size=3) for _ in range(40)]
    inboxes = [algorithm.broadcast(algorithm.init_server(start, 1, np.array(0)), t, np.array(0))
               for t, start in enumerate(starts, 1)]  # fmt: skip
    moves = replay(algorithm, objective, data, other, LocalSchedule(0, 1), objective.bounds(1.0), inboxes)
    assert len(moves) == 40
    assert all(move.moved <= move.sensitivity * (1 + 1e-9) and move.agrees for move in moves)

    class Wrong(LDPPrimalDual):
        """Keeps x from the clean message, as the printed order of lines suggests."""

        def client_update(self, state, inbox, work):
            clean = []
            after, upload, report = super().client_update(
                state, inbox, work._replace(noise=lambda v: clean.append(v) or work.noise(v))
            )
            return after._replace(sent=clean[0]), upload, report

    wrong = Wrong(L1(0.01), RunInfo(N, 40), privacy="public-state")
    moves = replay(wrong, objective, data, other, LocalSchedule(0, 1), objective.bounds(1.0), inboxes)
    assert any(move.moved > move.sensitivity * 1.01 for move in moves)
    assert not all(move.same_state for move in moves)


# ------------------------------------------------------------------------------------ on Flower's side


@pytest.mark.parametrize("variant", ["ldp-primal-dual", "ldp-private"])
def test_lost_replies_leave_the_duals_in_balance(variant):
    setup = small(variant, rounds=6)
    grid = Lossy(setup, [(2, 1), (5, 3), (6, 3), (1, 6)], losses=2)
    result = run_strategy(setup, grid, "inprocess")
    states = stack([state_of(grid.client(node)) for node in range(1, 9)])
    assert np.abs(states.dual.sum(0)).max() < 1e-9 * np.abs(states.dual).max()
    whole = InProcessGrid(setup)
    assert_array_equal(result.model, run_strategy(setup, whole, "inprocess").model)
    assert_array_equal(states.x, stack([state_of(whole.client(node)) for node in range(1, 9)]).x)


def test_the_closing_message_brings_every_client_its_point():
    setup = small("ldp-primal-dual", rounds=6)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.start(grid, record_of([setup.start]), num_rounds=6)
    points = setup.algorithm.client_models(strategy.server)
    for node in range(1, 9):
        assert_array_equal(state_of(grid.client(node)).x, points[node - 1])


def test_a_client_is_not_asked_beyond_the_plan():
    setup = small("ldp-private", rounds=6)
    client = InProcessGrid(setup).client(1)
    with pytest.raises(SettingError, match="round 7 has no share"):
        client.fit([setup.start], {"round": 7})
    assert not client.guard.ledger.charges()


def test_other_rounds_than_planned_are_refused():
    setup = small("ldp-primal-dual", rounds=6)
    with pytest.raises(SettingError, match="plans 6 rounds"):
        strategy_of(setup).start(InProcessGrid(setup), record_of([setup.start]), num_rounds=5)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"step_size": 4 / 3}, "below 4/3"),
        ({"step_size": 0.0}, "above 0"),
        ({"scale": -1.0}, "scale must be at least 0"),
        ({"clients.per-round": 3}, "needs all clients in every round"),
        ({"privacy.mode": "gradient"}, "privacy.mode of .* must be one of none, public-state"),
        ({"privacy.mode": "public-state", "epsilon": 1.0, "l2": 0.0}, "needs a strongly convex objective"),
        ({"privacy.mode": "public-state", "epsilon": 1.0, "row_norm": 0.0}, "no public bound"),
        ({"allocation": "shares"}, "shares belong to allocation"),
        ({"shares": "1,2"}, "shares belong to allocation"),
        ({"allocation": "shares", "shares": "1,-2"}, "two or more comma-separated numbers from 1e-100"),
        ({"allocation": "shares", "shares": "7"}, "two or more comma-separated numbers from 1e-100"),
        ({"privacy.mode": "public-state", "conversion": "tight"}, "conversion must be one of exact, zcdp"),
        ({"strong_convexity": -0.1}, "strong-convexity must be at least 0"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(keys, sentence):
    with pytest.raises(SettingError, match=sentence) as caught:
        small("ldp-primal-dual", **keys)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("epsilon", [1e-3, 1e3])
def test_extreme_budgets_run(epsilon):
    setup = small("ldp-private", epsilon=epsilon, rounds=30)
    assert setup.plan.epsilon_limit == pytest.approx(epsilon, rel=1e-6)
    assert np.isfinite(run_strategy(setup, InProcessGrid(setup), "inprocess").model).all()


# ------------------------------------------------------------------------------------------ the outlook


def told(setup):
    return dict(outlook(setup))


def test_the_floor_is_what_the_noise_leaves():
    """Least squares around 0 with all curvature theta_2: the floor is exact, and 400 runs agree with it."""
    rounds, theta, sigma = 40, 0.5, 0.3
    algorithm = algorithm_for(rounds=rounds, step_size=0.25, strong_convexity=theta)
    bounds, workload = Bounds(1.0, 0.0, (theta, theta)), Workload(1, 1, 1)
    z = sigma / algorithm.release(bounds, workload, 1)._replace(weight=1.0).spread
    words = dict(algorithm.forecast(bounds, z, workload, np.zeros(D), away=1e9))["expected noise floor"]
    floor = float(words.split("= ")[1].split(",")[0])
    rng, ends = np.random.default_rng(0), []
    sigmas = sigma / np.sqrt(algorithm.weights(bounds))
    bowl, shards = SimpleNamespace(d=D, grad=lambda x, rows: theta * x), random_shards([1] * N, D, 0)

    def noise(t):
        return lambda value, *_: value + sigmas[t - 1] * rng.normal(size=value.shape)

    for _ in range(400):
        server, _ = last(run(algorithm, shards, bowl, rounds, noise))
        ends.append(algorithm.model(server) @ algorithm.model(server))
    assert np.mean(ends) == pytest.approx(floor, rel=5 * math.sqrt(2 / (400 * D)))


def test_after_enough_rounds_a_tenth_of_the_floor_is_left_of_the_start():
    look = look_out(np.full(500, 0.01), math.log1p(-0.025), 5, 6, begun=2.0)
    rest = 2.0 * (1 - 0.025) ** (2 * np.array([look.enough - 1, look.enough]))
    assert rest[0] > 0.1 * look.floor >= rest[1]
    assert look_out(np.full(500, 1e3), math.log1p(-0.025), 5, 6, begun=2.0).enough == 1


def test_the_outlook_warns_of_a_hopeless_budget_and_of_a_short_run():
    hopeless = small("ldp-private", epsilon=0.001, rounds=30)
    assert "no better than the start" in str(outlook(hopeless))
    assert "no better than the start" in str(warnings(hopeless))
    short = small("ldp-private", epsilon=1000.0, rounds=3)
    assert "before the start is forgotten" in str(outlook(short))
    large = small("ldp-private", rounds=5, step_size=1.3)
    assert "at most min(1/4, 1/L_f)" in str(outlook(large))
    fine = small("ldp-private", epsilon=1000.0, rounds=400, scale=0.0, step_size=0.25)
    assert "warning" not in told(fine)
    flat = small("ldp-private", allocation="static", l2=0.0)
    assert "not strongly convex" in told(flat)["expected noise floor"]


def test_a_contraction_is_never_faster_than_the_step():
    """min(mu_f, 1): with much curvature a round still forgets no more than gamma (Lemma 4.4)."""
    algorithm = algorithm_for(rounds=5, step_size=0.25, strong_convexity=3.0)
    weights = algorithm.weights(Bounds(1.0, 0.0, (3.0, 3.0)))
    assert_allclose(weights[:-1] / weights[1:], math.sqrt(1 - 0.25))


def test_the_outlook_measures_curvature_with_the_scale():
    """L_f = (s/n) L: with s = 1 the same step is allowed that s = n warns of."""
    bounds, workload = Bounds(1.0, 10.0, (0.1, 0.1)), Workload(1, 10, 1)
    warned = [
        "at most min(1/4, 1/L_f)"
        in str(algorithm_for(step_size=0.2, scale=s).forecast(bounds, 1.0, workload, np.zeros(D)))
        for s in (0.0, 1.0)
    ]
    assert warned == [True, False]


def test_the_outlook_says_nothing_of_a_network():
    keys = {
        "objective.name": "sigmoid-network",
        "hidden_units": 3,
        "clip_norm": 1.0,
        "strong_convexity": 0.01,
    }
    assert list(told(small("ldp-private", **keys))) == ["expected noise floor"]
    assert "unknown" in told(small("ldp-private", **keys))["expected noise floor"]


def test_the_outlook_knows_the_start_where_a_reference_is_wanted():
    keys = {
        "objective.name": "logistic",
        "data.name": "breast-cancer",
        "regulariser.name": "none",
        "rounds": 30,
    }
    known, unknown = (small("ldp-private", reference=r, **keys) for r in (True, False))
    best = known.central.optimum
    assert f"the start has {best @ best:.3g}" in told(known)["expected noise floor"]
    assert "the start has at most 100" in told(unknown)["expected noise floor"]
    far = small("ldp-private", start_scale=100.0, reference=True, **keys)
    bound = told(replace(far, config=far.config.put({"evaluation.reference": False})))["expected noise floor"]
    assert ((far.central.optimum - far.start) ** 2).sum() <= float(bound.split("at most ")[1])


def test_facts_come_from_the_run():
    setup = small("ldp-primal-dual", rounds=7)
    assert setup.algorithm.info == RunInfo(8, 7, row_norm=1.0, l2=setup.config.objective.l2)
    assert prepare(replace(setup.config, rounds=9)).algorithm.info.rounds == 9
