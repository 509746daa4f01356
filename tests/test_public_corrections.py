"""Several local steps on sums (docs/sums.md): what a dual for all sites cannot do, and steps on public corrections."""

import numpy as np
from numpy.testing import assert_allclose
from problems import central_optimum, convex_problem

from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective
from twinflower.problems.regularisers import ZERO

ETA, CURVATURE = 4.0, 0.25  # of rows of norm 1 under the logistic loss; ETA * CURVATURE <= 2


def path_end(objective, x0, mean, rows, eta, steps):
    """The end of x <- x - eta (g_i(x) - g_i(x0) + mean), which is a function of the site's rows and public numbers."""
    x, own = x0, objective.grad(x0, rows)
    for _ in range(steps):
        x = x - eta * (objective.grad(x, rows) - own + mean)
    return x


def bound(mean, rows, steps):
    """eta^2 L ||mean|| Q (Q - 1) / (2 m)."""
    return ETA**2 * CURVATURE * np.linalg.norm(mean) * steps * (steps - 1) / 2 / rows


def moved(x0, mean, rows, other, steps):
    """How far the replacement moves the end of the path, as a part of the bound."""
    objective = make_objective("logistic", rows.features.shape[1], 2)
    ends = [path_end(objective, x0, mean, data, ETA, steps) for data in (rows, other)]
    return float(np.linalg.norm(ends[0] - ends[1])) / bound(mean, len(rows.labels), steps)


def test_a_record_moves_a_corrected_path_by_no_more_than_the_bound():
    draw, ratios = np.random.default_rng(0), []
    for _ in range(500):
        m, d, steps = draw.integers(1, 20), draw.integers(1, 5), draw.integers(2, 9)
        features = draw.normal(size=(m + 1, d)) * draw.choice([0.01, 1, 100], size=(m + 1, 1))
        features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1)
        labels = draw.integers(0, 2, m + 1)
        rows = Batch(features[:m], labels[:m])
        other = Batch(np.vstack([features[1:m], features[m:]]), np.append(labels[1:m], labels[m]))
        x0, mean = (
            draw.normal(size=d) * draw.choice([0, 1, 10]),
            draw.normal(size=d) * draw.choice([0.01, 1, 10]),
        )
        ratios.append(moved(x0, mean, rows, other, steps))
    assert max(ratios) <= 1


def test_the_bound_is_attained_where_a_record_alone_has_curvature_along_the_path():
    m, mean = 200, np.array([1e-3, 0.0])
    rows = Batch(np.zeros((m, 2)), np.ones(m, int))
    other = rows._replace(features=np.vstack([[1.0, 0.0], rows.features[1:]]))
    assert moved(np.zeros(2), mean, rows, other, 6) > 0.95


def test_the_first_step_of_a_corrected_path_is_public():
    objective, rows = make_objective("logistic", 2, 2), Batch(np.eye(2), np.array([0, 1]))
    end = path_end(objective, np.ones(2), np.array([0.3, 0.1]), rows, ETA, 1)
    assert_allclose(end, np.ones(2) - ETA * np.array([0.3, 0.1]), rtol=1e-15)


def test_corrected_paths_of_sites_that_differ_end_at_the_optimum():
    shards, objective = convex_problem()
    optimum = central_optimum(objective, ZERO, shards.everyone())
    sites, x = [shards.rows(i) for i in range(shards.num_clients)], np.zeros(objective.d)
    for _ in range(200):
        mean = np.mean([objective.grad(x, rows) for rows in sites], 0)
        x = np.mean([path_end(objective, x, mean, rows, 1.0, 5) for rows in sites], 0)
    assert_allclose(x, optimum, rtol=0, atol=1e-9)


def test_with_a_dual_for_all_sites_every_point_can_be_at_rest():
    """Quadratics of different curvature: for any x0 there is a shift for which the sites' paths add up to no move."""
    draw, q, d = np.random.default_rng(0), 4, 3
    roots = draw.normal(size=(5, d, d))
    hessians, minima = roots @ roots.transpose(0, 2, 1) / d + np.eye(d), draw.normal(size=(5, d))
    x0 = draw.normal(size=d)
    slopes = np.einsum("ijk,ik->ij", hessians, x0 - minima)
    lengths = np.array(
        [sum(np.linalg.matrix_power(np.eye(d) - 0.1 * a, j) for j in range(q)) for a in hessians]
    )
    dual = -np.linalg.solve(lengths.sum(0), np.einsum("ijk,ik->j", lengths, slopes))

    def end(hessian, minimum):
        x = x0
        for _ in range(q):
            x = x - 0.1 * (hessian @ (x - minimum) + dual)
        return x

    assert_allclose(np.mean([end(a, b) for a, b in zip(hessians, minima, strict=True)], 0), x0, atol=1e-12)
    assert np.linalg.norm(slopes.mean(0)) > 0.1  # x0 is not the optimum
