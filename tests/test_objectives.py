"""Losses against finite differences, the papers' formula row by row, SciPy's minimiser and scikit-learn."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.special import expit, softmax
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, log_loss, r2_score

from twinflower.errors import SettingError
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import packed
from twinflower.problems.objectives import LOSSES, majority_baseline, make_objective

CLASSES = {
    "softmax": 4,
    "rowwise-logistic": 4,
    "logistic": 2,
    "least-squares": 0,
    "huber": 0,
    "absolute": 0,
    "poisson": 0,
}
PENALTIES = [{}, {"l2": 0.3}, {"nonconvex": 0.7}, {"l2": 0.3, "nonconvex": 0.7}]
ROWS, FEATURES = 9, 5

every_loss = pytest.mark.parametrize("name", LOSSES)
every_penalty = pytest.mark.parametrize("penalties", PENALTIES, ids=lambda p: "+".join(p) or "none")
with_and_without_weights = pytest.mark.parametrize("weighted", [False, True])


def draw_batch(rng, name, leading=(), weighted=False, rows=ROWS):
    """Random rows, which nobody may write to."""
    shape = (*leading, rows)
    labels = rng.integers(CLASSES[name], size=shape) if CLASSES[name] else rng.normal(size=shape)
    if name == "poisson":
        labels = packed(rng.integers(5, size=shape), labels)
    weights = rng.dirichlet(np.ones(rows), leading) if weighted else None
    batch = Batch(rng.normal(size=(*shape, FEATURES)), labels, weights)
    for array in batch[: 2 + weighted]:
        array.setflags(write=False)
    return batch


def build(name, **penalties):
    return make_objective(name, FEATURES, CLASSES[name], **penalties)


def minimum(objective, rows):
    """Where SciPy's BFGS finds the least value."""
    return minimize(
        objective.value, np.zeros(objective.d), (rows,), "BFGS", objective.grad, options={"gtol": 1e-9}
    ).x


def printed(X, rows, beta):
    """Li 2024 (41) = Li 2023 (25) as printed: Y_ij = a b^T with the one-hot label b, for one client."""
    total = 0.0
    for a, y in zip(rows.features, rows.labels, strict=True):
        b = [float(k == y) for k in range(len(X))]
        total += math.log(1 + math.exp(-np.trace(X @ np.outer(a, b))))
    return total / len(rows.labels) + beta * sum(z**2 / (1 + z**2) for z in X.flat)


# --- value and gradient ---


@every_loss
@every_penalty
@with_and_without_weights
def test_gradient_is_the_central_difference(name, penalties, weighted):
    rng = np.random.default_rng(1)
    objective, rows = build(name, **penalties), draw_batch(rng, name, weighted=weighted)
    x, h = rng.normal(size=objective.d), 1e-5
    shifts = h * np.eye(objective.d)
    slopes = (objective.value(x + shifts, rows) - objective.value(x - shifts, rows)) / (2 * h)
    assert_allclose(objective.grad(x, rows), slopes, atol=1e-9)


@every_loss
@with_and_without_weights
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.2}, {"clip_norm": 0.2, "clip": "batch"}], ids=str)
def test_a_scaled_gradient_is_a_multiple_of_the_gradient(name, clip, weighted):
    rng = np.random.default_rng(3)
    objective, rows = build(name, **clip, **PENALTIES[-1]), draw_batch(rng, name, weighted=weighted)
    x = rng.normal(size=objective.d)
    for scale in (1e-3, 0.4, 7.0):
        assert_allclose(objective.grad(x, rows, scale), scale * objective.grad(x, rows), rtol=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.01, 5.0])
def test_rowwise_logistic_is_the_papers_formula(beta):
    rng = np.random.default_rng(2)
    objective, rows = build("rowwise-logistic", nonconvex=beta), draw_batch(rng, "rowwise-logistic")
    X = rng.normal(size=(4, FEATURES))
    assert_allclose(objective.value(X.ravel(), rows), printed(X, rows, beta), rtol=1e-14)


@every_loss
def test_penalties_add_their_formulas(name):
    rng = np.random.default_rng(3)
    plain, rows = build(name), draw_batch(rng, name)
    x = rng.normal(size=plain.d)
    penalty = sum(0.3 / 2 * z**2 + 0.7 * z**2 / (1 + z**2) for z in x)
    added = build(name, l2=0.3, nonconvex=0.7).value(x, rows) - plain.value(x, rows)
    assert_allclose(added, penalty, rtol=1e-13)


@with_and_without_weights
def test_softmax_and_logistic_are_scikit_learns_log_loss(weighted):
    rng = np.random.default_rng(4)
    for name, probabilities in (
        ("softmax", lambda s: softmax(s, axis=1)),
        ("logistic", lambda s: np.hstack([expit(-s), expit(s)])),
    ):
        objective, rows = build(name), draw_batch(rng, name, weighted=weighted)
        X = rng.normal(size=(objective.outputs, FEATURES))
        answers = probabilities(rows.features @ X.T)
        wanted = log_loss(rows.labels, answers, labels=range(CLASSES[name]), sample_weight=rows.weights)
        assert_allclose(objective.value(X.ravel(), rows), wanted, rtol=1e-13)


def test_with_two_classes_every_logistic_loss_is_the_binary_one():
    """softmax(X) = logistic(X[1] - X[0]) and rowwise(-x, x) = logistic(x), slopes by the chain rule."""
    rng = np.random.default_rng(5)
    rows = draw_batch(rng, "logistic")
    binary = build("logistic")
    for name, factor in (("softmax", 2), ("rowwise-logistic", 1)):
        objective, X = make_objective(name, FEATURES, 2), rng.normal(size=FEATURES) * [[-1], [1]]
        assert_allclose(objective.value(X.ravel(), rows), binary.value(factor * X[1], rows), rtol=1e-14)
        down, up = objective.grad(X.ravel(), rows).reshape(X.shape)
        assert_allclose(up - down, factor * binary.grad(factor * X[1], rows), rtol=1e-12, atol=1e-15)


@every_loss
@with_and_without_weights
def test_a_cohorts_call_is_each_clients_own(name, weighted):
    rng = np.random.default_rng(6)
    objective = build(name, l2=0.3, nonconvex=0.7)
    own = draw_batch(rng, name, (3, 2), weighted)
    shared = draw_batch(rng, name, (), weighted)
    x = rng.normal(size=(3, 2, objective.d))
    for rows in (own, shared):
        results = (
            objective.value(x, rows),
            objective.grad(x, rows),
            objective.score(x, rows),
            objective.predict(x, rows.features),
        )
        for client in np.ndindex(3, 2):
            alone = rows if rows is shared else Batch(*(a if a is None else a[client] for a in own))
            assert_array_equal(results[0][client], objective.value(x[client], alone))
            assert_array_equal(results[1][client], objective.grad(x[client], alone))
            assert_array_equal(results[2][client], objective.score(x[client], alone))
            assert_array_equal(results[3][client], objective.predict(x[client], alone.features))


@every_loss
def test_one_point_on_many_clients_rows(name):
    rng = np.random.default_rng(7)
    objective, rows = build(name, l2=0.3, nonconvex=0.7), draw_batch(rng, name, (3,))
    x = rng.normal(size=objective.d)
    everywhere = np.broadcast_to(x, (3, objective.d))
    assert_array_equal(objective.value(x, rows), objective.value(everywhere, rows))
    assert_array_equal(objective.grad(x, rows), objective.grad(everywhere, rows))


@every_loss
def test_rows_of_weight_0_are_not_there(name):
    rng = np.random.default_rng(8)
    objective, rows = build(name, l2=0.1), draw_batch(rng, name)
    x = rng.normal(size=objective.d)
    filled = Batch(*rows[:2], np.repeat([1 / 6, 0], [6, ROWS - 6]))
    there = Batch(rows.features[:6], rows.labels[:6])
    for function in (objective.value, objective.grad, objective.score):
        assert_allclose(function(x, filled), function(x, there), rtol=1e-12)


@every_loss
def test_the_gradient_is_a_new_array(name):
    rng = np.random.default_rng(9)
    objective, rows = build(name), draw_batch(rng, name)
    x = rng.normal(size=objective.d)
    x.setflags(write=False)
    grad = objective.grad(x, rows)
    before = grad.copy()
    grad += 1  # callers may
    assert_array_equal(objective.grad(x, rows), before)


@pytest.mark.parametrize(
    "name, scores, label, value, slope",
    [
        ("softmax", [1e6, 0, -1e6], 0, 0, [0, 0, 0]),
        ("softmax", [1e6, 0, -1e6], 2, 2e6, [1, 0, -1]),
        ("rowwise-logistic", [1e6, 0, -1e6], 0, 0, [0, 0, 0]),
        ("rowwise-logistic", [1e6, 0, -1e6], 2, 1e6, [0, 0, -1]),
        ("logistic", [1e6], 1, 0, [0]),
        ("logistic", [1e6], 0, 1e6, [1]),
        ("logistic", [-1e6], 0, 0, [0]),
        ("logistic", [-1e6], 1, 1e6, [-1]),
    ],
)
def test_extreme_scores_do_not_overflow(name, scores, label, value, slope):
    x, rows = np.array(scores, float), Batch(np.ones((1, 1)), np.array([label]))
    objective = make_objective(name, 1, max(2, len(scores)))
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert objective.value(x, rows) == value
        assert_array_equal(objective.grad(x, rows), slope)


# --- minimisers ---


@pytest.mark.parametrize("name", ["logistic", "softmax"])
def test_l2_logistic_minimum_is_scikit_learns(name):
    rng = np.random.default_rng(10)
    l2, rows = 0.05, draw_batch(rng, name, rows=60)
    oracle = LogisticRegression(C=1 / (60 * l2), fit_intercept=False, solver="newton-cg", tol=1e-12)
    oracle.fit(rows.features, rows.labels)
    assert_allclose(minimum(build(name, l2=l2), rows), oracle.coef_.ravel(), atol=1e-7)


@pytest.mark.parametrize("l2", [0.0, 0.5])
def test_least_squares_minimum_is_lstsq_and_ridge(l2):
    rng = np.random.default_rng(11)
    rows = draw_batch(rng, "least-squares", rows=60)
    if l2:
        oracle = Ridge(60 * l2, fit_intercept=False).fit(rows.features, rows.labels).coef_
    else:
        oracle = np.linalg.lstsq(rows.features, rows.labels)[0]
    assert_allclose(minimum(build("least-squares", l2=l2), rows), oracle, atol=1e-8)


# --- predictions and scores ---


def test_classifiers_answer_with_the_largest_score():
    X, features = np.array([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]), np.array([[1, 0], [1, 1], [-3, 1], [0, 0]])
    for name in ("softmax", "rowwise-logistic"):
        assert_array_equal(make_objective(name, 2, 3).predict(X.ravel(), features), [0, 1, 2, 0])
    assert_array_equal(make_objective("logistic", 2, 2).predict(X[0], features), [1, 1, 0, 0])
    assert_array_equal(make_objective("least-squares", 2, 0).predict(X[2], features), [-1, 0, 4, 0])


@every_loss
@with_and_without_weights
def test_score_is_accuracy_or_r2(name, weighted):
    rng = np.random.default_rng(12)
    objective, rows = build(name), draw_batch(rng, name, weighted=weighted)
    x = rng.normal(size=objective.d)
    oracle = accuracy_score if CLASSES[name] else r2_score
    predicted, observed = objective.loss.compared(objective.scores(x, rows.features), rows.labels)
    if name != "poisson":  # whose labels hold an offset, too
        assert_array_equal(observed, rows.labels)
        assert_array_equal(predicted, objective.predict(x, rows.features))
    wanted = oracle(observed, predicted, sample_weight=rows.weights)
    assert_allclose(objective.score(x, rows), wanted, rtol=1e-13)


def test_r2_of_labels_that_do_not_vary_is_undefined():
    rows = Batch(np.ones((3, FEATURES)), np.full(3, 2.0))
    assert np.isnan(build("least-squares").score(np.zeros(FEATURES), rows))


@every_loss
def test_kept_norms_of_rows_change_no_bit_of_a_clipped_gradient(name):
    rng = np.random.default_rng(13)
    objective, rows = build(name, clip_norm=0.5), draw_batch(rng, name, (3,))
    x = rng.normal(size=(3, objective.d))
    kept = rows._replace(lengths=rows.norms())
    assert_array_equal(objective.grad(x, kept), objective.grad(x, rows))
    assert_allclose(kept.lengths, np.linalg.norm(rows.features, axis=-1))


@every_loss
@with_and_without_weights
def test_a_clipped_batch_has_the_direction_of_its_mean_gradient_and_at_most_the_norm(name, weighted):
    """Each client's batch by itself, the penalty not clipped; rows clipped one by one give another direction."""
    rng = np.random.default_rng(14)
    rows = draw_batch(rng, name, (3,), weighted)
    x = rng.normal(size=(3, build(name).d))
    free, penalty = build(name).grad(x, rows), build(name, l2=0.3).grad(x, rows) - build(name).grad(x, rows)
    norms = np.linalg.norm(free, axis=-1, keepdims=True)
    limit = float(np.median(norms))  # one longer, one as long, one shorter
    clipped = build(name, l2=0.3, clip_norm=limit, clip="batch").grad(x, rows)
    assert_allclose(clipped - penalty, free * np.minimum(1, limit / norms), rtol=1e-12, atol=1e-14)
    assert (np.linalg.norm(clipped - penalty, axis=-1) <= limit * (1 + 1e-12)).all()
    by_rows = build(name, l2=0.3, clip_norm=limit).grad(x, rows)
    assert np.abs(by_rows - clipped).max() > 1e-3


@every_loss
@pytest.mark.parametrize("limit", [0.05, 0.7, 1e6])
def test_a_batch_of_one_row_is_clipped_alike_either_way(name, limit):
    rng = np.random.default_rng(15)
    rows = draw_batch(rng, name, (5,), rows=1)
    x = rng.normal(size=(5, build(name).d))
    either = [build(name, l2=0.3, clip_norm=limit, clip=clip).grad(x, rows) for clip in ("rows", "batch")]
    assert_allclose(*either, rtol=1e-12, atol=1e-15)


def test_one_record_moves_a_clipped_batch_by_twice_the_norm_however_many_rows_there_are():
    """The worst case of the papers' Assumption 3: rows that cancel, and one that does not."""
    features = np.tile([[1.0, 0.0], [-1.0, 0.0]], (50, 1))
    rows = Batch(features, np.zeros(100, int))
    x, tiny = np.zeros(2), 1e-3
    moved = {}
    for clip in ("rows", "batch"):
        objective = make_objective("logistic", 2, 2, clip_norm=tiny, clip=clip)
        ends = [
            objective.grad(x, rows._replace(features=np.vstack([[a, 0.0], features[1:]])))
            for a in (3.0, -3.0)
        ]
        moved[clip] = np.linalg.norm(ends[0] - ends[1])
    assert_allclose([moved["rows"], moved["batch"]], [2 * tiny / 100, 2 * tiny], rtol=1e-9)


def test_majority_baseline_is_the_best_constant_answer_learnt_from_the_training_labels():
    rng = np.random.default_rng(13)
    for _ in range(50):  # few labels: ties are frequent
        train, test = rng.integers(4, size=6), rng.integers(4, size=9)
        oracle = DummyClassifier(strategy="most_frequent").fit(train, train)
        assert majority_baseline(train, test) == oracle.score(test, test)


# --- at the door ---


@pytest.mark.parametrize(
    "name, num_classes, penalties, text",
    [
        ("hinge", 2, {}, "objective must be one of softmax, rowwise-logistic, .*; got 'hinge'"),
        ("softmax", 0, {}, "'softmax' needs classes; .* use 'least-squares'"),
        ("rowwise-logistic", 1, {}, "'rowwise-logistic' needs classes"),
        ("logistic", 10, {}, "'logistic' needs 2 classes; got 10: try 'softmax'"),
        ("least-squares", 2, {}, "'least-squares' needs real labels"),
        ("softmax", 3, {"l2": -1.0}, "l2 must be at least 0; got -1.0"),
        ("softmax", 3, {"l2": math.nan}, "l2 must be finite; got nan"),
        ("softmax", 3, {"clip": "batch"}, "clip = batch needs clip-norm above 0"),
        ("softmax", 3, {"clip": "both", "clip_norm": 1.0}, "clip must be one of rows, batch; got 'both'"),
        ("softmax", 3, {"nonconvex": -0.5}, "nonconvex must be at least 0; got -0.5"),
    ],
)
def test_what_cannot_be_is_refused(name, num_classes, penalties, text):
    with pytest.raises(SettingError, match=text):
        make_objective(name, FEATURES, num_classes, **penalties)
