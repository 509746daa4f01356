"""Weights of classes: what they mean, what they cost in privacy, and that every runtime has them."""

import numpy as np
import pytest
import statsmodels.api as sm
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import small
from site_files import two_classes
from sklearn.linear_model import LogisticRegression
from test_inference import at_maximum, sites

import twinflower
from twinflower.algorithms import FedAvg
from twinflower.errors import SettingError
from twinflower.known_objectives import make_model
from twinflower.models.model import inferred
from twinflower.privacy.audit import neighbours, replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.interfaces import Batch
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse

NAMES = {"logistic": 2, "softmax": 3, "rowwise-logistic": 3, "swish-network": 3}


def weighted(name, weights="", **settings):
    return make_model(name, 4, NAMES[name], class_weights=weights, **settings)


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_weight_is_so_many_copies_of_a_row(name):
    rng = np.random.default_rng(0)
    labels = rng.integers(NAMES[name], size=12)
    weights = np.array([1, 3, 2])[: NAMES[name]]
    rows = Batch(rng.normal(size=(12, 4)), labels)
    copies = np.repeat(np.arange(12), weights[labels])
    many = Batch(rows.features[copies], labels[copies])
    own, plain = weighted(name, ",".join(map(str, weights))), weighted(name)
    x = rng.normal(size=plain.d)
    assert_allclose(12 * own.value(x, rows), len(copies) * plain.value(x, many))
    assert_allclose(12 * own.grad(x, rows), len(copies) * plain.grad(x, many), atol=1e-12)
    assert_array_equal(own.predict(x, rows.features), plain.predict(x, rows.features))
    assert own.score(x, rows) == plain.score(x, rows)


@pytest.mark.parametrize("name", NAMES)
def test_weights_of_1_change_no_bit(name):
    rng = np.random.default_rng(1)
    rows = Batch(rng.normal(size=(9, 4)), rng.integers(NAMES[name], size=9))
    own, plain = weighted(name, ",".join("1" * NAMES[name])), weighted(name)
    x = rng.normal(size=plain.d)
    assert own.value(x, rows) == plain.value(x, rows)
    assert_array_equal(own.grad(x, rows), plain.grad(x, rows))


def test_the_largest_weight_is_in_the_bounds():
    own, plain = weighted("logistic", "0.5,4").bounds(0.7), weighted("logistic").bounds(0.7)
    assert (own.gradient, own.curvature) == (4 * plain.gradient, 4 * plain.curvature)
    assert weighted("logistic", "0.5,4", clip_norm=1.0).bounds(0.7).gradient == 1.0


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("mode", ["public-state", "gradient"])
def test_replay_attains_the_sensitivity_and_never_exceeds_it(mode, steps):
    """A record of the heavier class is replaced by one that is nearly its negative; then its class changes, too."""
    objective, (data, other) = weighted("logistic", "1,4"), neighbours(12, 4, 1.0)
    bounds, algorithm = objective.bounds(1.0), FedAvg(step_size=0.2, privacy=mode)
    start = 1e3 * np.eye(4)[0]
    inbox = algorithm.broadcast(algorithm.init_server(start, 1, np.array(0, np.uint64)), 1, np.array(0))
    turned = other._replace(labels=np.where(np.arange(12) == 0, 0, other.labels))
    for neighbour in (other, turned):
        moves = replay(algorithm, objective, data, neighbour, LocalSchedule(0, steps), bounds, [inbox] * 3)
        assert all(move.agrees for move in moves)
        assert all(move.moved <= move.sensitivity * (1 + 1e-9) for move in moves)
    if steps == 1 or mode == "gradient":
        moves = replay(algorithm, objective, data, other, LocalSchedule(0, steps), bounds, [inbox] * 3)
        assert max(move.moved / move.sensitivity for move in moves) >= 0.99


def test_a_run_ends_where_scikit_learn_does(tmp_path):
    keys = two_classes(tmp_path, **{"objective.class-weights": "1,3", "clients.weighting": "rows"})
    keys |= {"rounds": 800, "fedavg.step-size": 5.0, "evaluation.every": 800}
    setup = prepare(parse(keys))
    (result,) = cohort.train([setup])
    rows = setup.dataset
    known = LogisticRegression(
        C=np.inf, fit_intercept=False, class_weight={0: 1, 1: 3}, tol=1e-10, max_iter=1000
    )
    known.fit(rows.features, rows.labels)
    assert_allclose(result.model, known.coef_[0], rtol=1e-4)


@pytest.mark.parametrize("name", ["fedpdm", "fedpdm-private", "ssca", "zcdp-nfl-private"])
def test_all_runtimes_give_the_same_model(name):
    setup = small(name, **{"objective.class-weights": "1,2,1,1,3,1,1,1,0.5,1"})
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    assert_array_equal(direct.model, wired.model)
    assert_allclose(direct.model, arrays.model, rtol=1e-9, atol=1e-12)
    assert not np.array_equal(direct.model, inprocess.train(small(name)).model)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"objective.class-weights": "1,2"}, "objective.class-weights needs 10 numbers; got 2"),
        ({"objective.class-weights": "1,x"}, "must be numbers from 1e-6 to 1e6"),
        ({"objective.class-weights": "0,1"}, "must be numbers from 1e-6 to 1e6"),
        ({"objective.class-weights": "nan,1"}, "must be numbers from 1e-6 to 1e6"),
        (
            {"data.name": "linear", "objective.name": "huber", "objective.class-weights": "1,2"},
            "needs classes, and objective 'huber' has none",
        ),
    ],
)
def test_weights_that_fit_no_classes_are_refused(keys, why):
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse({"algorithm": "fedavg", "rounds": 2} | keys))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("objective", "weights"), [("logistic", "1,3"), ("softmax", "1,2.5,0.5")])
def test_standard_errors_are_the_sandwich_of_the_weighted_scores(objective, weights, tmp_path):
    """H^-1 (sum w^2 g g^T) H^-1 from probabilities, at the root of the weighted scores, asked for or not."""
    keys, design, labels = sites(tmp_path, objective)
    setup = at_maximum(prepare(parse(keys | {"objective.class-weights": weights})))
    (result,) = cohort.train([setup])
    model = trained_model(setup, result.model, None, result.information)
    default, robust = inferred(model), inferred(model, robust=True)
    rows = [row for row in default.rows if row.term != row.reference or not row.term]
    classes = np.unique(labels)[1:]
    w = np.array(list(map(float, weights.split(","))))[labels]
    shifted = np.array([row.estimate for row in rows]).reshape(len(classes), -1) @ design.T
    odds = np.exp(np.vstack([np.zeros(len(labels)), shifted]))
    p = (odds / odds.sum(0))[1:].T
    scores = ((p - (labels[:, None] == classes)) * w[:, None])[:, :, None] * design[:, None, :]
    scores = scores.reshape(len(labels), -1)
    middle = p[:, :, None] * np.eye(len(classes)) - p[:, :, None] * p[:, None, :]
    size = scores.shape[1]
    matrix = np.einsum("b,bij,bk,bl->ikjl", w, middle, design, design).reshape(size, size)
    inverse = np.linalg.inv(matrix)
    assert_allclose(np.linalg.norm(np.linalg.solve(matrix, scores.sum(0))), 0, atol=1e-7)
    errors = np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse))
    assert_allclose([row.std_error for row in rows], errors, rtol=1e-6)
    assert np.abs(np.sqrt(np.diag(inverse)) / errors - 1).max() > 0.05  # the model-based form is another one
    assert_array_equal([row.std_error for row in robust.rows], [row.std_error for row in default.rows])
    assert "a weighted loss is not a likelihood" in default.remarks[0]
    saved = twinflower.load(write_run(result, tmp_path / "run"))
    assert saved.coefficients()[0].std_error == default.rows[0].std_error


def test_logistic_errors_are_those_of_statsmodels_with_weights(tmp_path):
    keys, design, labels = sites(tmp_path, "logistic")
    setup = at_maximum(prepare(parse(keys | {"objective.class-weights": "1,3"})))
    (result,) = cohort.train([setup])
    found = inferred(trained_model(setup, result.model, None, result.information))
    rows = [row for row in found.rows if row.term != row.reference or not row.term]
    weights = np.array([1.0, 3.0])[labels]
    model = sm.GLM(labels, design.astype(float), family=sm.families.Binomial(), var_weights=weights)
    known = model.fit(tol=1e-14, maxiter=100, cov_type="HC0")
    assert_allclose([row.estimate for row in rows], known.params, rtol=1e-8)
    assert_allclose([row.std_error for row in rows], known.bse, rtol=1e-8)


def test_private_standard_errors_are_refused_with_weights(tmp_path):
    keys = two_classes(tmp_path, **{"objective.class-weights": "1,3", "evaluation.standard-errors": True})
    keys |= {"privacy.mode": "gradient", "privacy.epsilon": 1.0, "privacy.delta": 1e-5}
    with pytest.raises(
        SettingError, match="robust errors need exact sums: remove the weights, or train without"
    ):
        prepare(parse(keys))
