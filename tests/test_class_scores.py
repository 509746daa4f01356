"""Discrimination and calibration between more than two classes: against scikit-learn, under noise, in every runtime."""

import csv
import re

import numpy as np
import pytest
from grids import over_the_wire
from numpy.testing import assert_allclose, assert_array_equal
from site_files import three_sites
from sklearn.metrics import brier_score_loss, roc_auc_score
from typer.testing import CliRunner

from twinflower.errors import SettingError
from twinflower.models.discrimination import ClassBins, one_against_rest
from twinflower.models.evaluation import SCORE_COLUMNS
from twinflower.models.intervals import LEVEL
from twinflower.models.score_bins import together
from twinflower.privacy.unit import ONE_RECORD, Unit
from twinflower.problems.interfaces import Batch
from twinflower.problems.losses import probabilities
from twinflower.problems.objectives import make_objective
from twinflower.queries.held_out import HeldOut
from twinflower.queries.held_out_question import HeldOutQuestion, summed
from twinflower.simulation import cli
from twinflower.simulation.report.present import report_run
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.results.reading import read_answers
from twinflower.simulation.results.writing import write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort, inprocess
from twinflower.simulation.settings import parse

SCHEMA = """
[label]
column = "y"
classes = ["none", "mild", "severe"]
[columns]
a = { range = [-3, 3] }
b = { range = [-3, 3] }
"""


def patients(seed, rows):
    draw = np.random.default_rng(seed)
    a, b = draw.normal(size=(2, rows))
    scores = np.stack([0 * a, 1.5 * a, 1.5 * b - 0.5], axis=1) + draw.gumbel(size=(rows, 3))
    names = np.array(["none", "mild", "severe"])[scores.argmax(1)]
    return "\n".join(["a,b,y", *(f"{p:.4f},{q:.4f},{y}" for p, q, y in zip(a, b, names, strict=True)), ""])


@pytest.fixture
def keys(tmp_path):
    run = {
        "algorithm": "fedavg",
        "fedavg.step-size": 2.0,
        "local.max-steps": 1,
        "rounds": 4,
        "objective.name": "softmax",
    }
    return three_sites(tmp_path, SCHEMA, patients, (60, 90, 70, 150)) | run | {
        "evaluation.held-out": 0.4, "evaluation.bins": 20,
    }  # fmt: skip


def drawn(rows, seed=0, classes=4, strength=1.0):
    """Scores (rows, classes) and labels that follow them."""
    rng = np.random.default_rng(seed)
    scores = strength * rng.normal(size=(rows, classes)) + np.arange(classes) / 2
    return scores, (scores + rng.gumbel(size=scores.shape)).argmax(1)


def areas_of(scores, labels, average=None):
    return roc_auc_score(labels, probabilities(scores), multi_class="ovr", average=average)


# ------------------------------------------------------------------------------------- the counts


def test_the_odds_are_those_of_the_probabilities():
    scores = drawn(50)[0]
    p = probabilities(scores)
    assert_allclose(one_against_rest(scores), np.log(p / (1 - p)), rtol=1e-9)
    assert (one_against_rest(np.full((1, 3), np.nan)) == -np.inf).all()


@pytest.mark.parametrize("classes", [3, 4, 10])
@pytest.mark.parametrize("strength", [0.3, 2.0])
def test_a_hundred_bins_give_the_areas_to_a_hundredth(classes, strength):
    scores, labels = drawn(6000, 1, classes, strength)
    odds = one_against_rest(scores)
    table = (
        ClassBins(100, classes=classes)
        .around(one_against_rest(drawn(500, 2, classes, strength)[0]))
        .table(odds, labels)
    )
    assert_allclose([own.auc.value for own in table.classes], areas_of(scores, labels), atol=0.01)
    assert abs(table.auc.value - areas_of(scores, labels, "macro")) < 0.01
    assert table.rows == 6000


def test_bins_that_separate_all_scores_give_the_exact_areas():
    scores, labels = drawn(40, 5, 3)
    bins = ClassBins(1000, classes=3).around(one_against_rest(scores))
    cells = bins.bins_of(one_against_rest(scores))
    alone = np.all([[(own == own[row]).sum() == 1 for own in cells.T] for row in range(40)], axis=1)
    assert alone.sum() > 30
    scores, labels = scores[alone], labels[alone]
    odds = one_against_rest(scores)
    table = bins.table(odds, labels)
    assert_allclose([own.auc.value for own in table.classes], areas_of(scores, labels), rtol=1e-12)
    assert_allclose(table.auc.value, areas_of(scores, labels, "macro"), rtol=1e-12)


def test_the_brier_score_is_that_of_scikit_learn():
    scores, labels = drawn(300)
    table = ClassBins(40, classes=4).table(one_against_rest(scores), labels)
    p = probabilities(scores)
    assert_allclose(table.brier, ((p - np.eye(4)[labels]) ** 2).sum(1).mean(), rtol=1e-12)
    assert_allclose(table.brier, sum(brier_score_loss(labels == k, p[:, k]) for k in range(4)), rtol=1e-12)


def test_tables_add_up_and_a_class_without_rows_leaves_no_mean():
    (scores, labels), bins = drawn(200), ClassBins(20, classes=4)
    odds = one_against_rest(scores)
    halves = [bins.table(odds[k::2], labels[k::2]) for k in (0, 1)]
    assert_allclose(together(halves).cells, bins.table(odds, labels).cells)
    few = bins.table(odds[labels < 3], labels[labels < 3])
    assert np.isnan(few.classes[3].auc.value) and np.isnan(few.auc.value) and np.isfinite(few.brier)


@pytest.mark.slow
def test_intervals_with_noise_cover_the_areas():
    scores, labels = drawn(200_000, 9, 3)
    wanted = areas_of(scores, labels)
    rng, runs, hits, mean = np.random.default_rng(0), 500, np.zeros(3), 0
    for seed in range(runs):
        scores, labels = drawn(1500, seed, 3)
        bins = ClassBins(20, classes=3)
        counts = bins.counts(one_against_rest(scores), labels)
        table = bins.noisy(counts + 3.0 * rng.normal(size=counts.shape), 3.0)
        hits += [own.auc.low <= area <= own.auc.high for own, area in zip(table.classes, wanted, strict=True)]
        mean += table.auc.low <= wanted.mean() <= table.auc.high
    assert (np.append(hits, mean) / runs >= LEVEL - 3.3 * np.sqrt(LEVEL * (1 - LEVEL) / runs)).all()


# ------------------------------------------------------------------------------------- what a release costs

OBJECTIVE = make_objective("softmax", 3, 3)
X = 40 * np.eye(3).ravel()
BINS = ClassBins(6, 0.0, 1.0, classes=3)


@pytest.mark.parametrize("unit", [ONE_RECORD, Unit("group", 2)])
def test_replay_of_a_release_attains_its_charge_and_never_exceeds_it(unit):
    """Rows that are predicted correctly, and wrongly with the score of every class in another bin."""
    release, alike = HeldOutQuestion(bins=BINS).release(3, unit), unit.rows or 1
    near = Batch(np.array([[1.0, 0.0, 0.5]] * 3), np.zeros(3, int))
    far = Batch(np.array([[0.0, 1.0, 0.99]] * alike + [[1.0, 0.0, 0.5]] * (3 - alike)), np.zeros(3, int))
    a, b = (summed(OBJECTIVE, X, rows, bins=BINS) for rows in (near, far))
    spent = float((((a - b) / release.spread) ** 2).sum())
    assert 0.99 <= spent <= 1 + 1e-9


def test_no_replacement_of_a_record_moves_a_release_by_more_than_twice_the_root_of_the_classes():
    rng, values = np.random.default_rng(0), [0.0, 1e-300, 1.0, -1e308, np.inf, -np.inf, np.nan]
    for bound in (0.0, 1.5):
        for _ in range(100):
            features = rng.choice(values, size=(2, 3, 3))
            features[1, 1:] = features[0, 1:]
            labels = np.array([[rng.integers(3), 0, 1], [rng.integers(3), 0, 1]])
            pair = [
                summed(OBJECTIVE, X, Batch(f, y), bound, BINS) for f, y in zip(features, labels, strict=True)
            ]
            assert np.isfinite(pair).all()
            assert np.linalg.norm(pair[0] - pair[1]) <= 2 * np.sqrt(3) + 1e-9


# ------------------------------------------------------------------------------------- runs

PRIVATE = {"privacy.mode": "public-state", "privacy.epsilon": 500.0, "privacy.evaluation-share": 0.9}


@pytest.mark.parametrize("kind", [{}, PRIVATE], ids=["public", "private"])
def test_all_runtimes_report_the_same_and_the_folder_and_the_report_hold_it(keys, kind, tmp_path):
    setup = prepare(parse(keys | kind))
    direct, wired, arrays = inprocess.train(setup), over_the_wire(setup), cohort.train([setup])[0]
    folder = write_run(arrays, tmp_path / "run")
    for client, table in direct.answers["evaluation"].scores.items():
        assert_array_equal(table.cells, wired.answers["evaluation"].scores[client].cells)
        assert_allclose(table.cells, arrays.answers["evaluation"].scores[client].cells, rtol=1e-9)
        for one, other in zip(
            read_answers(folder, HeldOut)[client], arrays.answers["evaluation"].scores[client], strict=True
        ):
            assert_array_equal(one, other)
    table = together(arrays.answers["evaluation"].scores.values())
    assert [arrays.rows[-1][name] for name in SCORE_COLUMNS] == [*table.auc, table.brier]
    page = report_run(folder).read_text(encoding="utf-8")
    assert "Calibration of severe" in page and f"{table.auc.value:.4f}" in page
    assert ("Every count has noise of" in page) == bool(kind)


def test_a_run_that_is_resumed_has_its_counts(keys, tmp_path):
    setup = prepare(parse(keys | {"output.checkpoint-every": 1}))
    first, again = (
        cohort.train([setup], checkpoints=Checkpoints(tmp_path, 1, setup.config))[0] for _ in range(2)
    )
    for one, other in zip(
        first.answers["evaluation"].scores[1], again.answers["evaluation"].scores[1], strict=True
    ):
        assert_array_equal(one, other)


def test_predict_evaluates_a_table(keys, tmp_path):
    (result,) = cohort.train([prepare(parse(keys))])
    folder, table, out = write_run(result, tmp_path / "run"), tmp_path / "test.csv", tmp_path / "measures.csv"
    run = lambda *more: CliRunner().invoke(cli.app, ["predict", str(folder), str(table), "--evaluate", *more])  # noqa: E731
    said = run().output
    assert "calibration, positive: severe" in said and "predicted severe" in said
    run("--out", str(out))
    found = {row["name"]: float(row["value"]) for row in csv.DictReader(out.read_text().splitlines())}
    test = result.setup.dataset
    scores, labels = result.setup.objective.scores(result.model, test.test_features), test.test_labels
    for name, area in zip(("none", "mild", "severe"), areas_of(scores, labels), strict=True):
        assert_allclose(found[f"area under the ROC curve, {name} against the rest"], area)
    assert_allclose(found["mean area under the ROC curve"], areas_of(scores, labels, "macro"))
    assert_allclose(found["Brier score"], ((probabilities(scores) - np.eye(3)[labels]) ** 2).sum(1).mean())
    lines = [line for line in table.read_text().splitlines() if not line.endswith("severe")]
    table.write_text("\n".join([*lines, ""]))
    assert "There is no area under the ROC curve of severe" in run().output


@pytest.mark.parametrize("header", ["client,bin", "client,class,low,high", ""])
def test_a_damaged_table_of_scores_is_an_error_that_names_the_file(header, tmp_path):
    (tmp_path / "scores.csv").write_text(f"{header}\n0,1,2,3\n")
    with pytest.raises(
        SettingError,
        match=re.escape(f"{tmp_path / 'scores.csv'} is not the scores on held-out rows of a run"),
    ):
        read_answers(tmp_path, HeldOut)
