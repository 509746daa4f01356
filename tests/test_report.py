"""Reports: their numbers are those of the stored results, nothing in them is markup from outside, and the privacy
statement says what holds and no more."""

import csv
import itertools
import json
import math
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from pages import Page, command

import twinflower
from twinflower.errors import DiskError, SettingError
from twinflower.models.trained import load
from twinflower.privacy import best_guess, detection, gdp_epsilon
from twinflower.simulation.report.charts import Axis, chart
from twinflower.simulation.report.document import markdown
from twinflower.simulation.report.present import report_experiment, report_run
from twinflower.simulation.report.sections import privacy as privacy_text
from twinflower.simulation.report.sections.privacy import headline, odds, page, statement
from twinflower.simulation.report.sections.sites import ranges
from twinflower.simulation.report.series import Series
from twinflower.simulation.report.study import Case, Study
from twinflower.simulation.results.reading import digest, read_config, read_rows
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
STYLE = (ROOT / "simulation" / "report" / "templates" / "style.css.md").read_text()
RUN = "[run]\nrounds = 4\n[run.clients]\ncount = 5\nper-round = 3\n"
PRIVATE = {"clients.count": 5, "rounds": 4, "privacy.mode": "public-state", "privacy.epsilon": 2.0}
MARKUP = '<script>alert("1")</script><img src=x onerror="alert(2)">&amp;\' | `x` [y](z)'
EXPERIMENT = f"""
title = {json.dumps(MARKUP)}
source = {json.dumps(MARKUP)}
claim = {json.dumps(MARKUP)}
verdict = {json.dumps(MARKUP)}
seeds = [0, 1, 2]
y = ["objective", "test_accuracy"]
{RUN}
[run.privacy]
mode = "public-state"
epsilon = 2.0
[[curve]]
label = {json.dumps(MARKUP)}
panel = "<b>panel</b>"
[[curve]]
label = "sparse"
panel = "<b>panel</b>"
regulariser.weight = 0.01
"""


@pytest.fixture(scope="module")
def run_of(tmp_path_factory):
    """Run an experiment's file on the command line, once for equal arguments; returns its folder."""
    known = {}

    def run(text, *words, status=0):
        if (text, words) not in known:
            folder = tmp_path_factory.mktemp("report")
            (folder / "plan.toml").write_text(text)
            assert command("run", folder / "plan.toml", *words, "--out", folder / "out") == status
            known[text, words] = folder / "out"
        return known[text, words]

    return run


def read(folder):
    return Page((folder / "report.html").read_text())


def summary_of(folder):
    return json.loads((folder / "summary.json").read_text())


private = ("--set", "privacy.mode=public-state", "--set", "privacy.epsilon=2")


def test_the_numbers_of_a_run_are_those_of_its_files(run_of):
    folder = run_of(RUN, *private)
    found, summary, rows = read(folder), summary_of(folder), read_rows(folder)
    assert found.facts["Test accuracy"] == f"{summary['test_accuracy']:.4f}"
    assert found.facts["Objective"] == f"{summary['objective']:.5g}"
    assert found.facts["Nonzero weights"] == f"{summary['nonzeros']}"
    assert found.facts["Privacy"] == "epsilon 2"
    assert float(found.facts["Sent by all sites"].split()[0]) == summary["uplink_bits"] / 1e3
    by_title = {title.split(" (")[0].replace(" ", "_"): line for (title, _), line in found.lines.items()}
    for column, title in (("objective",) * 2, ("test_accuracy",) * 2, ("nonzeros", "nonzero_weights")):
        x, y = by_title[title]
        assert x == [row["round"] for row in rows]
        np.testing.assert_allclose(y, [row[column] for row in rows], rtol=1e-6)
    numbers = found.table("round")
    assert [float(cells[1]) for cells in numbers] == pytest.approx(
        [row["objective"] for row in rows], rel=1e-4
    )
    assert dict(found.table("SHA-256 of"))["metrics.csv"] == digest(folder / "metrics.csv")


def test_every_site_is_there_with_what_it_did_and_spent(run_of):
    """By a count in rounds.jsonl, and mu from the planned epsilon, which all of a client's rounds cost together."""
    folder = run_of(RUN, *private)
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    asked = np.bincount([client for done in rounds for client in done["asked"]], minlength=5)
    with (folder / "clients.csv").open(newline="") as file:
        clients = list(csv.DictReader(file))
    assert {int(row["client"]): int(row["asked"]) for row in clients} == {
        c: n for c, n in enumerate(asked) if n
    }
    for row in clients:
        assert gdp_epsilon(float(row["mu"]), 1e-4) == pytest.approx(2, rel=1e-9)
    shown = next(rows for rows in read(folder).tables if "rounds asked" in rows[0])[1:]
    assert sorted((int(cells[2]) for cells in shown), reverse=True) == sorted(
        {n for n in asked if n}, reverse=True
    )
    assert [cells[0] for cells in shown] == [
        ranges([client for client in range(5) if asked[client] == int(cells[2])]) for cells in shown
    ]


HOSPITALS = (ROOT / "examples/hospitals/hospitals.toml").read_text()
HOSPITALS = HOSPITALS.replace("sites/*.csv", f"{ROOT}/examples/hospitals/sites/*.csv")
HOSPITALS = HOSPITALS.replace("schema.toml", f"{ROOT}/examples/hospitals/schema.toml")


@pytest.mark.parametrize("mode", ["none", "public-state"])
def test_tables_have_names_and_only_runs_without_privacy_have_results_by_site(run_of, mode):
    folder = run_of(HOSPITALS, "--set", f"privacy.mode={mode}", "--set", "rounds=2")
    text, summary = (folder / "report.html").read_text(), summary_of(folder)
    for name in ("cleveland.csv", "switzerland.csv", "trestbps", "80 to 220", "classes healthy, ill"):
        assert name in text
    assert summary["site_names"] == ["cleveland.csv", "hungary.csv", "long-beach.csv", "switzerland.csv"]
    scores = summary["site_scores"]
    assert (scores is None) == (mode != "none")
    assert ("The final model on the rows that each site trained on." in text) == (mode == "none")
    if scores:
        model, setup = load(folder), prepare(read_experiment(folder / "config.toml").curves[0].config)
        own = [setup.shards.rows(site) for site in range(4)]
        right = [np.mean(model._model.predict(model.x, rows.features) == rows.labels) for rows in own]
        np.testing.assert_allclose(scores, right)
        assert all(f"{score:.4f}" in text for score in scores)


def test_the_title_of_the_file_is_that_of_the_report(run_of):
    folder = run_of(HOSPITALS, "--set", "privacy.mode=none", "--set", "rounds=2")
    title = "Four hospitals (with privacy.mode = none, rounds = 2)"
    for _ in range(2):
        assert read(folder).text.startswith(f"{title} Federated learning run {title} A logistic model")
        assert command("report", folder) == 0
    assert read(run_of(RUN)).text.startswith("fedpdm on digits")


@pytest.mark.parametrize("mode", ["none", "public-state"])
def test_an_experiment_on_tables_names_columns_and_sites(run_of, mode):
    seeds = 'title = "Four hospitals"\nseeds = [3, 4]'
    text = HOSPITALS.replace('title = "Four hospitals"', seeds)
    folder = run_of(text, "--set", f"privacy.mode={mode}", "--set", "rounds=2")
    found, runs = read(folder), [summary_of(folder / "fedpdm" / f"seed-{seed}") for seed in (3, 4)]
    for name in ("trestbps", "80 to 220", "classes healthy, ill"):
        assert found.text.count(name) == 1
    (table,) = (rows for rows in found.tables if rows[1][0] == "0: cleveland.csv")
    assert [cells[0] for cells in table] == [
        "site", *(f"{place}: {name}" for place, name in enumerate(runs[0]["site_names"]))
    ]  # fmt: skip
    if mode == "none":
        means = np.mean([run["site_scores"] for run in runs], axis=0)
        assert [cells[1] for cells in table] == ["fedpdm", *(f"{mean:.4f}" for mean in means)]
    else:
        assert {len(cells) for cells in table} == {1}


@pytest.mark.parametrize("seeds", ["0", "0,1"])
def test_results_are_shown_again_without_the_tables_and_with_more_of_them(tmp_path, seeds):
    shutil.copytree(ROOT / "examples" / "hospitals" / "sites", tmp_path / "sites")
    (tmp_path / "plan.toml").write_text(
        HOSPITALS.replace(f"{ROOT}/examples/hospitals/sites", f"{tmp_path}/sites")
    )
    out = tmp_path / "out"
    words = ["--set", "rounds=2", "--seeds", seeds, "--out", out]
    assert command("run", tmp_path / "plan.toml", *words) == 0
    shutil.copy(tmp_path / "sites" / "cleveland.csv", tmp_path / "sites" / "new.csv")
    for _ in range(2):
        for words in (["report", out], ["figure", out], ["compare", out, "--out", tmp_path / "all.html"]):
            assert command(*words) == 0
        shutil.rmtree(tmp_path / "sites", ignore_errors=True)


def test_ranges_that_differ_between_seeds_are_said_to_be_those_of_the_first(run_of, tmp_path):
    schema = (ROOT / "examples/hospitals/schema.toml").read_text().replace("[20, 90]", '"private"')
    (tmp_path / "schema.toml").write_text(schema)
    text = HOSPITALS.replace(f"{ROOT}/examples/hospitals/schema.toml", str(tmp_path / "schema.toml"))
    folder = run_of(text, "--set", "rounds=2", "--seeds", "0,1")
    assert "are those of the first seed" in read(folder).text


def test_the_curves_of_an_experiment_are_means_over_its_seeds(run_of):
    folder = run_of(EXPERIMENT)
    found = read(folder)
    runs = [
        read_rows(path.parent)
        for path in sorted(folder.rglob("metrics.csv"))
        if path.parent.parent.name.endswith("sparse")
    ]
    assert len(runs) == 3
    (line,) = (
        line for (title, label), line in found.lines.items() if label == "sparse" and "accuracy" in title
    )
    np.testing.assert_allclose(
        line[1], np.mean([[row["test_accuracy"] for row in rows] for rows in runs], 0), rtol=1e-6
    )
    cells = next(cells for cells in found.table("curve") if cells[0].endswith("sparse"))
    last = [rows[-1]["test_accuracy"] for rows in runs]
    assert f"{np.mean(last):.4f} ± {np.std(last, ddof=1):.4f}" in cells


def test_a_comparison_has_the_curves_of_all_runs(run_of, tmp_path):
    one, two = run_of(RUN, *private), run_of(RUN)
    assert command("compare", one, two, "--out", tmp_path / "both.html") == 0
    found = Page((tmp_path / "both.html").read_text())
    for folder in (one, two):
        (label,) = {label for _, label in found.lines if label.startswith(folder.parent.name)}
        (line,) = (
            line for (title, other), line in found.lines.items() if other == label and "accuracy" in title
        )
        np.testing.assert_allclose(line[1], [row["test_accuracy"] for row in read_rows(folder)], rtol=1e-6)


def test_pooled_jobs_are_one_curve_over_their_seeds(run_of, tmp_path):
    """Runs that differ in nothing but the seed; a repeated seed counts once, and other settings are another curve."""
    jobs = [*(run_of(RUN, "--seeds", seed) for seed in "0123"), run_of(RUN, "--set", "seed=0")]
    other = run_of(RUN, "--set", "rounds=3")
    study = Study.of_folders([*jobs, other], pool=True)
    assert [sorted(run.config.seed for run in curve.runs) for curve in study.curves] == [[0, 1, 2, 3], [0]]
    assert [line.endswith("another run has its settings and its seed") for line in study.left_out] == [True]
    assert len(Study.of_folders([*jobs, other]).curves) == 6


# --- one file, and no markup from outside


def test_what_comes_from_settings_is_text(run_of):
    """Titles, labels, panels and all else that a user or a data set names."""
    text = (run_of(EXPERIMENT) / "report.html").read_text()
    found = Page(text)
    assert found.text.count(MARKUP) >= 6
    names = [tag for tag, _ in found.elements]
    assert names.count("script") == 1
    assert "img" not in names
    assert not any(key.startswith("on") for _, attributes in found.elements for key in attributes)
    assert "<b>panel</b>" in found.text


def test_what_comes_from_sites_is_text(run_of):
    """The reasons for which replies are left out, and a failure's sentence."""
    folder = run_of(RUN)
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    summary = summary_of(folder)
    try:
        first = json.loads(lines[0]) | {"rejected": {"3": MARKUP}}
        (folder / "rounds.jsonl").write_text("\n".join([json.dumps(first), *lines[1:]]))
        changed = summary | {"failure": MARKUP, "finished": False, "warnings": [MARKUP], "partition": MARKUP}
        (folder / "summary.json").write_text(json.dumps(changed))
        assert command("report", folder) == 0
        found = read(folder)
        assert found.text.count(MARKUP) == 4
        assert "img" not in [tag for tag, _ in found.elements]
        assert ["3", "1", "1", MARKUP] in [cells for rows in found.tables for cells in rows]
    finally:
        (folder / "rounds.jsonl").write_text("\n".join(lines) + "\n")
        (folder / "summary.json").write_text(json.dumps(summary))


def test_a_report_needs_no_other_file(run_of):
    for folder in (run_of(RUN, *private), run_of(EXPERIMENT)):
        text = (folder / "report.html").read_text()
        for _, attributes in Page(text).elements:
            assert attributes.get("href", "data:").startswith("data:")
            assert not {"src", "srcset", "action", "poster"} & attributes.keys()
        assert not re.search(r"url\(|@import|https?:|fetch\(|XMLHttp|import\(", text)


def test_a_report_can_be_written_again(run_of):
    for folder in (run_of(RUN, *private), run_of(EXPERIMENT)):
        before = (folder / "report.html").read_bytes()
        (folder / "report.html").unlink()
        assert command("report", folder) == 0
        assert (folder / "report.html").read_bytes() == before


# --- runs without results


def test_a_diverged_run_says_so(run_of):
    folder = run_of(RUN, "--set", "algorithm=fedavg", "--set", "fedavg.step-size=1e9", status=1)
    found, failure = read(folder), summary_of(folder)["failure"]
    assert "diverged" in failure
    assert failure in found.text
    assert "has no model" in found.text


def test_a_run_that_is_cut_off_says_so(monkeypatch, tmp_path):
    def cut(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("twinflower.simulation.runtimes.cohort.train", cut)
    (tmp_path / "plan.toml").write_text(RUN)
    assert command("run", tmp_path / "plan.toml", "--out", tmp_path / "out") == 130
    found = read(tmp_path / "out")
    assert "had not ended when this report was written" in found.text
    assert found.facts == found.lines == {}


def test_an_experiment_that_is_cut_off_counts_its_runs(run_of, tmp_path):
    done = run_of(EXPERIMENT)
    (tmp_path / "experiment.toml").write_text((done / "experiment.toml").read_text())
    assert command("report", tmp_path) == 0
    assert "6 of 6 runs had not ended when this report was written" in read(tmp_path).text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", "{"),
        ("clients.csv", "a,b\n1,2\n"),
        ("rounds.jsonl", "[1]\n"),
        ("environment.json", "["),
    ],
)
def test_a_damaged_file_is_named(run_of, tmp_path, capsys, name, text):
    for path in run_of(RUN, *private).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / name).write_text(text)
    assert command("report", tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path / name} is ")


@pytest.mark.parametrize("words", [["report", "nowhere"], ["report", "."], ["privacy", ".", "--statement"]])
def test_a_folder_without_results_is_refused_in_one_sentence(monkeypatch, tmp_path, capsys, words):
    monkeypatch.chdir(tmp_path)
    assert command(*words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_results_are_read_into_a_data_frame(run_of, monkeypatch, tmp_path):
    pytest.importorskip("pandas")
    folder = run_of(EXPERIMENT)
    frame = twinflower.read(folder)
    runs = sorted(path.parent for path in folder.rglob("summary.json"))
    assert list(frame.columns[:4]) == ["curve", "algorithm", "seed", "round"]
    assert frame[["curve", "seed"]].drop_duplicates().shape[0] == len(runs) == 6
    for run in runs:
        mine = frame[(frame["curve"] == run.parent.name) & (frame["seed"] == summary_of(run)["seed"])]
        rows = read_rows(run)
        np.testing.assert_array_equal(mine[list(rows[0])], [[*row.values()] for row in rows])
    with pytest.raises(SettingError, match="not a folder"):
        twinflower.read(tmp_path / "nowhere")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SettingError, match="pip install pandas"):
        twinflower.read(folder)


# --- the statement


def case_of(**settings):
    return Case.of_setup(
        prepare(parse(PRIVATE | {key.replace("__", "."): value for key, value in settings.items()}))
    )


def odds_of(case):
    return odds(case, case.privacy)


def test_the_odds_are_those_of_the_spent_mu():
    case = case_of()
    (one,) = odds_of(case)
    mu = case.privacy["mu"]
    assert gdp_epsilon(mu, 1e-4) == pytest.approx(2)
    assert [chance.informed for chance in one.chances] == [
        best_guess(mu), *(detection(mu, rate) for rate in (0.01, 0.05, 0.1)),
    ]  # fmt: skip
    assert [chance.blind for chance in one.chances] == [0.5, 0.01, 0.05, 0.1]
    assert all(chance.informed > chance.blind for chance in one.chances)
    (shown,) = statement(case)[2].tables
    assert shown.bars == [(chance.blind, chance.informed) for chance in one.chances]


def test_a_run_of_sums_has_a_bound_for_each_attacker():
    """The second is larger by the square root of the number of honest sites, apart from the cost of discrete noise."""
    case = case_of(privacy__trust="sum", privacy__honest_sites=4, local__max_steps=1)
    first, second = odds_of(case)
    assert first.against == "the server together with one other site"
    assert second.against == "everybody else together"
    assert case.privacy["mu_alone"] / case.privacy["mu"] == pytest.approx(2, rel=1e-3)
    assert [one.chances[0].informed for one in (first, second)] == [
        best_guess(case.privacy[key]) for key in ("mu", "mu_alone")
    ]
    (table,) = statement(case)[-1].tables
    assert [row[-1] for row in table.rows] == [
        f"{gdp_epsilon(mu, 1e-4):.4g}"
        for mu in sorted({site["mu_alone"] for site in case.sites}, reverse=True)
    ]


def test_without_noise_nothing_is_promised():
    (section,) = statement(Case(parse({"clients.count": 2}), None, []))
    assert section.paragraphs == [privacy_text.NO_PRIVACY]
    assert "Nothing is guaranteed" in privacy_text.NO_PRIVACY


PUBLISHED = {"privacy__mode": "as-published", "privacy__epsilon": 0.0, "privacy__noise_multiplier": 30.0}


def test_noise_as_published_has_the_bound_that_holds_or_none():
    case = case_of(**PUBLISHED)
    assert privacy_text.PUBLISHED in statement(case)[0].paragraphs
    assert odds_of(case)[0].chances[0].informed == best_guess(case.privacy["mu"])
    lost = case_of(**PUBLISHED, fedpdm__local_start="warm")
    (section,) = statement(lost)
    assert section.paragraphs[0] == privacy_text.NO_GUARANTEE
    assert lost.privacy["guarantee"] in section.paragraphs[1]
    assert not section.tables


@pytest.mark.parametrize(
    ("kind", "size", "text"),
    [("record", 0, "for a record"), ("group", 3, "for 3 records"), ("site", 0, "for all records")],
)
def test_the_statement_says_who_is_protected(kind, size, text):
    """And the noise is for that: the total epsilon is the same, whatever it refers to."""
    case = case_of(privacy__protects=kind, privacy__group_size=size)
    assert gdp_epsilon(case.privacy["mu"], 1e-4) == pytest.approx(2)
    (one,) = odds_of(case)
    assert one.chances[0].task.endswith(text)
    assert text in headline(case)
    several = "People with several records: for k records of one person, mu is k times as large."
    assert (several in gaps(case)) == (kind == "record")


def test_a_report_says_for_how_many_steps_noise_is_taken_back_and_which_step_followed_from_it(run_of):
    words = [
        f"--set={key}={value}"
        for key, value in {
            "algorithm": "fedavg", "step-size": 0, "regulariser.name": "none", "clients.per-round": 0,
            "privacy.mode": "gradient", "privacy.noise": "banded", "privacy.epsilon": 8,
            "local.fresh-batches": "false", "local.batch-size": 9, "local.max-steps": 2,
        }.items()
    ]  # fmt: skip
    folder = run_of("[run]\nrounds = 9\n[run.clients]\ncount = 3\n", *words)
    summary, text = summary_of(folder), read(folder).text
    setup = prepare(read_config(folder).config)
    p = setup.plan.participation.bandwidth(0)
    assert p > 1 and summary["privacy"]["bandwidth"] == p
    assert f"partly taken back in the next {p - 1} steps (a bandwidth of {p})" in text
    assert summary["step_size"] == setup.method.step_size
    assert f"followed from the noise: {setup.method.step_size:.4g}." in text


def test_the_bandwidths_of_uneven_sites_are_those_of_the_plan():
    keys = {
        "privacy.mode": "gradient", "privacy.noise": "banded", "privacy.epsilon": 8.0, "local.fresh-batches": False,
        "local.batch-size": 9, "local.max-steps": 2, "rounds": 9, "clients.count": 3, "partition.name": "sizes",
        "partition.sizes": "400, 7, 90", "clients.per-round": 0,
    }  # fmt: skip
    case = case_of(**keys)
    widths = prepare(parse(PRIVATE | keys)).plan.participation.bandwidths
    assert widths.min() == 1 < widths.max()
    text = str(statement(case))
    assert f"(a bandwidth of {widths.max()}; at sites with fewer batches down to 1)" in text
    assert "taken back" not in str(statement(case_of(**keys | {"privacy.noise": "independent"})))


def test_a_step_size_that_was_set_did_not_follow_from_the_noise(run_of):
    folder = run_of(RUN, "--set=algorithm=fedavg", "--set=regulariser.name=none")
    assert summary_of(folder)["step_size"] is None
    assert "followed from the noise" not in read(folder).text


def test_the_cost_of_tuning_is_in_the_total():
    case = case_of(privacy__tune_share=0.2)
    assert gdp_epsilon(case.privacy["mu"], 1e-4) == pytest.approx(2)
    tuning = privacy_text.TUNING.format(mu=case.privacy["mu"] * math.sqrt(0.2))
    assert tuning in statement(case)[2].paragraphs
    assert not any(text.startswith("The tuning") for text in statement(case_of())[2].paragraphs)


def gaps(case):
    return next(section.points for section in statement(case) if section.title == "What is not covered")


def test_what_is_not_covered_depends_on_the_run():
    case = case_of()
    assert privacy_text.SEED_PLANNED in gaps(case)
    assert privacy_text.SEED in gaps(case._replace(planned=False))
    deployed = gaps(case._replace(planned=False, deployed=True))
    assert not {privacy_text.SEED, privacy_text.SEED_PLANNED} & set(deployed)
    assert set(privacy_text.AT_SITES) < set(deployed)
    assert privacy_text.EARLY in gaps(case._replace(complete=False))
    assert privacy_text.EARLY not in gaps(case)
    assert len(gaps(case_of(data__name="breast-cancer"))) == len(gaps(case)) + 1


def test_the_page_and_the_report_say_the_same(run_of, capsys):
    folder = run_of(RUN, *private)
    assert command("privacy", folder, "--statement") == 0
    page_ = capsys.readouterr().out
    plain, shown = re.sub(r"\\(.)", r"\1", page_), read(folder).text
    for section in statement(Case.of_folder(folder)):
        for text in (*section.paragraphs, *section.points):
            assert text in plain
            assert text in shown
    for chance in odds_of(Case.of_folder(folder))[0].chances:
        assert f"| {100 * chance.blind:.0f}% | {100 * chance.informed:.1f}% |" in plain
        assert f"{100 * chance.informed:.1f}%" in shown


def test_a_plan_and_its_run_cost_the_same(run_of, tmp_path):
    """Here every planned client takes part."""
    text = RUN.replace("per-round = 3\n", "")
    folder = run_of(text, *private)
    planned, done = Case.of_setup(prepare(parse(PRIVATE))), Case.of_folder(folder)
    assert planned.privacy["mu"] == done.privacy["mu"]
    assert [site["mu"] for site in planned.sites] == [site["mu"] for site in done.sites]


def test_a_statement_can_be_checked_by_its_digests(run_of):
    folder = run_of(RUN, *private)
    case = Case.of_folder(folder)
    *_, proofs = page(case, folder)[1]
    assert dict(proofs.tables[1].rows)["the settings"] == case.config.result_digest
    assert dict(proofs.tables[1].rows)["model.npz"] == digest(folder / "model.npz")


def test_markdown_is_escaped():
    title, sections = page(Case(parse({"clients.count": 2}), None, []), ROOT / "README.md")
    escaped = r"""\<script\>alert("1")\</script\>\<img src=x onerror="alert(2)"\>\&amp;' \| \`x\` \[y\](z)"""
    assert markdown(MARKUP, sections).splitlines()[0] == f"# {escaped}"
    assert title == "Privacy statement: fedpdm on digits"


def test_a_statement_goes_to_a_file_and_is_on_one_run(run_of, tmp_path, capsys):
    folder = run_of(RUN, *private)
    assert command("privacy", folder / "config.toml", "--statement", "--out", tmp_path / "page.md") == 0
    assert (
        (tmp_path / "page.md")
        .read_text()
        .startswith("# Privacy statement: fedpdm on digits\n\n## In short\n")
    )
    capsys.readouterr()
    assert command("privacy", run_of(EXPERIMENT) / "experiment.toml", "--statement") == 2
    assert "has 2 curves" in capsys.readouterr().err
    assert command("privacy", folder, "--statement", "--set", "rounds=1") == 2
    assert "leave out --set" in capsys.readouterr().err
    assert command("privacy", folder / "config.toml", "--out", tmp_path / "x") == 2
    assert "--out belongs to --statement" in capsys.readouterr().err


# --- looks


def luminance(colour):
    """Relative luminance of #rrggbb, as WCAG 2.2 defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_every_text_and_line_has_enough_contrast():
    """WCAG 2.2: 4.5 for text, 3 for lines; in the light palette, the dark one and that of the printer."""
    palettes = [
        dict(re.findall(r"--([\w-]+): (#\w+);", block))
        for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    ]
    assert len(palettes) == 3
    for palette in palettes:
        colours = {
            name: value if len(value) == 7 else "#" + "".join(2 * c for c in value[1:])
            for name, value in palette.items()
        }
        paper = luminance(colours["paper"])
        for name, colour in colours.items():
            low, high = sorted((luminance(colour), paper))
            least = (
                4.5 if name in ("ink", "quiet", "mark", "alarm") else 3.0 if name.startswith("tone") else 1.0
            )
            assert (high + 0.05) / (low + 0.05) >= least, (name, colour)


@pytest.mark.parametrize("log", [False, True])
def test_ticks_are_in_order_on_the_axis_and_where_their_numbers_belong(log):
    for low, high in itertools.product((1e-6, 0.3, 5.0, 2e4), (1.0001, 3.0, 1e5)):
        axis = Axis.over(np.array([low, low * high]), log)
        ticks = axis.ticks()
        places, values = ([float(word) for word in words] for words in zip(*ticks, strict=True))
        assert len(ticks) >= 2
        assert places == sorted(places)
        assert 0 <= places[0] <= places[-1] <= 100
        np.testing.assert_allclose(100 * axis.share(np.array(values)), places, atol=1)


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda path: path.stem)
def test_every_experiment_has_a_report_before_its_first_run(path, tmp_path):
    """The runs begin only when it is written."""
    assert "runs had not ended" in report_experiment(read_experiment(path), tmp_path).read_text()


@pytest.mark.parametrize("value", [1e-3, 0.7, 1.0, 2.302585, 7e5])
def test_a_logarithmic_axis_of_one_number_shows_it(value):
    """As in the chart of a run with one seed that has only begun."""
    (tick,) = Axis.over(np.array([value, np.nextafter(value, 10 * value)]), log=True).ticks()
    assert float(tick[1]) == pytest.approx(value, rel=1e-3)
    assert float(tick[0]) == pytest.approx(50, abs=0.01)


def test_an_axis_of_numbers_that_differ_by_rounding_has_ticks():
    """As the objective at a common start, computed for seeds with different rows."""
    low = 2.3025850929940455
    assert len(Axis.over(np.array([low, np.nextafter(low, 3.0)]), False).ticks()) >= 2


def test_an_axis_leaves_out_what_cannot_be_drawn():
    axis = Axis.over(np.array([math.nan, -1.0, 0.0, 1.0, math.inf, 10.0]), log=True)
    assert 0 < axis.low < 1 < 10 < axis.high < 20


def test_ranges_of_sites():
    assert ranges([0, 1, 2, 5]) == "0 to 2, 5"
    assert ranges([0, 2, 4, 6, 8, 9]) == "0, 2, 4, 6 and 2 more"


def test_a_full_disk_is_named(run_of, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    for path in run_of(RUN, *private).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / ".report.html.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskError, match=r"report\.html cannot be written"):
        report_run(tmp_path)


@pytest.mark.parametrize(("frame", "whole"), [("", 0), ("fraction", 1), ("square", 2)])
def test_a_chart_of_fractions_has_the_whole_axis_however_few_of_its_values_occur(frame, whole):
    """A square has it across, too: an ROC curve and a calibration are read against their diagonal."""
    part = np.array([0.3, 0.5, 0.6])
    drawn = chart("ROC", "rate", [Series("model", "", part, part, part, part)], frame=frame)
    ends = [(float(ticks[0].text), float(ticks[-1].text)) for ticks in (drawn.y_ticks, drawn.x_ticks)]
    assert [end == (0.0, 1.0) for end in ends] == [whole >= 1, whole == 2]
