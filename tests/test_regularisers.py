"""Proximal maps against the definition, grids, conjugates, and each other."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from twinflower.errors import SettingError
from twinflower.problems.interfaces import Part
from twinflower.problems.penalties import REGULARISERS, make_regulariser
from twinflower.problems.regularisers import L1, Ball, Box, ElasticNet, GroupL1, WeightedL1Box, Zero, on_part
from twinflower.settings import settings_of

D, ROWS = 6, 2
WEIGHTS = np.array([0.0, 0.2, 0.5, 0.5, 1.0, 3.0])
LOWER, UPPER = np.array([-1.0, -1, 0, 0.5, -2, -3]), np.array([1.0, 0, 2, 2, -0.5, 3])  # 0 not always inside

NUMBERS = {
    "weight": 0.3,
    "l1": 0.3,
    "l2": 0.5,
    "bound": 0.8,
    "radius": 1.1,
    "entries": "4, 1",
    "parameters": "",
    "intercept": True,
}
EVERY = {
    name: make_regulariser(name, ROWS, **{key: NUMBERS[key] for key in settings_of(entry)})
    for name, entry in REGULARISERS.items()
} | {
    "box of its own per entry": Box(LOWER, UPPER),
    "weights and box per entry": WeightedL1Box(WEIGHTS, LOWER, UPPER),
    "l1 on a part": on_part(L1(0.3), [Part((0, 2), 1), Part((4, 6), 1)]),
}

every_regulariser = pytest.mark.parametrize("h", EVERY.values(), ids=EVERY)
every_step = pytest.mark.parametrize("step", [0.05, 1.0, 4.0])

POINTS = arrays(float, D, elements=st.floats(-1e3, 1e3))
STEPS = st.floats(-3, 3).map(lambda x: 10.0**x)


def square(x):
    return (x * x).sum(-1)


# --- the definition ---


@every_regulariser
@every_step
def test_prox_is_the_minimiser(h, step):
    """With p = prox(u), strong convexity makes h(v) + |v-u|^2/2s at least h(p) + |p-u|^2/2s + |v-p|^2/2s."""
    rng = np.random.default_rng(1)
    u = 2 * rng.normal(size=(20, 1, D))
    p = h.prox(u, step)
    near = p + 10.0 ** rng.uniform(-4, 1, (20, 400, 1)) * rng.normal(size=(20, 400, D))
    for v in (near, h.prox(near, step)):  # the second are always where h is finite
        rise = h.value(v) + square(v - u) / (2 * step) - h.value(p) - square(p - u) / (2 * step)
        assert np.isfinite(h.value(p)).all() and (rise >= square(v - p) / (2 * step) - 1e-10).all()


@pytest.mark.parametrize("name", ["none", "l1", "l1-box", "elastic-net", "box"])
@every_step
def test_separable_prox_is_the_best_point_of_a_grid(name, step):
    h, grid = EVERY[name], np.linspace(-3, 3, 60_001)  # 0.0001 apart
    for u in np.linspace(-2.9, 2.9, 20):
        best = grid[np.argmin(h.value(grid[:, None]) + (grid - u) ** 2 / (2 * step))]
        assert_allclose(h.prox(np.array([u]), step), best, atol=0.51e-4)


@every_regulariser
@given(u=POINTS, v=POINTS, step=STEPS)
def test_firm_non_expansiveness(h, u, v, step):
    """|prox u - prox v|^2 <= <prox u - prox v, u - v>."""
    change = h.prox(u, step) - h.prox(v, step)
    assert square(change) <= change @ (u - v) + 1e-12 * (1 + square(u - v))


@every_regulariser
def test_leading_axes_are_problems_of_their_own(h):
    rng = np.random.default_rng(2)
    u = 2 * rng.normal(size=(3, 2, D))
    together = h.prox(u, 0.7)
    for problem in np.ndindex(3, 2):
        assert_array_equal(together[problem], h.prox(u[problem], 0.7))
        assert_array_equal(h.value(u)[problem], h.value(u[problem]))
        assert_array_equal(h.value(together)[problem], h.value(together[problem]))


# --- values ---


def test_values_are_their_formulas():
    rng = np.random.default_rng(3)
    x = rng.uniform(-0.7, 0.7, D)
    l1 = sum(abs(z) for z in x)
    columns = sum(math.hypot(*x.reshape(ROWS, -1)[:, j]) for j in range(D // ROWS))
    wanted = {"none": 0, "l1": 0.3 * l1, "l1-box": 0.3 * l1, "group-l1": 0.3 * columns, "box": 0, "ball": 0}
    wanted["elastic-net"] = 0.3 * l1 + 0.5 / 2 * sum(z * z for z in x)
    wanted["selected"] = np.inf
    assert EVERY["selected"].value(EVERY["selected"].prox(x, 1.0)) == 0
    assert_allclose([EVERY[name].value(x) for name in REGULARISERS], [wanted[n] for n in REGULARISERS])
    inside = (LOWER + UPPER) / 2
    weighted = sum(w * abs(z) for w, z in zip(WEIGHTS, inside, strict=True))
    assert_allclose(WeightedL1Box(WEIGHTS, LOWER, UPPER).value(inside), weighted)


@pytest.mark.parametrize("size", [1e-12, 0.8, 1e12])
def test_indicators_are_0_inside_and_infinite_outside(size):
    rng = np.random.default_rng(4)
    far = 100 * size * rng.normal(size=(200, D))
    for h in (Box(-size, size), Ball(size), WeightedL1Box(0.0, -size, size)):
        edge = h.prox(far, 1.0)
        assert_array_equal(h.value(np.stack([edge, 0.999 * edge, 0 * edge])), 0)
        assert_array_equal(h.value(1.001 * edge), np.inf)
        assert not np.isfinite(h.value(np.full(D, np.nan)))


@given(POINTS, STEPS)
def test_a_projected_point_and_means_of_such_are_inside_at_any_scale(u, scale):
    for h in (Ball(scale), Box(-scale, scale), Box(0.9 * scale, scale)):
        p = h.prox(u, 1.0)
        assert h.value(p) == 0 and h.value(np.mean([p] * 7, axis=0)) == 0
        assert_allclose(h.prox(p, 1.0), p, rtol=1e-15)


# --- conjugates: u = prox_{s h}(u) + s prox_{h*/s}(u/s) ---


@every_step
def test_moreau(step):
    rng = np.random.default_rng(5)
    u = 2 * rng.normal(size=(200, D))
    l1, box = L1(0.3), Box(-0.3, 0.3)
    assert_allclose(l1.prox(u, step) + step * box.prox(u / step, 1 / step), u, atol=1e-14)
    norm, ball = GroupL1(1.1, D), Ball(1.1)  # one column: 1.1 ||x||
    assert_allclose(norm.prox(u, step) + step * ball.prox(u / step, 1 / step), u, atol=1e-14)
    assert_allclose(ball.prox(u, step) + step * norm.prox(u / step, 1 / step), u, atol=1e-14)
    groups = u.reshape(200, ROWS, -1).swapaxes(-1, -2)  # every column is a group
    balls = step * ball.prox(groups / step, 1 / step)
    assert_allclose(GroupL1(1.1, ROWS).prox(u, step) + balls.swapaxes(-1, -2).reshape(u.shape), u, atol=1e-14)


# --- reductions ---


@every_step
@pytest.mark.parametrize(
    "h, simpler",
    [
        (L1(0), Zero()),
        (ElasticNet(0, 0), Zero()),
        (GroupL1(0, ROWS), Zero()),
        (ElasticNet(0.3, 0), L1(0.3)),
        (WeightedL1Box(0, -0.8, 0.8), Box(-0.8, 0.8)),
        (WeightedL1Box(0.3, -99, 99), L1(0.3)),
        (WeightedL1Box(np.full(D, 0.3), np.full(D, -0.8), np.full(D, 0.8)), WeightedL1Box(0.3, -0.8, 0.8)),
        (GroupL1(0.3, 1), L1(0.3)),  # a column of one entry
        (Box(-99, 99), Zero()),
        (Ball(99), Zero()),
    ],
    ids=str,
)
def test_what_a_regulariser_becomes(h, simpler, step):
    rng = np.random.default_rng(6)
    u = 2 * rng.normal(size=(50, D))
    u[:, 0] = 0
    assert_allclose(h.prox(u, step), simpler.prox(u, step), rtol=1e-12, atol=1e-15)
    assert_allclose(h.value(u), simpler.value(u), rtol=1e-14)


@every_step
def test_elastic_net_without_l1_shrinks(step):
    u = np.linspace(-3, 3, D)
    assert_allclose(ElasticNet(0, 0.5).prox(u, step), u / (1 + 0.5 * step))


def test_group_l1_switches_whole_columns_off():
    X = np.array([[3.0, 0.1, 0.0], [4.0, 0.1, 0.0]])
    assert_allclose(GroupL1(2, 2).prox(X.ravel(), 0.5), [2.4, 0, 0, 3.2, 0, 0])


# --- at the door ---


@pytest.mark.parametrize(
    "name, key, bad",
    [("l1", "weight", -1), ("elastic-net", "l1", -1), ("elastic-net", "l2", -1), ("box", "bound", 0),
     ("l1-box", "bound", -1), ("ball", "radius", 0)],
)  # fmt: skip
def test_bad_numbers_are_refused(name, key, bad):
    for number in (float(bad), math.nan, math.inf):
        with pytest.raises(SettingError, match=f"{key} must be .*; got {number}"):
            make_regulariser(name, **{key: number})


def test_a_number_of_another_regulariser_is_refused():
    with pytest.raises(
        SettingError, match="regulariser ball has no setting 'weight'; known: intercept, parameters, radius"
    ):
        make_regulariser("ball", weight=0.1)


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(SettingError, match=r"regulariser must be one of none, l1, .*; got 'l3'"):
        make_regulariser("l3")
