"""The page for clinicians: its commands run as they stand, and its tables hold what these runs find."""

import csv
import glob
import io
import json
import math
import re
import runpy
import shlex
import shutil
from contextlib import chdir, redirect_stderr, redirect_stdout

import pytest
from documents import ROOT, cells, tables
from pages import Page, command

import twinflower
from twinflower.models.model import nested_test
from twinflower.models.score_bins import together
from twinflower.models.survival import SurvivalTable, log_rank
from twinflower.queries.held_out import HeldOut
from twinflower.queries.survival import SurvivalCurve
from twinflower.simulation.results.reading import read_answers

# The last part of the page needs data that are not in the repository.
_, HOSPITALS, SURVIVAL, _ = (ROOT / "docs" / "clinicians.md").read_text(encoding="utf-8").split("\n## ")
PARTS = {"hospitals": HOSPITALS, "survival": SURVIVAL}
TABLES = tables(HOSPITALS) | tables(SURVIVAL)


def run(body):
    """What the lines of a cell print, and the largest exit status."""
    text, status = io.StringIO(), 0
    with redirect_stdout(text), redirect_stderr(text):
        for line in body.replace("\\\n", " ").splitlines():
            program, *words = shlex.split(line, comments=True)
            words = [word for part in words for word in (sorted(glob.glob(part)) or [part])]
            if program == "python":
                runpy.run_path(words[0], run_name="__main__")
            elif program == "twinflower":
                status = max(status, command(*words))
    return text.getvalue(), status


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder in which the first two parts have run; the texts that the page shows are checked on the way."""
    place = tmp_path_factory.mktemp("clinicians")
    for name, text in PARTS.items():
        shutil.copytree(ROOT / "examples" / name, place / name)
        with chdir(place / name), pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "200")
            follow(cells(text))
    return place


def follow(own):
    """Write the files of these cells and run their commands; a cell of text after commands is what they say."""
    printed, status = "", 0
    for language, body in own:
        if language == "toml":
            with open(body.splitlines()[0].removeprefix("# "), "w", encoding="utf-8") as file:
                file.write(body)
        elif language == "sh":
            assert status == 0, printed
            printed, status = run(body)
        elif language == "text":
            assert " ".join(body.split()) in " ".join(printed.split())
            assert status == (2 if body.startswith("error:") else 0)
            status = 0
    assert status == 0, printed


def holds(cell, *values):
    """Whether the numbers in a cell are these, each to within .6 of its last digit; - is a value that is not known."""
    told = re.findall(r"<?-?\d*\.?\d+|(?<!\S)-(?!\S)", cell)
    assert len(told) == len(values), (cell, values)
    for text, value in zip(told, values, strict=True):
        if text == "-":
            assert math.isnan(value), (cell, values)
        elif text.startswith("<"):
            assert value < float(text[1:]), (cell, values)
        else:
            assert abs(float(text) - value) <= 0.6 * 10.0 ** -len(text.partition(".")[2]), (cell, values)


def effects(run):
    """The coefficients of a run that are effects of columns: no baseline, reference or missing value."""
    found = twinflower.load(run).coefficients()
    return [
        own
        for own in found
        if own.term == "per unit" or (own.reference not in ("", own.term) and own.term != "is missing")
    ]


def rows_of(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_cells_run_as_they_stand(folder):
    for name, number in (("hospitals", 9), ("survival", 4)):
        runs = list((folder / name / "runs").iterdir())
        assert len(runs) == number and all((own / "report.html").exists() for own in runs)


def test_masks_change_no_estimate(folder):
    plain, masked = (
        twinflower.load(folder / "hospitals" / "runs" / name).coefficients() for name in ("final", "sums")
    )
    for ours, theirs in zip(masked, plain, strict=True):
        assert (ours.column, ours.term) == (theirs.column, theirs.term)
        assert ours.estimate == pytest.approx(theirs.estimate, rel=1e-9, nan_ok=True)
        assert ours.std_error == pytest.approx(theirs.std_error, rel=1e-9, nan_ok=True)


def test_the_tests_of_chest_pain(folder):
    full, nested = (twinflower.load(folder / "hospitals" / "runs" / name) for name in ("final", "no-pain"))
    wald = next(test for test in full.coefficients().tests if test.column == "cp")
    ratio = nested_test(full, nested, "no-pain")
    said = " ".join(HOSPITALS.split())
    assert f"Wald's chi-squared is {wald.statistic:.1f} on {wald.freedom} degrees of freedom" in said
    assert f"and the likelihood ratio {ratio.statistic:.1f}." in said


def test_the_test_of_a_spline_and_an_interaction(folder):
    large, final = (twinflower.load(folder / "hospitals" / "runs" / name) for name in ("age", "final"))
    test = nested_test(large, final, "final")
    said = f"is {test.statistic:.1f} on {test.freedom} degrees of freedom (p = {test.p_value:.2f})".replace(
        "0.", "."
    )
    assert said in " ".join(HOSPITALS.split())


def test_the_table_of_odds_ratios(folder):
    others = [effects(folder / "hospitals" / "runs" / name) for name in ("short", "epsilon-8", "epsilon-1")]
    found = zip(
        TABLES["odds of illness"], effects(folder / "hospitals" / "runs" / "open"), *others, strict=True
    )
    for (_, ratio, p, *told), own, *rest in found:
        holds(ratio, own.ratio, math.exp(own.low), math.exp(own.high))
        holds(p, own.p_value)
        for cell, other in zip(told, rest, strict=True):
            assert math.isnan(other.std_error)
            holds(cell, other.ratio)


def test_the_table_of_the_patients(folder):
    lines = rows_of(folder / "hospitals" / "runs" / "final" / "table-one.csv")
    found = {(own["client"], own["column"], own["category"]): own for own in lines}
    told = {name: row for name, *row in TABLES["patients"]}
    shown = {
        "number": ("", "", "rows"), "ill": ("num", "ill", "rows", "percent"), "men": ("sex", "1", "rows", "percent"),
        "age: mean (SD)": ("age", "", "mean", "deviation"), "no chest pain": ("cp", "4", "rows", "percent"),
        "age: median [quartiles]": ("age", "", "median", "lower_quartile", "upper_quartile"),
        "chest pain under exercise": ("exang", "1", "rows", "percent"),
        "chest pain under exercise: missing": ("exang", "missing", "rows"),
        "highest heart rate: mean (SD)": ("thalach", "", "mean", "deviation"),
        "ST depression, mm: mean (SD)": ("oldpeak", "", "mean", "deviation"),
        "ST depression: missing": ("oldpeak", "missing", "rows"),
    }  # fmt: skip
    assert told.keys() == shown.keys()
    for name, (column, category, *keys) in shown.items():
        for cell, client in zip(told[name], ("all", "0", "1", "2", "3"), strict=True):
            holds(cell, *(float(found[client, column, category][key]) for key in keys))


def test_the_table_of_discrimination(folder):
    for (_, area, brier, right), name in zip(
        TABLES["held-out patients"], ("open", "short", "epsilon-8", "epsilon-1"), strict=True
    ):
        last = rows_of(folder / "hospitals" / "runs" / name / "metrics.csv")[-1]
        own = {key: float(value or "nan") for key, value in last.items()}
        ends = [] if math.isnan(own["held_out_auc"]) else [own["held_out_auc_low"], own["held_out_auc_high"]]
        holds(area, own["held_out_auc"], *ends)
        holds(brier, own["held_out_brier"])
        holds(right, own["held_out_accuracy"])


def test_without_an_area_the_report_says_why(folder):
    sentence = "There is no area under the ROC curve: the counts do not show rows of both classes."
    assert sentence in HOSPITALS
    assert sentence in Page((folder / "hospitals" / "runs" / "epsilon-1" / "report.html").read_text()).text


def test_a_number_that_is_not_found_fails():
    """Otherwise the tests of the tables could not fail."""
    holds("0.83 (0.79 to 0.85)", 0.826, 0.793, 0.853)
    for wrong in ((0.837, 0.793, 0.853), (0.826, 0.793, math.nan)):
        with pytest.raises(AssertionError):
            holds("0.83 (0.79 to 0.85)", *wrong)


def test_the_table_of_survival(folder):
    curves = [("curves", client) for client in ("all", "0", "1", "2")] + [("epsilon-4", "all")]
    for (_, *told), (name, client) in zip(TABLES["alive"], curves, strict=True):
        rows = rows_of(folder / "survival" / "runs" / name / "survival.csv")
        own = {float(row["time"]): row for row in rows if (row["client"], row["group"]) == (client, "")}
        for cell, time in zip(told, (365, 1095, 1825), strict=True):
            holds(cell, *(float(own[time][key]) for key in ("survival", "low", "high")))


def test_the_log_rank_tests(folder):
    sites = read_answers(folder / "survival" / "runs" / "curves", SurvivalCurve).values()
    told = re.search(
        r"chi-squared (\S+ \(p = \S+\)) with .* and (\S+ \(p = \S+\))", " ".join(SURVIVAL.split())
    )
    for text, strata in zip(told.groups(), ([SurvivalTable.together(sites)], sites), strict=True):
        test = log_rank(strata)
        holds(text, test.statistic, test.p_value)


def test_the_table_of_hazard_ratios(folder):
    runs = [
        effects(folder / "survival" / "runs" / name) for name in ("cox", "stratified", "curves", "epsilon-4")
    ]
    known = runpy.run_path(str(folder / "survival" / "regions.py"), run_name="read")["RATIOS"]
    true = [known["age"] ** 0.1, known["stage II"], known["stage III"], known["treated"]]
    for (_, truth, *told), value, *found in zip(TABLES["hazard of death"], true, *runs, strict=True):
        holds(truth, value)
        for cell, own in zip(told[:2], found[:2], strict=True):
            holds(cell, own.ratio, math.exp(own.low), math.exp(own.high))
            assert math.exp(own.low) < value < math.exp(own.high)
        for cell, own in zip(told[2:], found[2:], strict=True):
            holds(cell, own.ratio)


def test_the_table_of_areas(folder):
    areas = together(read_answers(folder / "survival" / "runs" / "cox", HeldOut).values()).areas
    ((_, *told),) = TABLES["AUC at a time"]
    for cell, own in zip(told, areas, strict=True):
        holds(cell, *own)


def test_the_table_of_concordance(folder):
    for (_, mean, *sites), name in zip(TABLES["concordance"], ("cox", "stratified"), strict=True):
        own = json.loads((folder / "survival" / "runs" / name / "summary.json").read_text())
        holds(mean, own["held_out_accuracy"])
        for cell, value in zip(sites, own["held_out_by_site"].values(), strict=True):
            holds(cell, value)
