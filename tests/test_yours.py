"""Methods from other packages on the tasks of FLamby, here tables of ten patients per site."""

import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from documents import cells
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg
from test_benchmarks import FOLDER, benchmark, small_tables

PAGE = (FOLDER.parent / "docs" / "experiments-flamby.md").read_text()
EXAMPLES = {re.match(r"# (\w+)\.py", text)[1]: text for kind, text in cells(PAGE) if kind == "python"}
OURS = """
from dataclasses import dataclass
from twinflower.algorithms import FedProx

@dataclass(frozen=True)
class Mine(FedProx):
    name = "mine"
    title = "Mine"
"""


@pytest.fixture
def yours(tmp_path, monkeypatch):
    """The script, called in a folder with the tables; its imports are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
    monkeypatch.chdir(small_tables(tmp_path))
    before = logging.getLogger("flwr").level
    yield benchmark("yours")
    logging.getLogger("flwr").setLevel(before)
    for name in EXAMPLES:
        sys.modules.pop(name, None)


def call(yours, monkeypatch, *words):
    argv = ["yours.py", "--data-dir", ".", "--results", "found.csv", "--seeds", "1", *words]
    monkeypatch.setattr(sys, "argv", argv)
    yours.main()


@pytest.mark.parametrize(("kind", "name"), [("--flower", "mine"), ("--method", "pooled")])
def test_the_documented_examples_have_rows_beside_ours(yours, kind, name, monkeypatch, capsys):
    assert name in EXAMPLES
    Path(f"{name}.py").write_text(EXAMPLES[name])
    call(yours, monkeypatch, kind, f"{name}:make")
    told = capsys.readouterr().out
    assert told.count(f"| {name}:make | public ranges |") == 2 and "| FedPDM | public ranges |" in told
    flamby = sys.modules["flamby"]
    found = flamby.stored(Path("found.csv"))
    assert {case.task for case in found if case.method == f"{name}:make"} == {"Fed-Heart-Disease"}


class Same(NumPyClient):
    """Sends the mean of its labels, whatever it gets."""

    def __init__(self, X, y):
        self.y = y

    def fit(self, parameters, config):
        assert config["server-round"] in (1, 2)
        return [parameters[0], np.array([self.y.mean()])], len(self.y), {"loss": 1.0}


class Broken(Same):
    def fit(self, parameters, config):
        raise ValueError("no such column")


def app(client):
    return SimpleNamespace(
        strategy=FedAvg(min_train_nodes=3, min_available_nodes=3), rounds=2, client=client,
        start=lambda features: [np.ones(features), np.zeros(1)], predict=lambda arrays, X: X @ arrays[0] + arrays[1],
    )  # fmt: skip


def test_flowers_fedavg_averages_the_sites_by_their_rows(yours):
    X, y, sites = np.ones((6, 2)), np.arange(6.0), np.array([0, 0, 0, 1, 2, 2])
    model = yours.OnFlower(app(Same)).fit(X, y, sites)
    assert model.predict(X) == pytest.approx(np.full(6, 2 + y.mean()))


def test_a_client_that_fails_ends_the_benchmark(yours):
    with pytest.raises(SystemExit, match="a client failed: .*no such column"):
        yours.OnFlower(app(Broken)).fit(np.ones((3, 2)), np.ones(3), np.arange(3))


def test_an_algorithm_of_an_installed_package_is_trained_like_ours(yours, tmp_path, monkeypatch):
    """FedProx under another name has FedProx's results, in all its private forms."""
    (tmp_path / "theirs.py").write_text(OURS)
    package = tmp_path / "theirs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[twinflower.algorithms]\nmine = theirs:Mine\n")
    words = [
        "--data-dir",
        ".",
        "--seeds",
        "1",
        "--results",
        "theirs.csv",
        "--algorithm",
        "mine",
        "--set",
        "mine.mu=0.3",
    ]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    subprocess.run(
        [sys.executable, FOLDER / "yours.py", *words], env=environment, check=True, capture_output=True
    )
    call(yours, monkeypatch, "--algorithm", "fedprox", "--set", "fedprox.mu=0.3")
    theirs = Path("theirs.csv").read_text().replace("Mine (mine.mu", "FedProx (fedprox.mu")
    assert theirs == Path("found.csv").read_text()
    assert theirs.count("sums") == 2 * 3 * 4


@pytest.mark.parametrize(
    ("name", "sums"), [("fedavg", True), ("mr-mtl", False), ("soteriafl", False), ("proxskip", False)]
)
def test_only_methods_that_run_on_sums_have_rows_with_sums(yours, name, sums):
    kind = yours.ALGORITHMS[name]
    assert yours.runs_on_sums(kind, kind.modes[1]) is sums


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--algorithm", "fedbest"], "there is no algorithm 'fedbest'; known are fedpdm, "),
        (["--method", "nowhere:make"], "nowhere:make cannot be imported: No module named 'nowhere'"),
        (["--algorithm", "fedavg", "--set", "fedavg.step=1"], "fedavg.step"),
    ],
)
def test_words_that_name_nothing_are_refused_in_a_sentence(yours, words, sentence, monkeypatch):
    with pytest.raises(SystemExit, match=sentence):
        call(yours, monkeypatch, *words)


def test_a_missing_table_is_named(yours, monkeypatch):
    Path("heart/cleveland.csv").unlink()
    with pytest.raises(SystemExit, match="No such file or directory: heart/cleveland.csv"):
        call(yours, monkeypatch, "--algorithm", "fedavg")
