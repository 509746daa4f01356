"""Terms of a schema: products, powers and splines, against formulas of statsmodels on pooled rows."""

from functools import partial

import numpy as np
import pandas
import pytest
import statsmodels.formula.api as smf
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from site_files import three_sites
from sklearn.base import clone
from typer.testing import CliRunner

import twinflower
from twinflower.data.schema_file import parse_schema, to_toml
from twinflower.errors import DataError, SettingError
from twinflower.models.coefficients import table
from twinflower.models.inputs import Inputs
from twinflower.simulation import cli
from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.facts import at_site
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.settings import parse

SCHEMA = """
terms = [{terms}]
[label]
{label}
[columns]
age = {{ range = [20, 80] }}
dose = {{ range = [0, 10] }}
sex = {{ categories = ["f", "m"] }}
pain = {{ categories = ["none", "mild", "severe"] }}
"""
CLASSES, NUMBER = 'column = "y"\nclasses = [0, 1]', 'column = "y"\nrange = [-30, 30]'
SEX, PAIN = "C(sex, Treatment('f'))", "C(pain, Treatment('none'))"
FORMULAS = {
    '"age:sex"': f"age * {SEX} + dose + {PAIN}",
    '"age:dose", "pain:sex"': f"age * dose + {SEX} * {PAIN}",
    '"age^2", "age^3", "dose:age", "age^2:sex", "sex:age"': (
        f"age + dose + {SEX} + {PAIN} + I(age**2) + I(age**3) + dose:age + {SEX}:I(age**2) + {SEX}:age"
    ),
    '"bs(age, knots = [40, 60])", "bs(dose, 4)", "dose:sex"': (
        "bs(age, knots=[40, 60], lower_bound=20, upper_bound=80) + bs(dose, knots=[5], lower_bound=0, upper_bound=10)"
        f" + {SEX} + {PAIN} + I(dose * (sex == 'm'))"
    ),
}  # fmt: skip


def patients(numeric, seed, rows):
    draw = np.random.default_rng(seed)
    age, dose = draw.uniform(20, 80, rows).round(1), draw.uniform(0, 10, rows).round(2)
    sex, pain = draw.integers(0, 2, rows), draw.integers(0, 3, rows)
    score = ((age - 50) / 20) ** 2 * (1 + sex) / 2 - 0.02 * age * dose / 10 + 0.3 * pain * sex
    y = (score + draw.normal(size=rows)).round(3) if numeric else (score + draw.logistic(size=rows) > 0.5) * 1
    lines = [
        f"{a},{d},{'fm'[s]},{('none', 'mild', 'severe')[p]},{label}"
        for a, d, s, p, label in zip(age, dose, sex, pain, y, strict=True)
    ]
    return "\n".join(["age,dose,sex,pain,y", *lines, ""])


def keys_of(terms, folder, numeric=False, rows=(150, 220, 130, 40)):
    schema = SCHEMA.format(terms=terms, label=NUMBER if numeric else CLASSES)
    keys = three_sites(folder, schema, partial(patients, numeric), rows) | {
        "algorithm": "newton",
        "rounds": 12,
    }
    keys |= {"objective.name": "least-squares" if numeric else "logistic", "data.row-scaling": "all"}
    return keys | {"evaluation.standard-errors": True}


def trained(terms, folder, **options):
    write_run(cohort.train([prepare(parse(keys_of(terms, folder, **options)))])[0], folder / "run")
    return twinflower.load(folder / "run")


def pooled(folder):
    return pandas.concat(
        [pandas.read_csv(folder / f"site-{site}.csv") for site in range(3)], ignore_index=True
    )


def by_statsmodels(formula, rows, numeric):
    if numeric:
        return smf.ols(f"y ~ {formula}", rows).fit()
    return smf.logit(f"y ~ {formula}", rows).fit(disp=0, method="newton", tol=1e-13, maxiter=100)


def plain(name):
    """A coefficient's name in statsmodels in the form that ours have, the factors of a product in any order."""
    for long, short in ((f"{SEX}[T.m]", "m"), (f"{PAIN}[T.mild]", "mild"), (f"{PAIN}[T.severe]", "severe")):
        name = name.replace(long, short)
    name = name.replace("I(age ** 2)", "age^2").replace("I(age ** 3)", "age^3")
    return frozenset(name.split(":"))


def named(row):
    """The same of a row of coefficients; a spline's by its order."""
    factors = row.column.split(":")
    kinds = {"sex": ["m"], "pain": ["mild", "severe"]}
    left = row.term.split(":")
    return frozenset(left.pop(0) if factor in kinds else factor for factor in factors)


@pytest.mark.parametrize("numeric", [False, True])
@pytest.mark.parametrize("terms", FORMULAS)
def test_probabilities_coefficients_and_errors_are_those_of_a_formula(terms, numeric, tmp_path):
    model, rows = trained(terms, tmp_path, numeric=numeric), pooled(tmp_path)
    known = by_statsmodels(FORMULAS[terms], rows, numeric)
    fitted = model.predict(rows) if numeric else model.predict_proba(rows)[:, 1]
    assert_allclose(fitted, known.predict(rows), rtol=1e-6, atol=1e-9)
    estimated = [row for row in model.coefficients() if row.std_error > 0]
    assert len(estimated) == len(known.params)
    if "bs" in terms:
        splines = [row for row in estimated if row.column.startswith("bs(")]
        theirs = [name for name in known.params.index if name.startswith("bs(")]
        assert [row.term for row in splines] == ["1", "2", "3", "4", "5", "1", "2", "3", "4"]
        pairs = dict(zip(theirs, splines, strict=True))
    else:
        ours = {named(row): row for row in estimated[1:]}
        pairs = {name: ours[plain(name)] for name in known.params.index[1:]}
    assert_allclose([row.estimate for row in pairs.values()], known.params[list(pairs)], rtol=1e-5, atol=1e-9)
    assert_allclose([row.std_error for row in pairs.values()], known.bse[list(pairs)], rtol=1e-5)
    assert_allclose([row.p_value for row in pairs.values()], known.pvalues[list(pairs)], rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("numeric", [False, True])
def test_an_estimator_with_terms_is_that_formula(numeric):
    lines = patients(numeric, 0, 400).splitlines()
    rows = pandas.DataFrame([line.split(",") for line in lines[1:]], columns=lines[0].split(","))
    rows = rows.astype({"age": float, "dose": float, "y": float if numeric else int})
    kind = twinflower.FederatedRegressor if numeric else twinflower.FederatedClassifier
    about = {"ranges": {"age": (20, 80), "dose": (0, 10)}, "row_scaling": "all"}
    about |= {"categories": {"sex": ["f", "m"], "pain": ["none", "mild", "severe"]}}
    model = kind(terms=["age:sex", "age^2"], **about).fit(rows.drop(columns="y"), rows.y)
    known = by_statsmodels(f"age * {SEX} + I(age**2) + dose + {PAIN}", rows, numeric)
    fitted = model.predict(rows) if numeric else model.predict_proba(rows)[:, 1]
    assert_allclose(fitted, known.predict(rows), rtol=1e-6, atol=1e-9)
    assert clone(model).terms == ["age:sex", "age^2"]
    assert [row.column for row in model.model_.coefficients()][-2:] == ["age:sex", "age^2"]
    for wrong, why in (
        ("age:sex", "terms must be a list"),
        (5, "terms must be a list"),
        (np.array(["age:sex", "age^2"]), "terms must be a list"),
        (["age:hair"], "'hair' in .columns., where it is not"),
    ):
        with pytest.raises((SettingError, DataError), match=why):
            kind(terms=wrong, **about).fit(rows.drop(columns="y"), rows.y)
    with pytest.raises(SettingError, match="terms need columns with names"):
        kind(terms=["age:dose"]).fit(rows[["age", "dose"]].to_numpy(), rows.y)


def test_clipped_values_of_a_term_are_those_of_its_columns(tmp_path):
    """A product counts a row once, whichever of its columns was clipped; categories have no range."""
    keys = keys_of('"age:dose", "age^2", "bs(dose, 3)", "pain:sex"', tmp_path)
    file = tmp_path / "schema.toml"
    file.write_text(file.read_text().replace("[20, 80]", "[20.6, 79.7]").replace("[0, 10]", "[0.1, 9.95]"))
    (result,) = cohort.train([prepare(parse(keys))])
    model = twinflower.load(write_run(result, tmp_path / "run"))
    facts = model.coefficients().facts
    rows = pooled(tmp_path)
    age, dose = ~rows.age.between(20.6, 79.7), ~rows.dose.between(0.1, 9.95)
    expected = {
        "age": age,
        "dose": dose,
        "age:dose": age | dose,
        "age^2": age,
        "bs(dose)": dose,
        "pain:sex": age & False,
    }
    shown = {name: facts.columns(name)["values_clipped"] for name in expected}
    assert shown == {name: int(own.sum()) for name, own in expected.items()}
    assert 0 < shown["age"] < shown["age:dose"] and set(facts.clipped) == {"age", "dose"}


def test_all_columns_of_a_term_have_one_test_and_their_names_and_other_references(tmp_path):
    model = trained('"age:sex", "bs(dose, 4)", "pain:sex"', tmp_path)
    found, rows = model.coefficients(), pooled(tmp_path)
    spline = "bs(dose, knots=[5], lower_bound=0, upper_bound=10)"
    known = by_statsmodels(f"age * {SEX} + {spline} + {PAIN} * {SEX}", rows, False)
    tests = {test.column: test for test in found.tests}
    assert {"bs(dose)", "pain:sex", "pain"} == set(tests)
    for column, start in (("bs(dose)", "bs("), ("pain:sex", "")):
        names = [
            n for n in known.params.index if (n.startswith(start) if start else "pain" in n and ":" in n)
        ]
        joint = known.wald_test(
            np.eye(len(known.params))[[known.params.index.get_loc(n) for n in names]], scalar=True
        )
        assert_allclose(tests[column].statistic, joint.statistic, rtol=1e-5)
    shown = " ".join(CliRunner().invoke(cli.app, ["coefficients", str(tmp_path / "run")]).output.split())
    for text in ("age:sex │ m (against f)", "bs(dose) │ 2", "pain:sex │ mild:m (against none:f)"):
        assert text in shown
    again = {(row.column, row.term): row for row in model.coefficients(references={"sex": "m"})}
    first = {(row.column, row.term): row for row in found}
    assert again["age:sex", "f"].estimate == pytest.approx(-first["age:sex", "m"].estimate)
    total = first["age", "per unit"].estimate + first["age:sex", "m"].estimate
    assert again["age", "per unit"].estimate == pytest.approx(total)


def test_a_model_file_a_pipeline_and_a_table_give_the_same_predictions(tmp_path):
    model, rows = trained('"age:sex", "age^2", "bs(dose, 3)"', tmp_path), pooled(tmp_path)
    expected = model.predict_proba(str(tmp_path / "site-0.csv"))
    assert_array_equal(model.predict_proba(rows[:150]), expected)
    assert_allclose(model.to_sklearn().predict_proba(rows[:150]), expected, atol=1e-12)
    assert model.get_feature_names_out().tolist()[-7:] == [
        "age:sex=f", "age:sex=m", "age^2", "bs(dose) 0", "bs(dose) 1", "bs(dose) 2", "bs(dose) 3"
    ]  # fmt: skip


def test_a_run_without_a_term_is_nested_in_one_with_it(tmp_path):
    large, small = tmp_path / "large", tmp_path / "small"
    for folder, terms in ((large, '"age:sex", "age^2"'), (small, '"age:sex"')):
        folder.mkdir()
        trained(terms, folder)
    command = ["coefficients", str(large / "run"), "--against", str(small / "run")]
    assert "chi-squared(1)" in CliRunner().invoke(cli.app, command).output
    swapped = CliRunner().invoke(cli.app, [command[0], command[3], "--against", command[1]])
    assert isinstance(swapped.exception, SettingError)
    assert "does not have age^2" in str(swapped.exception)


# ------------------------------------------------------------------------------------------ the schema

COLUMNS = """
[label]
column = "y"
classes = [0, 1]
[columns]
age = { range = [20, 80], missing = "zero" }
dose = { range = [0, 10], missing = "indicator" }
weight = { range = "private" }
sex = { categories = ["f", "m"], missing = "indicator" }
pain = { categories = ["none", "mild", "severe"], missing = "zero" }
ward = { categories = [WARDS] }
""".replace("WARDS", ", ".join(f'"w{i}"' for i in range(101)))


def with_terms(*terms, text=COLUMNS):
    return parse_schema(f"terms = {list(terms)!r}\n{text}")


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (["ago:sex"], "'ago:sex' needs 'ago' in .columns., where it is not; did you mean 'age'"),
        (["log(age)"], "'log.age.' calls 'log', and the only function is bs"),
        (["bs(sex, 4)"], "is a spline of 'sex', which has categories: splines are for numbers"),
        (["sex^2"], "is a power of 'sex', which has categories: powers are for numbers"),
        (["age*sex"], "write 'age:sex'; its columns are always in"),
        (["bs(age, 4):sex"], "has a spline as a factor, and only columns have products"),
        (["bs(age)"], "must be like 'bs.age, 4.'"),
        (["bs(age, 2)"], "must have 3 to 20 columns; got 'bs.age, 2.'"),
        (["bs(age, 21)"], "must have 3 to 20 columns; got 'bs.age, 21.'"),
        (["bs(age, knots = [80])"], "must ascend between 20 and 80, the ends of the column's range"),
        (["bs(age, knots = [50, 40])"], "must ascend between 20 and 80"),
        (["bs(age, knots = [1_0])"], "must be numbers, such as"),
        (["age"], "'age' is a column, which is in every model by itself"),
        (["age^1"], "must be a whole number from 2 to 5; got '1'"),
        (["age^6"], "must be a whole number from 2 to 5; got '6'"),
        (["age:age"], "has column 'age' twice: write 'age.2' for its square"),
        (["age:sex", "sex:age"], "'sex:age' is there twice: leave one of them out"),
        (["bs(age, 4)", "bs(age, 5)"], "is there twice"),
        (["bs(age, 4)", "age^2"], "repeat each other: leave one of them out"),
        (["age^3"], "'age.3' needs age.2, too"),
        (["age:sex:dose", "age:sex"], "needs sex:dose, age:dose, too"),
        (["weight:sex"], "needs a public range of column 'weight', .low, high.; its range is private"),
        (["ward:pain"], "must have at most 200 features; got 303: merge categories"),
    ],
)
def test_a_term_that_cannot_be_is_refused_in_a_sentence(terms, why):
    with pytest.raises(DataError, match=why):
        with_terms(*terms)


def test_terms_that_are_no_list_are_refused():
    with pytest.raises(
        DataError,
        match='terms must be a list of texts such as .*; got "age:sex"'.replace('"age:sex"', "'age:sex'"),
    ):
        parse_schema(f'terms = "age:sex"\n{COLUMNS}')


ALL = ["age:sex", "sex:pain", "age:dose", "age^2", "bs(dose, knots = [2.5, 4])", "age:pain", "sex:age:pain"]


def test_a_schema_with_terms_is_written_as_it_was_read_and_without_them_as_before():
    schema = with_terms(*ALL, "age^3")
    again = parse_schema(to_toml(schema))
    assert again == schema and again.digest == schema.digest
    assert again.digest != with_terms(*ALL).digest
    assert with_terms().digest == parse_schema(COLUMNS).digest
    assert "terms" not in to_toml(with_terms())


PUBLIC = COLUMNS.replace('weight = { range = "private" }\n', "")
CELLS = st.fixed_dictionaries(
    {
        "age": st.one_of(st.just(""), st.floats(-1e6, 1e6).map(repr), st.floats(20, 80).map(repr)),
        "dose": st.one_of(
            st.just(""), st.floats(-1e6, 1e6).map(repr), st.sampled_from(["0", "2.5", "4", "10"])
        ),
        "sex": st.sampled_from(["", "f", "m"]),
        "pain": st.sampled_from(["", "none", "mild", "severe"]),
        "ward": st.sampled_from(["w0", "w7"]),
    }
)


@given(CELLS)
def test_no_row_is_longer_than_the_public_bound(cells):
    """Nor are the features of any term, or column, longer than 1."""
    schema = with_terms(*ALL, text=PUBLIC)
    features = schema.encode({name: [cell] for name, cell in cells.items()})[0]
    columns = schema.blocks(features[None])
    parts = [term.encode({c.name: c for c in schema.columns}, columns)[0] for term in schema.terms]
    assert_array_equal(np.concatenate([*(own[0] for own in columns.values()), *parts]), features)
    assert max(np.linalg.norm(part) for part in [*(own[0] for own in columns.values()), *parts]) <= 1 + 1e-12
    assert np.linalg.norm(features) <= schema.longest(False) * (1 + 1e-12)
    spline = parts[ALL.index("bs(dose, knots = [2.5, 4])")]
    assert spline.min() >= -1e-15 and spline.sum() == pytest.approx(1.0)


def test_reference_rows_span_what_real_rows_can_hold():
    """Their features follow from each other as those of real rows, also where a value is missing."""
    schema = with_terms(*ALL, text=PUBLIC)
    rows = Inputs(len(schema.features), schema, bias=True).spanning()[:, :-1]
    assert_allclose(
        schema.with_terms(
            rows[:, : -sum(len(t.features({c.name: c for c in schema.columns})) for t in schema.terms)]
        ),
        rows,
    )
    for name in ("age:sex is missing", "sex is missing:pain=mild"):
        assert rows[:, schema.features.index(name)].any()


def test_missing_values_keep_the_rules_of_their_columns_in_the_coefficients(tmp_path):
    """A missing number is the middle of its range in every term, and a missing category has terms of its own."""
    label = 'column = "y"\nclasses = [0, 1]'
    schema = SCHEMA.format(terms='"age:sex", "age^2", "bs(dose, 3)"', label=label)
    schema = schema.replace("[20, 80]", '[20, 80], missing = "indicator"').replace(
        '"m"]', '"m"], missing = "zero"'
    )
    known = parse_schema(schema)
    model = Inputs(len(known.features), known, bias=True)
    weights = np.random.default_rng(0).normal(size=len(known.features) + 1)
    rows = {(row.column, row.term): row.estimate for row in table(model, weights)}
    cells = {"age": ["", "35"], "dose": ["0", "10"], "sex": ["m", ""], "pain": ["none", "none"]}
    scores = known.encode(cells) @ weights[:-1] + weights[-1]
    first = (
        rows["(intercept)", ""] + rows["age", "per unit"] * 50 + rows["age", "is missing"] + rows["sex", "m"]
    )
    first += rows["age:sex", "m"] * 50 + rows["age^2", "per unit"] * 2500
    second = rows["(intercept)", ""] + rows["age", "per unit"] * 35 + rows["sex", "is missing"]
    second += (
        rows["age:sex", "sex is missing"] * 35 + rows["age^2", "per unit"] * 35**2 + rows["bs(dose)", "3"]
    )
    assert_allclose(scores, [first, second], rtol=1e-10)


# ------------------------------------------------------------------------------------------ runs with privacy


def test_rows_of_a_private_run_have_the_bound_of_columns_and_terms(tmp_path):
    """Also beside a column whose range the run finds."""
    keys = keys_of('"age:sex", "age^2"', tmp_path)
    schema = tmp_path / "schema.toml"
    schema.write_text(
        schema.read_text().replace("dose = { range = [0, 10] }", 'dose = { range = "private" }')
    )
    keys = {key: value for key, value in keys.items() if not key.startswith(("algorithm", "evaluation"))}
    keys |= {"algorithm": "fedpdm", "rounds": 2, "privacy.mode": "public-state", "privacy.epsilon": 4.0}
    (result,) = cohort.train([prepare(parse(keys | {"privacy.delta": 1e-5, "data.row-norm": 1.0}))])
    setup = result.setup
    assert setup.inputs.factor == pytest.approx(1 / np.sqrt(4 + 2 + 1))
    assert np.linalg.norm(setup.dataset.features, axis=1).max() <= 1 + 1e-12
    names, rows = setup.inputs.feature_names, setup.dataset.features / setup.inputs.factor
    square, age = rows[:, names.index("age^2")], rows[:, names.index("age")]
    assert_allclose(square, age**2, atol=1e-12)
    assert np.abs(rows[:, names.index("dose")]).max() > 0.5


def test_private_newton_has_terms_and_its_reference_rows_have_their_directions(tmp_path):
    terms = '"age:sex", "bs(age, 3)"'
    keys = keys_of(terms, tmp_path) | {"rounds": 2, "privacy.mode": "gradient", "privacy.epsilon": 50.0}
    setup = prepare(parse(keys | {"privacy.delta": 1e-5, "data.row-norm": 1.0}))
    (result,) = cohort.train([setup])
    assert np.isfinite(result.model).all()
    design = setup.dataset.features
    rank = np.linalg.matrix_rank(design)
    assert np.linalg.matrix_rank(setup.inputs.spanning()) == rank


def test_a_deployed_site_with_terms_takes_part_and_has_the_features_of_a_simulation(tmp_path):
    keys = keys_of('"age:sex", "bs(age, 3)"', tmp_path) | {"rounds": 2, "privacy.mode": "gradient"}
    simulated = prepare(parse(keys | {"privacy.epsilon": 4.0, "data.row-norm": 1.0}))
    config, (site, *_) = at_sites(simulated)
    words = {
        "partition-id": 0,
        "num-partitions": 3,
        "lifetime-epsilon": 10.0,
        "state-dir": str(tmp_path / "state"),
    }
    text = " ".join(f"{key}={value!r}".replace("'", '"') for key, value in (words | site).items())
    right, wrong = check_node(text, dict(config.items()))
    assert not wrong and right[-1] == "run: the site takes part, and plans epsilon 4"
    data = {key: site[name] for key, name in (("data.file", "data-file"), ("data.schema", "schema"))}
    own = at_site(prepare(parse(dict(config.items()) | data)), 0)
    assert_array_equal(own.shards.rows(0).features, simulated.shards.rows(0).features)
