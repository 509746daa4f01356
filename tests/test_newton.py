"""Newton's method: maximum-likelihood estimates and their errors as statsmodels has them, and how a run ends."""

import re
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import LASSO, run, small
from sklearn.linear_model import Lasso, LogisticRegression
from statsmodels.duration.hazard_regression import PHReg
from test_discrete_cox import cox_people, person_periods
from test_inference import sites as tables

from twinflower.algorithms import Newton
from twinflower.algorithms.algorithm import RunInfo
from twinflower.data.columns import Range
from twinflower.data.ranges import pack_ranges
from twinflower.errors import ReplyError, SettingError, WithheldError
from twinflower.models.information import Information
from twinflower.models.model import inferred
from twinflower.privacy.exact_rounds import ExactRounds
from twinflower.problems.batches import LocalSchedule, Shards
from twinflower.problems.central import lowest_composite
from twinflower.problems.discrete_cox import CoxObjective
from twinflower.problems.interfaces import Batch, Part
from twinflower.problems.losses import packed
from twinflower.problems.objectives import LinearObjective, make_objective
from twinflower.problems.regularisers import (
    L1,
    Ball,
    Box,
    ElasticNet,
    GroupL1,
    Support,
    WeightedL1Box,
    Zero,
    on_part,
)
from twinflower.problems.stratified_cox import StratifiedCoxObjective
from twinflower.simulation.app import client_app
from twinflower.simulation.app.site import Site
from twinflower.simulation.report.messages import warnings
from twinflower.simulation.report.present import page
from twinflower.simulation.report.study import Study
from twinflower.simulation.results.resume import status
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import node_config
from twinflower.simulation.settings import parse
from twinflower.survival_labels import signed

UNEQUAL = (200, 60, 30, 10)
WHOLE = LocalSchedule(batch_size=0, max_local_steps=1)


def sites(rows, sizes=UNEQUAL):
    """The rows cut into sites of unequal sizes."""
    return Shards.grouped(
        rows.features,
        rows.labels,
        np.arange(sum(sizes)),
        np.cumsum([0, *sizes]),
        row_weights=rows.row_weights,
    )


def trained(objective, rows, algorithm=None, number=30, sizes=UNEQUAL, start=None):
    """The algorithm, the server's state and the number of rounds of a run on these rows."""
    algorithm = algorithm or Newton()
    steps = list(run(algorithm, sites(rows, sizes), objective, WHOLE, number, start=start))
    return algorithm, steps[-1].server, len(steps)


def table(seed=0, columns=4, rows=300):
    draw = np.random.default_rng(seed)
    features = draw.normal(size=(rows, columns)) * np.geomspace(1, 30, columns)
    features[:, -1] = 1.0
    return draw, features


def errors_of(algorithm, server):
    return np.sqrt(np.diag(np.linalg.inv(algorithm.information(server).matrix)))


def logistic_rows(seed=0):
    draw, features = table(seed)
    return Batch(
        features, (draw.random(300) < 1 / (1 + np.exp(-features @ [1.0, -0.3, 0.02, 0.2]))).astype(int)
    )


# ------------------------------------------------------------------------------------------- the same as statsmodels


def test_logistic_regression_is_statsmodels_glm():
    rows = logistic_rows()
    algorithm, server, rounds = trained(make_objective("logistic", 4, 2), rows)
    known = sm.GLM(rows.labels, rows.features, family=sm.families.Binomial()).fit(tol=1e-14)
    assert algorithm.stops(server).reason == "converged"
    assert rounds <= 8
    assert_allclose(algorithm.model(server), known.params, rtol=1e-6)
    assert_allclose(errors_of(algorithm, server), known.bse, rtol=1e-6)


def test_weights_of_rows_are_statsmodels_var_weights():
    rows = logistic_rows()
    weights = np.random.default_rng(1).uniform(0, 3, 300)
    objective = LinearObjective("logistic").build(4, 2)
    objective = type(objective)(objective.loss, 1, 4, heaviest=3.0)
    algorithm, server, _ = trained(objective, rows._replace(row_weights=weights))
    known = sm.GLM(rows.labels, rows.features, family=sm.families.Binomial(), var_weights=weights).fit(
        tol=1e-14
    )
    assert_allclose(algorithm.model(server), known.params, rtol=1e-6)
    assert_allclose(errors_of(algorithm, server), known.bse, rtol=1e-6)


def test_weights_of_classes_are_weights_of_rows():
    rows = logistic_rows()
    weighted = LinearObjective("logistic", class_weights="1,3").build(4, 2)
    algorithm, server, rounds = trained(weighted, rows)
    weights = np.where(rows.labels == 1, 3.0, 1.0)
    known = sm.GLM(rows.labels, rows.features, family=sm.families.Binomial(), var_weights=weights).fit(
        tol=1e-14
    )
    assert rounds <= 8
    assert_allclose(algorithm.model(server), known.params, rtol=1e-6)


def test_multinomial_regression_is_statsmodels_mnlogit():
    """Of softmax's redundant scores, differences to the first class are those of MNLogit."""
    draw, features = table()
    slopes = np.array([[0, 0, 0, 0], [1, 0.1, 0, 0.5], [-1, 0, 0.03, 0]])
    labels = (features @ slopes.T + draw.gumbel(size=(300, 3))).argmax(1)
    algorithm, server, rounds = trained(make_objective("softmax", 4, 3), Batch(features, labels))
    known = sm.MNLogit(labels, features).fit(method="newton", tol=1e-14, disp=0)
    x = algorithm.model(server).reshape(3, 4)
    assert rounds <= 8
    assert_allclose((x[1:] - x[0]).ravel(), known.params.T.ravel(), rtol=1e-6)
    inverse = np.linalg.pinv(algorithm.information(server).matrix, rcond=1e-10, hermitian=True)
    change = np.kron([[-1, 1, 0], [-1, 0, 1]], np.eye(4))
    assert_allclose(np.sqrt(np.diag(change @ inverse @ change.T)), known.bse.T.ravel(), rtol=1e-5)


def test_least_squares_need_one_round():
    draw, features = table()
    rows = Batch(features, features @ [1.0, 2.0, -0.1, 3.0] + draw.normal(size=300))
    algorithm, server, rounds = trained(
        make_objective("least-squares", 4, 0), rows, Newton(info=RunInfo(quadratic=True))
    )
    known = sm.OLS(rows.labels, rows.features).fit()
    assert rounds == 1
    assert_allclose(algorithm.model(server), known.params, rtol=1e-10)
    assert_allclose(errors_of(algorithm, server) * np.sqrt(known.scale), known.bse, rtol=1e-10)


def newton_keys(folder, objective):
    """The keys of a run of newton on three sites' tables, their pooled columns and labels."""
    keys, design, labels = tables(folder, objective)
    keys = {key: value for key, value in keys.items() if not key.endswith(("max-steps", "step-size"))}
    return keys | {"algorithm": "newton"}, design, labels


@pytest.mark.parametrize("robust", [False, True])
def test_the_errors_of_least_squares_are_statsmodels(robust, tmp_path):
    """The residual variance is that at the estimates, not where the run started."""
    keys, design, labels = newton_keys(tmp_path, "least-squares")
    setup = prepare(parse(keys | {"rounds": 5, "newton.robust": robust}))
    (result,) = cohort.train([setup])
    found = inferred(trained_model(setup, result.model, None, result.information), robust)
    known = sm.OLS(labels, design).fit(cov_type="HC0" if robust else "nonrobust")
    assert len(result.rounds) == 1 + robust
    assert found.facts.converged and not found.remarks
    shown = sorted(row.std_error for row in found.rows if row.std_error > 0 and row.term == "per unit")
    assert_allclose(shown, sorted(known.bse[1:3]), rtol=1e-8)


@pytest.mark.parametrize("rate", [1.0, 2000.0])
def test_poisson_regression_with_offsets_is_statsmodels_glm(rate):
    draw, features = table()
    offsets = draw.uniform(-1, 1, 300)
    counts = draw.poisson(rate * np.exp(features @ [0.3, -0.1, 0.01, 0.1] + offsets)).astype(float)
    objective = make_objective("poisson", 4, 0)
    algorithm, server, rounds = trained(objective, Batch(features, packed(counts, offsets)))
    known = sm.GLM(counts, features, family=sm.families.Poisson(), offset=offsets).fit(tol=1e-14)
    assert algorithm.stops(server).reason == "converged"
    assert rounds <= (8 if rate == 1 else 20)
    assert_allclose(algorithm.model(server), known.params, rtol=1e-6)
    assert_allclose(errors_of(algorithm, server), known.bse, rtol=1e-6)


@pytest.mark.parametrize("link", ["logit", "cloglog"])
def test_discrete_cox_is_a_glm_of_person_periods(link):
    ends = [0.3, 0.8, 2.0]
    features, times, events = cox_people(300)
    rows = Batch(features, signed(times, events))
    objective = CoxObjective(intervals="0.3, 0.8, 2", link=link).build(2, 0)
    algorithm, server, rounds = trained(objective, rows)
    periods, outcomes, _ = person_periods(rows, ends)
    links = {"logit": sm.families.links.Logit, "cloglog": sm.families.links.CLogLog}
    family = sm.families.Binomial(link=links[link]())
    known = sm.GLM(outcomes, periods, family=family).fit(tol=1e-14, maxiter=100)
    assert rounds <= 8
    assert_allclose(algorithm.model(server), known.params, rtol=1e-6)
    observed = -known.model.hessian(known.params, observed=True)
    assert_allclose(errors_of(algorithm, server), np.sqrt(np.diag(np.linalg.inv(observed))), rtol=1e-6)


def rare(kind, rate):
    """The objective and rows of a table with this rate, odds or hazard of events."""
    draw = np.random.default_rng(0)
    features = np.column_stack([draw.normal(size=(20_000, 3)), np.ones(20_000)])
    odds = np.exp(features @ [0.5, -0.3, 0.2, np.log(rate)])
    if kind == "logistic":
        return make_objective("logistic", 4, 2), Batch(
            features, (draw.random(20_000) < odds / (1 + odds)) + 0
        )
    if kind == "poisson":
        return make_objective("poisson", 4, 0), Batch(features, draw.poisson(odds).astype(float))
    times = np.ceil(draw.exponential(1 / odds))
    labels = signed(np.minimum(times, 10.5), times <= 10)
    return CoxObjective(intervals="10 x 1", link="cloglog").build(4, 0), Batch(features, labels)


@pytest.mark.parametrize("kind", ["logistic", "poisson", "cloglog"])
@pytest.mark.parametrize("rate", [0.05, 0.005])
def test_rare_events_take_at_most_eight_rounds(kind, rate):
    """Newton's steps alone lower the log rate by about 1 a round, from 0 on."""
    objective, rows = rare(kind, rate)
    algorithm, server, rounds = trained(objective, rows, sizes=(12_000, 5_000, 2_000, 1_000))
    assert algorithm.stops(server).reason == "converged"
    assert rounds <= 8
    assert_allclose(objective.grad(algorithm.model(server), rows), 0, atol=1e-10)


def test_a_step_beyond_newtons_still_descends():
    """Newton's step leaves out directions without curvature, as here from a far start. What is beyond it would then
    lead uphill: steps became as short as 1e-21, and the run took 44 rounds."""
    draw = np.random.default_rng(239)
    number, columns = int(draw.choice([8, 20, 60, 300])), int(draw.integers(1, 5))
    features = draw.normal(size=(number, columns)) * np.exp(draw.normal(size=columns) * draw.choice([0, 1]))
    features = (features > 0.5).astype(float) if draw.random() < 0.3 else features
    features = np.column_stack([features, np.ones(number)])
    if draw.random() < 0.2:
        features = np.column_stack([features, 1 - features[:, 0]])
    rate = float(draw.choice([1, 0.1, 0.02]))
    draw.normal(size=columns)  # these draws
    draw.choice([0.3, 2])  # are not used
    l2 = float(draw.choice([0, 0, 0, 1e-3]))
    objective = make_objective("softmax", features.shape[1], 3, l2=l2)
    labels = draw.integers(0, 3, number) * (draw.random(number) < rate)
    assert draw.random() < 0.3
    start = draw.normal(size=objective.d) * float(draw.choice([1, 5]))
    rows = Batch(features, labels)
    algorithm, server, rounds = trained(objective, rows, number=60, sizes=[number], start=start)
    assert algorithm.stops(server).reason == "converged" and rounds <= 32


def test_sums_in_single_precision_keep_the_optimum_of_a_model():
    """Their curvature is not 0 where it should be, so that no direction counts as redundant."""
    for seed in (2, 7):
        draw = np.random.default_rng(seed)
        parts = [np.eye(k)[draw.integers(k, size=2000)] for k in (2, 2, 3, 4)]
        design = np.column_stack([*parts, np.ones(2000)])
        shares = 1 / (1 + np.exp(-design @ draw.normal(size=12) * 0.5))
        slopes = (draw.random(2000) < shares) - 0.5
        sums = (
            design.T @ (design * (shares * (1 - shares))[:, None]),
            -design.T @ slopes,
            draw.normal(size=12),
        )
        matrix, gradient, x = (part.astype(np.float32).astype(float) for part in sums)
        matrix, gradient = matrix / 2000, gradient / 2000
        h = on_part(L1(1e-3), [Part((0, 11), 1)])
        v = lowest_composite(matrix, gradient, x, h)
        assert_allclose(h.prox(v - (gradient + matrix @ (v - x)), 1.0), v, rtol=0, atol=1e-6)


def test_one_rate_is_exact_after_two_steps():
    """The deviance of counts with one rate is an exponential and a line."""
    counts = np.zeros(300)
    counts[:15] = 1
    rows, objective = Batch(np.ones((300, 1)), counts), make_objective("poisson", 1, 0)
    _, server, _ = trained(objective, rows, number=2)
    assert_allclose(server.trial, np.log(0.05), rtol=1e-12)


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_stratified_cox_is_statsmodels_phreg(ties):
    features, times, events = cox_people(300)
    times, site = np.ceil(times * 10), np.repeat(range(4), UNEQUAL)
    objective = StratifiedCoxObjective(ties=ties).build(2, 0)
    algorithm, server, rounds = trained(objective, Batch(features, signed(times, events)))
    known = PHReg(times, features, status=events.astype(int), strata=site, ties=ties).fit(disp=0)
    assert rounds <= 8
    assert_allclose(algorithm.model(server), known.params, rtol=1e-5)
    assert_allclose(errors_of(algorithm, server), known.bse, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------- regularisers


@pytest.mark.parametrize(
    "h",
    [L1(0.02), ElasticNet(0.02, 0.1), GroupL1(0.02, 2), Box(-0.05, 0.1), Ball(0.2), WeightedL1Box(0.01, -0.1, 0.1),
     Support((1, 3)), Zero(), on_part(L1(0.02), [Part((0, 5), 1)])],
    ids=lambda h: type(h).__name__,
)  # fmt: skip
def test_the_quadratic_model_is_solved(h):
    """v = prox(v - t grad) at the minimum, for any t > 0; the matrix is singular and badly scaled."""
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(40, 6)) * np.geomspace(0.1, 10, 6)
    rows[:, 2] = rows[:, 1]
    matrix, gradient = rows.T @ rows / 40, draw.normal(size=6) * np.array([1, 1, 1, 1, 3, 9.0])
    gradient[2] = gradient[1]
    v = lowest_composite(matrix, gradient, np.zeros(6), h)
    step = 1 / np.linalg.eigvalsh(matrix)[-1]
    assert_allclose(v, h.prox(v - step * (matrix @ v + gradient), step), atol=1e-9 * step)


@pytest.mark.parametrize("weight", [3e-2, 1e-3])
def test_the_sparse_optimum_is_scikit_learns(weight):
    rows = logistic_rows()
    rows = rows._replace(features=rows.features / np.geomspace(1, 30, 4))
    algorithm, server, rounds = trained(make_objective("logistic", 4, 2), rows, Newton(L1(weight)))
    known = LogisticRegression(
        **LASSO, C=1 / (300 * weight), solver="liblinear", fit_intercept=False, tol=1e-14, max_iter=10**5
    ).fit(rows.features, rows.labels)
    assert rounds <= 10
    assert_array_equal(algorithm.model(server) != 0, known.coef_[0] != 0)
    assert_allclose(algorithm.model(server), known.coef_[0], atol=1e-8)


@pytest.mark.parametrize("name", ["least-squares", "logistic"])
@pytest.mark.parametrize("weight", [0.1, 0.03, 3e-3, 3e-4])
def test_columns_of_categories_have_exact_zeros(name, weight):
    """One of several minima, that of scikit-learn with the columns of its support, which has fewer than with all."""
    draw = np.random.default_rng(3)
    columns = [np.eye(k)[draw.integers(k, size=300)] for k in (2, 2, 3, 4)]
    features = np.column_stack([*columns, columns[0][:, 1], draw.normal(size=(300, 2)), np.ones(300)])
    labels = features @ draw.normal(size=15) + draw.normal(size=300)
    labels = labels if name == "least-squares" else (labels > labels.mean()).astype(int)
    objective = make_objective(name, 15, 0 if name == "least-squares" else 2)
    h = on_part(L1(weight), [Part((0, 14), 1)])
    algorithm, server, _ = trained(objective, Batch(features, labels), Newton(h))
    assert algorithm.stops(server).reason == "converged"
    x = algorithm.model(server)
    assert_allclose(x, h.prox(x - objective.grad(x, Batch(features, labels)), 1.0), atol=1e-9)
    support = np.flatnonzero(x[:14])
    assert np.linalg.matrix_rank(features[:, [*support, 14]]) == len(support) + 1
    if name == "least-squares":
        options = {"tol": 1e-15, "max_iter": 10**6}
        few, every = (Lasso(weight, **options).fit(features[:, c], labels) for c in (support, range(14)))
        assert_allclose(few.coef_, x[support], atol=1e-8)
        assert len(support) <= np.count_nonzero(every.coef_)


def test_the_lasso_needs_one_round():
    draw, features = table()
    rows = Batch(features, features @ [1.0, 0, -0.1, 0] + draw.normal(size=300))
    algorithm, server, rounds = trained(
        make_objective("least-squares", 4, 0), rows, Newton(L1(0.5), info=RunInfo(quadratic=True))
    )
    known = Lasso(0.5, fit_intercept=False, tol=1e-15, max_iter=100_000).fit(features, rows.labels)
    assert rounds == 1
    assert_allclose(algorithm.model(server), known.coef_, atol=1e-8)


# ------------------------------------------------------------------------------------------------------ the end


def test_the_start_may_be_far_away():
    """Whole steps from here would diverge; they are shortened."""
    rows = logistic_rows()
    objective = make_objective("logistic", 4, 2)
    _, near, _ = trained(objective, rows)
    algorithm, server, _ = trained(objective, rows, start=np.array([3.0, -2.0, 0.2, 4.0]), number=60)
    assert algorithm.stops(server).reason == "converged"
    assert_allclose(server.x, near.x, rtol=1e-6)


def test_a_start_without_curvature_is_no_optimum():
    """All probabilities round to 0 or 1, so the matrix is 0 and the slope is not."""
    rows, start = logistic_rows(), np.array([0, 0, 0, -1000.0])
    algorithm, server, rounds = trained(make_objective("logistic", 4, 2), rows, start=start)
    stop = algorithm.stops(server)
    assert stop.warns and "no curvature" in stop.reason
    assert stop.entries == (0, 1, 2, 3)
    assert rounds == 1
    assert_array_equal(server.x, start)


def test_a_run_without_a_maximum_names_the_columns():
    rows = logistic_rows()
    rows.features[:, 1] = np.where(rows.labels, 1.0, -1.0) * np.abs(rows.features[:, 1])
    algorithm, server, rounds = trained(make_objective("logistic", 4, 2), rows)
    stop = algorithm.stops(server)
    assert stop.warns
    assert 1 in stop.entries
    assert rounds < 30


def test_a_rare_category_with_one_event_has_a_maximum():
    """Its log odds are far away, but they exist: no separation is reported."""
    rows = logistic_rows()
    rows.features[:, 2] = np.arange(300) < 150
    rows.labels[:150] = 0
    rows.labels[7] = 1
    algorithm, server, _ = trained(make_objective("logistic", 4, 2), rows)
    assert algorithm.stops(server).reason == "converged"


def test_collinear_columns_do_not_matter():
    """The scores are those of the model without the redundant column."""
    rows = logistic_rows()
    twice = Batch(np.column_stack([rows.features, rows.features[:, 0] - rows.features[:, 3]]), rows.labels)
    _, server, rounds = trained(make_objective("logistic", 5, 2), twice)
    _, known, _ = trained(make_objective("logistic", 4, 2), rows)
    assert rounds <= 8
    assert_allclose(twice.features @ server.x, rows.features @ known.x, rtol=1e-6, atol=1e-8)


def test_the_penalty_counts_for_the_mean():
    rows = logistic_rows()
    objective = make_objective("logistic", 4, 2, l2=0.1)
    _, server, _ = trained(objective, rows)
    assert_allclose(objective.grad(server.x, rows), 0, atol=1e-8)


@pytest.mark.parametrize(
    "objective",
    [make_objective("huber", 3, 0), make_objective("rowwise-logistic", 3, 2), make_objective("absolute", 3, 0),
     make_objective("logistic", 3, 2, nonconvex=0.1), make_objective("logistic", 3, 2, clip_norm=1.0)],
)  # fmt: skip
def test_losses_without_second_derivatives_are_refused(objective):
    with pytest.raises(SettingError, match=r"newton needs the second derivatives of a convex loss: set"):
        Newton().check(objective)


def test_too_many_parameters_are_refused():
    with pytest.raises(SettingError, match="of which there may be 1000; got 2000"):
        Newton().check(make_objective("softmax", 1000, 2))


def test_batches_are_refused():
    with pytest.raises(
        SettingError, match="newton needs all rows of a client in every round: set local.batch-size"
    ):
        prepare(parse({"algorithm": "newton", "batch-size": 10}))


def test_sums_of_no_rows_and_numbers_that_are_not_finite_are_no_replies():
    algorithm, size = Newton(), 4 + 2 + 3
    good = np.ones(size)
    assert_array_equal(algorithm.upload.unpack([good], 2).sums, good)
    for bad, why in ((0.0, "at least one row"), (np.nan, "finite")):
        with pytest.raises(ReplyError, match=why):
            algorithm.upload.unpack([np.where(np.arange(size) == 0, bad, good)], 2)


def test_the_sums_of_a_run_are_those_of_its_rows():
    """What standard errors follow from needs no further request."""
    rows = logistic_rows()
    objective = make_objective("logistic", 4, 2)
    algorithm, server, _ = trained(objective, rows, Newton(robust=True))
    exact, sums = Information.of(objective, server.x, rows), algorithm.information(server)
    for name in ("rows", "bounding", "observations", "loss", "matrix", "outer"):
        assert_allclose(getattr(sums, name), getattr(exact, name), rtol=1e-6, err_msg=name)


def test_a_client_whose_sums_are_not_finite_stops_the_run():
    setup = small("newton", rounds=3)

    class Broken(inprocess.InProcessGrid):
        def new_client(self, node, context):
            client = super().new_client(node, context)
            if node == 2:
                client.objective = replace(client.objective)
                object.__setattr__(client.objective, "information", lambda *_: np.full((31, 31), np.nan))
            return client

    result = inprocess.run_strategy(setup, Broken(setup), "inprocess")
    assert "not finite" in result.failure
    assert result.model is None


# ------------------------------------------------------------------------------------------------ in every runtime

KEYS = {
    "algorithm": "newton", "data.name": "breast-cancer", "objective.name": "logistic", "objective.l2": 1e-3,
    "regulariser.name": "none", "rounds": 30, "clients.count": 3, "evaluation.every": 30,
}  # fmt: skip


def test_a_run_ends_when_it_has_converged(tmp_path):
    """It is evaluated then, both runtimes agree on when that is, and the command and `status` say so."""
    setup = prepare(parse(KEYS))
    arrays, messages = cohort.train([setup])[0], inprocess.train(setup)
    for result in (arrays, messages):
        rounds = len(result.rounds)
        assert result.early == f"converged after {rounds} rounds"
        assert result.rows[-1]["round"] == rounds <= 10
        assert result.summary()["ended"] == result.early
        assert warnings([result.summary()]) == [result.early]
    assert status(write_run(arrays, tmp_path)).lines == [f"finished: {arrays.early}"]
    assert_array_equal(arrays.model, messages.model)
    assert f"The run {arrays.early}." in page(Study.of_run(tmp_path)).lead[0]


@pytest.mark.parametrize("method, what", [("newton", ""), ("newton-path", " and there is no path")])
def test_a_run_without_the_rounds_to_converge_warns(method, what):
    penalty = {"regulariser.name": "l1", "regulariser.weight": 0.01}
    (result,) = cohort.train([prepare(parse(KEYS | penalty | {"algorithm": method, "rounds": 2}))])
    warning = f"warning: {method} has not converged after 2 rounds{what}: raise rounds"
    assert warning in result.warnings() and not result.early and not result.path


def test_a_run_without_a_maximum_warns():
    keys = KEYS | {"objective.l2": 0.0, "evaluation.standard-errors": True, "data.row-norm": 0.0}
    (result,) = cohort.train([prepare(parse(keys))])
    assert result.early.startswith("stopped after")
    assert f"warning: {result.early}" in result.warnings() == warnings([result.summary()])
    assert result.model is not None
    assert result.information is not None


# ------------------------------------------------------------------------------------------ the policy of a site

EXACT = KEYS | {"data.row-norm": 0.0, "regulariser.name": "none"}


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "this site sends no information matrix: its node config has no newton-rows"),
        ({"newton_rows": 400}, "of fewer than 400 rows"),
        (
            {"newton_rows": 1, "newton_rows_per_parameter": 10.0},
            "of fewer than 310 rows, 10 for each of 31 parameters",
        ),
        ({"newton_rows": 80}, "a category or class has fewer rows than its newton-rows"),
        ({"newton_rows": 5}, ""),
    ],
)
def test_a_site_decides_whether_it_sends_score_and_information(policy, why):
    setup, site = prepare(parse(EXACT)), Site(0, 3, **policy)
    if not why:
        client_app._check_policy(setup, site)
        return
    with pytest.raises(SettingError, match=why):
        client_app._check_policy(setup, site)


@pytest.mark.parametrize("algorithm", ["newton", "fedavg"])
def test_a_rehearsal_allows_a_survival_model_with_few_events_in_an_interval(algorithm, tmp_path):
    """As a simulation does; a site whose config has no survival-cell refuses it."""
    for site in range(3):
        rows = [f"{20 + 3 * k % 60},{1 + k * 29 % 900},{k % 7 == 0:d}" for k in range(40)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,days,died", *rows, ""]))
    (tmp_path / "schema.toml").write_text(
        '[label]\ncolumn = "days"\nevent = "died"\ntimes = [1, 1000]\n[columns]\nage = { range = [20, 80] }\n'
    )
    keys = {
        "data.name": "tables", "data.files": str(tmp_path / "*.csv"), "data.schema": str(tmp_path / "schema.toml"),
        "data.row-scaling": "all", "algorithm": algorithm, "rounds": 9, "objective.name": "discrete-cox",
        "objective.intervals": "3 x 300", "regulariser.name": "none", "evaluation.standard-errors": True,
    }  # fmt: skip
    setup = prepare(parse(keys))
    allowed = {key.replace("-", "_"): value for key, value in node_config(setup).items()}
    for site in range(3):
        client_app._check_policy(setup, Site(site, 3, **allowed))
    rows = {key: value for key, value in allowed.items() if not key.startswith("survival")}
    with pytest.raises(SettingError, match="5 events or none"):
        client_app._check_policy(setup, Site(0, 3, **rows))


def test_answers_are_counted_over_runs(tmp_path):
    answers = ExactRounds(tmp_path / "folder" / "answers.count", 3, "")
    assert answers.given == 0
    answers.count("one", [b"x"])
    answers.count("one", [b"x", b"x"])  # given before
    answers.count("one", [b"y", b"x"])  # another point
    assert answers.given == 2
    with answers.path.open("ab") as file:
        file.write(b"cut")  # by a crash
    with pytest.raises(WithheldError, match="given 3 of newton-rounds = 4 answers .* asks for 2 more"):
        ExactRounds(answers.path, 4, "").count("two", [b"x", b"y"])
    assert answers.given == 3  # all of a request or none
    ExactRounds(answers.path, 4, "").count("two", [b"x"])
    with pytest.raises(WithheldError, match="given 4 of newton-rounds = 3 answers .* asks for 1 more"):
        answers.count("two", [b"y"])
    answers.count("two", [b"x"])
    assert answers.given == 4


class _Ledger:
    """What `exact_rounds_of` takes of a site's ledger."""

    def __init__(self, folder):
        self.data, self.path = "rows", folder / "site.ledger"


def test_runs_that_differ_in_their_settings_are_counted_apart(tmp_path, monkeypatch):
    """Another division into training and held-out rows is another answer, whatever the session is called."""
    monkeypatch.setattr(client_app, "ledger_of_site", lambda site: _Ledger(tmp_path))
    keys = newton_keys(tmp_path, "logistic")[0]
    site = Site(0, 3, newton_rows=5, newton_rounds=2)
    for seed in (0, 1, 1, 2):
        setup = prepare(parse(keys | {"evaluation.held-out": 0.3, "seed": seed}))
        counted = client_app.exact_rounds_of(setup, site)
        client = client_of(setup, 0, Context(seed, 1, {}, RecordDict(), {}), site=site, exact_rounds=counted)
        if seed == 2:
            with pytest.raises(WithheldError, match="newton-rounds = 2"):
                client.fit([setup.start], {"round": 1, "session": "same"})
        else:
            client.fit([setup.start], {"round": 1, "session": "same"})
            assert counted.given == seed + 1


def of_private_ranges(folder):
    """A client of newton whose rows are clipped by ranges that a request carries, and such ranges."""
    keys = newton_keys(folder, "logistic")[0]
    schema = folder / "schema.toml"
    schema.write_text(re.sub(r"range = \[[^]]*\]", 'range = "private"', schema.read_text()))
    setup = prepare(parse(keys))
    counted = ExactRounds(folder / "answers.count", 2, "")
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), exact_rounds=counted)
    number = len(setup.dataset.unscaled.schema.private)
    return setup, client, [pack_ranges([Range(low, 90.0)] * number) for low in (20.0, 30.0, 40.0)]


def test_other_ranges_are_another_answer(tmp_path):
    """Rows are clipped by them: a sweep of ranges at one point would give the sorted values."""
    setup, client, ranges = of_private_ranges(tmp_path)

    def ask(own):
        return client.fit([setup.start], {"round": 1, "session": "s", "ranges": own})[0][0]

    first, again, other = ask(ranges[0]), ask(ranges[0]), ask(ranges[1])
    assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert client.exact_rounds.given == 2
    with pytest.raises(WithheldError):
        ask(ranges[2])


def test_a_run_of_newton_asks_no_further_question_about_the_rows():
    """Its rounds hold the sums, and only they are counted: a site answers nothing else about its training rows."""
    setup = prepare(parse(EXACT | {"objective.l2": 0.0, "evaluation.standard-errors": True, "rounds": 3}))
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}), site=Site(0, 3, newton_rows=5))
    with pytest.raises(ReplyError, match="sends no information matrix"):
        client.evaluate([setup.start], {"round": 3, "session": "s", "information": True})


def test_a_client_counts_before_it_answers(tmp_path):
    """The run stops in the round that the site does not answer any more, and says why."""
    setup = prepare(parse(KEYS))
    answers = ExactRounds(tmp_path / "answers.count", 4, "")

    class Counting(inprocess.InProcessGrid):
        def new_client(self, node, context):
            client = super().new_client(node, context)
            client.exact_rounds = answers if node == 2 else None
            return client

    result = inprocess.run_strategy(setup, Counting(setup), "inprocess")
    assert "newton-rounds = 4" in result.failure
    assert len(result.rounds) == 5
    assert answers.given == 4
