"""The accountant against integrals, against dp-accounting, and against itself."""

import math
import sys

import numpy as np
import pytest
from compositions import advanced_composition, basic_composition
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from twinflower import special
from twinflower.errors import RunError, SettingError
from twinflower.privacy import Budget, best_guess, detection, gdp_epsilon, gdp_mu, total_mu
from twinflower.privacy.accountant import (
    advanced_share,
    basic_share,
    classical_noise_multiplier,
    log_delta,
    zcdp_epsilon_papers,
    zcdp_mu,
    zcdp_rho_papers,
)


def gdp_delta(mu, epsilon):
    """The curve itself."""
    return math.exp(log_delta(mu, epsilon))


def powers_of_ten(low, high):
    return st.floats(low, high).map(lambda x: 10.0**x)


EPSILONS = powers_of_ten(-3, 3)
DELTAS = powers_of_ten(-12, -1)
MUS = powers_of_ten(-2, 1.5)


def hockey_stick(mean, other, sigma, epsilon):
    """integral of max(p - e^epsilon q, 0), p = N(mean, sigma^2), q = N(other, sigma^2), mean > other."""
    mu = (mean - other) / sigma

    def excess(x):  # in units of sigma, from q's centre
        return norm.pdf(x - mu) * -math.expm1(epsilon - (mu * x - mu * mu / 2))

    start = epsilon / mu + mu / 2  # here the privacy loss is epsilon
    return quad(excess, start, max(start, mu) + 12, points=[max(start, mu)], epsabs=0, epsrel=1e-11)[0]


def hockey_stick_in_the_plane(p, q, epsilon):
    """The same for mixtures in the plane with unit noise, on a grid; a mixture is {mean: weight}."""
    axis = np.linspace(-12, 12, 1201)
    x, y = np.meshgrid(axis, axis, indexing="ij", sparse=True)

    def density(mixture):
        return sum(weight * norm.pdf(x - a) * norm.pdf(y - b) for (a, b), weight in mixture.items())

    return np.maximum(density(p) - math.exp(epsilon) * density(q), 0).sum() * (axis[1] - axis[0]) ** 2


# --- the curve ---


@pytest.mark.parametrize("mu", [0.03, 0.3, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("epsilon_per_mu", [0.01, 0.5, 2.0, 6.0])
def test_delta_is_the_hockey_stick_integral(mu, epsilon_per_mu):
    epsilon = mu * epsilon_per_mu
    assert_allclose(gdp_delta(mu, epsilon), hockey_stick(mu, 0, 1, epsilon), rtol=1e-8)


def test_mu_1_at_delta_1e_5():
    # 60-digit evaluation of the formula: epsilon = 4.37717809568122...
    assert_allclose(gdp_epsilon(1, 1e-5), 4.377178095681225, rtol=1e-12)
    assert_allclose(gdp_mu(4.377178095681225, 1e-5), 1, rtol=1e-12)


@given(EPSILONS, DELTAS)
def test_round_trips(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    assert_allclose(gdp_delta(mu, epsilon), delta, rtol=1e-12)
    assert_allclose(gdp_epsilon(mu, delta), epsilon, rtol=1e-11)


@pytest.mark.parametrize("mu", [0.0, 1e-3, 0.3, 1.0, 1.841, 4.0, 9.0])
def test_the_best_attacker_is_the_best_of_all_tests(mu):
    """Every event as the attacker's answer, best by the overlap of the densities; and the most powerful threshold.

    The likelihood ratio rises along the line, so thresholds are all the tests that matter.
    """
    overlap = quad(lambda x: min(norm.pdf(x), norm.pdf(x - mu)), -12, mu + 12, points=[mu / 2], epsabs=1e-14)[
        0
    ]
    assert_allclose(best_guess(mu), 1 - overlap / 2, rtol=1e-9)
    lines = np.linspace(-10, mu + 10, 400_001)
    guesses = (norm.cdf(lines) + norm.sf(lines - mu)) / 2
    assert_allclose(best_guess(mu), guesses.max(), rtol=1e-9)
    for rate in (0.05, 0.01):
        within = norm.sf(lines) <= rate
        assert_allclose(detection(mu, rate), norm.sf(lines[within] - mu).max(), rtol=1e-3)


def test_what_epsilon_8_leaves_to_an_attacker():
    assert round(best_guess(gdp_mu(8, 1e-4)), 3) == 0.821
    assert round(detection(gdp_mu(8, 1e-4)), 3) == 0.578
    assert (best_guess(0), detection(0)) == (0.5, pytest.approx(0.05, rel=1e-12))
    for wrong in (-1, math.nan, math.inf):
        for told in (best_guess, detection):
            with pytest.raises(SettingError, match="mu must be a finite number from 0"):
                told(wrong)
    with pytest.raises(SettingError, match="false_alarms must be strictly between 0 and 1"):
        detection(1.0, 0.0)


@given(MUS, EPSILONS, DELTAS, st.floats(1.001, 10))
def test_monotone(mu, epsilon, delta, more):
    assert gdp_delta(more * mu, epsilon) >= gdp_delta(mu, epsilon) >= gdp_delta(mu, more * epsilon)
    assert gdp_epsilon(more * mu, delta) >= gdp_epsilon(mu, delta) >= gdp_epsilon(mu, min(0.99, more * delta))
    assert gdp_mu(more * epsilon, delta) > gdp_mu(epsilon, delta)
    assert gdp_mu(epsilon, more * delta if more * delta < 1 else 0.99) > gdp_mu(epsilon, delta)


@pytest.mark.parametrize("mu, epsilon", [(1e-3, 1e3), (45.0, 1e3), (1e4, 1e3), (1e4, 1e7), (1e-9, 1e-3)])
def test_no_overflow_far_out(mu, epsilon):
    assert 0 <= gdp_delta(mu, epsilon) <= 1


def test_nothing_released_costs_nothing():
    assert gdp_epsilon(0, 1e-5) == 0
    assert gdp_epsilon(1e-6, 1e-5) == 0  # the total variation distance is below delta


@given(powers_of_ten(-2, 0), powers_of_ten(-18, -10))
def test_epsilon_just_above_0_is_found(mu, epsilon):
    assert 0 <= gdp_epsilon(mu, gdp_delta(mu, epsilon)) < 1e-9


@given(powers_of_ten(-18, 8), powers_of_ten(-30, -0.0001), st.integers(1, 10_000))
def test_every_root_is_found_far_outside_the_useful_range(epsilon, delta, releases):
    mu = gdp_mu(epsilon, delta)
    assert_allclose(gdp_delta(mu, epsilon), delta, rtol=1e-9)
    assert gdp_epsilon(mu, delta) >= 0
    assert 0 < advanced_share(epsilon, delta, releases).epsilon < epsilon


# --- sensitivity: the factor of two ---


def test_replacing_a_record_moves_a_clipped_mean_by_twice_the_bound():
    records, clip, sigma, epsilon = 50, 3.0, 0.1, 1.0
    data = np.linspace(-clip, clip, records)
    other = data.copy()
    data[0], other[0] = clip, -clip
    truth = hockey_stick(data.mean(), other.mean(), sigma, epsilon)
    assert_allclose(gdp_delta(total_mu(2 * clip / records, sigma), epsilon), truth, rtol=1e-8)
    assert gdp_delta(total_mu(clip / records, sigma), epsilon) < truth / 10


# --- composition and plans ---


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_two_releases_are_one_with_the_root_of_the_sum(epsilon):
    joint = hockey_stick_in_the_plane({(0.7, 1.1): 1.0}, {(0.0, 0.0): 1.0}, epsilon)
    assert_allclose(gdp_delta(total_mu([0.7, 2.2], [1.0, 2.0]), epsilon), joint, rtol=1e-4)


def test_a_scalar_stands_for_all_releases():
    assert_allclose(total_mu(2.0, [1.0, 4.0]), math.sqrt(4.0 + 0.25))
    assert_allclose(total_mu([3.0, 4.0, 0.0], 1.0), 5.0)


# --- the filter ---


@given(EPSILONS, DELTAS, st.integers(1, 400), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_the_filter_stops_at_the_right_release(epsilon, delta, releases, seed):
    budget = Budget.for_target(epsilon, delta)
    weights = np.random.default_rng(seed).uniform(0.1, 1, releases)
    costs = gdp_mu(epsilon, delta) ** 2 * weights / weights.sum()
    for cost in costs:
        budget = budget.spend(float(cost))
    assert not budget.fits(float(costs.min()))
    assert_allclose(gdp_epsilon(math.sqrt(budget.spent), delta), epsilon, rtol=1e-8)


def test_ten_thousand_roundings_fit_and_a_larger_release_does_not():
    budget = Budget(0.1)
    for _ in range(9_999):
        budget = budget.spend(0.1 / 10_000)
    assert budget.fits(0.1 / 10_000)
    assert not budget.fits(0.1 / 10_000 * (1 + 2e-5))  # 2e-9 of the total
    with pytest.raises(RunError, match="used up"):
        budget.spend(0.1 / 10_000).spend(0.1 / 10_000)


def test_the_tolerance_is_granted_once():
    budget = Budget(1.0).spend(1 + 1e-9)
    assert not budget.fits(1e-9) and budget.remaining == 0


def test_a_restart_changes_nothing():
    whole = Budget(1.0)
    for _ in range(10):
        whole = whole.spend(0.1)
    halfway = Budget(1.0, spent=5 * 0.1)
    for _ in range(5):
        halfway = halfway.spend(0.1)
    assert not whole.fits(0.1) and not halfway.fits(0.1)


# --- zCDP ---


@given(EPSILONS, DELTAS)
def test_papers_conversion_both_ways(epsilon, delta):
    assert_allclose(zcdp_epsilon_papers(zcdp_rho_papers(epsilon, delta), delta), epsilon, rtol=1e-12)


@given(MUS, DELTAS)
def test_the_exact_conversion_is_below_the_papers(mu, delta):
    assert_allclose(zcdp_mu(mu * mu / 2), mu, rtol=1e-14)
    assert gdp_epsilon(mu, delta) <= zcdp_epsilon_papers(mu * mu / 2, delta)


def test_the_papers_conversion_wastes_a_third_of_the_noise():
    ratio = gdp_mu(1, 1e-4) / zcdp_mu(zcdp_rho_papers(1, 1e-4))
    assert_allclose(ratio, 1.383, atol=5e-4)


# --- the older rules ---


def test_the_classical_rule_is_wasteful_then_false():
    really = {e: gdp_epsilon(1 / classical_noise_multiplier(e, 1e-5), 1e-5) for e in (1, 2, 7, 9)}
    assert really[1] < 0.76
    assert really[7] < 7 and really[9] > 9
    sigma = classical_noise_multiplier(2, 1e-5)
    assert_allclose(sigma, math.sqrt(2 * math.log(1.25e5)) / 2)
    assert_allclose(hockey_stick(1, 0, sigma, really[2]), 1e-5, rtol=1e-8)


@given(EPSILONS, DELTAS, st.integers(1, 10_000))
def test_shares_add_up_again(epsilon, delta, releases):
    each = np.ones(releases)
    basic = basic_share(epsilon, delta, releases)
    assert_allclose(basic_composition(basic.epsilon * each, basic.delta * each), (epsilon, delta))
    share = advanced_share(epsilon, delta, releases)
    total = advanced_composition(share.epsilon * each, share.delta * each, slack=delta / 2)
    assert_allclose(total, (epsilon, delta))


def test_older_compositions_bound_what_gaussian_releases_really_cost():
    epsilon, delta, releases = 2.0, 1e-5, 200
    for share in (basic_share, advanced_share):
        sigma = classical_noise_multiplier(*share(epsilon, delta, releases))
        assert gdp_epsilon(total_mu(1.0, np.full(releases, sigma)), delta) < epsilon


# --- bad input: one sentence with name, rule and value ---

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: gdp_mu(0, 1e-5), "epsilon must be a finite number above 0; got 0"),
        (lambda: gdp_mu(NAN, 1e-5), "epsilon must be a finite number above 0; got nan"),
        (lambda: gdp_mu(INF, 1e-5), "epsilon must be a finite number above 0; got inf"),
        (lambda: gdp_mu(1, 0), "delta must be strictly between 0 and 1; got 0"),
        (lambda: gdp_epsilon(1, 1), "delta must be strictly between 0 and 1; got 1"),
        (lambda: gdp_epsilon(1, NAN), "delta must be strictly between 0 and 1; got nan"),
        (lambda: gdp_epsilon(-1, 0.1), "mu must be a finite number from 0; got -1"),
        (lambda: total_mu(1, [1, 0]), "sigmas must be finite numbers above 0; got 0.0 at entry 2"),
        (lambda: total_mu(1, [1, NAN]), "sigmas must be finite numbers above 0; got nan at entry 2"),
        (lambda: total_mu(-1, 1), "sensitivities must be finite numbers from 0; got -1.0 at entry 1"),
        (lambda: total_mu([], 1), "sensitivities must have at least one entry; got an empty schedule"),
        (lambda: total_mu([1, 2], [1, 2, 3]), "must be equally many; got 2 and 3"),
        (lambda: Budget(0), "mu_max_squared must be a finite number above 0; got 0"),
        (lambda: Budget(1, NAN), "spent must be a finite number from 0; got nan"),
        (lambda: Budget(1).fits(NAN), "cost must be a number from 0; got nan"),
        (lambda: Budget(1).spend(-1), "cost must be a number from 0; got -1"),
        (lambda: basic_share(1, 0.1, 0), "releases must be a whole number from 1; got 0"),
        (lambda: advanced_share(1, 0.1, INF), "releases must be a whole number from 1; got inf"),
        (lambda: zcdp_epsilon_papers(-1, 0.1), "rho_zcdp must be a finite number from 0; got -1"),
        (lambda: zcdp_mu(NAN), "rho_zcdp must be a finite number from 0; got nan"),
    ],
)
def test_bad_input_is_one_sentence(call, text):
    with pytest.raises(SettingError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_the_work_does_not_grow_with_the_number_of_releases():
    """But for the sum of their squares: as many calls of Python functions for ten thousand as for ten."""

    def calls(releases):
        count = []
        sigmas = np.random.default_rng(0).uniform(50, 200, releases) * np.sqrt(releases)
        sys.setprofile(lambda frame, event, arg: count.append(event))
        gdp_epsilon(total_mu(1.0, sigmas), 1e-5)
        sys.setprofile(None)
        return len(count)

    calls(10)  # imports, caches
    assert calls(10_000) < 2 * calls(10)


# --- against dp-accounting ---


@pytest.fixture(scope="module")
def dp():
    return pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
def test_noise_agrees_with_dp_accounting(dp, epsilon, delta):
    ours = 1 / gdp_mu(epsilon, delta)
    assert_allclose(ours, dp.get_sigma_gaussian(epsilon, delta, tol=1e-10), rtol=1e-8)
    assert_allclose(gdp_epsilon(1 / ours, delta), dp.get_epsilon_gaussian(ours, delta), rtol=1e-8)


def test_two_hundred_varying_sigmas_agree_with_dp_accounting(dp):
    clip, sigmas = 0.5, np.random.default_rng(7).uniform(5, 40, 200)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    for sigma in sigmas:
        accountant.compose(dp.GaussianDpEvent(sigma / clip))  # theirs is per record, and doubled inside
    for delta in (1e-8, 1e-5, 1e-3):
        ours = gdp_epsilon(total_mu(2 * clip, sigmas), delta)
        assert_allclose(accountant.get_epsilon(delta), ours, rtol=1e-4)


@pytest.mark.parametrize("xtol", [1e-300, 1e-9])
@pytest.mark.parametrize(
    "function", [np.tanh, np.arctan, lambda x: x**3, lambda x: 1e-200 * x, lambda x: np.expm1(min(x, 700.0))]
)
def test_roots_are_those_of_scipy(function, xtol):
    """Brent's method, step by step; SciPy is not asked because it takes long to import."""
    draw, eps = np.random.default_rng(0), np.finfo(float).eps
    for at in draw.normal(size=50):
        low, high = at - 10 ** draw.uniform(-8, 3), at + 10 ** draw.uniform(-8, 3)
        calls = []
        ours = special.root(
            lambda x, at=at, calls=calls: calls.append(x) or function(x - at), low, high, xtol
        )
        theirs, told = brentq(lambda x, at=at: function(x - at), low, high, (), xtol, 4 * eps, 10_000, True)
        assert abs(ours - theirs) <= xtol + 4 * eps * abs(at)
        assert abs(len(calls) - told.function_calls) <= 2


def test_a_function_that_keeps_its_sign_has_no_root():
    with pytest.raises(ValueError, match="different signs at 1.0 and 2.0"):
        special.root(abs, 1.0, 2.0, 1e-9)
    assert special.root(float, 0.0, 2.0, 1e-9) == special.root(float, -1.0, 0.0, 1e-9) == 0
