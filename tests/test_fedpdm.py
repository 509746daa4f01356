"""FedPDM and BSDP-FedPDM against the papers, line by line, and against central optima."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import bits_of, central_optimum, convex_problem, last, random_shards, run
from transcription import slow_run

from twinflower.algorithms import BSDPFedPDM, FedAvg, FedPDM
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ElasticNet
from twinflower.randomness import participants
from twinflower.sparsifiers import index_bits
from twinflower.work import Report, no_noise

KEY = np.array(0, dtype=np.uint64)
ONCE = Report(np.ones(2, int), np.zeros(2, bool))


# ------------------------------------------------------------------ against a transcription of the papers


def paper_gradient(x, rows):
    """Gradient of Li 2024 (41) with beta = 0.2, sample by sample."""
    matrix = x.reshape(3, -1)
    total = np.zeros_like(matrix)
    for a, y in zip(rows.features, rows.labels, strict=True):
        total[y] += -a / (1 + np.exp(matrix[y] @ a))
    smooth = 2 * 0.2 * matrix / (1 + matrix**2) ** 2
    return (total / len(rows.labels) + smooth).ravel()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (FedPDM, {}),
        (FedPDM, {"stopping_tolerance": 0.04}),
        (BSDPFedPDM, {"uplink_ratio": 0.4, "downlink_ratio": 0.75}),
        (BSDPFedPDM, {"uplink": "rand-k", "uplink_ratio": 0.4}),
    ],
    ids=["Algorithm 1", "with the stopping rule", "Algorithm 2, top-k", "Algorithm 2, rand-k"],
)
def test_the_methods_are_the_papers_algorithms(method, settings):
    shards = random_shards([20, 13, 31, 20, 8], 4, 3)
    objective, schedule = make_objective("rowwise-logistic", 4, 3, nonconvex=0.2), LocalSchedule(batch_size=4)
    algorithm = method(L1(0.02), rho=1.5, step_size=0.6, step_decay=0.5, **settings)
    server, states, _, report = last(run(algorithm, shards, objective, schedule, 25, k=3))
    slow = list(slow_run(algorithm, shards, schedule, paper_gradient, np.zeros(12), 25, 3))
    assert_allclose(server.x0, slow[-1].x0, rtol=0, atol=1e-12)
    for i, dual in slow[-1].duals.items():
        assert_allclose(states.dual[i], dual, rtol=0, atol=1e-12)
    assert len(slow[-1].duals) == 5
    assert np.count_nonzero(server.x0) > 0
    assert report.fired.any() == ("stopping_tolerance" in settings)


# ---------------------------------------------------------------------------------------- central optima


def test_full_participation_reaches_the_central_optimum():
    shards, objective = convex_problem()
    h = L1(0.01)
    best = central_optimum(objective, h, shards.everyone())
    algorithm = FedPDM(h, rho=0.4, step_size=0.9)
    server, states, *_ = last(run(algorithm, shards, objective, LocalSchedule(0, 10), 400))
    assert_allclose(server.x0, best, atol=1e-5)
    assert np.count_nonzero(best) < len(best)
    assert_array_equal(server.x0 != 0, best != 0)
    # stationarity on both sides: dual_i = grad f_i, and minus their mean is a sub-gradient of h
    slope = -states.dual.mean(0)
    assert_allclose(slope[best != 0], h.weight * np.sign(best[best != 0]), atol=1e-5)
    assert (np.abs(slope) <= h.weight + 1e-9).all()


def test_sampled_averaging_stalls_and_memory_converges():
    shards, objective = convex_problem()
    h = L1(0.01)
    best = central_optimum(objective, h, shards.everyone())

    def distances(aggregation):
        algorithm = FedPDM(h, rho=0.4, step_size=0.9, aggregation=aggregation)
        steps = run(algorithm, shards, objective, LocalSchedule(0, 10), 1500, k=2)
        return np.array([np.linalg.norm(s.x0 - best) for s, *_ in steps])

    assert distances("sampled")[-200:].min() > 1e-2
    assert distances("memory")[-1] < 1e-5


@pytest.mark.parametrize("k", [4, 2])
def test_feddyn_with_a_server_prox_is_fedpdm_when_all_take_part(k):
    """FedDyn (Acar et al. 2021), alpha = rho: same client, server h and mean - h/alpha, then the prox."""
    shards, objective = convex_problem(clients=4)
    h, alpha, eta, rounds, schedule = ElasticNet(0.01, 0.1), 0.4, 0.9, 40, LocalSchedule(4, 5)
    n, d = 4, objective.d
    x0, dual, drift = np.zeros(d), np.zeros((n, d)), np.zeros(d)
    for t in range(1, rounds + 1):
        clients = participants(0, t, n, k)
        x = np.tile(x0, (k, 1))
        for rows in schedule.batches(shards, clients, 0, t):
            x = x - eta * (objective.grad(x, rows) - dual[clients] + alpha * (x - x0))
        dual[clients] = dual[clients] - alpha * (x - x0)
        drift = drift - alpha / n * (x - x0).sum(0)
        x0 = h.prox(x.mean(0) - drift / alpha, 1 / alpha)
    server, states, *_ = last(
        run(FedPDM(h, rho=alpha, step_size=eta), shards, objective, schedule, rounds, k=k)
    )
    agrees = np.allclose(server.x0, x0, rtol=0, atol=1e-12) and np.allclose(
        states.dual, dual, rtol=0, atol=1e-12
    )
    assert agrees == (k == n)


def test_ratios_of_one_are_plain_fedpdm():
    shards, objective = convex_problem()
    settings = {"rho": 0.4, "step_size": 0.9}
    plain = last(run(FedPDM(L1(0.01), **settings), shards, objective, LocalSchedule(3, 4), 20, k=3))
    sparse = last(
        run(
            BSDPFedPDM(L1(0.01), **settings, uplink_ratio=1.0),
            shards,
            objective,
            LocalSchedule(3, 4),
            20,
            k=3,
        )
    )
    assert_allclose(sparse[0].x0, plain[0].x0, rtol=0, atol=1e-15)
    assert_allclose(sparse[1].dual, plain[1].dual, rtol=0, atol=1e-15)


@pytest.mark.parametrize(("missing", "unheard"), [("zero", 0.0), ("keep", 3.5)])
def test_entries_nobody_sent_are_zero_or_kept(missing, unheard):
    """Kept means kept: an entry nobody sends for two rounds is not shrunk by the prox again."""
    algorithm = BSDPFedPDM(L1(0.5), rho=1.0, step_size=0.5, uplink_ratio=0.5, missing=missing)
    server = algorithm.init_server(np.zeros(4), 2, KEY)
    everything = [[9.0, 8.0, 0.0, 4.0], [0.0, 6.0, 5.0, 4.0]]
    for y in (np.array([[0.0, 0.0, 3.0, 4.0], [0.0, 2.0, 0.0, 4.0]]), *[np.delete(everything, 3, 1)] * 2):
        padded = np.pad(y, ((0, 0), (0, 4 - y.shape[1])))
        uploads = algorithm.message(padded, algorithm.broadcast(server, 1, np.array([0, 1])), ONCE)
        server = algorithm.server_update(server, uploads, np.array([0, 1]), 1)
    assert_array_equal(server.x0, [8.5, 6.5, 4.5, unheard])


def one_client_with(noise, **settings):
    """State and y of one noisy round of one client."""
    shards, objective = convex_problem(clients=1)
    algorithm = FedPDM(rho=0.5, step_size=0.5, **settings)
    _, states, uploads, _ = last(
        run(algorithm, shards, objective, LocalSchedule(0, 3), 1, noise=lambda *_: noise)
    )
    return states.dual[0], uploads.y[0]


def test_where_noise_enters():
    """On y alone as published, so the dual is exact; on x in the public state, so y moves twice as much
    and the dual with it; not at all without privacy."""
    shift = np.arange(5.0)
    dual, y = one_client_with(no_noise)
    published = one_client_with(lambda value, **_: value + shift, privacy="as-published")
    assert_array_equal(published[0], dual)
    assert_allclose(published[1], y + shift, rtol=1e-14)
    public = one_client_with(lambda value, **_: value + shift, privacy="public-state")
    assert_allclose(public[0], dual - 0.5 * shift, rtol=1e-13)
    assert_allclose(public[1], y + 2 * shift, rtol=1e-13)
    assert_array_equal(one_client_with(lambda value, **_: value + shift)[1], y)


def test_every_gradient_is_noisy_in_gradient_mode():
    draws = []

    def noise(value, draw=0, shrink=1.0):
        draws.append(draw)
        return value + 0.1

    dual, y = one_client_with(no_noise)
    noisy_dual, noisy_y = one_client_with(noise, privacy="gradient")
    assert draws == [0, 1, 2]
    assert (noisy_y < y).all()
    assert (noisy_dual > dual).all()


def test_the_printed_step_of_000_diverges():
    """eta = 1/sqrt(1+t) with rho = 10: |1 - rho eta| = 9 in the first round."""
    shards, objective = convex_problem()
    algorithm = FedPDM(rho=10.0, step_size=1.0, step_decay=0.5, unstable_steps="allow")
    with np.errstate(all="ignore"):
        server, *_ = last(run(algorithm, shards, objective, LocalSchedule(2, 5), 25))
    assert not np.linalg.norm(server.x0) < 1e10


@pytest.mark.parametrize(("factor", "silent_rounds"), [(1.01, 1), (2.02, 400)])
def test_gamma_above_the_slope_at_zero_ends_in_the_zero_model(factor, silent_rounds):
    """x = 0 is then stationary (Li 2024 as printed). Since y = 2x - x0 in the first round, a factor of 2 more
    keeps the model at zero from the start."""
    shards, objective = convex_problem()
    slope = np.abs(objective.grad(np.zeros(objective.d), shards.everyone())).max()
    algorithm = FedPDM(L1(factor * slope), rho=0.4, step_size=0.9)
    models = [step.server.x0 for step in run(algorithm, shards, objective, LocalSchedule(0, 5), 400)]
    assert_array_equal(models[-silent_rounds:], 0.0)


def test_the_stopping_rule_tests_the_step_just_taken():
    shards, objective = convex_problem(clients=1)
    algorithm = FedPDM(rho=0.5, step_size=0.5, stopping_tolerance=1e9)
    _, states, _, report = last(run(algorithm, shards, objective, LocalSchedule(0, 50), 1))
    assert_array_equal(report.steps, [1])
    assert report.fired.all()
    assert np.any(states.dual)


def test_bits_count_values_indices_and_the_papers_way():
    d = 7850
    algorithm = BSDPFedPDM(uplink_ratio=0.1, downlink_ratio=0.5)
    assert index_bits(d) == 13
    assert bits_of(algorithm, d) == (785 * (64 + 13), 3925 * (64 + 13))
    assert algorithm.upload.paper_bits(d) == 32 * 785
    assert bits_of(FedPDM(), d) == (64 * d, 64 * d)
    assert bits_of(BSDPFedPDM(uplink="rand-k", uplink_ratio=0.1), d) == (785 * 64, 64 * d + 64)


@pytest.mark.parametrize("rate", [0.1, 0.5, 1.5])
def test_one_full_batch_step_is_gradient_descent_with_averaged_gradients(rate):
    """If all take part, x moves by 1/rho along 2 a g + (1 - 2 a) m, m the mean of earlier g with weight a = eta rho.

    With a = 1/2 this is FedAvg with twice the step size.
    """
    shards, objective = convex_problem()
    h, rho, rows = L1(0.02), 0.4, shards.everyone()
    x, m = np.zeros(objective.d), np.zeros(objective.d)
    algorithm = FedPDM(h, rho=rho, step_size=rate / rho)
    for server, *_ in run(algorithm, shards, objective, LocalSchedule(0, 1), 30):
        g = objective.grad(x, rows)
        x, m = h.prox(x - (2 * rate * g + (1 - 2 * rate) * m) / rho, 1 / rho), (1 - rate) * m + rate * g
        assert_allclose(server.x0, x, rtol=1e-12, atol=1e-13)
    if rate == 0.5:
        average = last(run(FedAvg(h, step_size=2 * rate / rho), shards, objective, LocalSchedule(0, 1), 30))
        assert_allclose(average[0].x0, x, rtol=1e-12, atol=1e-13)
