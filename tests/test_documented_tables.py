"""The tables of the documents hold the stored results, and these belong to the experiment files as they are."""

import csv
import importlib.util
from pathlib import Path

import pytest

from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("experiment_tables", ROOT / "experiments" / "tables.py")
tables = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tables)
STORED = sorted(path.stem for path in tables.RESULTS.glob("*.csv"))


@pytest.mark.parametrize("path", list(tables.documents()), ids=lambda path: path.stem)
def test_every_number_in_a_table_is_that_of_the_stored_result(path):
    text = path.read_text()
    assert tables.filled(text) == text, "run python experiments/tables.py"


@pytest.mark.parametrize("name", STORED)
def test_stored_results_are_of_this_file(name):
    """Same settings, and every curve with every seed; only a run that ended without a model may be absent."""
    digest, rows = tables.stored(name)
    assert digest == tables.settings_digest(name), (
        f"{name}.toml has changed: run it again and store the results"
    )
    plan = read_experiment(ROOT / "experiments" / f"{name}.toml")
    assert {(row["panel"], row["curve"]) for row in rows} == {tables.place(plan, c) for c in plan.curves}
    assert {int(row["seed"]) for row in rows} == set(plan.seeds)


def test_a_table_is_means_and_spreads_of_seeds(tmp_path, monkeypatch):
    lines = [
        ("a", "x", 0, 5, 0.1),
        ("a", "x", 0, 10, 1.0),
        ("a", "x", 1, 10, 2.0),
        ("a", "x", 2, 10, 6.0),
        ("b", "y", 0, 10, 7.0),
        ("b", "y", 1, 10, ""),
        ("b", "z", 0, 10, ""),
    ]
    with (tmp_path / "made.csv").open("w") as file:
        file.write("# settings 0\n")
        csv.writer(file).writerows([("panel", "curve", "seed", "round", "cost"), *lines])
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    text = "<!-- table made: cost.2, cost@5, cost.1 median -->\nold\n<!-- end -->"
    assert tables.filled(text).splitlines()[2:7] == [
        "| | a: cost | a: cost at round 5 | a: cost | b: cost | b: cost at round 5 | b: cost |",
        "|---|---|---|---|---|---|---|",
        "| x | 3.00 +- 2.65 | 0.100 | 2.0 [1.0, 6.0] |  |  |  |",
        "| y |  |  |  | 7.00 (1 of 2) |  | 7.0 [7.0, 7.0] (1 of 2) |",
        "| z |  |  |  | no model |  | no model |",
    ]


def test_a_curve_without_the_setting_on_the_axis_has_its_label_for_a_row(tmp_path):
    (tmp_path / "made.toml").write_text(
        'x = "epsilon"\nends = true\n[run]\nlocal.batch-size = 0\n'
        '[[curve]]\nlabel = "noisy"\nprivacy.mode = "public-state"\nsweep = {epsilon = [0.5, 2.0]}\n'
        '[[curve]]\nlabel = "no limit"\nline = "no noise"\n'
    )
    plan = read_experiment(tmp_path / "made.toml")
    places = [tables.place(plan, curve) for curve in plan.curves]
    assert places == [("noisy", "0.5"), ("noisy", "2"), ("no noise", "no limit")]
