"""The facts that stand beside every table of estimates, in all five outputs."""

import csv
import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
from test_inference import at_maximum, newton_keys, sites
from typer.testing import CliRunner

import twinflower
from twinflower.data.checks import describe_fit
from twinflower.data.schema_file import read_schema
from twinflower.models.facts import Clipped, Facts
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.facts import known
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse

OUTPUTS = ("screen", "csv", "json", "python", "report")


def spaced(text):
    """A text without markup, line drawing and line breaks."""
    return " ".join(re.sub(r"<[^>]+>|[^\x00-\x7f]", " ", unescape(text)).split())


def shown(output, folder):
    """What one of the outputs has about the estimates of a run, as a text."""
    if output == "report":
        return spaced(report_run(folder).read_text(encoding="utf-8"))
    if output == "python":
        text = io.StringIO()
        with redirect_stdout(text):
            print(twinflower.load(folder).coefficients())
        return spaced(text.getvalue())
    file = folder / f"table.{output}"
    file.unlink(missing_ok=True)
    words = [] if output == "screen" else ["--out", str(file)]
    done = CliRunner().invoke(cli.app, ["coefficients", str(folder), *words], catch_exceptions=False)
    return file.read_text(encoding="utf-8") if words else spaced(done.output)


def in_text(text):
    """The facts in a text, by name; those of CSV from its first row."""
    if text.startswith("{"):
        facts = json.loads(text)["facts"]
        return {"dropped": sum(facts["dropped"].values())} | {key: facts[key] for key in KNOWN}
    if text.startswith("outcome,"):
        row = next(csv.DictReader(io.StringIO(text)))
        numbers = [row[name] for name in ("rows", "events", "distance_in_std_errors")]
        values = dict(zip(("rows", "events", "distance"), map(json.loads, numbers), strict=True))
        return values | {"dropped": int(row["rows_dropped"]), "converged": row["converged"] == "True"}
    found = re.search(
        r"rows:? ([\d,]+).*?events:? ([\d,]+).*?rows not trained on:? (.*?)values clipped.*?"
        r"distance from the maximum:? (\S+) standard errors.*?converged:? (yes|no)",
        text,
    )
    assert found, text
    rows, events, dropped, distance, converged = found.groups()
    dropped = sum(map(int, re.findall(r"(\d+) held out", dropped)))
    return {"rows": int(rows), "events": int(events), "dropped": dropped, "distance": float(distance),
            "converged": converged == "yes"}  # fmt: skip


KNOWN = ("rows", "events", "distance", "converged")


def trained(folder, converged, **keys):
    """The folder of a logistic run on three sites' tables, at the maximum or after one round, and its setup."""
    keys = sites(folder, "logistic")[0] | {"evaluation.held-out": 0.1} | keys
    del keys["data.test-file"]
    setup = prepare(parse(keys))
    (result,) = cohort.train([at_maximum(setup) if converged else setup])
    return write_run(result, folder / "run"), setup


@pytest.mark.parametrize("converged", [True, False])
def test_every_output_has_the_facts_and_withholds_p_values_far_from_the_maximum(converged, tmp_path):
    folder, setup = trained(tmp_path, converged)
    rows = 200 - len(setup.dataset.test_labels) - len(setup.held.rows)
    events = int(setup.dataset.labels[setup.partition.rows].sum())
    distance = twinflower.load(folder).coefficients().facts.distance
    for output in OUTPUTS:
        text = shown(output, folder)
        found = in_text(text)
        assert found.pop("distance") == pytest.approx(distance, rel=0.05, abs=1e-300)
        assert found == {"rows": rows, "events": events, "dropped": 200 - rows, "converged": converged}
        assert "held out for the test (data.test-fraction)" in text
        assert "held out at the sites (evaluation.held-out)" in text
    p_values = [row.p_value for row in twinflower.load(folder).coefficients()]
    assert np.isfinite(p_values).any() == converged
    remark = "withheld beyond 0.1 standard errors from the maximum"
    assert all((remark in shown(output, folder)) != converged for output in OUTPUTS if output != "csv")


@pytest.mark.parametrize("effort", [0.09, 0.11])
def test_p_values_are_withheld_beyond_a_tenth_of_a_standard_error(effort, tmp_path):
    """Whoever is that far from the maximum in one coefficient, in standard errors, has none of the p-values."""
    setup = at_maximum(prepare(parse(sites(tmp_path, "logistic")[0])))
    (result,) = cohort.train([setup])
    matrix = result.information.matrix
    away = np.linalg.pinv(matrix, hermitian=True)[:, 0]
    moved = result.information._replace(gradient=effort * matrix @ away / np.sqrt(away[0]))
    write_run(replace(result, answers={**result.answers, "information": moved}), tmp_path / "run")
    found = twinflower.load(tmp_path / "run").coefficients()
    assert found.facts.distance == pytest.approx(effort, rel=1e-6)
    assert found.facts.converged == (effort < 0.1) == np.isfinite(found[0].p_value)


def test_without_standard_errors_the_distance_is_not_known(tmp_path):
    folder, _ = trained(tmp_path, False, **{"evaluation.standard-errors": False})
    for output in ("screen", "python", "report"):
        assert re.search(
            r"distance from the maximum:? not known converged:? not known", shown(output, folder)
        )
    facts = json.loads(shown("json", folder))["facts"]
    assert facts["distance"] is facts["converged"] is None and facts["rows"] > 0


def test_a_private_run_says_nothing_about_events(tmp_path):
    private = {"privacy.mode": "public-state", "privacy.epsilon": 4.0, "evaluation.standard-errors": False}
    keys = sites(tmp_path, "logistic")[0] | private | {"data.row-norm": 1.0}
    (result,) = cohort.train([prepare(parse(keys))])
    facts = twinflower.load(write_run(result, tmp_path / "run")).facts
    assert (facts.rows, facts.events, facts.clipped) == (200, None, {"age": None, "size": None})
    assert dict(facts.lines)["values clipped to their range"] == "not counted: age, size"
    assert facts.columns("age")["values_clipped"] is None


def with_age(folder, text):
    """Put another range of the column age into the schema."""
    file = folder / "schema.toml"
    changed = re.sub(r"(age = \{ range = )(\[[^]]*\]|\"private\")", rf"\g<1>{text}", file.read_text())
    assert changed != file.read_text()
    file.write_text(changed)


def ages(folder):
    """The ages in all tables, in order."""
    tables = [csv.DictReader(file.open()) for file in sorted(folder.glob("[0-9].csv"))]
    return np.sort([float(row["age"]) for table in tables for row in table])


@pytest.mark.parametrize("clipped", [0, 2, 3])
def test_clipped_values_are_counted_and_more_than_a_hundredth_withhold_the_intervals(clipped, tmp_path):
    keys, known = sites(tmp_path, "logistic")[0], ages(tmp_path)
    with_age(tmp_path, [float(known[0]), float(known[-1 - clipped])])
    (result,) = cohort.train([at_maximum(prepare(parse(keys)))])
    folder = write_run(result, tmp_path / "run")
    found = twinflower.load(folder).coefficients()
    assert found.facts.clipped == ({"age": Clipped(clipped, 200)} if clipped else {})
    assert np.isfinite(found[1].p_value) == (clipped <= 2)
    for output in OUTPUTS:
        text = shown(output, folder)
        assert (
            output == "csv" or not clipped or f"{clipped} of 200" in text or f"{clipped}, 200" in spaced(text)
        )
        assert output == "csv" or ("withheld, because more than 1% of the values" in text) == (clipped > 2)


@pytest.mark.parametrize(
    ("objective", "old", "new", "column"),
    [
        ("least-squares", "range = [-20, 20]", "range = [0, 5]", "y"),
        ("poisson", "counts = 60", "counts = 2", "y"),
        ("poisson", "exposure-range = [0.1, 20]", "exposure-range = [1, 20]", "years"),
    ],
)
def test_clipped_labels_and_exposures_count_like_columns(objective, old, new, column, tmp_path):
    """They make other coefficients: everywhere their number is shown, and the intervals are withheld."""
    keys = sites(tmp_path, objective)[0]
    schema = tmp_path / "schema.toml"
    assert old in schema.read_text()
    schema.write_text(schema.read_text().replace(old, new))
    (result,) = cohort.train([prepare(parse(newton_keys(keys)))])
    found = twinflower.load(write_run(result, tmp_path / "run")).coefficients()
    tables = [csv.DictReader(file.open()) for file in sorted(tmp_path.glob("[0-9].csv"))]
    values = np.array([float(row[column]) for table in tables for row in table])
    low, high = {"y": (0, 2 if objective == "poisson" else 5), "years": (1, 20)}[column]
    outside = int(((values < low) | (values > high)).sum())
    assert outside > 10 and found.facts.clipped == {column: Clipped(outside, 200)}
    assert np.isnan([row.p_value for row in found]).all()
    assert any(f"{column} ({outside} of 200" in remark for remark in found.remarks)
    fits = [describe_fit(tmp_path / f"{number}.csv", read_schema(schema)) for number in range(3)]
    assert sum(clipped for fit in fits for name, _, _, clipped in fit if name == column) == outside


@pytest.mark.parametrize("objective", ["stratified-cox", "discrete-cox"])
def test_times_that_are_moved_up_to_their_range_count_as_clipped(objective, tmp_path):
    """Where that changes an order of times: not within the first interval. Later events than all intervals count as
    none."""
    draw, rows = np.random.default_rng(0), 0
    for number in range(3):
        days, died = draw.uniform(1, 60, 80).round(2), draw.integers(0, 2, 80)
        rows += int((days < 5).sum())
        lines = [f"{d},{e},{a}" for d, e, a in zip(days, died, draw.integers(20, 81, 80), strict=True)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["days,died,age", *lines, ""]))
    label = (
        '[label]\ncolumn = "days"\nevent = "died"\ntimes = [5, 60]\n[columns]\nage = { range = [20, 80] }\n'
    )
    (tmp_path / "schema.toml").write_text(label)
    keys = {
        "data.name": "tables", "data.files": str(tmp_path / "*.csv"), "data.schema": str(tmp_path / "schema.toml"),
        "data.row-scaling": "all", "data.test-fraction": 0.0, "objective.name": objective, "algorithm": "newton",
        "clients.weighting": "rows", "regulariser.name": "none", "rounds": 20, "evaluation.standard-errors": True,
    }  # fmt: skip
    keys |= {"objective.intervals": "5 x 8"} if objective == "discrete-cox" else {}
    (result,) = cohort.train([prepare(parse(keys))])
    found = twinflower.load(write_run(result, tmp_path / "run")).coefficients()
    moved = objective == "stratified-cox"
    assert rows > 3 and found.facts.clipped == ({"days": Clipped(rows, 240)} if moved else {})
    assert np.isnan(found[-1].p_value) == moved
    assert found.facts.parameters == (1 if moved else 6)  # Cox's model has no intercept


def test_without_privacy_a_private_range_clips_nothing(tmp_path):
    keys = sites(tmp_path, "logistic")[0]
    with_age(tmp_path, '"private"')
    (result,) = cohort.train([at_maximum(prepare(parse(keys)).first.simulated())])
    (own,) = (own for name, own in result.setup.ranges if name == "age")
    assert not own.excludes(ages(tmp_path)).any()
    found = twinflower.load(write_run(result, tmp_path / "run")).coefficients()
    assert found.facts.clipped == {} and np.isfinite(found[1].p_value)


def test_with_privacy_there_is_a_bound_on_what_a_private_range_clips(tmp_path):
    private = {"privacy.mode": "public-state", "privacy.epsilon": 400.0, "data.row-norm": 1.0}
    keys = sites(tmp_path, "logistic")[0] | private
    with_age(tmp_path, '"private"')
    (result,) = cohort.train([prepare(parse(keys))])
    found = twinflower.load(write_run(result, tmp_path / "run")).coefficients()
    (own,) = (own for name, own in result.setup.ranges if name == "age")
    bound = found.facts.clipped["age"]
    assert bound.at_most and own.excludes(ages(tmp_path)).sum() <= bound.values <= bound.rows == 200
    assert found.facts.clipped["size"] is None and any(
        "in size, the intervals are wrong" in text for text in found.remarks
    )
    assert np.isfinite([row.p_value for row in found]).any() == (bound.values <= 2)


def test_facts_survive_a_file_and_name_the_clipped_columns():
    facts = Facts(
        600, 40, {"for a reason": 3}, {"age": Clipped(83, 600), "size": Clipped(5, 600, True)}, 0.03, True
    )
    assert Facts.of(json.loads(json.dumps(facts.document))) == facts
    assert Facts.of({}) == Facts()
    text = dict(facts.lines)["values clipped to their range"]
    assert text == "age: 83 of 600 (13.8%); size: at most 5 of 600 (0.8%)"
    assert [facts.columns(name)["values_clipped"] for name in ("age", "size", "group")] == [83, 5, 0]


def test_csv_has_one_header_for_all_kinds_and_limits_of_both_scales(tmp_path):
    """A program such as pandas or R reads it as it is; ratio_low to ratio_high holds the ratio."""
    folder, _ = trained(tmp_path, True)
    rows = list(csv.DictReader(io.StringIO(shown("csv", folder))))
    assert {(row["estimate_is"], row["ratio_is"]) for row in rows} == {("log odds", "odds ratio")}
    for row in rows:
        if row["p_value"]:
            numbers = [float(row[f"{name}"]) for name in ("low", "estimate", "high")]
            ratios = [float(row[f"{name}"]) for name in ("ratio_low", "ratio", "ratio_high")]
            np.testing.assert_allclose(np.exp(numbers), ratios, rtol=1e-13)
            assert ratios == sorted(ratios)


def test_all_rows_are_trained_on_if_none_are_held_out_for_a_test(tmp_path):
    """Then there is no test score in any output, and the maximum is that of all rows."""
    keys = sites(tmp_path, "logistic")[0] | {"data.test-fraction": 0}
    del keys["data.test-file"]
    file = tmp_path / "all.toml"
    file.write_text("\n".join(["[run]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items())]))
    folder = tmp_path / "run"
    ran = CliRunner().invoke(cli.app, ["run", str(file), "--out", str(folder)], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    assert "200 rows are trained on" in ran.output and "not trained on" not in ran.output
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["test_accuracy"], summary["majority_baseline"]) == (None, None)
    assert summary["facts"]["rows"] == 200 and summary["facts"]["dropped"] == {}
    assert "no rows are held out for a test (data.test-fraction = 0)" in shown("report", folder)
    assert CliRunner().invoke(cli.app, ["figure", str(folder)], catch_exceptions=False).exit_code == 0
    at_sites = prepare(parse(keys | {"evaluation.held-out": 0.2}))
    for runtime in (inprocess.train, lambda setup: cohort.train([setup])[0]):
        row = runtime(at_sites).rows[-1]
        assert row["test_accuracy"] == row["held_out_accuracy"] > 0


def test_every_row_of_the_data_is_trained_on_or_dropped_for_a_reason(tmp_path):
    keys = sites(tmp_path, "logistic")[0]
    del keys["data.test-file"]
    for more in ({}, {"data.test-fraction": 0.5}, {"evaluation.held-out": 0.3}, {"data.test-fraction": 0}):
        facts = known(prepare(parse(keys | more)))
        assert facts.rows + sum(facts.dropped.values()) == 200
    unequal = {
        "data.name": "digits",
        "partition.name": "sizes",
        "partition.sizes": "100,200",
        "clients.count": 2,
    }
    setup = prepare(parse(unequal))
    facts = known(setup)
    assert facts.dropped["left out by the partition"] == len(setup.dataset.labels) - 300
    assert facts.dropped["test rows of the data set"] == len(setup.dataset.test_labels)
