"""The step size that follows from the noise of a private run."""

from dataclasses import replace

import numpy as np
import pytest
from problems import small

from twinflower.algorithms.untuned import FARTHEST, NOISE, noise_in_model, with_step
from twinflower.errors import SettingError
from twinflower.problems.interfaces import Bounds
from twinflower.simulation.runs.forecast import forecast
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings.reader import parse

STEPPING = {
    "rounds": 40, "epsilon": 2.0, "noise-multiplier": 0.0, "step-size": 0.0, "regulariser.name": "none",
    "step-decay": 0.0, "objective.l2": 0.0, "objective.nonconvex": 0.0,
}  # fmt: skip
KINDS = {
    "full batches": {"batch-size": 0, "local.max-steps": 1},
    "noisy gradients": {"privacy.mode": "gradient", "batch-size": 5, "local.max-steps": 3},
    "banded": {
        "privacy.mode": "gradient", "privacy.noise": "banded", "local.fresh-batches": False, "batch-size": 5,
        "local.max-steps": 2,
    },
    "shorter and shorter steps": {"batch-size": 0, "local.max-steps": 1, "step-decay": 0.5},
    "sampled sites": {"batch-size": 0, "local.max-steps": 1, "clients.per-round": 3},
    "rows as weights": {
        "batch-size": 0, "local.max-steps": 1, "clients.weighting": "rows", "partition.name": "sizes",
        "partition.sizes": "400, 12, 90, 90, 90, 200, 30, 7",
    },
}  # fmt: skip
kinds = pytest.mark.parametrize("keys", KINDS.values(), ids=KINDS)


def private(**keys):
    return small("fedavg", **{**STEPPING, "privacy.mode": "public-state"} | keys)


MOMENTA = {
    "no momentum": {}, "momentum": {"server-momentum": 0.9},
    "mean of changes": {"server-momentum": 0.9, "momentum-weight": 0.5},
}  # fmt: skip


def effects(rounds, beta, nu):
    """What a change of 1 in round t has moved the model by in the end; if it goes on for ever, times 1 - beta."""
    so_far = 1 - beta ** np.arange(rounds, 0, -1)
    return 1 - nu + nu * so_far if nu else so_far


@pytest.mark.parametrize(
    "kind, momentum",
    [(kind, name) for kind in KINDS for name in MOMENTA if kind != "banded" or not MOMENTA[name]],
)
def test_the_noise_in_a_model_is_that_of_the_formula(kind, momentum):
    """The gradients are small beside it, and steps of 1e-6 do not change them. Rounds near the end have not had all of
    their effect through momentum; where noise is correlated, that is no sum of squares, and is left out."""
    keys, others = KINDS[kind], MOMENTA[momentum]
    setups = [
        private(**keys | others | {"epsilon": 0.02, "step-size": 1e-6, "seed": seed}) for seed in range(4)
    ]
    method = setups[0].method
    weights = np.arange(1.0, 41.0) ** -method.step_decay
    so_far = effects(40, method.server_momentum, method.momentum_weight)
    known = np.linalg.norm(weights * so_far) / np.linalg.norm(weights)
    parts = [cohort.train([setup])[0].model / noise_in_model(setup.method, setup.plan) for setup in setups]
    assert abs(np.std(parts) / known - 1) < 5 / np.sqrt(2 * np.size(parts))


@kinds
@pytest.mark.parametrize("others", MOMENTA.values(), ids=MOMENTA)
def test_without_gradients_a_model_would_end_at_this_noise(keys, others):
    setup = private(**keys, **others)
    assert noise_in_model(setup.method, setup.plan) == pytest.approx(NOISE)


@pytest.mark.parametrize("row_norm, epsilon", [(1.0, 1000.0), (10.0, 2.0)])
def test_the_noise_after_several_steps_is_that_of_the_step_that_is_taken(row_norm, epsilon):
    """A step of 1 is a small part of it, or longer than the curvature allows, and says little about its noise."""
    keys = {"batch-size": 0, "local.max-steps": 8, "row-norm": row_norm, "epsilon": epsilon}
    setup = private(**keys)
    assert noise_in_model(setup.method, setup.plan) == pytest.approx(NOISE)
    assert np.abs(cohort.train([setup])[0].model).max() < 20


def test_clip_norm_and_epsilon_leave_the_noise_in_the_model_as_it_is():
    first = private(**KINDS["full batches"], objective__clip_norm=0.5)
    for keys in ({"objective.clip-norm": 0.05}, {"epsilon": 1.0}, {"rounds": 10}, {"samples-per-client": 30}):
        setup = private(**KINDS["full batches"] | {"objective.clip-norm": 0.5} | keys)
        ends = [noise_in_model(s.method, s.plan) for s in (first, setup)]
        assert ends[0] == pytest.approx(ends[1])
        assert first.method.step_size != pytest.approx(setup.method.step_size)


def test_where_noise_is_no_limit_steps_stay_short():
    """With more and more budget the noise limits a step, then the longest step; one of both always."""
    for epsilon in (2.0, 20.0, 100.0, 200.0, 300.0, 400.0, 600.0, 1e6):
        setup = private(**KINDS["full batches"], epsilon=epsilon)
        noise = noise_in_model(setup.method, setup.plan) / NOISE
        length = setup.method.step_size / (FARTHEST / setup.plan.bounds.gradient)
        assert max(noise, length) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["full batches", "sampled sites", "banded"])
def test_the_run_costs_what_it_may_in_all_runtimes_and_says_its_step(kind):
    setup = private(**KINDS[kind])
    assert setup.plan.epsilon_limit == pytest.approx(2.0, rel=1e-6)
    assert with_step(setup.method, setup.plan).step_size == pytest.approx(setup.method.step_size)
    result = run_strategy(setup, InProcessGrid(setup), "inprocess")
    (stacked,) = cohort.train([setup])
    np.testing.assert_allclose(stacked.model, result.model, rtol=1e-9, atol=1e-12)
    (told,) = [value for name, value in forecast(setup) if name.startswith("step size")]
    assert float(told) == pytest.approx(setup.method.step_size, rel=1e-5)


def test_what_a_user_sets_counts():
    chosen = {
        "algorithm": "fedavg",
        "objective.name": "torch:model.py:cnn",
        "privacy.mode": "gradient",
        "epsilon": 8.0,
    }
    config = parse(chosen)
    assert (config.method.step_size, config.method.server_momentum) == (0.0, 0.9)
    assert (config.objective.clip_norm, config.local.max_steps) == (1.0, 1)
    assert config.clients.weighting == "rows"  # a small site would have more noise than all others together
    assert parse(chosen | {"weighting": "clients"}).clients.weighting == "clients"
    config = parse(chosen | {"clip-norm": 0.5, "server-momentum": 0.0, "local.max-steps": 4})
    assert (config.method.step_size, config.method.server_momentum) == (0.0, 0.0)
    assert (config.objective.clip_norm, config.local.max_steps) == (0.5, 4)
    for others in (
        {"step-size": 0.1},
        {"privacy.trust": "sum", "privacy.honest-sites": 1},
        {"algorithm": "fedprox"},
    ):
        config = parse(chosen | others)
        assert config.method.step_size > 0
        assert config.objective.clip_norm == 0
    assert parse(config.items()) == config


def test_a_run_without_noise_of_its_own_needs_a_step_size():
    rule = "fedavg.step-size must be above 0"
    with pytest.raises(SettingError, match=rule):
        private(**KINDS["full batches"], privacy__trust="sum", privacy__honest_sites=8, clients__per_round=0)
    with pytest.raises(SettingError, match=rule):
        prepare(parse({"algorithm": "fedavg", "step-size": 0.0}))


def test_gradients_can_be_too_long_for_any_step():
    setup = private(**KINDS["full batches"])
    for gradient in (1e100, 1e110):
        plan = replace(setup.plan, bounds=Bounds(gradient, np.inf), multipliers=1e9 * setup.plan.multipliers)
        with pytest.raises(SettingError, match="finds no step that is short enough for the noise"):
            with_step(setup.method, plan)
