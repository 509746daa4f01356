"""Standard errors that are robust to clusters of rows: a whole run against statsmodels and lifelines on pooled rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pandas
import pytest
import statsmodels.api as sm
from lifelines import CoxPHFitter
from numpy.testing import assert_allclose
from site_files import three_sites
from statsmodels.duration.hazard_regression import PHReg
from typer.testing import CliRunner

import twinflower
from twinflower.errors import SettingError
from twinflower.models.information import Information
from twinflower.models.model import inferred
from twinflower.problems.interfaces import Batch
from twinflower.problems.objectives import LinearObjective
from twinflower.problems.stratified_cox import StratifiedCoxObjective
from twinflower.queries.exact_sums import smallest_cell
from twinflower.simulation import cli
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.facts import at_site
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.settings import parse
from twinflower.survival_labels import signed

SCHEMA = """
group = "patient"
[label]
{label}
[columns]
age = {{ range = [20, 80] }}
dose = {{ range = [0, 10] }}
"""
LABELS = {
    "logistic": 'column = "y"\nclasses = [0, 1]',
    "softmax": 'column = "y"\nclasses = [0, 1, 2]',
    "least-squares": 'column = "y"\nrange = [-20, 20]',
    "poisson": 'column = "y"\ncounts = 50',
    "stratified-cox": 'column = "y"\nevent = "died"\ntimes = [1, 5000]\none-row-per-person = true',
}


def visits(objective, step, seed, rows):
    """A table of visits of patients, each with a level of its own, whose names are the same at all sites."""
    draw = np.random.default_rng(seed)
    patient = draw.integers(0, rows // 4, rows)
    age, dose = draw.integers(20, 81, rows), draw.uniform(0, 10, rows).round(2)
    score = 0.03 * (age - 50) - 0.15 * dose + draw.normal(0, 0.7, rows)[patient]
    more = ""
    if objective == "least-squares":
        y = (score + draw.normal(size=rows)).round(3)
    elif objective == "poisson":
        y = draw.poisson(np.exp(score))
    elif objective == "stratified-cox":
        ends = draw.exponential([20 * np.exp(-score), np.full(rows, 40.0)])
        times, ends = np.ceil(ends * 10 / step) * step
        y, more = np.minimum(times, ends), ",died"
    else:
        y = (score[:, None] + draw.logistic(size=(rows, 2)) > [-0.5, 0.8]).sum(1)
        y = y if objective == "softmax" else np.minimum(y, 1)
    columns = [patient, age, dose, y, *([times <= ends] if more else [])]
    lines = [
        f"p{p:.0f}," + ",".join(f"{cell:g}" for cell in cells) for p, *cells in zip(*columns, strict=True)
    ]
    return "\n".join([f"patient,age,dose,y{more}", *lines, ""])


def keys_of(objective, folder, step=10.0):
    run = {"algorithm": "newton", "rounds": 12, "newton.robust": True, "evaluation.standard-errors": True}
    run |= {"objective.name": objective, "data.row-scaling": "all"}
    schema = SCHEMA.format(label=LABELS[objective])
    return three_sites(folder, schema, partial(visits, objective, step), (160, 240, 120, 40)) | run


def pooled(folder):
    """The rows of all sites; a patient of two sites counts as two."""
    tables = [pandas.read_csv(folder / f"site-{site}.csv").assign(site=site) for site in range(3)]
    rows = pandas.concat(tables, ignore_index=True)
    return rows.assign(patient=rows.patient + "/" + rows.site.astype(str))


def by_statsmodels(objective, rows, **kind):
    design = sm.add_constant(rows[["age", "dose"]].astype(float))
    if objective == "stratified-cox":
        return PHReg(rows.y, design[["age", "dose"]], rows.died, strata=rows.site, ties="breslow").fit(**kind)
    groups = {"groups": pandas.factorize(rows.patient)[0]}
    kind = kind or {"cov_type": "cluster", "cov_kwds": groups}
    if objective == "least-squares":
        return sm.OLS(rows.y, design).fit(**kind)
    if objective == "poisson":
        return sm.GLM(rows.y, design, family=sm.families.Poisson()).fit(tol=1e-14, maxiter=100, **kind)
    model = sm.Logit(rows.y, design) if objective == "logistic" else sm.MNLogit(rows.y, design)
    return model.fit(disp=0, method="newton", tol=1e-14, maxiter=100, **kind)


@pytest.mark.parametrize("objective", [name for name in LABELS if name != "stratified-cox"])
def test_errors_are_those_of_statsmodels_with_clusters(objective, tmp_path):
    setup = prepare(parse(keys_of(objective, tmp_path)))
    write_run(cohort.train([setup])[0], tmp_path / "run")
    found = twinflower.load(tmp_path / "run").coefficients(robust=True)
    rows = pooled(tmp_path)
    known = by_statsmodels(objective, rows)
    assert_allclose([row.estimate for row in found], np.asarray(known.params).T.ravel(), rtol=1e-6)
    assert_allclose([row.std_error for row in found], np.asarray(known.bse).T.ravel(), rtol=1e-6)
    assert_allclose(
        [row.p_value for row in found], np.asarray(known.pvalues).T.ravel(), rtol=1e-5, atol=1e-12
    )
    clusters = rows.patient.nunique()
    assert found.remarks == [f"errors robust to clusters of patient ({clusters} clusters)"]
    if objective == "softmax":  # both classes of a column at once, with the same matrix
        places = [1, 4]
        cov = np.asarray(known.cov_params())[np.ix_(places, places)]
        b = np.asarray(known.params).T.ravel()[places]
        assert_allclose(found.tests[0].statistic, b @ np.linalg.solve(cov, b), rtol=1e-5)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_errors_of_stratified_cox_are_those_of_statsmodels_and_lifelines_with_clusters(ties, tmp_path):
    """lifelines has no score residuals for tied events, and statsmodels those of Breslow."""
    keys = keys_of("stratified-cox", tmp_path, 10.0 if ties == "breslow" else 1e-4)
    write_run(cohort.train([prepare(parse(keys | {"objective.ties": ties}))])[0], tmp_path / "run")
    found = twinflower.load(tmp_path / "run").coefficients(robust=True)
    rows = pooled(tmp_path)
    if ties == "breslow":
        known = by_statsmodels("stratified-cox", rows, groups=rows.patient.to_numpy())
        params, errors = known.params, known.bse
    else:
        fit = {"precision": 1e-12, "r_precision": 1e-14}
        known = CoxPHFitter().fit(rows, "y", "died", strata=["site"], cluster_col="patient", fit_options=fit)
        params, errors = known.params_, known.standard_errors_
    assert_allclose([row.estimate for row in found], params, rtol=1e-6)
    assert_allclose([row.std_error for row in found], errors, rtol=1e-6)


def weighted_score(x, features, times, events, weights, ties):
    """The derivative of the log likelihood of rows with weights, one time after the other, as R's coxph has it."""
    score, rates = np.zeros(len(x)), weights * np.exp(features @ x)
    for time in np.unique(times[events]):
        tied, at_risk = events & (times == time), times >= time
        score += weights[tied] @ features[tied]
        for place in range(tied.sum()):
            parts = rates * (at_risk - tied * (place / tied.sum() if ties == "efron" else 0.0))
            score -= weights[tied].mean() * (parts @ features) / parts.sum()
    return score


@pytest.mark.parametrize("ties", ["breslow", "efron"])
def test_score_residuals_are_the_derivatives_of_the_score_in_the_weights_of_persons(ties):
    draw = np.random.default_rng(3)
    features, times, events = (
        draw.normal(size=(50, 3)),
        np.ceil(draw.exponential(5, 50)),
        draw.random(50) < 0.6,
    )
    model, x, h = StratifiedCoxObjective(ties=ties).build(3, 0), draw.normal(size=3), 1e-5
    rows = Batch(features, signed(times, events))
    found = model.gradients(x, rows)
    assert_allclose(found.sum(0), Information.of(model, x, rows).gradient, atol=1e-10)
    score = partial(weighted_score, x, features, times, events)
    steps = h * np.eye(50)
    known = [(score(1 - step, ties) - score(1 + step, ties)) / (2 * h) for step in steps]
    assert_allclose(found, known, atol=1e-7)


def test_every_runtime_sends_the_sums_of_groups_also_with_masks(tmp_path):
    setup = prepare(parse(keys_of("logistic", tmp_path)))
    first, second = cohort.train([setup])[0].information, inprocess.train(setup).information
    assert first.clusters == second.clusters == pooled(tmp_path).patient.nunique()
    assert_allclose(second.outer, first.outer, rtol=1e-9)
    masked = cohort.train([prepare(parse(keys_of("logistic", tmp_path) | {"privacy.trust": "sum"}))])[
        0
    ].information
    assert masked.clusters == first.clusters
    assert_allclose(masked.outer, first.outer, rtol=1e-9)


def test_groups_of_one_row_give_the_outer_products_of_rows_and_one_group_that_of_the_gradient():
    draw = np.random.default_rng(0)
    rows = Batch(draw.normal(size=(40, 3)), draw.integers(0, 3, 40))
    model, x = LinearObjective(name="softmax").build(3, 3), draw.normal(size=9)
    each = rows._replace(groups=draw.permutation(40))
    alone, single, one = (
        Information.of(model, x, own) for own in (each, rows, rows._replace(groups=np.full(40, 7)))
    )
    assert_allclose(alone.outer, single.outer, atol=1e-12)
    together, clusters = one.outer, one.clusters
    gradient = Information.of(model, x, rows).gradient
    assert clusters == 1
    assert_allclose(together, np.outer(gradient, gradient), atol=1e-10)


def test_few_clusters_are_named_and_one_has_no_errors(tmp_path):
    keys = keys_of("logistic", tmp_path)
    for site in range(3):
        path = tmp_path / f"site-{site}.csv"
        header, *lines = path.read_text().splitlines()
        path.write_text(
            "\n".join([header, *(f"p{i % 4}" + line[line.index(",") :] for i, line in enumerate(lines)), ""])
        )
    (result,) = cohort.train([prepare(parse(keys))])
    write_run(result, tmp_path / "run")
    model = twinflower.load(tmp_path / "run")
    found = model.coefficients(robust=True)
    assert "(12 clusters); with fewer than 40 clusters such errors are too small" in found.remarks[0]
    alone = replace(model, information=model.information._replace(clusters=1.0)).coefficients(robust=True)
    assert (
        alone.remarks[0]
        == "there are no errors that are robust to clusters of patient, of which there is only one"
    )
    assert np.isnan([row.std_error for row in alone]).all()


def test_a_likelihood_ratio_assumes_independent_rows(tmp_path):
    write_run(cohort.train([prepare(parse(keys_of("logistic", tmp_path)))])[0], tmp_path / "run")
    run = str(tmp_path / "run")
    done = CliRunner().invoke(cli.app, ["coefficients", run, "--robust", "--against", run])
    assert isinstance(done.exception, SettingError)
    assert "a likelihood-ratio test is for independent rows" in str(done.exception)


def test_a_policy_counts_persons_in_place_of_rows():
    features, labels = np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), np.array([0, 0, 1, 1])
    assert smallest_cell(Batch(features[:, 1:], labels), 2) == 2
    assert smallest_cell(Batch(features[:, 1:], labels, groups=np.array([5, 5, 2, 3])), 2) == 1


@pytest.mark.parametrize("held_out", [0.0, 0.25])
def test_a_deployed_site_knows_the_groups_of_its_training_rows(held_out, tmp_path):
    keys = keys_of("logistic", tmp_path) | {"evaluation.held-out": held_out, "privacy.group-size": 20}
    config, (site, *_) = at_sites(prepare(parse(keys)))
    data = {"data.file": site["data-file"], "data.schema": site["schema"]}
    rows = at_site(prepare(parse(dict(config.items()) | data)), 0).shards.rows(0)
    table = pandas.read_csv(tmp_path / "site-0.csv")
    known = dict(zip(map(tuple, scaled(table)), table.patient, strict=True))
    patients = [known[tuple(row)] for row in (rows.features[:, :2] / rows.features[:, 2:]).round(6)]
    assert (
        len(set(zip(patients, rows.groups.tolist(), strict=True)))
        == len(set(patients))
        == len(set(rows.groups))
    )
    assert (len(patients) < len(table)) == (held_out > 0)


def scaled(table):
    """Age and dose in [-1, 1]."""
    return np.column_stack([(table.age - 50) / 30, (table.dose - 5) / 5]).round(6)


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
@pytest.mark.parametrize("seed", range(3))
def test_a_joint_test_has_fewer_terms_than_clusters(objective, seed, tmp_path):
    """Scores of K clusters add up to 0 at the maximum, so their outer products have rank K - 1 at most, up to how far
    the run has come."""
    draw = np.random.default_rng(seed)
    group, age = draw.integers(0, 4, 150), draw.uniform(20, 80, 150).round(1)
    label = draw.integers(0, 2, 150)
    rows = [f"{a},{g},{y},{k % 3}" for k, (a, g, y) in enumerate(zip(age, group, label, strict=True))]
    (tmp_path / "0.csv").write_text("\n".join(["age,group,y,person", *rows, ""]))
    kind = "classes = [0, 1]" if objective == "logistic" else "counts = 3"
    (tmp_path / "schema.toml").write_text(
        f'group = "person"\n[label]\ncolumn = "y"\n{kind}\n[columns]\nage = {{ range = [20, 80] }}\n'
        'group = { categories = ["0", "1", "2", "3"] }\n'
    )
    keys = {
        "data.name": "tables", "data.files": str(tmp_path / "0.csv"), "data.schema": str(tmp_path / "schema.toml"),
        "data.row-scaling": "all", "data.test-fraction": 0.0, "clients.count": 1, "objective.name": objective,
        "algorithm": "newton", "newton.robust": True, "rounds": 20, "regulariser.name": "none",
        "clients.weighting": "rows", "evaluation.standard-errors": True,
    }  # fmt: skip
    (run,) = cohort.train([prepare(parse(keys))])
    found = inferred(trained_model(run.setup, run.model, None, run.information), True)
    assert found.clusters == 3 and not found.tests
