"""Standard errors, p-values and intervals of coefficients against statsmodels on the pooled rows."""

import re
from dataclasses import replace

import numpy as np
import pytest
import statsmodels.api as sm
from flwr.app import ConfigRecord, Context, RecordDict
from grids import Deployed, over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from problems import query, small
from typer.testing import CliRunner

import twinflower
from twinflower.data.schema_file import read_schema
from twinflower.errors import DataError, ReplyError, SettingError
from twinflower.models.coefficients import Coefficient
from twinflower.models.inference import _largest_step, infer
from twinflower.models.information import Information, packed_size
from twinflower.models.model import inferred
from twinflower.problems.discrete_cox import CoxObjective
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import packed
from twinflower.problems.objectives import make_objective
from twinflower.problems.stratified_cox import StratifiedCoxObjective
from twinflower.queries.exact_sums import smallest_cell
from twinflower.queries.information import InformationQuestion
from twinflower.queries.model_question import SiteAnswer
from twinflower.simulation import cli
from twinflower.simulation.arguments import show_coefficients
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runs.run import trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request

LABELS = {
    "logistic": "classes = [0, 1]",
    "softmax": "classes = [0, 1, 2]",
    "least-squares": "range = [-20, 20]",
    "poisson": 'counts = 60\nexposure = "years"\nexposure-range = [0.1, 20]',
}
SCHEMA = """
[label]
column = "y"
{label}
[columns]
age = {{ range = [20, 80] }}
size = {{ range = [-4, 10] }}
group = {{ categories = ["a", "b", "c"] }}
"""
GROUPS = np.array(["a", "b", "c"])


def people(objective, seed, count):
    """Ages, sizes, groups and labels of so many people."""
    draw = np.random.default_rng(seed)
    age, size, group = draw.uniform(20, 80, count), draw.normal(3, 2, count), draw.integers(3, size=count)
    score = 0.04 * (age - 50) - 0.3 * size + 0.5 * (group == 2) + 0.2
    if objective == "poisson":
        return age, size.clip(-4, 10), group, draw.poisson(np.exp(score) * years_of(seed, count))
    if objective == "least-squares":
        return age, size.clip(-4, 10), group, score * 3 + draw.normal(size=count) * (1 + 0.02 * age)
    noise = draw.gumbel(size=(count, 3 if objective == "softmax" else 2))
    noise[:, 1] += score
    return age, size.clip(-4, 10), group, noise.argmax(1)


def years_of(seed, count):
    """How long people were observed."""
    return np.random.default_rng([seed, 1]).uniform(0.3, 6, count)


def sites(folder, objective, sizes=(60, 90, 50)):
    """The keys of a run on three sites' tables, and the pooled design (rows, 5) and labels."""
    parts = []
    for number, count in enumerate(sizes):
        parts.append(people(objective, number, count))
        rows = zip(*parts[-1], strict=True)
        lines = [f"{float(a)!r},{float(s)!r},{GROUPS[g]},{y.item()!r}" for a, s, g, y in rows]
        header = "age,size,group,y"
        if objective == "poisson":
            header += ",years"
            lines = [
                f"{own},{year!r}" for own, year in zip(lines, years_of(number, count).tolist(), strict=True)
            ]
        (folder / f"{number}.csv").write_text("\n".join([header, *lines, ""]))
    (folder / "schema.toml").write_text(SCHEMA.format(label=LABELS[objective]))
    keys = {
        "data.name": "tables", "data.files": str(folder / "*.csv"), "data.schema": str(folder / "schema.toml"),
        "data.row-scaling": "all", "data.test-file": str(folder / "0.csv"), "objective.name": objective,
        "regulariser.name": "none",
        "algorithm": "fedavg", "rounds": 1, "local.max-steps": 1, "fedavg.step-size": 1e-3,
        "clients.weighting": "rows", "evaluation.standard-errors": True,
    }  # fmt: skip
    age, size, group, labels = (np.concatenate(own) for own in zip(*parts, strict=True))
    return keys, np.column_stack([np.ones(len(age)), age, size, group == 1, group == 2]), labels


def at_maximum(setup, steps=30, kept=None):
    """The run that starts at the maximum of the likelihood of all rows in some entries, found by Newton's method."""
    x = setup.start.copy()
    kept = list(range(len(x))) if kept is None else kept
    for _ in range(steps):
        sums = query(setup, "information").simulated(x, setup.config.rounds).at(kept)
        x[kept] -= np.linalg.pinv(sums.matrix, rcond=1e-12, hermitian=True) @ sums.gradient
    return replace(setup, start=x)


def by_statsmodels(objective, design, labels, robust):
    """The result of statsmodels, and its parameters in our order: outcomes first, then columns."""
    kind = {"cov_type": "HC0"} if robust else {}
    if objective == "poisson":
        offset = np.log(np.concatenate([years_of(0, 60), years_of(1, 90), years_of(2, 50)]))
        model = sm.GLM(labels, design, family=sm.families.Poisson(), offset=offset)
        return model.fit(tol=1e-14, maxiter=100, **kind)
    if objective == "least-squares":
        return sm.OLS(labels, design).fit(**kind)
    model = sm.Logit(labels, design) if objective == "logistic" else sm.MNLogit(labels, design)
    return model.fit(disp=0, method="newton", tol=1e-14, maxiter=100, **kind)


def flat(values):
    return np.asarray(values).T.ravel()


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("objective", LABELS)
def test_errors_and_p_values_are_those_of_statsmodels(objective, robust, tmp_path):
    keys, design, labels = sites(tmp_path, objective)
    setup = at_maximum(prepare(parse(keys)))
    (result,) = cohort.train([setup])
    model = trained_model(setup, result.model, None, result.information)
    found = inferred(model, robust)
    assert found.remarks == []
    rows = [row for row in found.rows if row.term != row.reference or not row.term]
    known = by_statsmodels(objective, design, labels, robust)
    assert_allclose([row.estimate for row in rows], flat(known.params), rtol=1e-8)
    assert_allclose([row.std_error for row in rows], flat(known.bse), rtol=1e-8)
    assert_allclose([row.p_value for row in rows], flat(known.pvalues), rtol=1e-7, atol=1e-12)
    interval = np.asarray(known.conf_int()).reshape(-1, 2)
    assert_allclose([[row.low, row.high] for row in rows], interval, rtol=1e-7)
    references = [row for row in found.rows if row.term == row.reference and row.term]
    assert np.isnan([row.std_error for row in references]).all()


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("objective", ["logistic", "least-squares", "poisson"])
def test_errors_after_a_selection_are_those_of_statsmodels_on_the_selected_columns(
    objective, robust, tmp_path
):
    """Selected are the age, the third group, and the intercept."""
    keys, design, labels = sites(tmp_path, objective)
    setup = prepare(parse(keys))
    sparse = trained_model(setup, np.array([0.3, 0.0, 0.0, 0.0, -0.1, 0.0]), None)
    kept = sparse.unpenalised.tolist()
    assert kept == [0, 4, 5]
    keys |= {"regulariser.name": "selected", "regulariser.entries": "0, 4, 5"}
    setup = at_maximum(prepare(parse(keys)), kept=kept)
    (result,) = cohort.train([setup])
    found = inferred(trained_model(setup, result.model, None, result.information), robust)
    (remark,) = found.remarks
    assert remark.startswith("after selection: the columns were chosen by a penalty on these rows")
    rows = [row for row in found.rows if row.selected or row.column == "(intercept)"]
    known = by_statsmodels(objective, design[:, [0, 1, 4]], labels, robust)
    assert_allclose([row.estimate for row in rows], known.params, rtol=1e-8)
    assert_allclose([row.std_error for row in rows], known.bse, rtol=1e-8)
    assert_allclose([row.p_value for row in rows], known.pvalues, rtol=1e-7, atol=1e-12)
    assert np.isnan([row.std_error for row in found.rows if row not in rows]).all()


def test_a_sparse_model_is_refitted_with_a_command(tmp_path):
    keys = sites(tmp_path, "logistic")[0] | {"evaluation.standard-errors": False, "rounds": 30}
    keys |= {"regulariser.name": "l1", "regulariser.weight": 0.02, "fedavg.step-size": 8.0}
    setup = prepare(parse(keys))
    (result,) = cohort.train([setup])
    write_run(result, tmp_path / "lasso")
    assert 0 < np.count_nonzero(result.model) < 6
    command = ["refit", str(tmp_path / "lasso"), "--set", "rounds=40"]
    done = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    model = twinflower.load(tmp_path / "lasso-refit")
    known = twinflower.load(tmp_path / "lasso")
    assert_array_equal(model.unpenalised, known.unpenalised)
    assert model.selected == tuple(known.unpenalised.tolist())
    assert "After selection: the columns were chosen by a penalty" in show(tmp_path / "lasso-refit")
    assert "After selection" in (tmp_path / "lasso-refit" / "report.html").read_text()


def show(folder):
    """What the command prints of a run's coefficients."""
    return " ".join(CliRunner().invoke(cli.app, ["coefficients", str(folder)]).output.split())


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ("0, 9", "regulariser.entries must be below 6, the number of entries of this model; got 9"),
        ("age", "regulariser.entries must be whole numbers, separated by commas; got 'age'"),
    ],
)
def test_entries_that_a_model_does_not_have_are_refused(entries, sentence, tmp_path):
    keys = sites(tmp_path, "logistic")[0]
    with pytest.raises(SettingError, match=sentence):
        prepare(parse(keys | {"regulariser.name": "selected", "regulariser.entries": entries}))


def test_the_matrix_and_the_gradient_are_derivatives():
    rng = np.random.default_rng(0)
    for name, classes in (("logistic", 2), ("softmax", 3), ("least-squares", 0), ("poisson", 0)):
        objective = make_objective(name, 3, classes)
        labels = rng.integers(classes, size=8) if classes else rng.normal(size=8)
        labels = packed(rng.integers(4, size=8), labels) if name == "poisson" else labels
        rows, x = Batch(rng.normal(size=(8, 3)), labels), rng.normal(size=objective.d)
        found = Information.of(objective, x, rows)
        assert_allclose(found.gradient, 8 * objective.grad(x, rows))
        steps = 1e-5 * np.eye(objective.d)
        slopes = [8 * (objective.grad(x + s, rows) - objective.grad(x - s, rows)) / 2e-5 for s in steps]
        assert_allclose(found.matrix, slopes, atol=1e-8)
        halves = [
            Information.of(objective, x, Batch(rows.features[s], labels[s])) for s in (slice(3), slice(3, 8))
        ]
        together = Information.together(halves)
        if name == "poisson":  # both halves have an event
            together = together._replace(bounding=together.bounding / 2)
        for one, other in zip(together, found, strict=True):
            assert_allclose(one, other)
        assert len(found.packed) == packed_size(objective.d)
        for one, other in zip(Information.unpacked(found.packed, objective.d), found, strict=True):
            assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("own", "labels"),
    [
        (CoxObjective(intervals="1, 2").build(3, 0), [-1.0, -2.5, -3.0]),
        (StratifiedCoxObjective().build(3, 0), [-1.0, -2.5, -3.0]),
        (make_objective("poisson", 3, 0), [0.0, 0.0, 0.0]),
    ],
)
def test_without_an_event_there_are_no_p_values(own, labels):
    features, labels = np.random.default_rng(0).normal(size=(3, 3)), np.array(labels)
    sums = Information.of(own, np.zeros(own.d), Batch(features, labels))
    assert sums.bounding == 0
    rows = [Coefficient("y", "", "age", "per unit", "", 1.0, True, "rate", 2.0)]
    found = infer(rows, np.eye(own.d)[:1], sums._replace(matrix=np.eye(own.d)), False, False)
    assert np.isnan([found.rows[0].std_error, found.rows[0].p_value, found.rows[0].low]).all()
    assert "nobody had the event" in found.remarks[0]
    events = sums.of(own, np.zeros(own.d), Batch(features, np.abs(labels) + 1.0))
    assert events.bounding == 1


@pytest.mark.parametrize("objective", LABELS)
def test_all_runtimes_send_the_same(objective, tmp_path):
    """To the bit by messages, and up to the rounding of the model in the cohort."""
    setup = prepare(parse(sites(tmp_path, objective)[0]))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    assert_array_equal(direct.information.packed, wired.information.packed)
    assert_allclose(direct.information.packed, arrays.information.packed, rtol=1e-9, atol=1e-9)
    assert direct.information.rows == 200


def test_without_the_setting_nothing_is_sent(tmp_path):
    keys = sites(tmp_path, "logistic")[0] | {"evaluation.standard-errors": False}
    setup = prepare(parse(keys))
    assert inprocess.train(setup).information is None
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    with pytest.raises(ReplyError, match="sends no information matrix"):
        client.evaluate([setup.start], {"round": 1, "information": True})


def test_a_private_client_sends_none_whatever_the_request():
    setup = small("fedpdm-private")
    client = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {}))
    client.answers["information"] = SiteAnswer(InformationQuestion((setup.config.rounds,)))
    with pytest.raises(ReplyError, match="sends no information matrix"):
        client.evaluate([setup.start], {"round": 1, "information": True})
    assert client.guard.ledger.charges() == []


# ------------------------------------------------------------------------------------- what has no errors


def trained_on(keys, point=None):
    """The inference of a run without rounds that matter, from a point or from where it starts."""
    setup = prepare(parse(keys))
    setup = setup if point is None else replace(setup, start=point(setup))
    (result,) = cohort.train([setup])
    return inferred(trained_model(setup, result.model, None, result.information))


@pytest.mark.parametrize("weighted", [False, True])
def test_newton_without_the_sums_for_robust_errors_says_what_to_set(weighted, tmp_path):
    keys = sites(tmp_path, "logistic")[0] | {"algorithm": "newton", "rounds": 10}
    keys |= {"objective.class-weights": "1,2"} if weighted else {}
    setup = prepare(parse({k: v for k, v in keys.items() if not k.endswith(("max-steps", "step-size"))}))
    (result,) = cohort.train([setup])
    model = trained_model(setup, result.model, None, result.information)
    with pytest.raises(SettingError, match=r"no robust standard errors: .* train with newton.robust = true"):
        inferred(model, robust=True)
    remarks = inferred(model).remarks
    assert any("newton.robust = true" in remark for remark in remarks) == weighted


def rewrite(folder, change):
    """Change the cells of every row of all tables; change(age, size, group, y) gives the new row."""
    for number in range(3):
        path = folder / f"{number}.csv"
        header, *rows = path.read_text().splitlines()
        path.write_text("\n".join([header, *(",".join(change(*row.split(","))) for row in rows), ""]))


def test_a_model_that_is_not_at_the_maximum_is_said_to_be_so(tmp_path):
    found = trained_on(sites(tmp_path, "logistic")[0])
    remark, shown = found.remarks
    assert shown == "intervals and p-values are withheld beyond 0.1 standard errors from the maximum"
    assert found.facts.distance > 0.1 and not found.facts.converged
    assert np.isnan([row.p_value for row in found.rows]).all()
    assert (
        "standard errors and the estimate of (intercept) (1) is 1.9 in log odds from the maximum of" in remark
    )
    assert "algorithm = newton reaches it in a few rounds; else train for more rounds" in remark


def test_the_step_size_that_is_named_is_that_of_the_largest_curvature():
    """With which gradient descent reaches the maximum of a quadratic, and with twice of which it does not."""
    matrix = np.array([[9.0, 1.0, 0.0], [1.0, 4.0, 0.5], [0.0, 0.5, 2.0]]) * 100
    sums = Information(400, 0.0, 1.0, 400, np.ones(3), matrix, np.zeros((3, 3)))
    step = 400 / np.linalg.eigvalsh(matrix)[-1]
    assert _largest_step(sums, 0.0).startswith(f"{step:.2g} is 1 / L")
    shrinking, growing = (
        np.abs(np.linalg.eigvalsh(np.eye(3) - k * step * matrix / 400)).max() for k in (1, 2.01)
    )
    assert shrinking < 1 < growing


@pytest.mark.parametrize("exposure", [True, False])
def test_the_step_size_that_is_named_for_counts_reaches_the_maximum(exposure, tmp_path):
    """From far below it, where the rates and thus the curvature are much smaller than at the maximum."""
    keys = sites(tmp_path, "poisson")[0]
    path = tmp_path / "schema.toml"
    text = path.read_text().replace("counts = 60", "counts = 60000")
    if not exposure:
        text = 'ignore = ["years"]\n' + text.replace('exposure = "years"\nexposure-range = [0.1, 20]', "")
    path.write_text(text)
    rewrite(tmp_path, lambda age, size, group, y, years: (age, size, group, str(10 * int(y)), years))
    (remark, *_) = trained_on(keys).remarks
    step = float(re.search(r"([\d.e-]+) is (?:at most )?1 / L", remark)[1])
    setup = prepare(parse(keys | {"fedavg.step-size": step, "rounds": 2000}))
    (result,) = cohort.train([setup])
    assert not result.failure
    reached = inferred(trained_model(setup, result.model, None, result.information)).facts
    assert reached.converged and reached.distance < 0.01
    most = np.linalg.eigvalsh(result.information.matrix)[-1] / result.information.rows
    assert 0.1 < step * most <= 1.01


def test_columns_that_never_vary_are_not_determined_and_the_others_are(tmp_path):
    keys = sites(tmp_path, "logistic")[0]
    rewrite(tmp_path, lambda age, size, group, y: (age, "3", group, y))
    found = trained_on(keys, lambda setup: at_maximum(setup).start)
    (remark,) = found.remarks
    where = "hardly vary in their range: (intercept) (1), size per unit (1)"
    assert remark == f"not determined, because columns are collinear or {where}"
    by_name = {(row.column, row.term): row.std_error for row in found.rows}
    assert np.isnan(by_name["size", "per unit"])
    assert by_name["age", "per unit"] > 0


def test_collinear_columns_are_not_determined(tmp_path):
    keys = sites(tmp_path, "least-squares")[0]
    rewrite(tmp_path, lambda age, size, group, y: (age, str(float(age) / 10 - 1), group, y))
    found = trained_on(keys, lambda setup: at_maximum(setup).start)
    assert (
        "columns are collinear or hardly vary in their range: (intercept), age per unit, size per unit"
        in found.remarks[0]
    )
    assert found.rows[-1].std_error > 0


def newton_keys(keys):
    """The keys of a run by Newton's method in place of FedAvg."""
    kept = {key: value for key, value in keys.items() if not key.endswith(("max-steps", "step-size"))}
    return kept | {"algorithm": "newton", "rounds": 20}


def by_newton(keys, **changes):
    """The run of Newton's method with these keys, and the inference of its model."""
    (run,) = cohort.train([prepare(parse(newton_keys(keys) | changes))])
    return run, inferred(trained_model(run.setup, run.model, None, run.information))


@pytest.mark.parametrize("base", ["a", "d"])
def test_a_category_without_rows_has_no_estimate_and_the_fit_is_at_the_maximum(base, tmp_path):
    """As the reference it leaves all contrasts and the intercept without one; the likelihood has the same maximum."""
    (tmp_path / "fewer").mkdir()
    exact = by_newton(sites(tmp_path / "fewer", "logistic")[0])[1].facts
    keys, *_ = sites(tmp_path, "logistic")
    schema = tmp_path / "schema.toml"
    names = ["a", "b", "c", "d"] if base == "a" else ["d", "a", "b", "c"]
    schema.write_text(schema.read_text().replace('["a", "b", "c"]', str(names).replace("'", '"')))
    run, found = by_newton(keys)
    terms = {row.term for row in found.rows if row.column == "group" and row.term != row.reference}
    loose = {"d"} if base == "a" else terms
    for row in found.rows:
        known = row.column in ("age", "size") or (row.column == "group" and row.term not in loose)
        known |= row.column == "(intercept)" and base == "a"
        assert np.isfinite([row.estimate, row.ratio]).all() == known
    assert found.facts.converged and found.facts.parameters == exact.parameters == 5
    assert found.facts.log_likelihood == pytest.approx(exact.log_likelihood, rel=1e-9)
    (remark,) = [text for text in found.remarks if text.startswith("not determined")]
    assert f"warning: {remark}" in run.warnings()
    hint = (
        "if the reference of group has no rows, choose another one (coefficients --reference COLUMN=CATEGORY)"
    )
    assert (hint in remark) == (base == "d")
    folder = write_run(run, tmp_path / "run")
    shown = CliRunner().invoke(cli.app, ["coefficients", str(folder)], catch_exceptions=False).output
    assert "nan" not in shown
    if base == "d":
        model = twinflower.load(folder)
        assert (
            np.isfinite([row.std_error for row in model.coefficients(references={"group": "a"})]).sum() == 5
        )


@pytest.mark.parametrize("slope", [0.0, 0.1, 0.07, -0.13])
@pytest.mark.parametrize("changes", [{}, {"newton.robust": True}, {"precision": "single"}])
def test_labels_without_a_residual_have_estimates_and_no_errors(slope, changes, tmp_path):
    """Whatever the rounding of the last loss is."""
    keys, *_ = sites(tmp_path, "least-squares")
    rewrite(tmp_path, lambda age, size, group, y: (age, size, group, repr(7 + slope * float(age))))
    run, found = by_newton(keys, **changes)
    assert run.stop is not None and not run.stop.warns
    assert found.facts.converged and found.facts.log_likelihood is None
    wanted = [7.0, slope], {"rtol": 1e-3, "atol": 1e-4} if changes.get("precision") else {"atol": 1e-9}
    assert_allclose([found.rows[0].estimate, found.rows[1].estimate], wanted[0], **wanted[1])
    assert np.isnan([row.std_error for row in found.rows]).all()
    assert "the model predicts every label up to rounding, so there are no standard errors" in found.remarks


def test_a_category_without_events_beside_an_empty_reference_has_no_maximum(tmp_path):
    """No contrast is determined, and still one of them would be infinite: then nothing has converged."""
    keys, *_ = sites(tmp_path, "logistic")
    rewrite(tmp_path, lambda age, size, group, y: (age, size, group, "1" if group == "c" else y))
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace('["a", "b", "c"]', '["d", "a", "b", "c"]'))
    run, found = by_newton(keys)
    assert run.stop.warns and not found.facts.converged and found.facts.log_likelihood is None
    assert any("moves what is not determined by more than .5" in text for text in found.remarks)


@pytest.mark.parametrize("objective", ["logistic", "poisson"])
def test_a_column_with_an_infinite_term_has_no_joint_test(objective, tmp_path):
    """Its other terms alone would say something about another hypothesis."""
    keys, *_ = sites(tmp_path, objective)
    label = "1" if objective == "logistic" else "0"
    turned = lambda age, size, group, y, *more: (age, size, "abcd"[int(float(age)) % 4], y, *more)  # noqa: E731
    rewrite(tmp_path, lambda *row: (*turned(*row)[:3], label if turned(*row)[2] == "d" else row[3], *row[4:]))
    schema = tmp_path / "schema.toml"
    schema.write_text(schema.read_text().replace('["a", "b", "c"]', '["a", "b", "c", "d"]'))
    run, found = by_newton(keys)
    assert run.stop.warns and not found.tests
    assert np.isfinite([row.std_error for row in found.rows if row.term in ("b", "c")]).all()
    assert not any("raise rounds" in text for text in found.remarks)


@pytest.mark.parametrize("empty", [0, 2])
def test_a_class_without_rows_is_named_and_has_no_p_values(empty, tmp_path):
    keys, *_ = sites(tmp_path, "softmax")
    labels = [label for label in (0, 1, 2) if label != empty]
    rewrite(
        tmp_path, lambda age, size, group, y: (age, size, group, y if int(y) in labels else str(labels[-1]))
    )
    found = by_newton(keys)[1]
    assert f"no row has the class {empty}: take it out of the schema's classes" in found.remarks
    for row in found.rows:
        assert np.isnan(row.p_value) or str(empty) not in (row.outcome, row.against)
    assert not found.tests


@pytest.mark.parametrize("objective", ["logistic", "least-squares"])
def test_single_precision_determines_as_many_parameters_as_double(objective, tmp_path):
    """Rounding of the sums is no information about redundant features."""
    keys, *_ = sites(tmp_path, objective)
    for precision in ("double", "single"):
        assert by_newton(keys, precision=precision)[1].facts.parameters == 5


def test_robust_errors_do_not_hide_that_the_maximum_does_not_exist(tmp_path):
    """The step in units of the sandwich's errors says nothing about whether the run has ended."""
    keys, *_ = sites(tmp_path, "poisson")
    rewrite(
        tmp_path, lambda age, size, group, y, *more: (age, size, group, "0" if group == "c" else y, *more)
    )
    (run,) = cohort.train([prepare(parse({**newton_keys(keys), "newton.robust": True}))])
    model = trained_model(run.setup, run.model, None, run.information)
    for robust in (False, True):
        assert not any("raise rounds" in text for text in inferred(model, robust).remarks)


def test_a_stored_file_of_an_older_version_counts_all_rows(tmp_path):
    sums = by_newton(sites(tmp_path, "logistic")[0])[0].information
    older = np.delete(sums.packed, 3)[:-1]  # without observations, and without clusters at the end
    found = Information.unpacked(older, len(sums.gradient))
    assert found.observations == sums.rows == 200
    assert_array_equal(found.packed, sums.packed)


def test_a_run_of_newton_is_not_advised_to_use_it(tmp_path):
    _, found = by_newton(sites(tmp_path, "logistic")[0], rounds=1)
    (remark, _) = found.remarks
    assert "from the maximum of the likelihood of all rows: raise rounds; if it stays so" in remark
    assert "step-size" not in remark and "in a few rounds" not in remark


def old(age):
    return float(age) > 50


def apart(age):
    """The age, moved so that nobody is between 30 and 70."""
    return str(70 + (float(age) - 50) / 3 if old(age) else 20 + (float(age) - 20) / 3)


@pytest.mark.parametrize("kind", ["one class", "separated"])
def test_an_estimate_that_does_not_exist_is_said_not_to(kind, tmp_path):
    keys = sites(tmp_path, "logistic")[0]
    rewrite(
        tmp_path,
        lambda age, size, group, y: (apart(age), size, group, str(int(old(age) or kind == "one class"))),
    )
    keys |= {"fedavg.step-size": 50.0, "rounds": 400}
    found = trained_on(keys)
    (remark,) = found.remarks
    assert "the rows have one class, or columns separate the classes" in remark
    assert np.isnan([row.p_value for row in found.rows]).all()


@pytest.mark.parametrize(
    ("objective", "label", "unit"), [("logistic", "1", "log odds"), ("poisson", "0", "log rate")]
)
def test_a_category_with_one_outcome_is_named(objective, label, unit, tmp_path):
    """Its estimate grows for ever, and its standard error grows faster."""
    keys = sites(tmp_path, objective)[0]
    rewrite(
        tmp_path,
        lambda age, size, group, y, *rest: (age, size, group, label if group == GROUPS[2] else y, *rest),
    )
    found = trained_on(keys, lambda setup: at_maximum(setup, 18).start)
    remark, shown = found.remarks
    term = f"group {GROUPS[2]}" + (" (1)" if objective == "logistic" else "")
    assert remark.startswith(f"the estimate of {term} is 1 in {unit} from the maximum of the likelihood")
    assert "if it stays so, columns separate the classes, or a category has no events" in remark
    assert shown == f"intervals and p-values are withheld where an estimate may not exist: {term}"
    assert not found.facts.converged
    without = [row.term for row in found.rows if np.isnan(row.p_value)]
    assert without == [GROUPS[0], GROUPS[2]]  # the reference, which is no estimate, and this one


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (
            {"objective.name": "rowwise-logistic"},
            "needs a likelihood: set objective.name to softmax, logistic,",
        ),
        ({"regulariser.name": "l1"}, "which a penalty or clipping moves: set regulariser.name to none"),
        ({"objective.l2": 0.1}, "which a penalty or clipping moves"),
        ({"data.row-scaling": "each"}, "not divided by their own norms: set data.row-scaling to all"),
    ],
)
def test_runs_without_standard_errors_are_refused_in_one_sentence(keys, why, tmp_path):
    with pytest.raises(SettingError, match=why) as refused:
        prepare(parse(sites(tmp_path, "logistic")[0] | keys))
    assert "\n" not in str(refused.value)


def test_more_parameters_than_rows_are_refused(tmp_path):
    with pytest.raises(SettingError, match="fewer than rows; got 18 and 16"):
        prepare(parse(sites(tmp_path, "softmax", (5, 5, 6))[0]))


# ------------------------------------------------------------------------------------- faults and policies


class Spoilt(InProcessGrid):
    """A grid on which one site's sums are other numbers."""

    def answer(self, message):
        reply = super().answer(message)
        config = message.content.config_records.get("evaluateins.config", {})
        if config.get("information") and message.metadata.dst_node_id == 2:
            reply.content["evaluateres.metrics"] = ConfigRecord({"round": 1, "information": self.numbers})
        return reply


def numbers_of(rows, corner):
    """The sums of so many rows, which are 0 but for one entry of the matrix."""
    numbers = np.zeros(packed_size(6))
    numbers[0], numbers[11] = rows, corner
    return numbers.astype("<f8").tobytes()


@pytest.mark.parametrize(
    ("numbers", "why"),
    [
        (b"", "is 83 doubles"),
        (b"\xff" * 8 * packed_size(6), "must be finite"),
        (7, "is 83 doubles"),
        (numbers_of(1e9, 0.0), "must be that of 90 rows; it says 1e+09"),
        (numbers_of(90, 1.0), "must be symmetric"),
    ],
)
def test_one_site_without_sums_leaves_a_model_without_errors_and_a_warning(numbers, why, tmp_path):
    setup = prepare(parse(sites(tmp_path, "logistic")[0]))
    grid = Spoilt(setup)
    grid.numbers = numbers
    result = run_strategy(setup, grid, "inprocess")
    assert result.model is not None and result.information is None
    (warning,) = [text for text in result.warnings() if "standard errors" in text]
    assert "1 clients sent no information matrix (client 1: " in warning and why in warning


def site_of(folder, number, **policy):
    keys = {"data-file": str(folder / f"{number}.csv"), "schema": str(folder / "schema.toml")}
    return (
        keys | {"allow-non-private": True} | {key.replace("_", "-"): value for key, value in policy.items()}
    )


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "its node config has no standard-error-rows"),
        ({"standard_error_rows": 61}, "of fewer than 61 rows, 3 for each of 6 parameters or its"),
        ({"standard_error_rows": 60}, "a category or class has fewer rows than its standard-error-rows"),
        ({"standard_error_rows": 10}, ""),
    ],
)
def test_a_site_decides_whether_it_sends_an_information_matrix(policy, why, tmp_path):
    """Before the training: the reply to the first request says why not."""
    keys, *_ = sites(tmp_path, "logistic")
    kept = {key: keys[key] for key in keys if key not in ("data.files", "data.schema", "data.name")}
    digest = read_schema(tmp_path / "schema.toml").digest
    run = kept | {
        "data.name": "own", "data.schema-digest": digest, "partition.name": "sizes", "partition.sizes": "60,90",
        "clients.count": 2, "evaluation.held-out": 0.0, "data.file": str(tmp_path / "0.csv"),
    }  # fmt: skip
    del run["data.test-file"]
    grid = Deployed(run, site_of(tmp_path, 0, **policy), site_of(tmp_path, 1, standard_error_rows=1))
    reply = grid.answer(properties_request(1))
    assert (why in str(reply.error.reason)) if why else not reply.has_error()


def test_the_smallest_cell_is_that_of_a_category_or_a_class():
    features = np.zeros((6, 4))
    features[:, 1], features[:, 2], features[0, 3] = 1.0, np.arange(6), 0.5
    labels = np.array([0, 0, 1, 1, 1, 1])
    assert smallest_cell(Batch(features, labels), 2) == 1
    assert smallest_cell(Batch(features[:, :3], labels), 2) == 2
    assert smallest_cell(Batch(features[:, :3], labels / 1.0), 0) == np.inf


def test_a_client_sends_one_matrix_of_a_run_after_its_last_round(tmp_path):
    setup = prepare(parse(sites(tmp_path, "logistic")[0] | {"rounds": 3}))
    client, x = client_of(setup, 0, Context(1, 1, {}, RecordDict(), {})), setup.start
    for round_ in (1, 2, 4, None, True):
        with pytest.raises(ReplyError, match=r"nothing exact is sent|must carry its round"):
            client.evaluate([x], {"round": round_, "information": True})
    asked = {"round": 3, "session": "one", "information": True}
    first = client.evaluate([x], asked)
    assert client.evaluate([x], asked) == first
    with pytest.raises(ReplyError, match="another model was evaluated after this round"):
        client.evaluate([x + 1], asked)
    with pytest.raises(ReplyError, match="another session"):
        client.evaluate([x], asked | {"session": "two"})


# ------------------------------------------------------------------------------------- what users see


def test_folder_command_and_report_show_the_errors(tmp_path):
    setup = at_maximum(prepare(parse(sites(tmp_path, "logistic")[0])))
    (result,) = cohort.train([setup])
    folder = write_run(result, tmp_path / "run")
    found = twinflower.load(folder).coefficients()
    again = inferred(trained_model(setup, result.model, None, result.information)).rows
    assert_array_equal([row[5:] for row in found], [row[5:] for row in again])
    page = report_run(folder).read_text(encoding="utf-8")

    def shown(*words):
        return CliRunner().invoke(cli.app, ["coefficients", str(folder), *words]).output

    for row in found:
        if row.std_error == row.std_error:
            assert f"{row.std_error:.4g}" in shown() and f"{row.std_error:.4g}" in page
            assert f"{np.exp(row.low):.4g} to {np.exp(row.high):.4g}" in page
    assert "95% interval of the odds ratio" in shown()
    robust = twinflower.load(folder).coefficients(robust=True)
    assert f"{robust[0].std_error:.4g}" in shown("--robust")
    assert robust[0].std_error != found[0].std_error


def test_whoever_gets_the_model_does_not_get_the_sums(tmp_path):
    (result,) = cohort.train([prepare(parse(sites(tmp_path, "logistic")[0]))])
    folder = write_run(result, tmp_path / "run")
    with np.load(folder / "model.npz") as model:
        assert set(model.files) == {"x", "shape", "shapes", "description"}
    alone = (folder / "model.npz").rename(tmp_path / "model.npz")
    assert twinflower.load(alone).information is None
    write_run(result, folder)
    assert twinflower.load(folder).information is not None
    write_run(replace(result, model=result.model + 1, answers={}), folder)
    assert not (folder / "information.npz").exists()


def test_sums_beside_another_model_are_not_its_own(tmp_path):
    (result,) = cohort.train([prepare(parse(sites(tmp_path, "logistic")[0]))])
    folder = write_run(result, tmp_path / "run")
    other = trained_model(result.setup, result.model + 1, None)
    other.save(folder / "model.npz")
    assert twinflower.load(folder).information is None
    (folder / "information.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match="is not a model of this version"):
        twinflower.load(folder)


def test_robust_errors_need_a_run_that_has_asked_for_them(tmp_path):
    keys = sites(tmp_path, "logistic")[0] | {"evaluation.standard-errors": False}
    folder = write_run(cohort.train([prepare(parse(keys))])[0], tmp_path / "run")
    with pytest.raises(SettingError, match="train with evaluation.standard-errors = true"):
        show_coefficients(folder, None, robust=True)
    assert all(row.std_error != row.std_error for row in twinflower.load(folder).coefficients())


@pytest.mark.parametrize("kind", ["exists", "almost"])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_whether_an_estimate_exists_does_not_depend_on_the_unit_of_its_column(kind, unit, tmp_path):
    """Near the maximum, and where the size separates the classes but for its ties, so that there is none."""
    keys = sites(tmp_path, "logistic")[0]

    def change(age, size, group, y):
        size = round(float(size)) if kind == "almost" else float(size)
        apart = kind == "almost" and size != 3
        return age, repr(size * unit), group, str(int(size > 3)) if apart else y

    rewrite(tmp_path, change)
    text = (tmp_path / "schema.toml").read_text()
    (tmp_path / "schema.toml").write_text(text.replace("[-4, 10]", f"[{-4 * unit!r}, {10 * unit!r}]"))

    def start(setup):
        best = at_maximum(setup, 8 if kind == "almost" else 30).start
        return best + (1e-4 if kind == "exists" else 0.0)

    found = trained_on(keys | {"fedavg.step-size": 1e-9}, start)
    by_name = {row.column: row for row in found.rows}
    assert np.isfinite(by_name["size"].p_value) == (kind == "exists") == found.facts.converged
    assert any("size per unit" in remark and "log odds" in remark for remark in found.remarks) == (
        kind == "almost"
    )
