"""A column of weights: schemas, tables, runs at sites, standard errors and estimators, with oracles on pooled rows."""

import re
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from flwr.app import Context, RecordDict
from numpy.testing import assert_allclose, assert_array_equal
from problems import query
from site_files import TWO_CLASSES, three_sites
from sklearn.linear_model import LogisticRegression
from test_inference import LABELS, at_maximum, people, years_of
from test_inference import SCHEMA as PEOPLE
from test_sites import Nodes, own_keys
from typer.testing import CliRunner

from twinflower import FederatedClassifier, FederatedCoxRegressor, FederatedRegressor
from twinflower.data.checks import describe_fit, problems
from twinflower.data.draft_notes import drafted
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.data.sites import load_own_table
from twinflower.data.tables import read_features, read_rows, read_weighted
from twinflower.errors import DataError, SettingError
from twinflower.models.model import inferred
from twinflower.simulation import cli
from twinflower.simulation.app.site import Site
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import ledger_of
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse

SCHEMA = TWO_CLASSES.replace("[label]", 'weight = "visits"\nweight-range = [0.5, 4]\n[label]')
IGNORED = TWO_CLASSES.replace("[label]", 'ignore = ["visits"]\n[label]')


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, rows)).clip(-3, 3)
    y = draw.random(rows) < 1 / (1 + np.exp(1 - 2 * a + b))
    weights = draw.uniform(0.2, 5, rows)  # some are outside the range
    columns = zip(*own(a, b, y.astype(int), weights), strict=True)
    lines = [",".join(map(repr, row)) for row in columns]
    return "\n".join(["a,b,y,visits", *lines, ""])


def own(*columns):
    return [column.tolist() for column in columns]


@pytest.fixture
def sites(tmp_path):
    run = {"algorithm": "fedavg", "fedavg.step-size": 2.0, "local.max-steps": 1, "rounds": 4}
    run |= {"objective.name": "logistic", "data.row-scaling": "all", "clients.weighting": "rows"}
    return three_sites(tmp_path, SCHEMA, patients, (40, 60, 50, 80)) | run


def table(tmp_path, *rows, name="t.csv"):
    (tmp_path / name).write_text("\n".join(["a,b,y,visits", *rows, ""]))
    return tmp_path / name


# ---------------------------------------------------------------------------------------------- schema


def test_a_schema_with_weights_is_written_and_read():
    schema = parse_schema(SCHEMA)
    assert parse_schema(to_toml(schema)) == schema
    assert (schema.weight.column, schema.weight.range.low, schema.weight.range.high) == ("visits", 0.5, 4)
    assert schema.names == ("a", "b") and "visits" in schema.used
    plain, wider = parse_schema(IGNORED), parse_schema(SCHEMA.replace("0.5, 4", "0.5, 5"))
    assert len({schema.digest, plain.digest, wider.digest}) == 3  # all sites need the same range


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('weight = "visits"', "", "weight and weight-range belong together"),
        ("weight-range = [0.5, 4]", "", "weight and weight-range belong together"),
        ('"visits"', "3", "weight must be the name of a column; got 3"),
        ('"visits"', '""', "weight must be the name of a column; got ''"),
        ('"visits"', '"a"', "columns, label, ignore, group and weight must differ; 'a' is there twice"),
        ('"visits"', '"y"', "columns, label, ignore, group and weight must differ; 'y' is there twice"),
        ("[0.5, 4]", '"private"', "weight-range must be public"),
        ("[0.5, 4]", "[-1, 4]", "weight-range must be within 0 and 1e+100; got [-1, 4]"),
        ("[0.5, 4]", "[4, 0.5]", "weight-range: range must be [low, high], two finite numbers"),
        ("[0.5, 4]", "[0, inf]", "weight-range: range must be [low, high], two finite numbers"),
        ("weight-range", "weigth-range", "there is no key 'weigth-range'; did you mean 'weight-range'?"),
    ],
)
def test_a_schema_whose_weights_break_a_rule_is_one_sentence(old, new, why):
    with pytest.raises(DataError, match=re.escape(why)) as refused:
        parse_schema(SCHEMA.replace(old, new, 1), "s.toml")
    assert "\n" not in str(refused.value)


def test_weights_are_read_and_clipped_to_their_range(tmp_path):
    file, schema = table(tmp_path, "0,1,0,1.5", "1,1,1,9", "0,0,1,0"), parse_schema(SCHEMA)
    rows = read_weighted(file, schema)
    assert_array_equal(rows.weights, [1.5, 4.0, 0.5])
    for known, found in zip(rows[:2], read_rows(file, schema), strict=True):
        assert_array_equal(known, found)
    (tmp_path / "new.csv").write_text("a,b\n0,1\n")  # rows to predict have no weights
    assert len(read_features(tmp_path / "new.csv", schema)) == 1
    (tmp_path / "labelled.csv").write_text("a,b,y\n0,1,1\n")  # nor do rows to evaluate on need them
    assert read_rows(tmp_path / "labelled.csv", schema)[1] == [1]
    assert read_weighted(file, parse_schema(IGNORED)).weights is None
    assert problems(file, schema) == []
    assert describe_fit(file, schema)[-1] == ("visits", 3, 0, 2)


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("-1", "a weight must not be negative (correct it, or leave the row out)"),
        ("", "the weight is missing (leave the row out)"),
        ("NaN", "the weight is missing (leave the row out)"),
        ("inf", "'inf' is not a number"),
        ("1e101", "'1e101' is not a number of at most 1e+100 in size"),
        ("two", "'two' is not a number"),
    ],
)
def test_a_weight_that_does_not_fit_is_named_with_file_and_row(cell, why, tmp_path):
    file, schema = table(tmp_path, "0,1,0,1.5", f"1,1,1,{cell}"), parse_schema(SCHEMA)
    with pytest.raises(DataError) as refused:
        read_weighted(file, schema)
    place = f"{file}, row 2, column 'visits': "
    assert str(refused.value).startswith(place) and why.split(" (")[0] in str(refused.value)
    assert refused.value.reason == "a value in its table does not fit the schema"  # names no value
    (problem,) = problems(file, schema)
    assert problem.startswith(f"{file}, row 2, column 'visits':")


def test_a_draft_knows_the_weights(tmp_path):
    file = table(tmp_path, *(f"{i / 7},{i % 5}.5,{i % 2},{1 + i / 10}" for i in range(30)))
    text = drafted([file], "y", weight="visits").text
    found = parse_schema(text)
    assert (found.weight.column, found.weight.range.low, found.weight.range.high) == ("visits", 1.0, 3.9)
    shown = CliRunner().invoke(cli.app, ["schema", str(file), "--label", "y", "--weight", "visits"])
    assert 'weight = "visits"' in shown.output
    (tmp_path / "s.toml").write_text(text)
    checked = CliRunner().invoke(cli.app, ["schema", str(file), "--check", str(tmp_path / "s.toml")])
    assert checked.exit_code == 0, checked.output
    for weight, why in (("y", "both the weight and the label"), ("gone", "there is no column 'gone'")):
        with pytest.raises(DataError, match=why):
            drafted([file], "y", weight=weight)
    with pytest.raises(
        DataError, match="column 'visits' cannot be the weight: it must have numbers from 0 on"
    ):
        drafted([table(tmp_path, "0,1,0,-1", "1,2,1,2", name="u.csv")], "y", weight="visits")


# ------------------------------------------------------------------------------------------------ runs


def pooled(tmp_path):
    """Features, labels and weights of all sites, read by hand."""
    tables = [np.loadtxt(tmp_path / f"site-{n}.csv", delimiter=",", skiprows=1) for n in range(3)]
    a, b, y, weights = np.concatenate(tables).T
    return np.column_stack([a / 3, b / 3, np.ones(len(a))]) / np.sqrt(3), y.astype(int), weights.clip(0.5, 4)


def test_a_run_ends_where_scikit_learn_does(sites, tmp_path):
    features, labels, weights = pooled(tmp_path)
    run = {"rounds": 3000, "fedavg.step-size": 4.0, "evaluation.every": 3000, "objective.l2": 0.01}
    setup = prepare(parse(sites | run))
    (result,) = cohort.train([setup])
    known = LogisticRegression(C=1 / (0.01 * len(labels)), fit_intercept=False, tol=1e-12, max_iter=1000)
    known.fit(features, labels, sample_weight=weights)  # C multiplies a sum, and ours is a mean over the rows
    assert_allclose(result.model, known.coef_[0], rtol=1e-6)
    assert_allclose(setup.central.optimum, known.coef_[0], rtol=1e-6)
    margins = np.logaddexp(0, -(2 * labels - 1) * (features @ result.model))
    assert_allclose(setup.central.evaluate(result.model)["objective"],
        (weights * margins).mean() + 0.005 * (result.model**2).sum())  # fmt: skip


@pytest.mark.parametrize("kind", [{}, {"privacy.mode": "public-state", "privacy.epsilon": 8.0}])
@pytest.mark.parametrize("held", [{}, {"evaluation.held-out": 0.2}])
def test_sites_with_files_of_their_own_train_the_same_model(kind, held, sites, tmp_path):
    sites |= kind | held | ({"privacy.evaluation-share": 0.2} if kind and held else {})
    (arrays,) = cohort.train([prepare(parse(sites))])
    own = prepare(parse(own_keys(sites, tmp_path)))
    deployed = run_strategy(own, Nodes(own), "inprocess") if not kind else None
    direct = inprocess.train(prepare(parse(sites)))
    plain = tmp_path / "plain.toml"
    plain.write_text(IGNORED)
    (other,) = cohort.train([prepare(parse(sites | {"data.schema": str(plain)}))])
    assert not np.allclose(arrays.model, other.model)
    assert_allclose(direct.model, arrays.model, rtol=1e-9)
    if deployed:
        assert not deployed.failure
        assert_allclose(deployed.model, arrays.model, rtol=1e-9)
        assert deployed.rows[-1].get("held_out_accuracy") == arrays.rows[-1].get("held_out_accuracy")


def test_held_out_and_test_rows_have_no_weights(sites):
    setup = prepare(parse(sites | {"evaluation.held-out": 0.2}))
    assert setup.held_rows(0).row_weights is None
    data = setup.dataset
    scores = data.test_features @ np.ones(3) > 0
    assert setup.central.evaluate(np.ones(3))["test_accuracy"] == (scores == data.test_labels).mean()


def test_the_noise_of_a_private_run_grows_with_the_largest_weight(sites, tmp_path):
    private = {"privacy.mode": "gradient", "privacy.epsilon": 2.0}
    plain = tmp_path / "plain.toml"
    plain.write_text(IGNORED)
    heavy, light = (prepare(parse(sites | private | change)) for change in ({}, {"data.schema": str(plain)}))
    assert heavy.plan.multipliers.tolist() == light.plan.multipliers.tolist()
    release = [own.method.release(own.plan.bounds, own.schedule.workload(40), 1) for own in (heavy, light)]
    assert_allclose(release[0].sensitivity, 4 * release[1].sensitivity)


def test_one_file_of_several_sites_keeps_the_weights(sites, tmp_path):
    texts = [(tmp_path / f"site-{n}.csv").read_text().splitlines() for n in range(3)]
    lines = [f"{line},{n}" for n, rows in enumerate(texts) for line in rows[1:]]
    (tmp_path / "all.csv").write_text("\n".join(["a,b,y,visits,ward", *lines, ""]))
    keys = sites | {"data.files": str(tmp_path / "all.csv"), "data.site-column": "ward"}
    one, three = (prepare(parse(own)) for own in (keys, sites))
    assert_array_equal(one.dataset.row_weights, three.dataset.row_weights)
    with pytest.raises(SettingError, match="data.site-column is 'visits', which is the weight in"):
        prepare(parse(keys | {"data.site-column": "visits"}))
    shares = {key: own for key, own in sites.items() if key != "data.test-file"}
    assert len(prepare(parse(shares)).dataset.row_weights) == 120


def test_a_server_without_rows_has_the_same_bounds(sites, tmp_path):
    keys = own_keys(sites, tmp_path) | {"data.file": "", "evaluation.held-out": 0.2}
    setup = prepare(parse(keys))
    assert len(load_own_table(setup.config.data).row_weights) == 0
    assert setup.objective.bounds(1.0) == prepare(parse(sites)).objective.bounds(1.0)


def test_a_ledger_knows_rows_by_their_weights_too(sites, tmp_path):
    """Data with other weights are other data, whose budget is their own."""
    private = {
        "privacy.mode": "gradient",
        "privacy.epsilon": 2.0,
        "output.state-dir": str(tmp_path / "state"),
    }
    context = Context(1, 1, {}, RecordDict(), {})
    setup = prepare(parse(sites | private))
    data = setup.dataset
    changed = replace(setup, dataset=replace(data, row_weights=data.row_weights[::-1].copy()))
    ids = [ledger_of(own, 0, context).data for own in (setup, changed, setup)]
    assert ids[0] == ids[2] != ids[1]


def test_rows_of_weight_0_hide_nobody_in_an_information_matrix(sites, tmp_path):
    """A site sends it of so many rows that have a weight."""
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace("[0.5, 4]", "[0, 4]"))
    file = tmp_path / "site-0.csv"
    header, *rows = file.read_text().splitlines()
    light = [",".join([*row.split(",")[:3], "0"]) for row in rows[8:]]
    file.write_text("\n".join([header, *rows[:8], *light, ""]))
    setup = prepare(parse(sites | {"evaluation.standard-errors": True}))
    query(setup, "information").check_policy(Site(1, 3, standard_error_rows=4), 1)
    with pytest.raises(SettingError, match="of fewer than 9 rows, .*; the run has 8"):
        query(setup, "information").check_policy(Site(0, 3, standard_error_rows=4), 0)


def test_a_report_names_the_weights(sites, tmp_path):
    (result,) = cohort.train([prepare(parse(sites))])
    page = report_run(write_run(result, tmp_path / "run")).read_text(encoding="utf-8")
    assert "Weights of the rows: visits, 0.5 to 4" in page


# ------------------------------------------------------------------------------------- standard errors

FAMILIES = {"logistic": sm.families.Binomial(), "poisson": sm.families.Poisson()}


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("objective", ["logistic", "least-squares", "poisson"])
def test_errors_are_those_of_statsmodels_with_var_weights(objective, robust, tmp_path):
    parts, weights = [], np.random.default_rng(5).uniform(0.1, 3, 200)
    counts = (60, 90, 50)
    for number, count in enumerate(counts):
        parts.append(people(objective, number, count))
        extra = [years_of(number, count), weights[sum(counts[:number]) :][:count]]
        age, size, group, labels = parts[-1]
        columns = zip(*own(age, size, np.array(list("abc"))[group], labels, *extra), strict=True)
        lines = [",".join(map(str, row)) for row in columns]
        (tmp_path / f"{number}.csv").write_text("\n".join(["age,size,group,y,years,w", *lines, ""]))
    keys = 'weight = "w"\nweight-range = [0, 3]\n' + (
        'ignore = ["years"]\n' if objective != "poisson" else ""
    )
    (tmp_path / "schema.toml").write_text(keys + PEOPLE.format(label=LABELS[objective]))
    run = {
        "data.name": "tables", "data.files": str(tmp_path / "*.csv"), "data.schema": str(tmp_path / "schema.toml"),
        "data.row-scaling": "all", "data.test-file": str(tmp_path / "0.csv"), "objective.name": objective,
        "regulariser.name": "none", "algorithm": "fedavg", "rounds": 1, "local.max-steps": 1,
        "fedavg.step-size": 1e-9, "clients.weighting": "rows", "evaluation.standard-errors": True,
    }  # fmt: skip
    setup = at_maximum(prepare(parse(run)))
    (result,) = cohort.train([setup])
    found = inferred(trained_model(setup, result.model, None, result.information), robust)
    rows = [row for row in found.rows if row.term != row.reference or not row.term]
    age, size, group, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    design = np.column_stack([np.ones(200), age, size, group == 1, group == 2]).astype(float)
    kind = {"cov_type": "HC0"} if robust else {}
    if objective == "least-squares":
        known = sm.WLS(labels, design, weights=weights).fit(**kind)
    else:
        years = np.concatenate([years_of(number, count) for number, count in enumerate(counts)])
        offset = {"offset": np.log(years)} if objective == "poisson" else {}
        model = sm.GLM(labels, design, family=FAMILIES[objective], var_weights=weights, **offset)
        known = model.fit(tol=1e-14, maxiter=100, **kind)
    assert_allclose([row.estimate for row in rows], known.params, rtol=1e-8)
    assert_allclose([row.std_error for row in rows], known.bse, rtol=1e-8)
    assert_allclose([row.p_value for row in rows], known.pvalues, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("objective", ["logistic", "least-squares", "poisson"])
def test_weight_0_leaves_a_row_out(objective, grouped, tmp_path):
    """Estimates, errors, likelihood and numbers of rows are those of a table without these rows."""
    draw, found = np.random.default_rng(5), []
    weights, persons = draw.integers(0, 3, 200) / 2.0, draw.integers(0, 60, 200)
    for kept in (weights >= 0, weights > 0):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        first = 0
        for number, count in enumerate((60, 90, 50)):
            places = slice(first, first + count)
            age, size, group, labels = people(objective, number, count)
            extra = years_of(number, count), weights[places], persons[places] + 60 * number
            columns = zip(*own(age, size, np.array(list("abc"))[group], labels, *extra), strict=True)
            rows = [
                ",".join(map(str, row)) for row, there in zip(columns, kept[places], strict=True) if there
            ]
            (folder / f"{number}.csv").write_text("\n".join(["age,size,group,y,years,w,person", *rows, ""]))
            first += count
        unused = [*["years"] * (objective != "poisson"), *["person"] * (not grouped)]
        keys = f'weight = "w"\nweight-range = [0, 3]\nignore = {unused}\n' + 'group = "person"\n' * grouped
        schema = PEOPLE.format(label=LABELS[objective]).replace(
            "age = { range = [20, 80] }", "age = { range = [20, 79.9] }"
        )
        (folder / "schema.toml").write_text(keys + schema)
        run = {
            "data.name": "tables", "data.files": str(folder / "*.csv"), "data.schema": str(folder / "schema.toml"),
            "data.row-scaling": "all", "data.test-file": str(folder / "0.csv"), "objective.name": objective,
            "regulariser.name": "none", "algorithm": "newton", "newton.robust": grouped, "rounds": 20,
            "clients.weighting": "rows", "evaluation.standard-errors": True,
        }  # fmt: skip
        (result,) = cohort.train([prepare(parse(run))])
        model = trained_model(result.setup, result.model, None, result.information)
        found.append(inferred(model, grouped))
    whole, fewer = found
    assert (weights == 0).sum() > 40 and whole.facts.rows == fewer.facts.rows == (weights > 0).sum()
    assert whole.facts.events == fewer.facts.events and whole.facts.clipped == fewer.facts.clipped
    assert whole.facts.dropped == {"with weight 0": (weights == 0).sum()} and not fewer.facts.dropped
    assert whole.clusters == fewer.clusters > 0 if grouped else whole.clusters == 0
    assert_allclose(whole.facts.log_likelihood, fewer.facts.log_likelihood, rtol=1e-9)
    for name in ("estimate", "std_error", "p_value", "low"):
        values = [[getattr(row, name) for row in table.rows] for table in found]
        assert_allclose(*values, rtol=1e-6, atol=1e-12, err_msg=name)


# ------------------------------------------------------------------------------------------ estimators


def arrays(rows=120):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(rows, 3))
    return X, (X @ [1.0, -2.0, 0.5] + draw.logistic(size=rows) > 0).astype(int), draw.uniform(0, 3, rows)


def test_a_classifier_ends_where_scikit_learn_does():
    X, y, weights = arrays()
    sites, keys = np.arange(120) % 4, {"objective.l2": 0.02}
    ours = FederatedClassifier(rounds=1500, settings=keys, random_state=0)
    ours.fit(X, y, sites=sites, sample_weight=weights)
    scaled = 2 * (X - X.min(0)) / (X.max(0) - X.min(0)) - 1
    known = LogisticRegression(C=1 / (0.02 * 120), fit_intercept=False, tol=1e-12, max_iter=1000)
    known.fit(np.column_stack([scaled, np.ones(120)]), y, sample_weight=weights)
    assert_allclose([*ours.coef_.ravel(), *np.ravel(ours.intercept_)], known.coef_[0], rtol=1e-6)
    one, none = (FederatedClassifier(random_state=0).fit(X, y, sample_weight=w) for w in (np.ones(120), None))
    assert_array_equal(one.model_.x, none.model_.x)


def test_regressors_take_weights():
    """A weight of 0 is no row: the label of such a row has no effect."""
    X, _, weights = arrays()
    weights[:30] = 0.0
    y, other = X @ [1.0, 2.0, 3.0], X @ [1.0, 2.0, 3.0]
    other[:30] = 0.0
    settings = {"target_range": (-20, 20), "random_state": 0, "rounds": 5}
    found = [FederatedRegressor(**settings).fit(X, own, sample_weight=weights).model_.x for own in (y, other)]
    assert_array_equal(*found)
    times = np.random.default_rng(1).uniform(0.1, 4, 120)
    settings = {"intervals": "1, 2, 4", "random_state": 0, "rounds": 5}
    found = [
        FederatedCoxRegressor(**settings).fit(X, own, sample_weight=weights).model_.x
        for own in (times, np.where(np.arange(120) < 30, -1.5, times))
    ]
    assert_array_equal(*found)


def test_a_private_fit_needs_a_public_range_and_pays_for_it():
    X, y, weights = arrays()
    private = {"epsilon": 4.0, "ranges": (-3, 3), "random_state": 0, "rounds": 5}
    with pytest.raises(
        SettingError, match=r"the range of sample_weight must be public: give weight_range=\(low"
    ):
        FederatedClassifier(**private).fit(X, y, sample_weight=weights)
    heavy = FederatedClassifier(**private, weight_range=(0, 3)).fit(X, y, sample_weight=weights)
    plain = FederatedClassifier(**private).fit(X, y)
    assert heavy.privacy_["epsilon"] == plain.privacy_["epsilon"]
    wider = FederatedClassifier(**private, weight_range=(0, 2)).fit(X, y, sample_weight=weights)
    clipped = FederatedClassifier(**private, weight_range=(0, 2)).fit(X, y, sample_weight=weights.clip(0, 2))
    assert_array_equal(wider.model_.x, clipped.model_.x)


@pytest.mark.parametrize(
    ("weights", "keys", "why"),
    [
        (np.full(120, -1.0), {}, "sample_weight must be numbers from 0 to 1e+100; that of row 1 is not"),
        (np.where(np.arange(120) == 4, np.nan, 1), {}, "that of row 5 is not"),
        (np.full(120, np.inf), {}, "that of row 1 is not"),
        (["a"] * 120, {}, "sample_weight must be numbers from 0 on"),
        (np.ones(119), {}, "sample_weight must have shape (120,), one for each row; got (119,)"),
        (np.zeros(120), {}, "sample_weight must not be zero in every row"),
        (np.ones(120), {"weight_range": (2, 1)}, "weight_range must be (low, high) with low < high"),
        (np.ones(120), {"weight_range": (-1, 1)}, "weight_range must begin at 0 or above; got (-1, 1)"),
        (np.ones(120), {"weight_range": "private"}, "weight_range must be (low, high) with low < high"),
        (
            np.ones(120),
            {"objective": "swish-network"},
            "weights of rows need an objective that supports them",
        ),
    ],
)
def test_weights_that_do_not_fit_are_one_sentence(weights, keys, why):
    X, y, _ = arrays()
    with pytest.raises(SettingError, match=re.escape(why)) as refused:
        FederatedClassifier(**keys).fit(X, y, sample_weight=weights)
    assert "\n" not in str(refused.value)
