"""Networks: gradients against finite differences, clipping row by row, and what the door refuses."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from problems import small

from twinflower.errors import SettingError
from twinflower.known_objectives import make_model
from twinflower.problems.interfaces import Batch
from twinflower.problems.networks import NETWORKS, Network, swish
from twinflower.problems.objectives import LOSSES

ROOT = Path(__file__).resolve().parent.parent
FEATURES, CLASSES, HIDDEN, ROWS = 7, 3, 5, 6
every_network = pytest.mark.parametrize("name", NETWORKS)


def problem(name, seed=0, **keys):
    rng = np.random.default_rng(seed)
    model = make_model(name, FEATURES, CLASSES, hidden_units=HIDDEN, **keys)
    rows = Batch(rng.normal(size=(ROWS, FEATURES)), rng.integers(CLASSES, size=ROWS))
    return model, rows, model.start(rng) + 0.1 * rng.normal(size=model.d)


@every_network
def test_scores_are_the_formula(name):
    model, rows, x = problem(name)
    w1, w2 = x[: HIDDEN * FEATURES].reshape(HIDDEN, FEATURES), x[HIDDEN * FEATURES :].reshape(CLASSES, HIDDEN)
    for a, score in zip(rows.features, model.scores(x, rows.features), strict=True):
        z = w1 @ a
        unit = 1 / (1 + np.exp(-z)) * (z if name == "swish-network" else 1)
        assert_allclose(score, w2 @ unit, rtol=1e-13)


@every_network
@pytest.mark.parametrize("weighted", [False, True])
def test_gradient_is_the_derivative_of_the_value(name, weighted):
    model, rows, x = problem(name, l2=0.3, nonconvex=0.2)
    if weighted:
        rows = rows._replace(weights=np.arange(1.0, ROWS + 1) / 21)
    e = 1e-6 * np.eye(model.d)
    slopes = (model.value(x + e, rows) - model.value(x - e, rows)) / 2e-6
    assert_allclose(model.grad(x, rows), slopes, rtol=1e-6, atol=1e-8)


@every_network
def test_stacked_clients_are_single_clients(name):
    model, rows, _ = problem(name, clip_norm=0.5)
    rng = np.random.default_rng(1)
    xs, features = rng.normal(size=(4, model.d)), rng.normal(size=(4, ROWS, FEATURES))
    labels = rng.integers(CLASSES, size=(4, ROWS))
    for batch in (Batch(features, labels), rows):  # rows of their own, or the same for all
        together = model.grad(xs, batch)
        for i, x in enumerate(xs):
            own = Batch(features[i], labels[i]) if batch is not rows else rows
            assert_allclose(together[i], model.grad(x, own), rtol=1e-12, atol=1e-15)


@every_network
def test_one_point_meets_the_rows_of_many_clients(name):
    model, rows, x = problem(name)
    batch = Batch(np.stack([rows.features, -rows.features]), np.stack([rows.labels] * 2))
    assert_allclose(model.grad(x, batch)[0], model.grad(x, rows), rtol=1e-12)


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
def test_losses_and_several_gradients_take_one_forward_pass(clip_norm):
    passes = []

    def counted(z):
        passes.append(z.shape)
        return swish(z)

    network = Network(LOSSES["softmax"], counted, 3, 4, 5, clip_norm=clip_norm, nonconvex=0.1)
    rng = np.random.default_rng(0)
    rows = Batch(rng.normal(size=(2, 6, 5)), rng.integers(3, size=(2, 6)))
    x, weightings = rng.normal(size=(2, network.d)), [rng.random((2, 6)) for _ in range(3)]
    losses, grads = network.losses_and_grads(x, rows, weightings)
    assert len(passes) == 1
    assert_array_equal(losses, network.losses(x, rows))
    for weights, grad in zip(weightings, grads, strict=True):
        assert_array_equal(grad, network.grad(x, rows._replace(weights=weights)))


@every_network
def test_clipping_bounds_every_rows_gradient_and_nothing_else(name):
    model, rows, x = problem(name)
    alone = [model.grad(x, Batch(a[None], y[None])) for a, y in zip(rows.features, rows.labels, strict=True)]
    norms = np.linalg.norm(alone, axis=1)
    limit = float(np.median(norms))
    clipped = make_model(name, FEATURES, CLASSES, hidden_units=HIDDEN, clip_norm=limit).grad(x, rows)
    expected = np.mean([g * min(1, limit / n) for g, n in zip(alone, norms, strict=True)], axis=0)
    assert_allclose(clipped, expected, rtol=1e-12, atol=1e-15)


@every_network
def test_a_clipped_batch_is_its_mean_gradient_over_both_layers_cut_to_the_norm(name):
    model, rows, x = problem(name)
    whole = model.grad(x, rows)
    limit = 0.5 * float(np.linalg.norm(whole))
    keys = {"hidden_units": HIDDEN, "clip_norm": limit, "clip": "batch"}
    assert_allclose(make_model(name, FEATURES, CLASSES, **keys).grad(x, rows), 0.5 * whole, rtol=1e-12)
    one = Batch(rows.features[:1], rows.labels[:1])
    either = [make_model(name, FEATURES, CLASSES, **keys | {"clip": clip}) for clip in ("rows", "batch")]
    assert_allclose(*(m.grad(x, one) for m in either), rtol=1e-12, atol=1e-15)


@every_network
def test_bounds_come_from_clipping_only(name):
    with pytest.raises(SettingError, match="set clip-norm above 0"):
        problem(name)[0].bounds(1.0)
    assert problem(name, clip_norm=0.7)[0].bounds(0.0).gradient == 0.7


def test_the_door():
    with pytest.raises(SettingError, match="hidden-units must be from 1 to 100000; got 0"):
        make_model("swish-network", FEATURES, CLASSES, hidden_units=0)
    with pytest.raises(SettingError, match="objective softmax has no setting 'hidden-units'"):
        make_model("softmax", FEATURES, CLASSES, hidden_units=5)
    with pytest.raises(
        SettingError, match=r"must be one of softmax.*swish-network.*, torch:FILE.py:NAME; got 'relu'"
    ):
        make_model("relu", FEATURES, CLASSES)


def test_a_module_where_pytorch_is_not_installed():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from twinflower.known_objectives import make_model\n"
        "from twinflower.errors import SettingError\n"
        "try: make_model('torch:model.py:net', 7, 3)\n"
        "except SettingError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("PyTorch is not installed: pip install torch\n", "")


def test_a_network_starts_at_glorots_weights_and_learns():
    from twinflower.simulation.runtimes import cohort

    keys = {
        "objective.name": "swish-network",
        "hidden_units": 16,
        "row_norm": 0.0,
        "rounds": 15,
        "step_size": 0.5,
    }
    setup = small("fedavg", **keys, batch_size=0, local__max_steps=5, clients__per_round=0, step_decay=0.0)
    limits = np.sqrt(6 / np.array([16 + 65, 10 + 16]))
    assert 0.9 < np.abs(setup.start[: 16 * 65]).max() / limits[0] <= 1
    assert 0.9 < np.abs(setup.start[16 * 65 :]).max() / limits[1] <= 1
    (result,) = cohort.train([setup])
    assert result.rows[-1]["test_accuracy"] > 0.8 > 0.3 > result.rows[0]["test_accuracy"]
