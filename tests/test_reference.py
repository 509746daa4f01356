"""The reference benchmark goes on where it stopped, and says how many numbers of the documents it meets.

Parts are stand-ins: a table of two numbers, and an experiment file of two curves and two rounds.
"""

import os
import re
import signal
import sys
from functools import partial

import pytest
from test_benchmarks import FOLDER, Larger, benchmark, small_tables

EXPERIMENT = """
title = "Tiny"
seeds = [0, 1]
[run]
rounds = 2
[run.clients]
count = 3
[[curve]]
label = "FedPDM"
[[curve]]
label = "FedAvg"
algorithm = "fedavg"
"""
PAGE = """
<!-- school made -->

| method | error |
|---|---|
| x | 0.333 |
| y | 0.700 +- 0.040 |

<!-- end -->
<!-- table methods-tiny: objective -->
<!-- end -->
"""


class Stand:
    """The command on stand-ins in a folder; `stop` is called before the second number and after the first curve."""

    def __init__(self, root, monkeypatch):
        monkeypatch.syspath_prepend(FOLDER)
        monkeypatch.setenv("TWINFLOWER_DATA", "")  # the command sets it
        self.module = module = benchmark("reference")
        self.root, self.monkeypatch, self.stop, self.computed = root, monkeypatch, lambda: None, []
        for folder in ("docs", "experiments"):
            (root / folder).mkdir()
        (root / "docs" / "page.md").write_text(PAGE)
        self.file = root / "experiments" / "methods-tiny.toml"
        self.file.write_text(EXPERIMENT)
        for name, value in {
            "DOCUMENTS": root / "docs",
            "parts": self.parts,
            "Terminal": self.terminal(),
        }.items():
            monkeypatch.setattr(module, name, value)
        monkeypatch.setattr(module.tables, "ROOT", root)
        monkeypatch.setattr(module.tables, "RESULTS", root)
        monkeypatch.setattr(module.running, "processes", lambda jobs, runtime: 1)

    def parts(self):
        made = self.module.lines("a table", "school", "school", [], made=self.made)
        return {"school": made, "methods-tiny": self.module.experiment(self.file)}

    def made(self, data, kept):
        found = {name: kept.get((name, "a, b"), partial(self.number, name)) for name in "xy"}
        return ["| method | error |", "|---|---|", *(f"| {name} | {found[name]:.3f} |" for name in found)]

    def number(self, name):
        if name == "y":
            self.stop()
        self.computed.append(name)
        return "_xy".index(name) / 3

    def terminal(self):
        stand, kind = self, self.module.Terminal

        class Stopping(kind):
            def ended(self, curve, *words):
                stand.computed.append(curve.label)
                stand.stop()

        return Stopping

    def main(self, out, *words):
        argv = ["reference.py", "--data-dir", str(self.root), "--out", str(self.root / out), *words]
        self.monkeypatch.setattr(sys, "argv", argv)
        self.module.main()

    def results(self, out):
        """The bytes of all results that do not hold a time."""
        files = [*(self.root / out).glob("*/*.csv"), *(self.root / out).rglob("*.md")]
        return {str(path.relative_to(self.root / out)): path.read_bytes() for path in files}


@pytest.fixture
def stand(tmp_path, monkeypatch):
    return Stand(tmp_path, monkeypatch)


def interrupt():
    raise KeyboardInterrupt


def killed(act):
    """Do this in a process of its own, which ends by kill -9."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def test_a_run_without_a_model_is_one_number_that_does_not_agree(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    cells = benchmark("reference").cells
    rows = "| | a | b |\n|---|---|---|\n| x | 1.0 | 2.0 |\n| y | 3.0 | 4.0 |"
    page = f"<!-- table tiny: a, b -->\n\n{rows}\n\n<!-- end -->"
    old, new = (cells(text, "table tiny:") for text in (page, page.replace("| 4.0", "| no model")))
    assert old.keys() == new.keys() and len(old) == 4
    assert [key for key in old if old[key] != new[key]] == [("table tiny: a, b", "y", "b")]


def test_what_was_interrupted_or_killed_ends_with_the_same_results(stand, capsys):
    stand.main("calm")
    assert stand.computed == ["x", "y", "FedPDM", "FedAvg"]
    stand.stop = interrupt
    for only in ("school", "methods-tiny"):
        with pytest.raises(SystemExit, match="interrupted; the same command goes on"):
            stand.main("stopped", "--only", only)
    stand.stop = lambda: os.kill(os.getpid(), signal.SIGKILL)
    for only in ("school", "methods-tiny"):
        killed(partial(stand.main, "killed", "--only", only))
    stand.stop = lambda: None
    for out in ("stopped", "killed"):
        stand.computed.clear()
        stand.main(out)
        assert stand.computed == ["y", "FedAvg"]
        assert stand.results(out) == stand.results("calm")
        assert "school: a table (goes on)" in capsys.readouterr().out
        stand.main(out)
        assert stand.computed == ["y", "FedAvg"]
        assert "school: done before" in capsys.readouterr().out
    assert len(stand.results("calm")) == 4


def test_results_of_other_settings_are_computed_again(stand, capsys):
    stand.main("out", "--only", "methods-tiny")
    stand.file.write_text(EXPERIMENT.replace("Tiny", "Small"))
    stand.main("out", "--only", "methods-tiny")
    assert stand.computed == ["FedPDM", "FedAvg"]
    stand.file.write_text(EXPERIMENT.replace("rounds = 2", "rounds = 1"))
    capsys.readouterr()
    stand.main("out", "--only", "methods-tiny")
    assert stand.computed == ["FedPDM", "FedAvg"] * 2
    assert "has results of other settings" in capsys.readouterr().out


def test_the_summary_counts_the_numbers_that_agree(stand, capsys):
    """Of the table with two numbers, one has the same digits, and one is within its deviation: .667 of .700 +- .040."""
    stand.main("out", "--only", "school")
    assert re.search(r"\| school \| 0:00 minutes \| 2 \| 1 \| 2 \|", capsys.readouterr().out)
    page = (stand.root / "out" / "docs" / "page.md").read_text()
    assert "| y | 0.667 |" in page and page.endswith("<!-- end -->\n")


@pytest.mark.parametrize(
    ("old", "new", "good"),
    [
        ("0.70 +- 0.10", "0.79 +- 0.02", True),
        ("0.70 +- 0.10", "0.81 +- 0.02", False),
        ("1.0e-13 [7.5e-14, 1.8e-13]", "1.7e-13 [1.0e-13, 2.0e-13]", True),
        ("1.0e-13 [7.5e-14, 1.8e-13]", "1.9e-13 [1.0e-13, 2.0e-13]", False),
        ("0.706", "0.707", False),
        ("0.706", "", False),
        ("0.706", "no model", False),
    ],
)
def test_a_number_agrees_within_its_spread(stand, old, new, good):
    assert stand.module.agree(old, new) is good


def test_flamby_goes_on_and_drops_a_line_that_was_cut_off(stand, tmp_path):
    """A run that is stopped in the middle of a line."""
    flamby, data = stand.module.flamby, small_tables(tmp_path)
    methods = {("mine", flamby.LOCAL): lambda task, epsilon, seed: Larger() if epsilon > 8 else None}
    for name, cut in (("calm", 0), ("cut", 11)):
        path = tmp_path / f"{name}.csv"
        flamby.complete(path, methods, data, 2)
        if cut:
            path.write_bytes(path.read_bytes()[:-cut])
            flamby.complete(path, methods, data, 2)
    assert (tmp_path / "calm.csv").read_bytes() == (tmp_path / "cut.csv").read_bytes()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("flamby", r"heart/cleveland.csv is missing; it is from UCI"),
        ("school", r"school.mat is missing; it is from github"),
        ("soteriafl-a9a", r"no file a9a .*; it is from www.csie.ntu.edu.tw"),
    ],
)
def test_a_missing_file_is_named_with_its_source(name, sentence, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setenv("TWINFLOWER_DATA", "")  # the command sets it
    argv = ["reference.py", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out"), "--only", name]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit, match=sentence):
        benchmark("reference").main()
    assert not (tmp_path / "out").exists()


def test_every_comparison_of_methods_is_a_part(monkeypatch):
    """Found by their names, each with a table in a document."""
    monkeypatch.syspath_prepend(FOLDER)
    reference = benchmark("reference")
    parts = reference.parts()
    files = {path.stem for path in (FOLDER.parent / "experiments").glob("methods-*.toml")}
    assert files | {"flamby", "flamby-epsilon", "school", "soteriafl-a9a"} == set(parts)
    pages = "".join(path.read_text() for path in reference.DOCUMENTS.glob("*.md"))
    assert all(f"<!-- {part.mark}" in pages for part in parts.values())
