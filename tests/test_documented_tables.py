"""The tables and figures of the documents hold results that belong to the experiment files as they are."""

import csv
import importlib.util
from pathlib import Path

import pytest
from PIL import Image

from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
_SPEC = importlib.util.spec_from_file_location("experiment_tables", ROOT / "experiments" / "tables.py")
tables = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tables)
FIGURES = sorted((ROOT / "docs" / "figures").glob("*.png"))
BY_SCRIPTS = {  # docs/*.py, benchmarks/{correlated,flamby,tuning}.py, and the experiment in docs/tutorial.md
    "hero", "idea", "tutorial", "attack", "discrete-cox", "flamby", "tuning", "correlated",
    "clinicians-hospitals", "clinicians-survival", "clinicians-brca",
}  # fmt: skip
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


@pytest.mark.parametrize("path", [p for p in FIGURES if p.stem not in BY_SCRIPTS], ids=lambda path: path.stem)
def test_every_figure_is_of_its_experiment_file_as_it_is(path):
    """Curves, seeds, axes and settings by their digest, and the title, unless the picture is of a single run."""
    plan = read_experiment(ROOT / "experiments" / f"{path.stem}.toml")
    with Image.open(path) as picture:
        drawn = getattr(picture, "text", {})
    assert drawn.get("Digest") == plan.digest, f"{path.name} was drawn from other settings: run it again"
    assert plan.single or drawn["Title"] == plan.title, f"{path.name} has another title: draw it again"


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


def test_a_gap_is_above_the_lowest_objective_of_the_same_panel_and_seed():
    lines = [("a", "0", "3"), ("a", "0", "1"), ("a", "1", "0.5"), ("b", "0", "7"), ("a", "0", "")]
    rows = [dict(zip(("panel", "seed", "objective"), line, strict=True)) for line in lines]
    assert [row["gap"] for row in tables.with_gaps(rows)] == ["2", "0", "0", "0", ""]


def test_a_curve_without_the_setting_on_the_axis_has_its_label_for_a_row(tmp_path):
    (tmp_path / "made.toml").write_text(
        'x = "epsilon"\nends = true\n[run]\nlocal.batch-size = 0\n'
        '[[curve]]\nlabel = "noisy"\nprivacy.mode = "public-state"\nsweep = {epsilon = [0.5, 2.0]}\n'
        '[[curve]]\nlabel = "no limit"\nline = "no noise"\n'
    )
    plan = read_experiment(tmp_path / "made.toml")
    places = [tables.place(plan, curve) for curve in plan.curves]
    assert places == [("noisy", "0.5"), ("noisy", "2"), ("no noise", "no limit")]


def test_lines_in_panels_are_rows_with_a_column_for_every_x(tmp_path):
    """Panels have lines of the same name."""
    (tmp_path / "made.toml").write_text(
        'x = "rounds"\nends = true\n[run]\n'
        + "".join(f'[[curve]]\npanel = "{p}"\nlabel = "own"\nsweep = {{rounds = [5, 10]}}\n' for p in "AB")
    )
    plan = read_experiment(tmp_path / "made.toml")
    places = [tables.place(plan, curve) for curve in plan.curves]
    assert places == [("5", "A: own"), ("10", "A: own"), ("5", "B: own"), ("10", "B: own")]


def test_a_picture_from_stored_results_is_that_of_the_runs(tmp_path, monkeypatch):
    """Of last rows; one by round needs the runs."""
    text = 'x = "curve"\ny = ["objective"]\nseeds = [0, 1]\n[run]\nrounds = 2\n' + "".join(
        f'[[curve]]\nlabel = "{name}"\nalgorithm = "{name}"\n' for name in ("fedavg", "fedprox")
    )
    for folder in ("experiments", "docs/figures", "runs"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    (tmp_path / "experiments" / "made.toml").write_text(text)
    plan = read_experiment(tmp_path / "experiments" / "made.toml")
    for nth, curve in enumerate(plan.curves):
        for seed in plan.seeds:
            row = dict.fromkeys(tables.COLUMNS, "1") | {"round": "2", "objective": f"{nth + seed / 8}"}
            tables._restore(tables.run_folder(plan, tmp_path / "runs", curve, seed), row)
    tables.store("made", tmp_path / "runs", [], tmp_path)
    drawn = tables.draw_experiment(plan, tmp_path / "runs").read_bytes()
    assert tables.draw("made", tmp_path).read_bytes() == drawn
    (tmp_path / "experiments" / "made.toml").write_text(text.replace('"curve"', '"round"'))
    with pytest.raises(SystemExit, match="only last rows are stored"):
        tables.draw("made", tmp_path)
