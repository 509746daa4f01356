"""The central solver against other people's."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import root
from sklearn.linear_model import ElasticNet as SkElasticNet
from sklearn.linear_model import LogisticRegression

from twinflower.errors import SettingError
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import L1, ZERO, ElasticNet, WeightedL1Box

RNG = np.random.default_rng(0)
A = RNG.normal(size=(60, 8)) * np.logspace(0, -1.5, 8)
SOLUTION = np.array([2.0, -1.0, 0, 0, 3.0, 0, 1.0, 0])


def test_elastic_net_against_scikit_learn():
    y = A @ SOLUTION + 0.1 * RNG.normal(size=60)
    ours = minimise(make_objective("least-squares", 8, 0), ElasticNet(0.03, 0.02), Batch(A, y), np.zeros(8))
    theirs = SkElasticNet(alpha=0.05, l1_ratio=0.6, fit_intercept=False, tol=1e-14, max_iter=10**6).fit(A, y)
    assert_allclose(ours, theirs.coef_, atol=1e-9)
    assert (ours == 0).sum() == (theirs.coef_ == 0).sum() > 0


def test_logistic_regression_against_scikit_learn():
    y = (A @ SOLUTION + RNG.normal(size=60) > 0).astype(int)
    ours = minimise(make_objective("logistic", 8, 2, l2=0.01), ZERO, Batch(A, y), np.zeros(8))
    theirs = LogisticRegression(
        C=1 / (0.01 * 60), fit_intercept=False, tol=1e-12, solver="newton-cholesky"
    ).fit(A, y)
    assert_allclose(ours, theirs.coef_[0], atol=1e-7)


@pytest.mark.parametrize("h", [L1(0.02), WeightedL1Box(np.full(8, 0.02), -0.3, 0.3)])
def test_the_result_is_a_fixed_point_of_the_proximal_step(h):
    y = (A @ SOLUTION > 0).astype(int)
    f = make_objective("logistic", 8, 2, l2=0.1)
    x = minimise(f, h, Batch(A, y), np.zeros(8))
    assert_allclose(h.prox(x - 0.7 * f.grad(x, Batch(A, y)), 0.7), x, atol=1e-11)


def test_clipped_gradients_balance():
    y = A @ SOLUTION + RNG.standard_t(2, size=60)
    f = make_objective("least-squares", 8, 0, l2=0.1, clip_norm=0.4)
    x = minimise(f, ZERO, Batch(A, y), np.zeros(8))
    theirs = root(lambda v: f.grad(v, Batch(A, y)), np.zeros(8), tol=1e-13)
    assert_allclose(x, theirs.x, atol=1e-8)


def test_only_convex_objectives():
    with pytest.raises(SettingError, match="needs a convex objective"):
        minimise(
            make_objective("logistic", 8, 2, nonconvex=0.1), ZERO, Batch(A, np.zeros(60, int)), np.zeros(8)
        )
