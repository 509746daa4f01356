"""The tuning helper: what it may look at, what it chooses, what it writes."""

import json
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import active_children

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import small

from twinflower.errors import RunError, SettingError
from twinflower.simulation.cli import tune_
from twinflower.simulation.runs.setup import prepare_seeds
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.experiment import read_experiment
from twinflower.simulation.tuning import scoring
from twinflower.simulation.tuning.grid import read_tuned, read_tuning, uneven
from twinflower.simulation.tuning.scoring import Scorer
from twinflower.simulation.tuning.search import tune
from twinflower.simulation.tuning.validation import held_out

FILE = """
title = "Two methods"
seeds = [0, 1]
[tune]
seeds = [100, 101]
held-out = 0.25
by = "accuracy"
[grid]
step-size = [0.001, 1.0]
[run]
rounds = 4
clients.count = 5
local.max-steps = 2
[[curve]]
label = "pdm"
algorithm = "fedpdm"
fedpdm.rho = 0.1
[[curve]]
label = "prox"
algorithm = "fedprox"
grid = {mu = [0.0, 0.5]}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "two.toml"
    path.write_text(FILE)
    return path


def test_held_out_rows_are_training_rows_that_no_client_trains_on():
    setup = small("fedavg")
    training, held = held_out(setup, 0.25)
    pixels = {tuple(row) for row in setup.dataset.features}
    kept = {tuple(row) for i in range(8) for row in training.shards.rows(i).features}
    given = {tuple(row) for row in held.features}
    assert given <= pixels
    assert not given & kept
    assert given | kept == pixels
    for before, after in zip(setup.partition.sizes, training.partition.sizes, strict=True):
        assert after == before - round(0.25 * before)
    assert_allclose(held.weights.sum(), 1.0)
    assert training.dataset.test_features is held.features
    assert held_out(setup, 0.25)[1].labels.tolist() == held.labels.tolist()


def test_the_best_point_of_every_curve_is_written_with_all_scores(file, tmp_path):
    said = []
    text = tune(read_tuning(file), say=said.append)
    tuned = tomllib.loads(text)
    pdm, prox = tuned["curve"]
    assert pdm["fedpdm"]["step-size"] == prox["fedprox"]["step-size"] == 1.0
    assert [len(rows) for rows in tuned["scores"].values()] == [2, 4]
    for rows in tuned["scores"].values():
        values = [value for _, value in rows]
        assert values == sorted(values, reverse=True)
    assert f"mu = {prox['fedprox']['mu']}" in tuned["scores"]["prox"][0][0]
    assert any(line.startswith("prox: chosen step-size = 1.0, mu = ") for line in said)
    # it can be run, and tuned again
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert [c.config.method.step_size for c in read_experiment(again).curves] == [1.0, 1.0]
    assert tune(read_tuning(again), say=said.append) == text


def test_the_axes_of_the_figure_are_kept(file):
    file.write_text('y = ["objective"]\nlog-axes = ["objective"]\n' + FILE)
    tuned = tomllib.loads(tune(read_tuning(file), say=lambda _: None))
    assert [tuned["y"], tuned["log-axes"]] == [["objective"], ["objective"]]


def test_a_curve_without_a_grid_stays_as_it_is(file):
    file.write_text(FILE.replace("step-size = [0.001, 1.0]", ""))
    said = []
    tuned = tomllib.loads(tune(read_tuning(file), say=said.append))
    assert said[0] == "pdm: has no grid, stays as it is"
    assert tuned["curve"][0] == {"label": "pdm", "algorithm": "fedpdm", "fedpdm": {"rho": 0.1}}
    assert list(tuned["scores"]) == ["prox"]


def test_a_score_is_what_a_run_without_the_held_out_rows_reaches(file):
    tuning = read_tuning(file)
    curve = tuning.raw["curve"][0]
    config = tuning.config(curve, {"step-size": 1.0})
    setups, held = zip(*(held_out(s, 0.25) for s in prepare_seeds(config, [100, 101])), strict=True)
    results = cohort.train(setups)
    expected = np.mean([r.setup.objective.score(r.model, h) for r, h in zip(results, held, strict=True)])
    scores = dict(tomllib.loads(tune(tuning, say=lambda line: None))["scores"]["pdm"])
    assert_allclose(scores["step-size = 1.0"], expected, rtol=1e-5)


NETWORK = """
title = "Neighbours"
[tune]
seeds = [100, 101]
by = "BY"
[run]
data.name = "linear"
data.bias = false
objective.name = "least-squares"
regulariser.name = "none"
objective.l2 = 0.02
clients.count = 8
partition.samples-per-client = 30
rounds = 40
local.batch-size = 0
zcdp-nfl.step-size = 4.0
isrl-dp.step-size = 4.0
objective.clip-norm = 1.0
privacy.epsilon = 200.0
evaluation.reference = true
[[curve]]
algorithm = "zcdp-nfl"
privacy.mode = "public-state"
topology.name = "ring"
grid = {rho = [0.003, 0.3], step-size = [4.0]}
[[curve]]
algorithm = "isrl-dp"
privacy.mode = "gradient"
grid = {step-size = [0.5, 2.0]}
"""


@pytest.fixture
def scores(tmp_path):
    """Chosen curves, scores and final results of the networked file when it is tuned by a measure."""

    def tuned(by, text=NETWORK):
        path = tmp_path / "network.toml"
        path.write_text(text.replace("BY", by))
        told = tomllib.loads(tune(read_tuning(path), say=lambda line: None))
        return told["curve"], {label: dict(rows) for label, rows in told["scores"].items()}

    return tuned


@pytest.mark.parametrize(
    ("of_the_mean", "of_the_models", "epsilon", "loose"),
    [("objective", "node-objective", 200.0, 0.03), ("distance", "node_error", 100.0, 0.003)],
)
def test_clients_own_models_can_choose_another_point_than_their_mean(
    scores, of_the_mean, of_the_models, epsilon, loose
):
    """Loosely coupled clients keep their own noise, which their mean averages away; tight coupling is slow."""
    text = NETWORK.replace("[0.003, 0.3]", f"[{loose}, 1.0]").replace("200.0", str(epsilon))
    assert [scores(by, text)[0][0]["zcdp-nfl"]["rho"] for by in (of_the_mean, of_the_models)] == [loose, 1.0]


def test_the_node_objective_is_the_mean_over_the_clients_own_models(scores, tmp_path):
    _, told = scores("node-objective")
    tuning = read_tuning(tmp_path / "network.toml")
    nodes, star = tuning.raw["curve"]
    for curve, point, text in (
        (nodes, {"rho": 0.3, "step-size": 4.0}, "rho = 0.3, step-size = 4.0"),
        (star, {"step-size": 2.0}, "step-size = 2.0"),
    ):
        setups = prepare_seeds(tuning.config(curve, point), [100, 101])
        values = []
        for training, held in (held_out(s, 0.2) for s in setups):
            one = cohort.Cohort([training])
            *_, end = one.rounds(40)
            models = one.algorithm.client_models(end.server)
            models = one.models(end.server) if models is None else models
            assert len(models) == (8 if curve is nodes else 1)
            values += [training.objective.value(x, held) for x in models]
        assert_allclose(told[curve["algorithm"]][text], -np.mean(values), rtol=1e-5)


@pytest.mark.parametrize("by", ["node_error", "distance", "optimality"])
def test_a_column_is_taken_from_the_last_row_of_a_run_on_all_rows(scores, tmp_path, by):
    """Where all clients hold the server's model, its distance is the error of each."""
    _, told = scores(by)
    tuning = read_tuning(tmp_path / "network.toml")
    for curve, text in zip(
        tuning.raw["curve"], ("rho = 0.3, step-size = 4.0", "step-size = 0.5"), strict=True
    ):
        point = tomllib.loads(text.replace(", ", "\n"))
        ends = [
            cohort.train([setup])[0].rows[-1]
            for setup in prepare_seeds(tuning.config(curve, point), [100, 101])
        ]
        column = by if by in ends[0] else "distance"
        assert_allclose(told[curve["algorithm"]][text], -np.mean([row[column] for row in ends]), rtol=1e-5)


def test_a_file_tuned_by_a_column_can_be_tuned_again(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(NETWORK.replace("BY", "node_error"))
    text = tune(read_tuning(path), say=lambda line: None)
    assert tomllib.loads(text)["tune"] == {"seeds": [100, 101], "by": "node_error"}
    assert "[scores]  # minus node_error, mean over the tuning seeds" in text
    path.write_text(text)
    assert tune(read_tuning(path), say=lambda line: None) == text


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[100, 101]", "[1, 100]", r"seeds must differ from the figure's, \[0, 1\]; got \[1, 100\]"),
        ("0.25", "1.5", "held-out must be between 0 and 1; got 1.5"),
        ('"accuracy"', '"test"', "by must be one of objective, accuracy, node-objective, .*; got 'test'"),
        ('"accuracy"', '"node_error"', "by = 'node_error' is measured on all training rows: remove held-out"),
        (
            'held-out = 0.25\nby = "accuracy"',
            'by = "distance"',
            "by = 'distance' compares with the optimum: set reference = true",
        ),
        ("rounds = 4", 'data.name = "own"', "data own"),
        ("by = ", "for = ", "tune.* knows seeds, held-out, by, public; got"),
        ("[0.001, 1.0]", "0.5", "grid must be keys with lists of values, such as .*; got {'step-size': 0.5}"),
        (
            "step-size",
            "mu",
            "grid: 'mu' is no setting of the curve 'pdm', which would have fewer points",
        ),
        ("step-size = [0.001, 1.0]", "", "nothing to tune: no curve has a grid"),
        (
            "mu = [0.0, 0.5]",
            "mu = [0.5], fedprox.mu = [0.0]",
            r"grid: 'mu' and 'fedprox.mu' are the same setting, which has one list; got \[0.5\] and \[0.0\]: leave one",
        ),
        (
            "mu = [0.0, 0.5]",
            "step-size = [0.5], step_size = [0.1]",
            r"'step-size' is written in two ways, with \[0.5\] and \[0.1\]: leave one of them out",
        ),
        ("grid = {mu = [0.0, 0.5]}", "grid = 3", "grid must be keys with lists of values, such as .*; got 3"),
        (
            "mu = [0.0, 0.5]",
            "rho = [0.1]",
            "rho is a setting of algorithm fedpdm, .*, and this run has algorithm fedprox",
        ),
    ],
)
def test_mistakes_are_named_before_anything_runs(file, old, new, text):
    wrong = FILE.replace(old, new)
    file.write_text(wrong.replace("grid = {mu = [0.0, 0.5]}", "") if "nothing" in text else wrong)
    with pytest.raises(SettingError, match=f"two.toml: .*{text}"):
        read_tuning(file)


def test_a_point_that_diverges_is_never_chosen(file):
    file.write_text(
        FILE.replace("[0.001, 1.0]", "[1e300, 0.1]").replace("rho = 0.1", 'unstable-steps = "allow"')
    )
    tuned = tomllib.loads(tune(read_tuning(file), say=lambda line: None))
    assert tuned["curve"][0]["fedpdm"]["step-size"] == 0.1
    assert tuned["scores"]["pdm"][-1][1] == -np.inf


def test_a_point_whose_settings_do_not_go_together_is_told_and_not_chosen(file):
    file.write_text(FILE.replace("[0.001, 1.0]", "[0.5, 5.0]"))
    said = []
    tuned = tomllib.loads(tune(read_tuning(file), say=said.append))
    assert dict(tuned["scores"]["prox"])["step-size = 5.0, mu = 0.5"] == -np.inf
    assert any("5.0, mu = 0.5: -inf (mu * step-size must be below 2" in line for line in said)
    file.write_text(FILE.replace("[0.001, 1.0]", "[-1.0]"))
    with pytest.raises(SettingError, match="pdm: no point of the grid gives a model"):
        tune(read_tuning(file), say=said.append)


def test_curves_without_a_label_keep_their_own_scores(file):
    file.write_text(FILE.replace('label = "pdm"\n', "").replace('label = "prox"\n', ""))
    assert list(tomllib.loads(tune(read_tuning(file), say=lambda line: None))["scores"]) == [
        "fedpdm",
        "fedprox",
    ]


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(file, tmp_path, monkeypatch):
    monkeypatch.setattr("twinflower.simulation.tuning.search.tune", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SettingError, match="there is no such folder"):
        tune_(file, out=tmp_path / "nowhere" / "tuned.toml", data_dir="")


def test_the_command_writes_the_file(file, tmp_path):
    tune_(file, out=tmp_path / "tuned.toml", data_dir="")
    assert read_experiment(tmp_path / "tuned.toml").title == "Two methods"


def test_a_common_list_must_be_one_of_every_curve_that_is_tuned(file):
    """A reference in the figure has grid = {}, and stays as it is."""
    newton = '[[curve]]\nlabel = "best"\nalgorithm = "newton"\nclients.per-round = 0\n'
    reference = FILE.replace("max-steps = 2", "batch-size = 0") + newton
    file.write_text(reference)
    with pytest.raises(
        SettingError, match="'step-size' is no setting of the curve 'best'.*or write grid = {}"
    ):
        read_tuning(file)
    file.write_text(reference + "grid = {}\n")
    tuning = read_tuning(file)
    assert [len(tuning.grid(curve)) for curve in tuning.raw["curve"]] == [1, 2, 0]
    assert uneven(tuning).startswith("warning: curves have 2 to 4 points")


def test_a_tuning_in_processes_chooses_the_same(file, tmp_path):
    text = tune(read_tuning(file), say=lambda _: None)
    assert tune(read_tuning(file), lambda _: None, 2, tmp_path / "two.scores") == text


def test_an_interrupted_tuning_goes_on_with_the_scores_that_are_known(file, tmp_path, monkeypatch):
    """Of one curve first, then of both; a half line at the end of the journal is computed anew."""
    journal, computed, said = tmp_path / "two.scores", [], []
    plain, score = tune(read_tuning(file), say=said.append), scoring.score

    def counted(*arguments):
        computed.append(arguments)
        return score(*arguments)

    monkeypatch.setattr(scoring, "score", counted)
    tune(read_tuning(file), said.append, journal=journal, labels=["prox"])
    assert (
        "pdm: is not to be tuned, stays as it is" in said and len(computed) == 4 + 1
    )  # the last are its own settings
    journal.write_text(journal.read_text()[:-5])
    assert tune(read_tuning(file), said.append, journal=journal) == plain
    assert len(computed) == 5 + 1 + 3
    file.write_text(FILE.replace("held-out = 0.25", "held-out = 0.5"))
    tune(read_tuning(file), said.append, journal=journal)
    assert len(computed) == 5 + 1 + 3 + 8  # other rows, other scores
    with pytest.raises(SettingError, match="no curve is called 'pmd'; nearest: pdm|did you mean"):
        tune(read_tuning(file), said.append, labels=["pmd"])


def test_the_command_resumes_only_what_was_interrupted(file, tmp_path):
    out = tmp_path / "tuned.toml"
    journal = tmp_path / "tuned.toml.scores"
    with pytest.raises(SettingError, match=r"no tuning to resume: .*tuned.toml.scores does not exist"):
        tune_(file, out=out, data_dir="", resume=True)
    journal.write_text("12\n")
    with pytest.raises(
        SettingError, match="scores of an interrupted tuning: go on with --resume, or remove the file"
    ):
        tune_(file, out=out, data_dir="", jobs=1)
    assert journal.exists()
    tune_(file, out=out, data_dir="", jobs=1, resume=True)
    assert out.is_file() and not journal.exists()


def test_a_killed_worker_ends_a_tuning_with_one_sentence_and_loses_no_finished_score(file, tmp_path):
    """The last point takes so long that it is running when the first is known."""
    journal, lines = tmp_path / "two.scores", []
    file.write_text(FILE.replace("mu = [0.0, 0.5]", "rounds = [2, 100000]").replace("0.001, 1.0", "1.0"))

    def say(line):
        lines.append(line)
        for worker in active_children():
            worker.kill()

    sentence = "a worker process ended unexpectedly, .*: use fewer --jobs, and go on with --resume"
    with pytest.raises(RunError, match=sentence):
        tune(read_tuning(file), say, 2, journal, labels=["prox"])
    kept = [json.loads(line)[1] for line in journal.read_text().splitlines() if line]
    assert lines[-1] == f"prox: step-size = 1.0, rounds = 2: {np.mean(kept[0]):.5g}"


def test_a_slow_first_point_keeps_no_other_out_of_the_journal(file, tmp_path, monkeypatch):
    """The first point ends only after another is in the journal; points are said in the order of the grid."""
    journal, said = tmp_path / "two.scores", []

    def attempted(config, seeds, share, by):
        slow, end = config.method.step_size == 0.001, time.monotonic() + 5
        while slow and not journal.exists() and time.monotonic() < end:
            time.sleep(0.01)
        return [float(journal.exists()) if slow else 0.0], ""

    monkeypatch.setattr(scoring, "workers", lambda jobs, *_: ThreadPoolExecutor(jobs))
    monkeypatch.setattr(scoring, "attempted", attempted)
    tune(read_tuning(file), said.append, 2, journal, labels=["pdm"])
    assert said[:2] == ["pdm: step-size = 0.001: 1", "pdm: step-size = 1.0: 0"]


def test_a_curves_own_list_replaces_a_common_one_however_it_is_written(file):
    file.write_text(FILE.replace("mu = [0.0, 0.5]", "fedprox.step-size = [0.1]"))
    tuning = read_tuning(file)
    assert tuning.grid(tuning.raw["curve"][1]) == {"fedprox.step-size": [0.1]}


def test_a_setting_without_its_section_is_tuned_as_any_other(file):
    file.write_text(FILE.replace("fedpdm.rho = 0.1", "rho = 0.1\ngrid = {rho = [0.2]}"))
    tuned = tomllib.loads(tune(read_tuning(file), say=lambda _: None))
    assert tuned["curve"][0]["fedpdm"]["rho"] == 0.2 and "rho" not in tuned["curve"][0]


def test_curves_that_were_tuned_in_separate_jobs_are_joined(file, tmp_path):
    """The result is that of one tuning, and nothing is computed again."""
    pdm, prox, both = (tmp_path / f"{name}.toml" for name in ("pdm", "prox", "both"))
    tune_(file, out=pdm, data_dir="", curve=["pdm"], jobs=1)
    tune_(file, out=prox, data_dir="", curve=["prox"], jobs=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scoring, "score", lambda *_: pytest.fail("it was computed again"))
        tune_(file, out=both, data_dir="", join=[pdm, prox], jobs=1)
    assert both.read_text() == tune(read_tuning(file), say=lambda _: None)


def test_a_single_curve_of_a_tuned_file_is_tuned_again_and_the_others_keep_values_and_scores(file, tmp_path):
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    tune_(file, out=first, data_dir="", jobs=1)
    tune_(first, out=second, data_dir="", curve=["prox"], jobs=1)
    assert second.read_text() == first.read_text()


@pytest.mark.parametrize(
    ("old", "new"),
    [("rounds = 4", "rounds = 5"), ("0.001, 1.0", "0.01, 1.0"), ("0.25", "0.3"), ("rho = 0.1", "rho = 0.2")],
)
def test_curves_of_another_experiment_are_not_joined(file, tmp_path, old, new):
    part = tmp_path / "part.toml"
    part.write_text(tune(read_tuning(file), lambda _: None, labels=["pdm"]))
    tuning = read_tuning(file)
    assert list(read_tuned([part], tuning)) == ["pdm"]
    file.write_text(FILE.replace(old, new))
    with pytest.raises(
        SettingError, match="part.toml: the curve 'pdm' was tuned in another experiment.*: tune it anew"
    ):
        read_tuned([part], read_tuning(file))
    with pytest.raises(
        SettingError, match="two.toml has no scores: name a file that twinflower tune has written"
    ):
        read_tuned([file], tuning)
    with pytest.raises(SettingError, match="part.toml: 'pdm' is in another file, too: name one of them"):
        read_tuned([part, part], tuning)


def test_a_best_point_at_an_end_of_its_list_is_told_at_the_end(file):
    """Of three numbers or more, in whatever order they are written."""
    said = []
    file.write_text(FILE.replace("[0.001, 1.0]", "[0.001, 1.0, 0.01]"))
    tune(read_tuning(file), say=said.append)
    edge = "at an end of its list: step-size = 1.0; a better value may lie outside"
    assert [line for line in said if "list" in line] == [f"pdm: {edge}", f"prox: {edge}"]
    assert said[-1] == f"prox: {edge}"


@pytest.mark.parametrize(
    ("by", "rates", "told"),
    [
        ("objective", "[1.0, 1e-9]", []),
        ("objective", "[0.4, 1e-9]", ["the curve's own settings"]),
        ("objective", "[1e-9]", ["the curve's own settings", "the model before training"]),
        ("accuracy", "[1e-9]", ["the curve's own settings", "the model before training"]),
    ],
)
def test_a_grid_that_is_no_better_than_the_start_or_the_curve_itself_is_told(file, by, rates, told):
    """The curve itself has the default step; with one of 1e-9 the model stays at the start."""
    file.write_text(FILE.replace('"accuracy"', f'"{by}"').replace("[0.001, 1.0]", rates))
    said = []
    tune(read_tuning(file), say=said.append, labels=["pdm"])
    found = [line.partition("better than ")[2] for line in said if "no point" in line]
    assert [words.rpartition(":")[0] for words in found] == told


def test_a_value_that_is_there_twice_changes_no_other_score(file):
    plain = tomllib.loads(tune(read_tuning(file), say=lambda line: None))["scores"]
    file.write_text(FILE.replace("[0.001, 1.0]", "[0.001, 0.001, 1.0]"))
    twice = tomllib.loads(tune(read_tuning(file), say=lambda line: None))["scores"]
    assert {label: dict(rows) for label, rows in twice.items()} == {
        label: dict(rows) for label, rows in plain.items()
    }


def test_scores_are_those_of_the_files_that_the_settings_name(tmp_path):
    """Files of the same settings otherwise, and a file whose rows have changed, have other scores."""
    keys = {"data.name": "tables", "data.schema": "s.toml"}
    configs = []
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"x\n{name}\n")
        configs.append(parse(keys | {"data.files": str(tmp_path / f"{name}.csv")}))
    scorer = Scorer([0], 0.2, "accuracy")
    first, second = map(scorer._key, configs)
    assert first != second
    (tmp_path / "a.csv").write_text("x\nlonger\n")
    assert scorer._key(configs[0]) != first and scorer._key(configs[1]) == second
