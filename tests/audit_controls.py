"""Mechanisms that keep their claim, by name: what an audit must not accuse."""

import secrets
from itertools import count

import numpy as np

from twinflower import audit
from twinflower.privacy import gdp_epsilon

ONE = audit.Claim(1.0, 1e-5)


def numbers(**values):
    """A reply of numbers."""
    return [audit.Outcome({"kind": "a"}, {k: np.atleast_1d(np.asarray(v, float)) for k, v in values.items()})]


def laplace(data, seed):
    """Ten numbers that move by 1 in all, with Laplace noise: epsilon 1, and their mean looks normal."""
    return numbers(x=np.random.default_rng(seed).laplace(size=10) + data / 10)


def geometric(data, seed):
    """A count with two-sided geometric noise of epsilon 8, which is 0 in all but 7 of 10,000 runs."""
    up, down = np.random.default_rng([data, seed]).geometric(1 - np.exp(-8), 2)
    return numbers(n=data + up - down)


def randomised_response(data, seed):
    """A text, right with odds of e^6."""
    right = np.random.default_rng([data, seed]).random() < 1 / (1 + np.exp(-6))
    return [audit.Outcome({"kind": "a", "vote": str(data if right else 1 - data)}, {})]


def sampled(data, seed):
    """A sum over records that are sampled with a rate of a quarter, with noise of deviation 2."""
    rng = np.random.default_rng(seed)
    return numbers(x=(rng.random() < 0.25) * data + 2 * rng.normal())


def secret(data, seed):
    """Gaussian noise that no seed determines."""
    return numbers(x=data + np.random.default_rng(secrets.randbits(64)).normal())


def drifting():
    """Beside noise, a time that grows from run to run, and a counter of all runs."""
    clock = count(1)

    def run(data, seed):
        rng, time = np.random.default_rng(seed), next(clock)
        return numbers(
            x=rng.normal(size=3) + data / 4, train_time=1 + 1e-4 * time + 0.01 * rng.normal(), calls=time
        )

    return run


SAMPLED = [audit.GaussianRelease(1.0, 2.0, 1, 0.25, "add or remove")]
NORMAL = audit.Claim(gdp_epsilon(1.0, 1e-5), 1e-5)
CONTROLS = {
    name: audit.Case(name, {"m": mechanism}, {"p": pair}, *claim)
    for name, mechanism, pair, *claim in (
        ("Laplace", laplace, (0.0, 1.0), ONE),
        ("Laplace, delta 0", laplace, (0.0, 1.0), audit.Claim(1.0, 0.0)),
        ("geometric", geometric, (0, 1), audit.Claim(8.0, 1e-5)),
        ("randomised response", randomised_response, (0, 1), audit.Claim(6.0, 1e-5)),
        ("sampled", sampled, (0.0, 1.0), audit.Claim(1.0, 1e-3, "add or remove"), SAMPLED),
        ("secret noise", secret, (0.0, 1.0), NORMAL, [audit.GaussianRelease(1.0, 1.0)]),
        ("drift", drifting(), (0.0, 1.0), ONE, [audit.GaussianRelease(0.5, 2.0)]),
    )
}
