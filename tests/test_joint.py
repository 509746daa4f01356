"""Tests of several coefficients at once, other references, and likelihoods, against statsmodels on the pooled rows."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from test_inference import by_statsmodels, sites
from typer.testing import CliRunner

from twinflower.errors import SettingError
from twinflower.models.facts import Facts
from twinflower.models.joint import likelihood_ratio
from twinflower.models.model import inferred, nested_test
from twinflower.simulation import cli
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.run import _likelihood, trained_model
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse

OBJECTIVES = ["logistic", "softmax", "least-squares", "poisson"]
GROUP = [3, 4]  # columns of the design


def fitted_run(folder, objective, without=(), **newton):
    """The run of Newton's method on all rows, or without these columns; and the design with the labels."""
    keys, design, labels = sites(folder, objective)
    keys = {key: value for key, value in keys.items() if not key.endswith(("max-steps", "step-size"))}
    if without:
        schema = folder / "schema.toml"
        kept = [line for line in schema.read_text().split("\n") if not line.startswith(tuple(without))]
        schema.write_text("\n".join([f"ignore = {list(without)}", *kept]))
    (run,) = cohort.train([prepare(parse(keys | {"algorithm": "newton", "rounds": 20} | newton))])
    return run, design, labels


def fitted(folder, *about, **newton):
    """The model of such a run, the design and the labels."""
    run, design, labels = fitted_run(folder, *about, **newton)
    return trained_model(run.setup, run.model, None, run.information), design, labels


def wald(result, places):
    """b^T C^-1 b of statsmodels' estimates in these columns, over all outcomes."""
    shape = np.asarray(result.params).T.shape
    chosen = np.arange(np.prod(shape)).reshape(shape)[..., places].ravel()
    estimates = np.asarray(result.params).T.ravel()[chosen]
    covariance = np.asarray(result.cov_params())[np.ix_(chosen, chosen)]
    return estimates @ np.linalg.solve(covariance, estimates), len(chosen)


@pytest.mark.parametrize("robust", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_test_of_a_column_is_walds(objective, robust, tmp_path):
    model, design, labels = fitted(tmp_path, objective, **{"newton.robust": True})
    tests = {own.column: own for own in inferred(model, robust).tests}
    statistic, freedom = wald(by_statsmodels(objective, design, labels, robust), GROUP)
    own = tests["group"]
    if objective == "least-squares" and not robust:
        statistic /= freedom
        assert own.residuals == len(labels) - design.shape[1]
        p_value = stats.f.sf(statistic, freedom, own.residuals)
    else:
        assert own.residuals == 0
        p_value = stats.chi2.sf(statistic, freedom)
    assert own.freedom == freedom
    assert_allclose([own.statistic, own.p_value], [statistic, p_value], rtol=1e-5)
    assert set(tests) == ({"age", "size", "group"} if objective == "softmax" else {"group"})


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_another_reference_changes_contrasts_alone(objective, tmp_path):
    model, design, labels = fitted(tmp_path, objective)
    plain, other = inferred(model), inferred(model, references={"group": "b"})
    turned = design.copy()
    turned[:, 3] = 1 - design[:, 3] - design[:, 4]  # group a in place of b
    known = by_statsmodels(objective, turned, labels, robust=False)
    rows = [row for row in other.rows if row.std_error > 0]
    # ours follow the categories a, (b), c, as the design's columns do
    assert_allclose([row.estimate for row in rows], np.asarray(known.params).T.ravel(), rtol=1e-6, atol=1e-9)
    assert_allclose([row.std_error for row in rows], np.asarray(known.bse).T.ravel(), rtol=1e-6)
    assert [row.reference for row in rows if row.column == "group"] == ["b"] * (len(rows) // 5 * 2)
    assert_allclose([own.statistic for own in other.tests], [own.statistic for own in plain.tests], rtol=1e-9)
    assert other.facts == plain.facts._replace(distance=other.facts.distance)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_likelihoods_and_their_ratio_are_statsmodels(objective, tmp_path):
    model, design, labels = fitted(tmp_path, objective)
    (tmp_path / "nested").mkdir()
    nested, *_ = fitted(tmp_path / "nested", objective, ["group"])
    known, smaller = (by_statsmodels(objective, own, labels, False) for own in (design, design[:, :3]))
    facts, ratio = inferred(model).facts, likelihood_ratio(inferred(model).facts, inferred(nested).facts)
    likelihood = -known.deviance / 2 if objective == "poisson" else known.llf
    assert_allclose(facts.log_likelihood, likelihood, rtol=1e-9)
    assert facts.parameters == np.size(known.params)
    assert_allclose(ratio.statistic, 2 * (known.llf - smaller.llf), rtol=1e-6)
    assert ratio.freedom == np.size(known.params) - np.size(smaller.params)
    assert_allclose(ratio.p_value, stats.chi2.sf(ratio.statistic, ratio.freedom), rtol=1e-9)


def test_models_that_are_not_nested_or_not_at_a_maximum_are_refused():
    full = Facts(rows=10, converged=True, log_likelihood=-3.0, parameters=4)
    assert likelihood_ratio(full, full._replace(log_likelihood=-5.0, parameters=2)).statistic == 4
    for nested, why in (
        (full, "fewer parameters"),
        (full._replace(log_likelihood=-2.0, parameters=2), "no higher likelihood"),
        (full._replace(rows=11, parameters=2), "same rows"),
        (full._replace(converged=False), "the nested model .* at the maximum"),
        (full._replace(log_likelihood=None), "at the maximum"),
    ):
        with pytest.raises(SettingError, match=why):
            likelihood_ratio(full, nested)


@pytest.mark.parametrize(
    "references, why",
    [
        ({"size": "a"}, "'size' is no column with categories: group"),
        ({"group": "d"}, "column 'group' has no category 'd', only a, b, c"),
    ],
)
def test_references_that_are_not_there_are_refused(references, why, tmp_path):
    model, *_ = fitted(tmp_path, "logistic")
    with pytest.raises(SettingError, match=why):
        model.coefficients(references=references)


def test_a_model_that_is_not_at_the_maximum_has_neither_tests_nor_a_likelihood(tmp_path):
    keys, *_ = sites(tmp_path, "logistic")
    setup = prepare(parse(keys))
    (run,) = cohort.train([setup])
    found = inferred(trained_model(setup, run.model, None, run.information))
    assert not found.facts.converged
    assert not found.tests
    assert found.facts.log_likelihood is None


def test_the_command_shows_tests_references_and_the_ratio(tmp_path):
    (tmp_path / "fewer").mkdir()
    full = write_run(fitted_run(tmp_path, "poisson")[0], tmp_path / "full")
    nested = write_run(fitted_run(tmp_path / "fewer", "poisson", ["group"])[0], tmp_path / "nested")

    def shown(*options):
        return CliRunner().invoke(cli.app, ["coefficients", *map(str, options)], env={"COLUMNS": "200"})

    text = shown(full, "--reference", "group=b", "--against", nested).output
    for part in (
        "a (against b)",
        "b (reference)",
        "chi-squared(2)",
        "likelihood ratio against",
        "perfect fit",
    ):
        assert part in text
    assert isinstance(shown(nested, "--against", full).exception, SettingError)
    assert isinstance(shown(full, "--reference", "group").exception, SettingError)
    shown(full, "--against", nested, "--out", tmp_path / "found.json")
    wald, ratio = json.loads((tmp_path / "found.json").read_text())["tests"]
    assert wald["column"] == "group" and wald["freedom"] == ratio["freedom"] == 2
    assert ratio["column"] == f"likelihood ratio against {nested}"


def test_models_of_other_columns_or_rows_are_not_nested(tmp_path):
    (tmp_path / "fewer").mkdir()
    full, *_ = fitted(tmp_path, "logistic")
    nested, *_ = fitted(tmp_path / "fewer", "logistic", ["group"])
    assert nested_test(full, nested, "it").freedom == 2
    with pytest.raises(SettingError, match="it is not nested in the model, which does not have group"):
        nested_test(nested, full, "it")
    other = replace(nested, origin={**nested.origin, "seed": 7})
    with pytest.raises(SettingError, match="same rows; these have other seeds"):
        nested_test(full, other, "it")
    moved = replace(nested, origin={**nested.origin, "labels": "of other rows with as many events"})
    with pytest.raises(SettingError, match="same rows; these have other seeds, labels"):
        nested_test(full, moved, "it")
    assert full.origin["labels"] == nested.origin["labels"]
    fewer = replace(nested, facts=nested.facts._replace(events=1))
    with pytest.raises(SettingError, match="same rows"):
        nested_test(full, fewer, "it")


def test_other_likelihoods_are_not_compared(tmp_path):
    """Ties, links and weights of classes are settings of the objective; the label's range is the schema's."""
    (tmp_path / "fewer").mkdir()
    full, *_ = fitted(tmp_path, "logistic")
    nested, *_ = fitted(tmp_path / "fewer", "logistic", ["group"])
    assert nested_test(full, nested, "it").freedom == 2
    others = [
        replace(nested, origin={**nested.origin, "likelihood": "another"}),
        replace(nested, half=2.0),
        replace(
            nested,
            inputs=replace(nested.inputs, schema=replace(nested.inputs.schema, weight=None, label=None)),
        ),
    ]
    for other in others:
        with pytest.raises(SettingError, match="it has another likelihood"):
            nested_test(full, other, "it")
    digests = {
        _likelihood(
            parse({"objective.name": "discrete-cox", "objective.intervals": "8", "objective.link": link})
        )
        for link in ("logit", "cloglog")
    }
    assert len(digests) == 2


@pytest.mark.parametrize("column", ["y", "age"])
def test_labels_and_columns_in_other_rows_are_others(column, tmp_path):
    """As many events, but of other persons; or the same persons with another one's age."""
    (tmp_path / "moved").mkdir()
    full, *_ = fitted(tmp_path, "logistic")
    keys, *_ = sites(tmp_path / "moved", "logistic")
    last = tmp_path / "moved" / "2.csv"
    rows = [line.split(",") for line in last.read_text().splitlines()]
    place = rows[0].index(column)
    cells = [row[place] for row in rows[:0:-1]]
    for row, cell in zip(rows[1:], cells, strict=True):
        row[place] = cell
    last.write_text("\n".join([*map(",".join, rows), ""]))
    other = trained_model(prepare(parse(keys)), full.x, None, full.information)
    assert other.facts.events == full.facts.events and len(full.origin["labels"]) == 4
    assert (other.origin["labels"] == full.origin["labels"]) == (column == "age")
    if column == "age":
        with pytest.raises(SettingError, match="other values, ranges or categories of column age"):
            nested_test(full, other, "it")
