"""The tuning helper: what it may look at, what it chooses, what it writes."""

import tomllib

import numpy as np
import pytest
from numpy.testing import assert_allclose
from problems import small

from simulation import cohort
from simulation.cli import tune_
from simulation.experiment import read_experiment
from simulation.setup import prepare_seeds
from simulation.tune import held_out, read_tuning, tune
from twinflower.errors import SettingError

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
num-clients = 5
max-local-steps = 2
[[curve]]
label = "pdm"
algorithm = "fedpdm"
rho = 0.1
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
    assert pdm["step-size"] == prox["step-size"] == 1.0
    assert [len(rows) for rows in tuned["scores"].values()] == [2, 4]
    for rows in tuned["scores"].values():
        values = [value for _, value in rows]
        assert values == sorted(values, reverse=True)
    assert f"mu = {prox['mu']}" in tuned["scores"]["prox"][0][0]
    assert said[-1].startswith("prox: chosen step-size = 1.0, mu = ")
    # it can be run, and tuned again
    again = tmp_path / "again.toml"
    again.write_text(text)
    assert [dict(c.config.settings)["step_size"] for c in read_experiment(again).curves] == [1.0, 1.0]
    assert tune(read_tuning(again), say=said.append) == text


def test_a_curve_without_a_grid_stays_as_it_is(file):
    file.write_text(FILE.replace("step-size = [0.001, 1.0]", ""))
    said = []
    tuned = tomllib.loads(tune(read_tuning(file), say=said.append))
    assert said[0] == "pdm: has no grid, stays as it is"
    assert tuned["curve"][0] == {"label": "pdm", "algorithm": "fedpdm", "rho": 0.1}
    assert list(tuned["scores"]) == ["prox"]


def test_a_score_is_what_a_run_without_the_held_out_rows_reaches(file):
    tuning = read_tuning(file)
    curve = tuning.raw["curve"][0]
    config = tuning.config(curve, {"step-size": 1.0}, {})
    setups, held = zip(*(held_out(s, 0.25) for s in prepare_seeds(config, [100, 101])), strict=True)
    results = cohort.run(setups)
    expected = np.mean([r.setup.objective.score(r.model, h) for r, h in zip(results, held, strict=True)])
    scores = dict(tomllib.loads(tune(tuning, say=lambda line: None))["scores"]["pdm"])
    assert_allclose(scores["step-size = 1.0"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("[100, 101]", "[1, 100]", r"seeds must differ from the figure's, \[0, 1\]; got \[1, 100\]"),
        ("0.25", "1.5", "held-out must be between 0 and 1; got 1.5"),
        ('"accuracy"', '"test"', "by must be one of objective, accuracy; got 'test'"),
        ("by = ", "for = ", "tune.* knows seeds, held-out, by; got"),
        ("[0.001, 1.0]", "0.5", "grid: step-size must be a list; got 0.5"),
        ("step-size", "alpha", "grid: no curve knows 'alpha'"),
        ("step-size = [0.001, 1.0]", "", "nothing to tune: no curve has a grid"),
        ("mu = [0.0, 0.5]", "rho = [0.1]", "'rho' is not a setting of fedprox"),
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
    assert tuned["curve"][0]["step-size"] == 0.1
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
    monkeypatch.setattr("simulation.cli.tune", lambda *_: pytest.fail("it ran"))
    with pytest.raises(SettingError, match="there is no such folder"):
        tune_(file, out=tmp_path / "nowhere" / "tuned.toml", data_dir="")


def test_the_command_writes_the_file(file, tmp_path):
    tune_(file, out=tmp_path / "tuned.toml", data_dir="")
    assert read_experiment(tmp_path / "tuned.toml").title == "Two methods"
