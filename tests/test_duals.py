"""Where duals help under noise: the identities and floors of docs/when-duals-help.md."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import random_shards, run, small
from scipy.linalg import solve_discrete_lyapunov

from twinflower.algorithms import FedAvg, FedPDM
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.regularisers import L1
from twinflower.simulation.runs.forecast import forecast, mean_gradient_noise
from twinflower.simulation.runtimes import cohort

SIGMA = 0.3  # standard deviation of a round's noise, on a mean gradient
STEP = 0.8  # 1/rho
ONE_STEP = LocalSchedule(0, 1)
PRIVATE = {"privacy.mode": "public-state", "epsilon": 4.0, "local.max-steps": 1, "clients.per-round": 0}


class Quadratic(NamedTuple):
    """f(x) = curvature ||x||^2 / 2 for every client."""

    curvature: float
    d: int

    def grad(self, x: np.ndarray, rows: Any) -> np.ndarray:
        """curvature x."""
        return self.curvature * x


def means(algorithm, curvature, rounds, d=4000):
    """The server of each round of one client whose gradient of a quadratic has noise SIGMA, by noise on the point."""

    def noise(t, clients):
        drawn = np.random.default_rng(t).normal(size=d)
        return lambda point, draw=0: point + algorithm.step_size * SIGMA * drawn

    steps = run(algorithm, random_shards([3], 2, 2), Quadratic(curvature, d), ONE_STEP, rounds, noise=noise)
    return [step.server for step in steps]


def fedpdm(a, h=None, step=STEP):
    """FedPDM with eta rho = a and the step 1/rho."""
    return FedPDM(h or L1(0.0), step_size=a * step, rho=1 / step, privacy="public-state")


def as_momentum(a, **keys):
    """The quasi-hyperbolic momentum that FedPDM with eta rho = a is."""
    if a == 0.5:
        return keys  # no momentum
    return {"server-momentum": 1 - a, "momentum-weight": (1 - 2 * a) / (1 - a), **keys}


@pytest.mark.parametrize("a", [0.1, 0.4, 0.5])
def test_with_one_private_step_of_everybody_fedpdm_is_fedavg_with_quasi_hyperbolic_momentum(a):
    """Also with h: both apply the prox with step 1/rho to x0 - (2 a g + (1 - 2 a) dual) / rho."""
    h = {"regulariser__name": "l1", "regulariser__weight": 0.002, "rounds": 12}
    dual = small("fedpdm", **PRIVATE, **h, step_size=a * STEP, rho=1 / STEP)
    momentum = small("fedavg", **PRIVATE, **h, **as_momentum(a), step_size=STEP, step_decay=0.0)
    ours, theirs = (cohort.train([setup]) for setup in (dual, momentum))
    x, y = (next(iter(runs)).model for runs in (ours, theirs))
    assert_allclose(x, y, rtol=0, atol=1e-11 * np.abs(x).max())
    assert 0 < np.count_nonzero(x) < x.size


def test_the_identity_needs_one_step():
    """With two local steps a client's dual bends its path, which no momentum of the server does."""
    keys = {"local.max-steps": 2, "clients.per-round": 0, "rounds": 6}
    dual = small("fedpdm", **keys, step_size=0.2 * STEP, rho=1 / STEP)
    momentum = small("fedavg", **keys, **as_momentum(0.2), step_size=STEP / 2, step_decay=0.0)
    x, y = (next(iter(cohort.train([setup]))).model for setup in (dual, momentum))
    assert np.abs(x - y).max() > 1e-3 * np.abs(x).max()


def floor(a, curvature):
    """E F per entry at rest: x <- x - (2 a g + (1 - 2 a) u)/rho, u <- (1 - a) u + a g, g = curvature x + noise."""
    x, u = np.array([1.0, -STEP * (1 - 2 * a)]), np.array([0.0, 1 - a])
    gradient = np.array([-2 * a * STEP, a])
    step = np.stack([x, u]) + curvature * np.outer(gradient, [1, 0])
    spread = solve_discrete_lyapunov(step, SIGMA**2 * np.outer(gradient, gradient))
    return curvature * spread[0, 0] / 2


@pytest.mark.parametrize("curvature", [0.25, 1.0])
@pytest.mark.parametrize("a", [0.05, 0.2, 0.5])
def test_without_h_the_floor_is_that_of_momentum(a, curvature):
    """Measured within a tenth, and near SIGMA^2 / (4 rho) whatever a: without h a dual wins nothing at rest."""
    servers = means(fedpdm(a), curvature, 240)[160::8]
    measured = np.mean([curvature / 2 * np.mean(server.x0**2) for server in servers])
    assert 0.9 < measured / floor(a, curvature) < 1.1
    if curvature < 1:
        assert 0.8 < measured / (STEP * SIGMA**2 / 4) < 1.2


@pytest.mark.parametrize("a", [0.05, 0.2, 0.5])
def test_the_threshold_meets_an_averaged_gradient(a):
    """Where h keeps x at 0, the vector that meets its weight has the noise of the mean of about 2/a rounds; FedAvg's
    has that of one round, with any momentum after the prox."""
    t = 40
    remembered = a / (2 - a) * (1 - (1 - a) ** (2 * (t - 1)))
    expected = SIGMA * np.sqrt(4 * a**2 + (1 - 2 * a) ** 2 * remembered)
    heavy = FedAvg(L1(9.0), step_size=STEP, server_momentum=0.8, privacy="public-state")
    for algorithm, deviation in ((fedpdm(a, L1(9.0)), expected), (heavy, SIGMA)):
        server = means(algorithm, 1.0, t)[-1]
        assert not server.x0.any()
        assert abs(np.std(server.mean / STEP) / deviation - 1) < 5 / np.sqrt(2 * server.mean.size)


def test_a_threshold_between_the_two_noises_keeps_what_is_zero():
    """sigma0 < gamma < sigma0 sqrt T on a flat loss: FedAvg makes entries nonzero in every round, FedPDM few in all."""
    rounds = 40
    gamma = SIGMA / rounds**0.25
    counts = [
        np.mean([np.mean(server.x0 != 0) for server in means(method, 0.0, rounds)])
        for method in (FedAvg(L1(gamma), step_size=STEP, privacy="public-state"), fedpdm(0.05, L1(gamma)))
    ]
    assert counts[0] > 0.5
    assert counts[1] < 0.1


@pytest.mark.parametrize("variant", ["fedpdm", "fedavg", "feddualavg"])
def test_the_privacy_command_prints_sigma0_beside_the_weight(variant):
    """sigma0 = 2 C / (mu m sqrt N) in an average over all rounds, and sigma0 sqrt T in one."""
    keys = PRIVATE | {"partition.samples-per-client": 100, "batch-size": 0, "rounds": 9}
    setup = small(variant, **keys, regulariser__name="l1", regulariser__weight=0.02)
    sigma0 = 2 * setup.plan.bounds.gradient / (setup.plan.mu.max() * 100 * np.sqrt(8))
    printed = dict(forecast(setup))
    assert printed["weight of l1"] == "0.02"
    assert (
        printed["noise of the mean gradient, all rounds (sigma0) and one round"]
        == f"{sigma0:.4g}, {3 * sigma0:.4g}"
    )
    assert "what that means" not in dict(forecast(small(variant, **PRIVATE, regulariser__name="none")))


@pytest.mark.parametrize(
    "keys", [{"privacy.mode": "gradient", "local.max-steps": 4}, {"clients.per-round": 3}]
)
def test_the_noise_of_a_mean_gradient_is_that_of_the_messages(keys):
    """Also with several noisy steps, sampled sites and unequal rows; the gradients are small beside it."""
    sizes = {"partition.name": "sizes", "partition.sizes": "400, 12, 90, 90, 90, 200, 30, 7", "batch-size": 0}
    one = {"rounds": 1, "step-size": 1e-6, "step-decay": 0.0, "regulariser.name": "none"}
    setup = small("fedavg", **PRIVATE | sizes | one | keys)
    moved = next(iter(cohort.train([setup]))).model / 1e-6 / (4 if "privacy.mode" in keys else 1)
    assert abs(np.std(moved) / mean_gradient_noise(setup) - 1) < 5 / np.sqrt(2 * moved.size)
