"""Norms and clipping of vectors of any size: what floats can hold, they bound."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from twinflower.data.features import completed
from twinflower.known_objectives import make_model
from twinflower.norms import clipping, norms, outer_norms
from twinflower.privacy.guard import Guard
from twinflower.problems.discrete_cox import LINKS
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import make_objective

FEW_ULPS = 1 + 2.0**-48


def spread(low, high):
    """Numbers of either sign and of every order of magnitude, and 0."""
    sizes = st.builds(lambda sign, power: sign * 10.0**power, st.sampled_from([-1, 1]), st.floats(low, high))
    return st.one_of(st.just(0.0), sizes)


def vectors(low, high, count=3, n=4):
    return st.lists(st.lists(spread(low, high), min_size=n, max_size=n), min_size=count, max_size=count).map(
        np.array
    )


@given(vectors(-320, 307))
def test_norms_are_those_of_hypot(rows):
    """Against a library that scales; subnormal numbers have fewer digits."""
    expected = [math.hypot(*row) for row in rows]
    assert_allclose(norms(rows), expected, rtol=1e-14, atol=1e-323)
    assert norms(rows[0]) == norms(rows)[0]


@given(vectors(-70, 70), vectors(-70, 70))
def test_norms_of_ordinary_vectors_keep_their_bits(slopes, inputs):
    assert_array_equal(norms(slopes), np.sqrt(np.vecdot(slopes, slopes)))
    plain = np.sqrt(np.vecdot(slopes, slopes)) * norms(inputs)
    assert_array_equal(outer_norms((slopes, norms(inputs))), plain)


@given(vectors(-200, 150), vectors(-200, 150), vectors(-200, 150), vectors(-200, 150))
def test_norms_of_outer_products(slope, inputs, back, features):
    """Also with leading axes on one side, as in a cohort."""

    def one(*rows):
        a, b, c, d = (math.hypot(*row) for row in rows)
        return math.hypot(a * b, c * d)

    expected = [one(*rows) for rows in zip(slope, inputs, back, features, strict=True)]
    told = outer_norms((slope, norms(inputs)), (back, norms(features)))
    longest = np.isinf(told)
    assert (np.array(expected)[longest] > 2.0**899).all()
    assert_allclose(told[~longest], np.array(expected)[~longest], rtol=1e-14, atol=1e-300)
    stacked = outer_norms((np.stack([slope, back]), norms(inputs)))
    assert_allclose(stacked[0], outer_norms((slope, norms(inputs))), rtol=1e-15)
    assert_allclose(stacked[1], outer_norms((back, norms(inputs))), rtol=1e-15)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(vectors(-200, 150), vectors(-200, 150), vectors(-200, 150), vectors(-200, 150), st.floats(-12, 6))
def test_clipping_with_norms_that_are_exact_only_where_they_matter(slope, inputs, back, features, power):
    layers, bound = [(slope, norms(inputs)), (back, norms(features))], 10.0**power
    for some in (layers, layers[:1]):
        exact, told = outer_norms(*some), outer_norms(*some, bound=bound)
        assert_allclose(clipping(bound, told), clipping(bound, exact), rtol=1e-14)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    vectors(-300, 100),
    st.lists(spread(-300, 300), min_size=3, max_size=3),
    vectors(-3, 3, 1),
    st.floats(-6, 3),
)
def test_a_clipped_gradient_is_no_longer_than_its_bound(rows, labels, x, power):
    """Row by row, whatever stands in the row and its label."""
    bound = 10.0**power
    objective = make_objective("least-squares", 4, 0, clip_norm=bound)
    for row, label in zip(rows, labels, strict=True):
        g = objective.grad(x[0], Batch(row[None], np.array([label])))
        assert math.hypot(*g) <= bound * FEW_ULPS
    whole = objective.grad(x[0], Batch(rows, np.array(labels)))
    assert math.hypot(*whole) <= bound * FEW_ULPS


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@given(
    vectors(-300, 100),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.floats(-3, 3),
    st.floats(-6, 3),
)
def test_a_networks_clipped_gradient_is_no_longer_than_its_bound(rows, labels, scale, power):
    bound = 10.0**power
    for name in ("sigmoid-network", "swish-network"):
        objective = make_model(name, 4, 3, clip_norm=bound, hidden_units=2)
        x = 10.0**scale * np.linspace(-1, 1, objective.d)
        for row, label in zip(rows, labels, strict=True):
            g = objective.grad(x, Batch(row[None], np.array([label])))
            assert math.hypot(*g) <= bound * FEW_ULPS


def test_a_norm_that_overflows_beside_a_zero_gradient_hides_no_other_layer():
    """Saturated units give the first layer a zero gradient, and 0 times an infinite norm is not a number."""
    bound, objective = 0.1, make_model("sigmoid-network", 4, 3, clip_norm=0.1, hidden_units=8)
    x = np.random.default_rng(0).normal(size=objective.d)
    for entry in (1e100, 1e308):
        with np.errstate(all="ignore"):
            g = objective.grad(x, Batch(np.full((1, 4), entry), np.array([1])))
        assert 0.9 * bound < math.hypot(*g) <= bound * FEW_ULPS


def test_no_rows_have_no_norms():
    assert norms(np.empty((0, 3))).shape == (0,)


def test_a_tiny_row_with_a_huge_label():
    """1e-170 squared is 0 and 1e175 squared infinite; the gradient is 1e5 long before it is clipped."""
    objective = make_objective("least-squares", 1, 0, clip_norm=0.7)
    rows = Batch(np.array([[1e-170]]), np.array([-1e175]))
    for kept in (rows, rows._replace(lengths=rows.norms())):
        with np.errstate(all="ignore"):
            assert_allclose(objective.grad(np.zeros(1), kept), [0.7], rtol=1e-15)


@given(vectors(-300, 300), st.floats(-7, 100))
def test_scaled_rows_keep_to_their_bound(rows, power):
    bound = 10.0**power
    scaled = completed(rows, False, bound)
    for before, after in zip(rows, scaled, strict=True):
        assert math.hypot(*after) <= bound * FEW_ULPS
        if math.hypot(*before) > bound:
            assert math.hypot(*after) >= bound / FEW_ULPS  # its direction is kept, not lost
        else:
            assert_array_equal(after, before)


def model(name, features, classes, **keys):
    """An objective with few parameters."""
    if name in LINKS:
        return make_model("discrete-cox", features, classes, intervals="1, 2, 3", link=name, **keys)
    return make_model(name, features, classes, **({"hidden_units": 5} if "network" in name else {}), **keys)


@pytest.mark.parametrize("clip_norm", [1e-100, 1e-60, 1e-53, 1e-3, 1.0, 1e50, 1e100])
@pytest.mark.parametrize("name", ["least-squares", "softmax", "swish-network", "logit", "cloglog"])
def test_no_record_has_a_gradient_longer_than_clip_norm(name, clip_norm):
    """For rows, labels and points of every size; a gradient that cannot be clipped, or is not a number, is 0."""
    classes = 3 if name in ("softmax", "swish-network") else 0
    objective = model(name, 2, classes, clip_norm=clip_norm)
    sizes = np.array([0.0, 1e-200, 1e-50, 1.0, 3e62, 1e70, 1e100])
    for point, row, side, label in itertools.product(
        sizes, sizes, sizes, (0.0, 1.5, 1e99, -1e100) if not classes else (0, 2)
    ):
        x = point * np.where(np.arange(objective.d) % 2, 1.0, -0.3)
        with np.errstate(all="ignore"):
            g = objective.grad(x, Batch(np.array([[row, side]]), np.array([label])))
        assert math.hypot(*g) <= clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("bad", [1e200, 1e308])
def test_a_row_without_a_finite_gradient_counts_as_zero(bad):
    """The mean over all rows is that over the others, whatever the row brings."""
    rng = np.random.default_rng(0)
    for name in ("softmax", "swish-network", "logit"):
        objective = model(name, 4, 0 if name in LINKS else 3, clip_norm=0.5)
        rows, labels = rng.normal(size=(6, 4)), rng.integers(3, size=6)
        x = rng.normal(size=objective.d) * 1e150
        spoilt = rows.copy()
        spoilt[2] = bad
        weights = np.full(6, 1 / 6) * (np.arange(6) != 2)
        with np.errstate(all="ignore"):
            found = objective.grad(x, Batch(spoilt, labels))
            expected = objective.grad(x, Batch(rows, labels, weights))
        assert_allclose(found, expected, rtol=1e-12)


def test_a_norm_that_is_not_a_number_is_no_bound():
    slopes, inputs = np.array([[np.nan, 1.0], [0.0, 0.0], [3.0, 4.0]]), np.array([1.0, np.inf, 2.0])
    assert_array_equal(outer_norms((slopes, inputs), bound=1.0), [np.inf, 0.0, 10.0])
    assert_array_equal(outer_norms((slopes[2:], inputs[2:]), (slopes[:1], inputs[:1]), bound=1.0), [np.inf])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_a_guard_scales_rows_of_any_kind_to_their_bound(dtype):
    """Squares of float32 overflow from 2^64, those of int8 from 12."""
    guard = Guard(None, 1.0, None, None, None, row_norm=100.0)
    rows = Batch(np.array([[60, 80], [100, 30], [0, 0]], dtype), np.zeros(3, int))
    admitted = guard.admitted(rows)
    assert_array_equal(admitted.features[::2], rows.features[::2])
    assert math.hypot(*admitted.features[1]) == pytest.approx(100.0, rel=1e-12)
    assert guard.admitted(admitted) is admitted


@pytest.mark.parametrize("bound", [1e-100, 1e-3, 1.0, 1e100, math.inf])
def test_a_guard_admits_any_row_without_an_error(bound):
    """Squares vanish or overflow, and numbers are no numbers: all rows end up within the bound, all labels finite."""
    guard = Guard(None, 1.0, None, None, None, row_norm=bound)
    values = np.array([0.0, 5e-324, 1e-170, 1.0, -1e100, 1e155, 1e223, 1.7e308, np.inf, np.nan])
    rows = Batch(np.array(list(itertools.product(values, values))), np.tile(values, 10))
    admitted = guard.admitted(rows)
    lengths = [math.hypot(*row) for row in admitted.features]
    assert max(lengths) <= min(bound, 1e100) * FEW_ULPS
    assert np.isfinite(admitted.labels).all() and np.abs(admitted.labels).max() <= 1e100
    good = np.isfinite(rows.features).all(-1) & (np.hypot(*rows.features.T) <= min(bound, 1e100))
    assert_array_equal(admitted.features[good], rows.features[good])
    for one in range(len(rows.labels)):  # what becomes of a row depends on that row alone
        alone = guard.admitted(Batch(rows.features[one : one + 1], rows.labels[one : one + 1]))
        assert_array_equal(alone.features[0], admitted.features[one])
