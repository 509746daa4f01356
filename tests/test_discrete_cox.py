"""The discrete-time Cox model: loss, bounds, oracles on the person-period table, and the limit of short intervals."""

import math

import numpy as np
import pytest
import statsmodels.api as sm
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from statsmodels.duration.hazard_regression import PHReg

from twinflower.algorithms import FedAvg
from twinflower.errors import SettingError
from twinflower.known_objectives import make_model
from twinflower.models.information import Information
from twinflower.privacy.audit import replay
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.discrete_cox import DISCRETE_COX, LINKS, interval_ends
from twinflower.problems.interfaces import Batch
from twinflower.survival_labels import signed, unsigned

FEATURES, ENDS = 4, (0.5, 1.0, 2.5)
TEXT = "0.5, 1, 2.5"
every_link = pytest.mark.parametrize("link", LINKS)
weighting = pytest.mark.parametrize("weighted", [False, True])
FAMILIES = {"logit": sm.families.links.Logit(), "cloglog": sm.families.links.CLogLog()}


def build(link="logit", intervals=TEXT, features=FEATURES, **penalties):
    return make_model(DISCRETE_COX, features, 0, intervals=intervals, link=link, **penalties)


def people(rng, leading=(), rows=9, weighted=False):
    """Random persons, some exactly at the end of an interval and some beyond the last one."""
    shape = (*leading, rows)
    times = np.where(rng.random(shape) < 0.3, rng.choice(ENDS, shape), rng.exponential(1.5, shape))
    labels = signed(times, rng.random(shape) < 0.6)
    weights = rng.dirichlet(np.ones(rows), leading) if weighted else None
    batch = Batch(rng.normal(size=(*shape, FEATURES)), labels, weights)
    for array in batch[: 2 + weighted]:
        array.setflags(write=False)
    return batch


def cox_people(rows, seed=0, slopes=(0.8, -0.5)):
    """Features, times and events by Cox's model with constant hazards, about a third of them censored."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1, 1, size=(rows, len(slopes)))
    event, end = rng.exponential(np.exp(-features @ np.array(slopes))), rng.exponential(2, rows)
    return features, np.minimum(event, end), event <= end


def person_periods(rows, ends):
    """The person-period table: features and dummies of the intervals, outcomes, and persons, one interval a row."""
    table, outcomes, persons = [], [], []
    for person, (a, time, event) in enumerate(zip(rows.features, *unsigned(rows.labels), strict=True)):
        begin = 0.0
        for k, end in enumerate(ends):
            if begin < time if event else end <= time:
                table.append([*a, *np.eye(len(ends))[k]])
                outcomes.append(int(event and begin < time <= end))
                persons.append(person)
            begin = end
    return np.array(table), np.array(outcomes), np.array(persons)


def maximum(objective, rows, steps=40):
    """The maximum of the likelihood, by Newton's method."""
    x = np.zeros(objective.d)
    for _ in range(steps):
        sums = Information.of(objective, x, rows)
        x = x - np.linalg.pinv(sums.matrix, rcond=1e-12, hermitian=True) @ sums.gradient
    return x


# ------------------------------------------------------------------------------------- the loss


@every_link
def test_the_loss_is_the_cross_entropy_of_the_person_period_table(link):
    rng = np.random.default_rng(0)
    objective, rows = build(link), people(rng, rows=40)
    x = rng.normal(size=objective.d)
    table, outcomes, persons = person_periods(rows, ENDS)
    hazard = FAMILIES[link].inverse(table @ x)
    losses = -np.log(np.where(outcomes, hazard, 1 - hazard))
    wanted = np.bincount(persons, losses, minlength=40)
    assert_allclose(objective.losses(x, rows), wanted, rtol=1e-10)
    assert (objective.losses(x, rows) >= 0).all()


@every_link
@weighting
@pytest.mark.parametrize("penalties", [{}, {"l2": 0.3, "nonconvex": 0.7}], ids=str)
def test_the_gradient_is_the_central_difference(link, weighted, penalties):
    rng = np.random.default_rng(1)
    objective, rows = build(link, **penalties), people(rng, weighted=weighted)
    x, h = 0.5 * rng.normal(size=objective.d), 1e-5
    shifts = h * np.eye(objective.d)
    slopes = (objective.value(x + shifts, rows) - objective.value(x - shifts, rows)) / (2 * h)
    assert_allclose(objective.grad(x, rows), slopes, atol=1e-8)
    assert_allclose(objective.grad(x, rows, 0.4), 0.4 * objective.grad(x, rows), rtol=1e-12)


@every_link
def test_the_information_is_the_hessian(link):
    rng = np.random.default_rng(2)
    objective, rows = build(link), people(rng, rows=30)
    x, h = 0.5 * rng.normal(size=objective.d), 1e-5
    shifts = h * np.eye(objective.d)
    bends = (objective.grad(x + shifts, rows) - objective.grad(x - shifts, rows)) / (2 * h)
    found = Information.of(objective, x, rows)
    assert_allclose(found.matrix / 30, bends, atol=1e-7)
    assert_allclose(found.gradient / 30, objective.grad(x, rows), atol=1e-12)
    each = [objective.grad(x, Batch(rows.features[k : k + 1], rows.labels[k : k + 1])) for k in range(30)]
    assert_allclose(found.outer, np.transpose(each) @ each, atol=1e-10)


@every_link
@weighting
@pytest.mark.parametrize("clip", [{}, {"clip_norm": 0.2}, {"clip_norm": 0.2, "clip": "batch"}], ids=str)
def test_a_cohorts_call_is_each_clients_own(link, weighted, clip):
    rng = np.random.default_rng(6)
    objective, own = build(link, l2=0.3, **clip), people(rng, (3, 2), weighted=weighted)
    shared, x = people(rng, weighted=weighted), rng.normal(size=(3, 2, objective.d))
    for rows in (own, shared):
        value, grad, score = (f(x, rows) for f in (objective.value, objective.grad, objective.score))
        for client in np.ndindex(3, 2):
            alone = rows if rows is shared else Batch(*(a if a is None else a[client] for a in own))
            assert_array_equal(value[client], objective.value(x[client], alone))
            assert_allclose(grad[client], objective.grad(x[client], alone), rtol=1e-13, atol=1e-16)
            assert_array_equal(score[client], objective.score(x[client], alone))
    assert_array_equal(objective.grad(x[0, 0], own).shape, x.shape)


@every_link
def test_rows_of_weight_0_are_not_there(link):
    rng = np.random.default_rng(8)
    objective, rows = build(link, l2=0.1), people(rng)
    x = rng.normal(size=objective.d)
    filled, there = Batch(*rows[:2], np.repeat([1 / 6, 0], [6, 3])), Batch(rows.features[:6], rows.labels[:6])
    for function in (objective.value, objective.grad, objective.score):
        assert_allclose(function(x, filled), function(x, there), rtol=1e-12)


@every_link
@pytest.mark.parametrize("size", [1e6, -1e6])
def test_extreme_scores_do_not_overflow(link, size):
    objective = build(link)
    rows = Batch(np.ones((4, FEATURES)), np.array([0.2, -0.2, 2.0, -9.0]))
    x = np.full(objective.d, size)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        losses, grad = objective.losses(x, rows), objective.grad(x, rows)
        survival = objective.loss.survival(objective.scores(x, rows.features))
    assert np.isfinite(losses).all() and np.isfinite(grad).all()
    assert losses[1] == 0.0  # censored before the end of the first interval
    assert_allclose(survival, 1.0 if size < 0 else 0.0, atol=1e-300)


def test_single_precision_gives_the_same_intervals_and_nearly_the_same_numbers():
    rng = np.random.default_rng(3)
    ends = "0.1, 0.2, 0.3"
    objective, features = build(intervals=ends), rng.normal(size=(6, FEATURES))
    rows = Batch(features, signed(np.tile([0.1, 0.2, 0.3], 2), np.repeat([1, 0], 3)))
    single = Batch(*(own.astype(np.float32) for own in rows[:2]))
    for one, other in zip(*(objective.loss.histories(own.labels) for own in (rows, single)), strict=True):
        assert_array_equal(one, other)
    x = rng.normal(size=objective.d)
    grad = objective.grad(x.astype(np.float32), single)
    assert grad.dtype == np.float32 and objective.losses(x.astype(np.float32), single).dtype == np.float32
    assert_allclose(grad, objective.grad(x, rows), atol=1e-6)


def test_survival_is_the_product_of_the_intervals():
    for link, family in FAMILIES.items():
        objective, x = build(link), np.random.default_rng(4).normal(size=FEATURES + 3)
        rows = people(np.random.default_rng(5))
        scores = objective.scores(x, rows.features)
        wanted = np.cumprod(1 - family.inverse(scores), axis=-1)
        assert_allclose(objective.loss.survival(scores), wanted, rtol=1e-10, atol=1e-14)


# ------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("intervals", [1, 2, 7])
@pytest.mark.parametrize("length", [0.3, 1.0, 5.0])
def test_no_person_exceeds_the_bound_on_gradients_and_some_attain_it(intervals, length):
    """Ascent on the norm of one person's gradient from random points, for every outcome."""
    objective, rng = build(intervals=f"{intervals} x 1"), np.random.default_rng(intervals)
    bound, longest = objective.bounds(length).gradient, 0.0
    for label in (*(np.arange(intervals) + 0.5), *(-np.arange(intervals) - 1.0), 99.0, -99.0):
        for _ in range(2):
            a = rng.normal(size=FEATURES)
            rows = Batch(length * a[None] / np.linalg.norm(a), np.array([label]))
            found = minimize(
                lambda x, rows=rows: -np.linalg.norm(objective.grad(x, rows)),
                3 * rng.normal(size=objective.d), method="Powell", options={"maxfev": 150},
            ).x  # fmt: skip
            for x in (found, 30 * found, np.full(objective.d, 50.0) * np.sign(found)):
                longest = max(longest, float(np.linalg.norm(objective.grad(x, rows))))
        up = np.concatenate([50 * rows.features[0], np.full(intervals, 50.0)])
        longest = max(longest, float(np.linalg.norm(objective.grad(up, rows))))
    assert 0.999 * bound < longest <= bound * (1 + 1e-12)
    assert bound == pytest.approx(math.sqrt(intervals + (intervals * length) ** 2))


@pytest.mark.parametrize("intervals", [1, 2, 7])
def test_no_person_exceeds_the_bound_on_curvature_and_one_attains_it(intervals):
    objective, rng, most = build(intervals=f"{intervals} x 1"), np.random.default_rng(0), 0.0
    bound = objective.bounds(2.0).curvature
    for label in (-99.0, *rng.uniform(-intervals, intervals, 30)):
        a = rng.normal(size=FEATURES)
        rows = Batch(2.0 * a[None] / np.linalg.norm(a), np.array([label]))
        for x in (np.zeros(objective.d), rng.normal(size=objective.d)):
            most = max(most, np.linalg.eigvalsh(Information.of(objective, x, rows).matrix)[-1])
    assert most == pytest.approx(bound) and bound == (1 + 4 * intervals) / 4


def test_clipped_gradients_have_at_most_the_norm_and_the_same_direction():
    objective, rng = build("cloglog", clip_norm=0.4), np.random.default_rng(7)
    for _ in range(50):
        rows, x = people(rng, rows=1), rng.normal(size=objective.d)
        free, clipped = build("cloglog").grad(x, rows), objective.grad(x, rows)
        norm = np.linalg.norm(free)
        assert_allclose(clipped, free * min(1.0, 0.4 / norm) if norm else free, rtol=1e-12)


@every_link
def test_slopes_that_cancel_do_not_let_long_rows_through(link):
    """beta's slope is a sum over intervals; rounded after clipping, it would multiply a row of length 1e100."""
    objective, rng = build(link, clip_norm=0.5), np.random.default_rng(9)
    for _ in range(30):
        alpha = rng.normal(size=3)
        rows = Batch(np.full((1, FEATURES), 1e100), np.array([2.0]))
        if link == "logit":  # h_1 + h_2 + h_3 - 1 = 0
            shares = rng.dirichlet(np.ones(3))
            alpha = np.log(shares / (1 - shares))
        grad = objective.grad(np.concatenate([np.zeros(FEATURES), alpha]), rows)
        assert math.hypot(*grad) <= 0.5 * (1 + 1e-12)


def test_the_link_cloglog_has_no_public_bound_without_clipping():
    with pytest.raises(SettingError, match="have no public bound: set clip-norm above 0, or objective.link"):
        build("cloglog").bounds(1.0)
    assert build("cloglog", clip_norm=2.0).bounds(1.0).gradient == 2.0
    assert build("logit", clip_norm=2.0).bounds(1.0).gradient == 2.0


@pytest.mark.parametrize("keys", [{}, {"clip_norm": 0.3}, {"link": "cloglog", "clip_norm": 0.3}], ids=str)
@pytest.mark.parametrize("intervals", [1, 60])
def test_replay_attains_the_sensitivity_and_never_exceeds_it(keys, intervals):
    """With one interval, a person without an event at a hazard near 1 is replaced by one with the event at a hazard
    near 0 and nearly the same features, which attains the sensitivity. With many, two opposite persons with hazards
    near 1 attain the share of beta."""
    objective = build(intervals=f"{intervals} x 1", features=2, **keys)
    x = np.concatenate([np.zeros(2), np.full(intervals, 18.0)])
    features, labels = np.tile([1.0, 0.0], (6, 1)), -np.full(6, 99.0)
    other = -features[0], -99.0
    if intervals == 1:
        near = np.array([math.cos(0.1), math.sin(0.1)])
        other, x = (near, 0.5), np.array([0.0, -36.0 / math.sin(0.1), 18.0])
    algorithm = FedAvg(step_size=1e-5, privacy="public-state")
    inbox = algorithm.broadcast(algorithm.init_server(x, 1, np.array(0, np.uint64)), 1, np.array(0))
    changed = features.copy(), labels.copy()
    changed[0][0], changed[1][0] = other
    rows = Batch(features, labels), Batch(*changed)
    moves = replay(algorithm, objective, *rows, LocalSchedule(0, 1), objective.bounds(1.0), [inbox] * 3)
    assert all(move.agrees for move in moves)
    assert all(move.moved <= move.sensitivity * (1 + 1e-9) for move in moves)
    share = math.sqrt(intervals / (1 + intervals)) if intervals > 1 else 1.0
    assert all(move.moved >= 0.999 * share * move.sensitivity for move in moves)


@pytest.mark.parametrize("seed", range(3))
def test_mini_batches_never_exceed_the_coupled_bound(seed):
    """Several local steps, in which the bound on curvature enters; every place of the replaced person."""
    rng = np.random.default_rng(seed)
    objective = build(intervals="4 x 1", l2=0.05)
    rows = rng.normal(size=(10, FEATURES))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    labels = signed(rng.uniform(0, 5, 10), rng.random(10) < 0.5)
    algorithm, worst = FedAvg(step_size=0.3, privacy="public-state"), 0.0
    starts = [np.full(objective.d, 2.0), 2 * rng.normal(size=objective.d)]
    inboxes = [
        algorithm.broadcast(algorithm.init_server(x, 1, np.array(0, np.uint64)), 1, np.array(0))
        for x in starts
    ]
    for place in range(10):
        changed, other = rows.copy(), labels.copy()
        changed[place], other[place] = -rows[place], -9.0
        data = Batch(rows, labels), Batch(changed, other)
        moves = replay(algorithm, objective, *data, LocalSchedule(3, 7), objective.bounds(1.0), inboxes)
        worst = max(worst, *(move.moved / move.sensitivity for move in moves))
    assert 0.1 < worst <= 1 + 1e-9


# ------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("l2", [0.0, 0.02])
def test_the_minimum_is_scikit_learns_on_the_person_period_table(l2):
    features, times, events = cox_people(300)
    rows = Batch(features, signed(times, events))
    objective = build(intervals="0.3, 0.6, 1.2, 2", features=2, l2=l2)
    table, outcomes, _ = person_periods(rows, objective.loss.ends)
    oracle = LogisticRegression(
        C=1 / (300 * l2) if l2 else np.inf, fit_intercept=False, solver="newton-cg", tol=1e-12, max_iter=1000
    )
    oracle.fit(table, outcomes)
    found = minimize(objective.value, np.zeros(6), (rows,), "BFGS", objective.grad, options={"gtol": 1e-9}).x
    assert_allclose(found, oracle.coef_[0], atol=1e-6)


@every_link
@pytest.mark.parametrize("robust", [False, True])
def test_errors_are_statsmodels_on_the_person_period_table(link, robust):
    features, times, events = cox_people(400)
    rows = Batch(features, signed(times, events))
    objective = build(link, "0.3, 0.6, 1.2, 2", 2)
    table, outcomes, persons = person_periods(rows, objective.loss.ends)
    glm = sm.GLM(outcomes, table, family=sm.families.Binomial(FAMILIES[link]))
    kind = {"cov_type": "cluster", "cov_kwds": {"groups": persons, "use_correction": False}} if robust else {}
    known = glm.fit(tol=1e-12, tol_criterion="params", maxiter=200, **kind)
    found = Information.of(objective, maximum(objective, rows), rows)
    covariance = np.linalg.inv(found.matrix)
    if robust:
        covariance = covariance @ found.outer @ covariance
    expected = known.cov_params()
    if not robust and link == "cloglog":  # statsmodels' default is the expected information
        expected = np.linalg.inv(-glm.hessian(known.params, observed=True))
        assert np.abs(np.sqrt(np.diag(expected)) / known.bse - 1).max() > 1e-3  # so the page names the kind
    if robust and link == "cloglog":
        bread = np.linalg.inv(-glm.hessian(known.params, observed=True))
        scores = glm.score_obs(known.params)
        sums = np.array([np.bincount(persons, own) for own in scores.T])
        expected = bread @ (sums @ sums.T) @ bread
    assert_allclose(maximum(objective, rows), known.params, rtol=1e-8, atol=1e-10)
    assert_allclose(np.sqrt(np.diag(covariance)), np.sqrt(np.diag(expected)), rtol=1e-8)


def test_short_intervals_lead_to_coxs_model():
    """With intervals of equally many events, the estimates by both links approach the partial likelihood's. Times are
    censored where many are still at risk: of few persons at risk, an event is not a short interval's small hazard."""
    features, times, events = cox_people(600, seed=3)
    horizon = np.quantile(times[events], 0.7, method="higher")
    events, times = events & (times <= horizon), np.minimum(times, horizon)
    rows = Batch(features, signed(times, events))
    cox = PHReg(times, features, status=events.astype(int)).fit()
    away = {}
    for link in LINKS:
        for number in (2, 8, 32, 128):
            ends = np.quantile(times[events], np.arange(1, number + 1) / number, method="higher")
            objective = build(link, ", ".join(map(repr, ends.tolist())), 2)
            found = maximum(objective, rows, steps=12)[:2]
            away[link, number] = np.abs((found - cox.params) / cox.bse).max()  # in standard errors
    assert away["logit", 128] < away["logit", 32] < away["logit", 8] < away["logit", 2]
    assert away["cloglog", 128] < 0.02 < away["cloglog", 2] and away["logit", 128] < 0.05
    assert away["cloglog", 8] < 0.5 * away["logit", 8]  # hazard ratios for any intervals


# ------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("text", "ends"),
    [("1", [1]), ("365, 730,1460", [365, 730, 1460]), ("3 x 30.5", [30.5, 61, 91.5]), ("1 x 1e3", [1000])],
)
def test_intervals_are_ends_or_a_number_of_equal_ones(text, ends):
    assert interval_ends(text) == ends


@pytest.mark.parametrize(
    "text", ["", "0, 1", "-1", "2, 1", "1, 1", "1 2", "x", "0 x 3", "3 x", "3 x -1", "nan", "2000 x 1"]
)
def test_other_texts_are_no_intervals(text):
    assert interval_ends(text) is None


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {},
            "objective 'discrete-cox' needs objective.intervals, the ends of the intervals of time, such as",
        ),
        ({"intervals": "3, 2"}, "intervals must be 1 to 1000 ascending numbers above 0, or .*; got '3, 2'"),
        ({"intervals": "3", "link": "probit"}, "link must be one of logit, cloglog; got 'probit'"),
    ],
)
def test_settings_are_checked(keys, why):
    with pytest.raises(SettingError, match=why):
        make_model(DISCRETE_COX, 3, 0, **keys)


def test_classes_are_refused():
    with pytest.raises(SettingError, match="needs times of events; this data set has classes"):
        make_model(DISCRETE_COX, 3, 2, intervals="1")
