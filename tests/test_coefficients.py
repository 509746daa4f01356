"""Coefficients in the units of the columns, and rows that are all scaled by one public constant."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, softmax
from site_files import three_sites
from sklearn.linear_model import LinearRegression, LogisticRegression
from test_sites import PRIVATE, own_keys
from test_sites import SCHEMA as SITES_SCHEMA
from test_sites import table as sites_table
from typer.testing import CliRunner

import twinflower
from twinflower.data.columns import INDICATOR, ZERO, Number
from twinflower.data.schema_file import parse_schema
from twinflower.data.sites import TableData, load_tables
from twinflower.errors import SettingError
from twinflower.models.coefficients import INTERCEPT, MISSING
from twinflower.models.inputs import Inputs
from twinflower.models.trained import trained
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

COLUMNS = """
[columns]
age = { range = [20, 81] }
sex = { categories = ["f", "m"] }
dose = { range = [-1, 4], missing = "indicator" }
weight = { range = [1e3, 5e3], missing = "zero" }
pain = { categories = ["none", "mild", "severe"], missing = "indicator" }
site = { categories = ["x", "y"], missing = "zero" }
"""
LABELS = {
    "logistic": '[label]\ncolumn = "ill"\nclasses = ["no", "yes"]\n',
    "softmax": '[label]\ncolumn = "ill"\nclasses = ["no", "yes"]\n',
    "softmax of three": '[label]\ncolumn = "ill"\nclasses = [1, 2, 3]\n',
    "least-squares": '[label]\ncolumn = "ill"\nrange = [-10, 35]\n',
}
PREPARED = [
    {"row_norm": 1.0, "row_scaling": "all"},
    {"row_norm": 0.3, "row_scaling": "all", "bias": False},
    {"row_norm": 100.0, "row_scaling": "all"},
    {"row_norm": 0.0},
    {"row_norm": 0.0, "bias": False},
]


def model_of(kind, **inputs):
    """A model with random weights."""
    schema = parse_schema(LABELS[kind] + COLUMNS)
    both = Inputs(len(schema.features), schema, **inputs)
    outputs = {"softmax": 2, "softmax of three": 3}.get(kind, 1)
    x = np.random.default_rng(3).normal(size=outputs * (len(schema.features) + both.bias))
    classes = getattr(schema.label, "names", ())
    return trained(x, kind.split()[0], both, classes=classes)


def some_rows(count=200):
    draw = np.random.default_rng(4)

    def gappy(cells):
        return [cell if kept else "" for cell, kept in zip(cells, draw.random(count) < 0.8, strict=True)]

    return {
        "age": draw.uniform(10, 95, count).tolist(),
        "sex": draw.choice(["f", "m"], count).tolist(),
        "dose": gappy(draw.uniform(-3, 6, count).tolist()),
        "weight": gappy(draw.uniform(0, 6e3, count).tolist()),
        "pain": gappy(draw.choice(["none", "mild", "severe"], count).tolist()),
        "site": gappy(draw.choice(["x", "y"], count).tolist()),
    }


def by_hand(schema, table, rows):
    """The scores (rows,) of one outcome, from its rows of the table of coefficients and the public schema alone."""
    effect = {(row.column, row.term): row.estimate for row in table}
    scores = np.full(len(rows["age"]), effect[INTERCEPT, ""])
    for column in schema.columns:
        for place, cell in enumerate(rows[column.name]):
            if isinstance(column, Number):
                value = (
                    column.range.middle if cell == "" else np.clip(cell, column.range.low, column.range.high)
                )
                scores[place] += effect[column.name, "per unit"] * value
                scores[place] += (
                    effect[column.name, MISSING] if cell == "" and column.missing == INDICATOR else 0
                )
            else:
                scores[place] += effect[column.name, cell or MISSING]
    return scores


@pytest.mark.parametrize("inputs", PREPARED, ids=str)
@pytest.mark.parametrize("kind", LABELS)
def test_predictions_follow_from_the_table_by_hand(kind, inputs):
    model, rows = model_of(kind, **inputs), some_rows()
    found = model.coefficients()
    outcomes = list(dict.fromkeys(row.outcome for row in found))
    scores = [
        by_hand(model.inputs.schema, [row for row in found if row.outcome == own], rows) for own in outcomes
    ]
    if kind == "least-squares":
        np.testing.assert_allclose(scores[0], model.predict(rows), rtol=1e-12, atol=1e-11)
        assert all(math.isnan(row.ratio) for row in found)
        return
    assert outcomes == [str(name) for name in model.classes[1:]]
    assert {row.against for row in found} == {str(model.classes[0])}
    expected = softmax(np.column_stack([np.zeros(len(scores[0])), *scores]), axis=1)
    np.testing.assert_allclose(model.predict_proba(rows), expected, rtol=0, atol=1e-12)
    np.testing.assert_array_equal([row.ratio for row in found], np.exp([row.estimate for row in found]))


def test_the_first_category_is_the_reference():
    found = model_of("logistic", row_norm=1.0, row_scaling="all").coefficients()
    assert [(row.term, row.reference) for row in found if row.column == "pain"] == [
        ("none", "none"), ("mild", "none"), ("severe", "none"), (MISSING, "none"),
    ]  # fmt: skip
    assert [(row.term, row.reference) for row in found if row.column == "dose"] == [
        ("per unit", ""),
        (MISSING, "1.5"),
    ]
    assert [row.estimate for row in found if row.term == row.reference != ""] == [0.0] * 3


def test_what_a_sparse_model_uses_is_marked():
    model = model_of("logistic", row_norm=1.0, row_scaling="all")
    names = list(model.get_feature_names_out())
    x = model.x.copy()
    for name in ("age", "sex=f", "sex=m", "pain=mild", "dose is missing"):
        x[names.index(name)] = 0.0
    found = {(row.column, row.term): row for row in replace(model, x=x).coefficients()}
    unused = {key for key, row in found.items() if not row.selected}
    assert unused == {
        ("age", "per unit"), ("sex", "f"), ("sex", "m"), ("pain", "mild"), ("dose", MISSING),
    }  # fmt: skip
    assert found["age", "per unit"].estimate == found["sex", "m"].estimate == 0
    assert found["pain", "mild"].estimate == -x[names.index("pain=none")] / math.sqrt(7)


def test_coef_is_of_the_features_and_coefficients_are_of_the_columns():
    """Raising age by one year raises its feature by 1 / half the width of its range."""
    model = model_of("logistic", row_norm=1.0, row_scaling="all")
    found = {(row.column, row.term): row.estimate for row in model.coefficients()}
    coef = dict(zip(model.get_feature_names_out(), model.coef_[0], strict=True))
    assert found["age", "per unit"] == pytest.approx(coef["age"] / 30.5, rel=1e-13)
    assert found["pain", "severe"] == pytest.approx(coef["pain=severe"] - coef["pain=none"], rel=1e-13)
    rows = some_rows()
    encoded = replace(model.inputs, row_norm=0.0, row_scaling="each").features(rows)
    scores = encoded[:, :-1] @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(scores, model.decision_function(rows), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(("centre", "spread", "columns"), [(None, None, None), ([1.0, -2.0], [3.0, 0.5], 2)])
def test_columns_of_arrays_have_units_too(centre, spread, columns):
    arrays = {
        key: None if own is None else np.array(own)
        for key, own in {"centre": centre, "spread": spread}.items()
    }
    model = trained(np.array([1.0, -2.0, 0.5]), "logistic", Inputs(2, **arrays), classes=(0, 1))
    rows = np.random.default_rng(0).normal(size=(20, 2))
    found = model.coefficients()
    assert [row.column for row in found] == [INTERCEPT, "x0", "x1"]
    hand = found[0].estimate + rows @ [row.estimate for row in found[1:]]
    np.testing.assert_allclose(model.predict_proba(rows)[:, 1], expit(hand), rtol=1e-13)


@pytest.mark.parametrize("schema", [True, False])
def test_rows_divided_by_their_own_norms_have_no_coefficients(schema):
    if schema:
        model = model_of("softmax", row_norm=1.0)
    else:
        model = trained(np.ones(3), "logistic", Inputs(2, row_norm=1.0), classes=(0, 1))
    remedy = (
        "data.row-scaling = all" if schema else 'row_scaling = "all" of an estimator, or data.row-norm = 0'
    )
    with pytest.raises(SettingError, match=f"divided by their own norms, so .*: train with {remedy}"):
        model.coefficients()
    assert model.coef_.shape[0] == 1


def test_models_that_have_none_say_so():
    schema = parse_schema(LABELS["softmax"] + COLUMNS)
    columns = len(schema.features) + 1
    for objective, d, hidden in (
        ("rowwise-logistic", 2 * columns, 0),
        ("swish-network", 3 * (columns + 2), 3),
    ):
        model = trained(
            np.ones(d),
            objective,
            Inputs(columns - 1, schema),
            classes=("no", "yes"),
            form={"hidden_units": hidden} if hidden else {},
        )
        with pytest.raises(
            SettingError, match=f"are those of objective softmax or logistic; got {objective}"
        ):
            model.coefficients()


# ------------------------------------------------------------------------------------------ oracles


def some_people(draw, count, shift):
    """Ages, categories, and scores that are linear in both, (count,)."""
    age, group = draw.uniform(20, 80, count), draw.integers(0, 3, count)
    return age, group, 0.08 * (age - 50) + np.array([0.0, 1.0, -0.7])[group] + shift


def tables_of(folder, label):
    """Three sites' files; returns ages, categories and labels of all rows. label: of a score, a text."""
    draw = np.random.default_rng(8)
    parts = []
    for number, shift in enumerate((-0.5, 0.0, 0.6)):
        age, group, score = some_people(draw, 60 + 20 * number, shift)
        labels = [label(draw, own) for own in score]
        lines = [f"{a!r},{'abc'[g]},{y}" for a, g, y in zip(age.tolist(), group, labels, strict=True)]
        (folder / f"site-{number}.csv").write_text("\n".join(["age,group,y", *lines]) + "\n")
        parts.append((age, group, np.array(labels)))
    return [np.concatenate(own) for own in zip(*parts, strict=True)]


def trained_on(folder, label, keys):
    """A run without noise on these tables, whose step is 1/L for rows of norm 1."""
    text = f'[label]\ncolumn = "y"\n{label}\n[columns]\nage = {{ range = [20, 80] }}\n'
    (folder / "schema.toml").write_text(text + 'group = { categories = ["a", "b", "c"] }\n')
    run = {
        "algorithm": "fedavg", "rounds": 6000, "local.max-steps": 1, "clients.weighting": "rows",
        "evaluation.every": 6000, "data.name": "tables", "data.files": str(folder / "site-*.csv"),
        "data.schema": str(folder / "schema.toml"), "data.test-file": str(folder / "site-0.csv"),
        "data.row-scaling": "all", "regulariser.name": "none",
    }  # fmt: skip
    (result,) = cohort.train([prepare(parse(run | keys))])
    write_run(result, folder / "run")
    return twinflower.load(folder / "run")


def design(age, group):
    """Raw columns with dummies for all categories but the first."""
    return np.column_stack([age, group == 1, group == 2])


def effects(model, outcome=""):
    """Estimates in the order of `design`, and the intercept."""
    found = {(row.column, row.term): row.estimate for row in model.coefficients() if row.outcome == outcome}
    return [found["age", "per unit"], found["group", "b"], found["group", "c"], found[INTERCEPT, ""]]


def test_a_logistic_run_has_the_coefficients_of_scikit_learn(tmp_path):
    age, group, y = tables_of(tmp_path, lambda draw, score: int(draw.random() < expit(score)))
    model = trained_on(tmp_path, "classes = [0, 1]", {"objective.name": "logistic", "fedavg.step-size": 4.0})
    oracle = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12, max_iter=1000)
    oracle.fit(design(age, group), y)
    np.testing.assert_allclose(effects(model, "1"), [*oracle.coef_[0], *oracle.intercept_], rtol=1e-6)


def test_a_multinomial_run_has_the_coefficients_of_scikit_learn(tmp_path):
    def label(draw, score):
        return draw.choice(3, p=softmax([0, score, 0.5 * score + 0.2]))

    age, group, y = tables_of(tmp_path, label)
    keys = {"objective.name": "softmax", "fedavg.step-size": 2.0, "rounds": 12000, "evaluation.every": 12000}
    model = trained_on(tmp_path, "classes = [0, 1, 2]", keys)
    oracle = LogisticRegression(C=np.inf, solver="newton-cg", tol=1e-12, max_iter=1000)
    oracle.fit((design(age, group) - [50, 0, 0]) / [30, 1, 1], y)
    slopes = oracle.coef_ / [30, 1, 1]
    constants = oracle.intercept_ - 50 * slopes[:, 0]
    for place in (1, 2):
        expected = [*(slopes[place] - slopes[0]), constants[place] - constants[0]]
        np.testing.assert_allclose(effects(model, str(place)), expected, rtol=1e-5, atol=1e-6)


def test_a_regression_has_the_coefficients_of_scikit_learn_in_units_of_the_label(tmp_path):
    age, group, y = tables_of(tmp_path, lambda draw, score: float(100 + 5 * score + draw.normal()))
    keys = {"objective.name": "least-squares", "fedavg.step-size": 1.0}
    model = trained_on(tmp_path, "range = [60, 140]", keys)
    oracle = LinearRegression().fit(design(age, group), y)
    np.testing.assert_allclose(effects(model), [*oracle.coef_, oracle.intercept_], rtol=1e-6)


# ------------------------------------------------------------------------------------------ rows of one scale

cells = st.fixed_dictionaries(
    {
        "age": st.floats(-1e99, 1e99), "sex": st.sampled_from("fm"), "dose": st.floats(-1e99, 1e99) | st.just(""),
        "weight": st.floats(-1e99, 1e99) | st.just(""), "pain": st.sampled_from(["none", "mild", "severe", ""]),
        "site": st.sampled_from(["x", "y", ""]),
    }
)  # fmt: skip


@given(cells, st.sampled_from([1.0, 0.3, 2.0, 50.0]), st.booleans())
def test_no_row_is_longer_than_row_norm_and_all_have_the_same_factor(row, bound, bias):
    """Whatever its cells are; so the sensitivity that follows from row-norm holds without dividing any row by more."""
    schema = parse_schema(LABELS["logistic"] + COLUMNS)
    inputs = Inputs(len(schema.features), schema, bias=bias, row_norm=bound, row_scaling="all")
    rows = {name: [cell] for name, cell in row.items()}
    own, plain = inputs.features(rows), replace(inputs, row_norm=0.0).features(rows)
    assert np.linalg.norm(own) <= bound * (1 + 1e-15)
    np.testing.assert_array_equal(own, plain * inputs.factor)
    assert inputs.factor == min(1.0, bound / math.sqrt(6 + bias))


def test_a_row_at_the_ends_of_all_ranges_is_as_long_as_row_norm():
    schema = parse_schema(LABELS["logistic"] + COLUMNS)
    inputs = Inputs(len(schema.features), schema, row_norm=1.0, row_scaling="all")
    row = {"age": 20, "sex": "f", "dose": "", "weight": 5e3, "pain": "", "site": "x"}
    assert np.linalg.norm(inputs.features({name: [cell] for name, cell in row.items()})) == pytest.approx(1.0)
    assert all(column.missing != ZERO or row[column.name] != "" for column in schema.columns)


@pytest.fixture
def sites(tmp_path):
    return three_sites(tmp_path, SITES_SCHEMA, sites_table, (40, 60, 50, 100)) | {
        "rounds": 5, "data.row-scaling": "all",
    }  # fmt: skip


@pytest.mark.parametrize("private_range", [False, True])
def test_a_run_scales_all_rows_by_one_factor(sites, tmp_path, private_range):
    if private_range:
        text = SITES_SCHEMA.replace("range = [20, 80]", 'range = "private"')
        (tmp_path / "schema.toml").write_text(text)
    setup = prepare(parse(sites | PRIVATE))
    keys = {key: sites[f"data.{key.replace('_', '-')}"] for key in ("files", "schema", "test_file")}
    plain = load_tables(TableData(**keys, row_norm=0.0))
    np.testing.assert_allclose(setup.dataset.features, plain.features / math.sqrt(3), rtol=1e-15)
    (result,) = cohort.train([setup])
    write_run(result, tmp_path / "run")
    model = twinflower.load(tmp_path / "run")
    assert model.inputs.row_scaling == "all"
    assert model.score(tmp_path / "test.csv") == result.rows[-1]["test_accuracy"]
    assert [row.column for row in model.coefficients()][:2] == [INTERCEPT, "age"]


def test_a_run_on_rows_without_a_schema_cannot_know_the_largest_norm(sites, tmp_path):
    keys = own_keys(sites, tmp_path) | {"data.row-scaling": "all"}
    assert prepare(parse(keys)).config.data.row_scaling == "all"
    del keys["data.schema"], keys["data.schema-digest"]
    with pytest.raises(
        SettingError, match="data.row-scaling = all divides rows by .*: set data.schema, or leave it"
    ):
        prepare(parse(keys | {"data.num-features": 6, "data.num-classes": 2}))
    with pytest.raises(
        SettingError, match="row-scaling must be one of each, all; got 'al'; did you mean 'all'"
    ):
        parse(sites | {"data.row-scaling": "al"})


@pytest.mark.parametrize("ranges", [(-3.0, 3.0), "private"])
def test_an_estimator_scales_all_rows_by_one_factor(ranges):
    draw = np.random.default_rng(0)
    X = draw.normal(size=(300, 3))
    y = (X @ [1.0, -2.0, 0.5] > 0).astype(int)
    ours = twinflower.FederatedClassifier(epsilon=8, ranges=ranges, row_scaling="all", random_state=0).fit(
        X, y
    )
    assert np.linalg.norm(ours.model_.inputs.features(10 * X), axis=1).max() <= 1 + 1e-15
    found = ours.model_.coefficients()
    centre, spread = ours.model_.inputs.centre, ours.model_.inputs.spread
    rows = np.clip(X, centre - spread, centre + spread)
    hand = found[0].estimate + rows @ [row.estimate for row in found[1:]]
    np.testing.assert_allclose(ours.predict_proba(X)[:, 1], expit(hand), rtol=1e-11)
    with pytest.raises(SettingError, match="row_scaling must be one of each, all; got 'none'"):
        twinflower.FederatedClassifier(row_scaling="none").fit(X, y)


# ------------------------------------------------------------------------------------------ the command and the report


def test_the_command_and_the_report_show_the_table(sites, tmp_path):
    (result,) = cohort.train([prepare(parse(sites))])
    write_run(result, tmp_path / "run")
    found = twinflower.load(tmp_path / "run").coefficients()

    def command(*arguments):
        return CliRunner().invoke(cli.app, ["coefficients", str(tmp_path / "run"), *arguments])

    shown = command().output
    assert "odds of yes against no" in shown
    report = report_run(tmp_path / "run").read_text(encoding="utf-8")
    for row in found:
        assert f"{row.ratio:.4g}" in shown
        assert f"{row.ratio:.4g}" in report
    assert "severe (against none)" in shown
    assert "severe (against none)" in report
    command("--out", str(tmp_path / "out.csv"))
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert [float(line["estimate"]) for line in lines] == [row.estimate for row in found]
    assert {line["ratio_is"] for line in lines} == {"odds ratio"}


def test_a_report_of_many_columns_shows_the_first(sites, tmp_path, monkeypatch):
    (result,) = cohort.train([prepare(parse(sites))])
    write_run(result, tmp_path / "run")
    monkeypatch.setattr("twinflower.simulation.report.sections.coefficients._MOST_ROWS", 2)
    report = report_run(tmp_path / "run").read_text(encoding="utf-8")
    assert "4 more rows: the command twinflower coefficients shows all." in report
    assert "severe (against none)" not in report


def test_the_report_says_why_there_are_none(sites, tmp_path):
    (result,) = cohort.train([prepare(parse(sites | {"data.row-scaling": "each"}))])
    write_run(result, tmp_path / "run")
    report = report_run(tmp_path / "run").read_text(encoding="utf-8")
    assert "None: rows longer than data.row-norm = 1 were divided by their own norms" in report
    result = CliRunner().invoke(cli.app, ["coefficients", str(tmp_path / "run")])
    assert "train with data.row-scaling = all" in str(result.exception)


def test_a_regression_has_effects_and_no_odds(tmp_path):
    tables_of(tmp_path, lambda draw, score: float(100 + 5 * score))
    keys = {"objective.name": "least-squares", "rounds": 3, "evaluation.every": 3}
    trained_on(tmp_path, "range = [60, 140]", keys)
    shown = CliRunner().invoke(cli.app, ["coefficients", str(tmp_path / "run")]).output
    assert "effects, in units of the label" in shown
    assert "odds" not in shown
    CliRunner().invoke(cli.app, ["coefficients", str(tmp_path / "run"), "--out", str(tmp_path / "out.csv")])
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert {(line["estimate_is"], line["ratio_is"], line["ratio"]) for line in lines} == {("label", "", "")}
