"""The example of four hospitals: from CSV files to predictions, and what the comparison finds."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import twinflower
from twinflower.simulation import cli

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "hospitals"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The example, in a folder of its own."""
    shutil.copytree(EXAMPLE, tmp_path / "hospitals")
    monkeypatch.chdir(tmp_path / "hospitals")
    return tmp_path / "hospitals"


def command(*words):
    result = CliRunner().invoke(cli.app, list(words))
    assert not result.exception, result.output
    return result.output


def test_from_four_tables_to_predictions(folder):
    shown = command("schema", "--check", "schema.toml", *map(str, sorted(Path("sites").glob("*.csv"))))
    assert "digest of schema.toml" in shown
    assert "(8, 0.0001)-DP" in command("run", "hospitals.toml", "--out", "run", "--runtime", "cohort")
    lines = Path("sites/hungary.csv").read_text().splitlines()
    Path("new-patients.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines))
    told = [line.split(",")[0] for line in command("predict", "run", "new-patients.csv").splitlines()[1:]]
    truth = np.where([line.endswith(",0") for line in lines[1:]], "healthy", "ill")
    model = twinflower.load("run")
    assert model.score("sites/hungary.csv") == np.mean(told == truth) > 0.75  # the more frequent label: 0.64
    assert model.score("new-patients.csv", truth) == model.score("sites/hungary.csv")


def test_a_draft_from_the_tables_trains_as_well(folder):
    shutil.move("schema.toml", "public.toml")
    command(
        "schema", *map(str, sorted(Path("sites").glob("*.csv"))), "--label", "num", "--out", "schema.toml"
    )
    text = Path("schema.toml").read_text()
    assert "classes = [0, 1, 2, 3, 4]" in text
    two = 'classes = { healthy = ["0"], ill = ["1", "2", "3", "4"] }'
    Path("schema.toml").write_text(text.replace("classes = [0, 1, 2, 3, 4]", two))
    command("run", "hospitals.toml", "--out", "run", "--runtime", "cohort", "--set", "privacy.mode=none")
    assert twinflower.load("run").score("sites/cleveland.csv") > 0.75


@pytest.mark.slow
def test_the_comparison_finds_what_the_readme_says(folder):
    spec = importlib.util.spec_from_file_location("compare_hospitals", folder / "compare.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = {name: own[0, 0] for name, own in module.main(1, folder / "here.png").items()}
    assert (folder / "here.png").stat().st_size > 10_000
    assert found["pooled"] == pytest.approx(0.821, abs=0.02)
    assert found["federated"] == pytest.approx(found["pooled"], abs=0.01 + 0.006)  # a fold's chance
    assert found["federated, epsilon 8"] > found["federated"] - 0.03
    assert found["each hospital's majority"] == pytest.approx(0.670, abs=0.005)
    assert found["federated, epsilon 1"] > found["each hospital's majority"] + 0.03
