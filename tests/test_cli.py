"""The command line as a user meets it: results, sentences, exit status."""

import errno
import json
import math
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Error, Message
from rich.console import Console

import twinflower
from twinflower.algorithms import ALGORITHMS
from twinflower.data.schema_file import draft_warning
from twinflower.errors import DataError, DiskError, RunError, SettingError
from twinflower.privacy import Budget
from twinflower.privacy.charges import Charge
from twinflower.privacy.ledger import FileLedger
from twinflower.settings import settings_of
from twinflower.simulation import cli, listing
from twinflower.simulation.app import server_app
from twinflower.simulation.report import console as terminal_tables
from twinflower.simulation.report.labels import score
from twinflower.simulation.report.sections.results import results, score_heading
from twinflower.simulation.report.study import Study
from twinflower.simulation.results.folder import claimed, in_use, new_folder
from twinflower.simulation.results.reading import read_rows, read_summary
from twinflower.simulation.runs.advice import warnings
from twinflower.simulation.runs.ended import risen
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.settings import parse, parse_text, reference
from twinflower.simulation.settings.columns import COLUMNS
from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
DIGITS = str(ROOT / "experiments" / "digits.toml")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Run the command line; returns status, standard output and standard error."""
    monkeypatch.chdir(ROOT)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["twinflower", *map(str, words)])
        status = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def compare(call, tmp_path):
    """Run `twinflower compare` on these folders."""
    return lambda *folders: call("compare", *folders, "--out", tmp_path / "comparison.html")


def compared(*folders):
    """The table of the runs in these folders."""
    (section,) = results(Study.of_folders(folders))
    return section.tables[0]


def test_the_version_is_that_of_the_package(call):
    assert twinflower.__version__ == metadata.version("twinflower")
    assert call("--version") == (0, f"{twinflower.__version__}\n", "")


def test_a_bundle_has_the_version_of_its_project(monkeypatch):
    """Flower does not install bundles, so these have no metadata."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert twinflower.__version__ == project["version"]


def test_a_run_leaves_a_complete_folder(call, tmp_path):
    out = tmp_path / "run"
    status, text, err = call("run", DIGITS, "--set", "rounds=4", "--out", out)
    assert (status, err) == (0, "")
    assert f"results: {out}" in text
    assert {p.name for p in out.iterdir()} == {
        "config.toml", "metrics.csv", "rounds.jsonl", "clients.csv", "summary.json", "model.npz", "figure.png",
        "environment.json", "report.html", "title.txt",
    }  # fmt: skip
    summary = json.loads((out / "summary.json").read_text())
    rows = read_rows(out)
    assert summary["finished"] is True
    assert summary["rounds"] == 4 == rows[-1]["round"]
    assert tuple(rows[0]) == COLUMNS
    assert [summary[k] for k in ("test_accuracy", "objective", "nonzeros")] == [
        rows[-1][k] for k in ("test_accuracy", "objective", "nonzeros")
    ]
    assert summary["uplink_bits"] == 4 * 10 * 650 * 64
    assert np.count_nonzero(np.load(out / "model.npz")["x"]) == summary["nonzeros"]
    assert json.loads((out / "environment.json").read_text())["libraries"]["flwr"]


def test_one_curve_of_an_experiment_can_be_run(call, tmp_path):
    """Its runs are those of the whole experiment; a label in several panels stands for all of them."""
    file, out = tmp_path / "plan.toml", tmp_path / "out"
    file.write_text(
        "[run]\nrounds = 1\n[run.clients]\ncount = 3\n"
        + "".join(
            f'[[curve]]\npanel = "{p}"\nlabel = "{c}"\nseed = {k}\n' for k, p in enumerate("AB") for c in "xy"
        )
    )
    assert call("run", file, "--out", tmp_path / "all")[0] == 0
    assert call("run", file, "--curve", "y", "--out", out)[0] == 0
    assert sorted(path.name for path in out.iterdir() if path.is_dir()) == ["a-y", "b-y"]
    for name in ("a-y", "b-y"):
        models = [np.load(folder / name / "seed-0" / "model.npz")["x"] for folder in (tmp_path / "all", out)]
        np.testing.assert_array_equal(*models)
    assert "(only y)" in (out / "experiment.toml").read_text()
    status, _, err = call("run", file, "--curve", "z")
    assert (status, err) == (2, "error: plan has no curve 'z'; known: x, y\n")
    assert call("run", "--resume", out, "--curve", "y")[0] == 2


def test_a_run_can_be_repeated_from_its_own_config(call, tmp_path):
    call("run", DIGITS, "--set", "rounds=3", "--set", "seed=5", "--out", tmp_path / "a")
    status, _, _ = call("run", tmp_path / "a" / "config.toml", "--out", tmp_path / "b")
    assert status == 0
    models = [np.load(tmp_path / name / "model.npz")["x"] for name in "ab"]
    np.testing.assert_array_equal(*models)
    configs = [tomllib.loads((tmp_path / name / "config.toml").read_text()) for name in "ab"]
    assert configs[0] == configs[1]


def experiment(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return path


CURVES = """
title = "two curves"
seeds = [0, 1]
y = ["test_accuracy"]
[run]
rounds = 3
[run.clients]
count = 5
[[curve]]
label = "l1 = 0.001"
[[curve]]
label = "l1 = 0.1"
regulariser.weight = 0.1
"""


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_an_experiment_runs_every_curve_and_seed_and_draws(call, compare, tmp_path, runtime):
    out = tmp_path / "out"
    status, _, _ = call("run", experiment(tmp_path, CURVES), "--runtime", runtime, "--out", out)
    assert status == 0
    folders = sorted(str(p.parent.relative_to(out)) for p in out.rglob("summary.json"))
    assert folders == ["l1-0.001/seed-0", "l1-0.001/seed-1", "l1-0.1/seed-0", "l1-0.1/seed-1"]
    picture = (out / "figure.png").read_bytes()
    (out / "figure.png").unlink()
    assert call("figure", out)[0] == 0
    assert (out / "figure.png").read_bytes() == picture
    drawn = {"figure.png", "report.html"}
    assert {path.parent for name in drawn for path in out.rglob(name)} == {
        out
    }  # drawing takes longer than training
    run = out / folders[0]
    assert call("report", run)[0] == 0
    assert drawn <= {path.name for path in run.iterdir()}
    status, text, _ = compare(out)
    assert status == 0
    assert "l1-0.1" in text.replace("\n", "")
    assert "+-" in text


def test_list_names_what_there_is(call):
    status, text, _ = call("list")
    assert status == 0
    for word in (
        *ALGORITHMS,
        "mnist",
        "digits.toml",
        "softmax",
        "dirichlet",
        "rand-k",
        "swish-network",
        "ring",
    ):
        assert word in text


def test_settings_are_listed_with_meaning_unit_range_and_default(call):
    status, text, _ = call("settings", "privacy")
    assert status == 0
    for word in (*reference.HEADINGS, "privacy.epsilon", "sensitivities", "0.0001", "as-published"):
        assert word in text
    everything = call("settings")[1]
    assert all(f"{name}." in everything for name in ("data", "server", *ALGORITHMS))
    status, _, error = call("settings", "privcy")
    assert (status, error) == (
        2,
        "error: no section and no setting is called 'privcy'; did you mean 'privacy'?\n",
    )


def test_the_name_of_an_experiment_leads_to_its_file(call, monkeypatch):
    monkeypatch.chdir(ROOT)
    status, _, error = call("run", "digits")
    assert status == 2
    assert error.endswith("; did you mean experiments/digits.toml?\n")
    error = call("run", "no-such-experiment")[2]
    assert "did you mean" not in error
    assert error.endswith(
        "; the experiments that come with Twinflower are in the folder experiments of its source\n"
    )
    assert call("run", "missing.toml")[2].endswith("missing.toml: No such file or directory\n")
    assert call("run", "digitz.toml")[2].endswith("; did you mean experiments/digits.toml?\n")


@pytest.mark.parametrize("name", ["config.toml", "experiment.toml"])
def test_the_folder_of_a_run_leads_to_its_settings(call, tmp_path, name):
    (tmp_path / name).write_text("[run]\nrounds = 3\n")
    assert call("privacy", str(tmp_path))[2].endswith(f"; did you mean {tmp_path / name}?\n")


def test_the_experiments_of_the_source_are_found_from_elsewhere(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert str(ROOT / "experiments" / "ye2021-fig3.toml") in call("list")[1]
    assert call("run", "digits")[2].endswith(f"; did you mean {DIGITS}?\n")
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.toml").write_text("[run]\nrounds = 3\n")
    text = call("list")[1]
    assert "experiments/mine.toml" in text and "ye2021-fig3" not in text


def test_without_experiments_the_list_says_where_they_are(call, monkeypatch):
    """As in an installation from a wheel."""
    monkeypatch.setattr(listing, "shipped", list)
    assert (
        "experiments: none here; they are in the folder experiments of Twinflower's source" in call("list")[1]
    )


def test_an_unknown_command_is_one_sentence(call):
    assert call("rnu") == (2, "", "error: there is no command 'rnu'; did you mean 'run'?\n")
    assert call("fly")[2].startswith(
        "error: there is no command 'fly'; known: audit, check-node, coefficients,"
    )


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("twinflower run x.toml --set fedpdm.rh", ["fedpdm.rho="]),
        ("twinflower run x.toml --set regulariser.name=el", ["regulariser.name=elastic-net"]),
        ("twinflower run x.toml --set nothing=el", []),
        ("twinflower settings pri", ["privacy"]),
        ("twinflower ledg", ["ledger"]),
    ],
)
def test_a_shell_completes_commands_and_settings(call, monkeypatch, line, found):
    monkeypatch.setenv("_TWINFLOWER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", f"{line.count(' ')}")
    status, out, _ = call()
    assert (status, out.split()) == (0, found)


@pytest.mark.parametrize("columns", [70, 80, 100])
def test_a_table_in_a_pipe_has_the_width_of_columns(columns):
    words = [sys.executable, "-m", "twinflower", "settings", "fedpdm"]
    environment = os.environ | {"COLUMNS": f"{columns}"}
    done = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    assert max(map(len, done.stdout.splitlines())) == columns
    text = done.stdout
    assert all(f"fedpdm.{name} " in text for name in settings_of(ALGORITHMS["fedpdm"])) and "…" not in text


def test_no_number_of_a_table_is_broken_however_narrow_the_screen(monkeypatch, capsys):
    """A column without entries is left out, and a table that is too wide is printed whole."""
    monkeypatch.setattr(terminal_tables, "console", lambda: Console(width=30))
    numbers = ["0.8552", "1.8971e-12", "-1,430.5", "0.911 +- 0.003"]
    headings = ("run", "accuracy", "objective", "nothing", "rows", "score")
    terminal_tables.table(headings, [("first", *numbers[:2], "-", *numbers[2:])])
    printed = capsys.readouterr().out
    assert all(number in printed for number in numbers) and "nothing" not in printed


@pytest.mark.parametrize("name", ["crp [mg/l]", "sex[/b]", "[red]g"])
def test_brackets_of_names_are_printed(name, monkeypatch, capsys):
    monkeypatch.setattr(terminal_tables, "console", lambda: Console(width=100))
    terminal_tables.table((name, f"head {name}"), [(name, f"cell {name}")], f"title {name}")
    printed = capsys.readouterr().out
    assert printed.count(name) == 5 and f"cell {name}" in printed


@pytest.mark.parametrize("labels", [["no"] * 8, ["no"] * 7 + ["yes"]])
def test_rows_of_one_class_are_mentioned(tmp_path, labels):
    (tmp_path / "schema.toml").write_text(
        '[label]\ncolumn = "y"\nclasses = ["no", "yes"]\n[columns]\na = { range = [0, 1] }\n'
    )
    for site in range(2):
        (tmp_path / f"site-{site}.csv").write_text("a,y\n" + "".join(f"0.5,{label}\n" for label in labels))
    files = {"files": "site-*.csv", "schema": "schema.toml", "test-file": "site-0.csv"}
    config = parse(
        {"data.name": "tables"} | {f"data.{key}": f"{tmp_path}/{own}" for key, own in files.items()}
    )
    found = [text for text in warnings(prepare(config)) if "to train on have the class 'no'" in text]
    assert len(found) == (len(set(labels)) == 1)


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["epsilon=8"], "--set epsilon=8: privacy.epsilon is a setting of privacy.mode"),
        (["rounds=0", "rho=1"], "--set rounds=0: rounds must be"),
        (["privacy.mode=some"], "--set privacy.mode=some: privacy.mode must be one of"),
        (["rounds=0", "rho=-1"], "--set rounds=0 --set rho=-1: "),
    ],
)
def test_an_error_of_an_override_names_it_and_not_the_file(call, tmp_path, overrides, named):
    file = tmp_path / "plan.toml"
    file.write_text('[run]\nalgorithm = "fedpdm"\n[run.fedpdm]\nrho = 1.0\n')
    words = [word for own in overrides for word in ("--set", own)]
    assert call("run", file, *words)[2].startswith(f"error: {named}")
    file.write_text('[run]\nalgorithm = "fedpdm"\n[run.fedpdm]\nrho = -1.0\n')
    assert call("run", file, "--set", "rounds=3")[2].startswith(f"error: {file}: fedpdm.rho must be")


def test_a_private_run_warns_of_a_schema_that_is_still_a_draft(call, tmp_path):
    table = tmp_path / "site.csv"
    table.write_text("a,y\n" + "".join(f"{k}.5,{k % 2}\n" for k in range(20)))
    schema, file = tmp_path / "schema.toml", tmp_path / "plan.toml"
    assert call("schema", table, "--label", "y", "--out", schema)[0] == 0
    file.write_text(
        '[run]\nrounds = 1\nclients.count = 1\n[run.data]\nname = "tables"\n'
        f'files = "{table}"\nschema = "{schema}"\n[run.privacy]\nmode = "public-state"\nepsilon = 8.0\n'
    )
    warning = f"warning: {schema} is a draft: its ranges and categories were read off the data"
    assert warning in call("run", file, "--out", tmp_path / "private")[1]
    assert warning not in call("run", file, "--set", "privacy.mode=none", "--out", tmp_path / "open")[1]
    schema.write_text("# reviewed\n" + schema.read_text().partition("\n\n")[2])
    assert "is a draft" not in call("run", file, "--out", tmp_path / "reviewed")[1]
    schema.unlink()  # as before a run is resumed
    with pytest.raises(DataError, match=f"schema {re.escape(str(schema))} cannot be read"):
        draft_warning(schema)


@pytest.mark.parametrize("words", [["-h"], ["run", "-h"]])
def test_a_short_option_asks_for_help(call, words):
    status, text, _ = call(*words)
    assert status == 0
    assert "Usage" in text


WITH_RHO = [name for name, algorithm in ALGORITHMS.items() if "rho" in settings_of(algorithm)]
BAD = {
    "rho * step-size must be below 2": ["rho=10", "step-size=0.3"],
    "uplink-ratio must keep between 1 and all of the 650 entries": [
        "algorithm=bsdp-fedpdm",
        "uplink-ratio=0.0001",
    ],
    "clients.per-round can be at most clients.count = 10; got 11": ["clients.per-round=11"],
    "labels-per-client": ["partition.name=labels", "labels-per-client=11"],
    "did you mean 'step-size'?": ["stepsize=1"],
    f"algorithm must be one of {', '.join(ALGORITHMS)}; got 'fedsgd'": ["algorithm=fedsgd"],
    "data.name must be one of digits": ["data.name=imagenet"],
    "got 'minst'; did you mean 'mnist'?": ["data.name=minst"],
    "got 'fedpmd'; did you mean 'fedpdm'?": ["algorithm=fedpmd"],
    "got 'l2'; a ridge penalty is the setting objective.l2": ["regulariser.name=l2"],
    "'frobnicate' is not a setting; `twinflower settings` lists them all": ["frobnicate=1"],
    "'sparsity' is not a setting; did you mean 'regulariser.weight' or 'uplink-ratio'?": ["sparsity=1"],
    "'lr' is not a setting; did you mean 'step-size'?": ["lr=0.1"],
    "'fedpdm.learning-rate' is not a setting; did you mean 'fedpdm.step-size'?": ["fedpdm.learning-rate=0.1"],
    "'run.rounds' is not a key: leave out the first part, as in rounds": ["run.rounds=3"],
    "'run.local.max-steps' is not a key: leave out the first part, as in local.max-steps": [
        "run.local.max-steps=3"
    ],
    "train-images-idx3-ubyte": ["data.name=mnist", "data.dir=/nowhere"],
    "objective.name must be one of softmax": ["objective.name=hinge"],
    "regulariser.name must be one of none": ["regulariser.name=l0"],
    "partition.name must be one of": ["partition.name=random"],
    "rounds must be from 1 to 100000; got 0": ["rounds=0"],
    "rounds must be a whole number; got 2.5": ["rounds=2.5"],
    "fedpdm.rho must be above 0": ["rho=0"],
    "step-size must be above 0": ["step-size=-1"],
    "fedpdm.step-decay must be from 0 to 1": ["step-decay=2"],
    "fedpdm.stopping-tolerance must be at least 0": ["stopping-tolerance=-1"],
    "aggregation must be one of sampled, memory": ["aggregation=median"],
    "local-start must be one of server, warm": ["local-start=hot"],
    "local.max-steps must be at least 1 with full batches": ["local.max-steps=0"],
    "batch-size must be at least 0": ["batch-size=-3"],
    "fedprox.mu is a setting of algorithm fedprox, and this run has algorithm fedpdm": ["mu=0.5"],
    f"rho is a setting of algorithm {', '.join(WITH_RHO[:-1])} or {WITH_RHO[-1]}, and this run has": [
        "algorithm=fedavg",
        "rho=1",
    ],
    "start-scale must be 0 or from 1e-100 to 1e+100 in size": ["start-scale=1e308"],
    "downlink-ratio must be above 0": ["algorithm=bsdp-fedpdm", "downlink-ratio=0"],
    "uplink must be one of top-k, rand-k": ["algorithm=bsdp-fedpdm", "uplink=all"],
    "seed must be below 2^64": ["seed=18446744073709551616"],
    "objective.l2 must be a number; got 'inf'": ["l2=inf"],
    "privacy.mode must be one of none": ["privacy.mode=yes"],
    "privacy.epsilon is a setting of privacy.mode public-state, gradient or as-published, and this run has": [
        "privacy.mode=none",
        "epsilon=1",
    ],
    "privacy needs either privacy.epsilon or privacy.noise-multiplier": ["epsilon=0"],
    "privacy.epsilon must be from 1e-6 to 1e9, or 0 (not given); got -1": [
        "privacy.mode=gradient",
        "epsilon=-1",
    ],
    "privacy.delta must be above 0 and below 1; got 0.0": ["privacy.mode=gradient", "epsilon=1", "delta=0"],
    "no finite sensitivity": ["step-size=1e100", "unstable-steps=allow", "local.max-steps=5"],
    "set clip-norm above 0": ["privacy.mode=gradient", "epsilon=1", "row-norm=0"],
    "stopping-tolerance must be 0 with privacy = public-state": [
        "privacy.mode=public-state",
        "epsilon=1",
        "stopping-tolerance=1",
    ],
    "--set takes key=value": ["rounds"],
    "objective 'logistic' needs 2 classes": ["objective.name=logistic"],
    "clients.count": ["clients.count=100000"],
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_setting_is_one_sentence_and_status_2(call, tmp_path, sentence):
    words = [w for assignment in BAD[sentence] for w in ("--set", assignment)]
    status, _, err = call("run", DIGITS, *words, "--out", tmp_path / "x")
    assert status == 2
    assert sentence in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert not list((tmp_path / "x").glob("*.npz"))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[run]\nrounds = \n", "not valid TOML"),
        ("[run]\nrounds = [1, 2]\n", "rounds must be a whole number"),
        ("title = 'x'", "says nothing to run"),
        ("[[curve]]", "says nothing to run"),
        (
            "[runs]\nseed = 1\n",
            "there is no table [runs]: settings stand in [run], [run.SECTION] and [[curve]]; did you",
        ),
        ("[label]\n[columns]\n", "is a schema of tables: name it in an experiment's data.schema"),
        ("[privcy]\nepsilon = 1\n", "did you mean 'run.privacy'?"),
        (
            "rounds = 3\n",
            "'rounds' must stand in the [run] table: write [run] above settings without a section",
        ),
        ("rounds = 3\n[[curve]]\n", "'rounds' must stand in the [run] table"),
        ("rounds = 3\n[run]\nseed = 1\n", "'rounds' must stand in the [run] table"),
        ('y = ["loss"]\n[run]\nseed = 1\n', "x and y must be among"),
        ("seeds = [-1]\n[run]\nrounds = 1\n", "seeds must be whole numbers from 0"),
        ('[[curve]]\nlabel = "a"\n[[curve]]\nlabel = "A"\n', "a panel and label of its own"),
        ("[run]\nfedpdm.rho = nan\n", "fedpdm.rho must be a number"),
        ("[run]\nrho = 0.1\n", "'rho' is not a key: write fedpdm.rho"),
        ("seed = 3\nrun = 1\n", "[run]"),
        ('curve = "x"\n', "[[curve]]"),
        ('seeds = "0"\n', "seeds must be a list"),
    ],
)
def test_a_bad_experiment_file_is_one_sentence_and_status_2(call, tmp_path, text, sentence):
    path = experiment(tmp_path, text)
    status, _, err = call("run", path, "--out", tmp_path / "x")
    assert status == 2
    assert sentence in err
    assert str(path) in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run", "nowhere.toml"],
        ["run", "."],
        ["figure", "nowhere"],
        ["figure", "."],
        ["compare", "tests"],
        ["run", DIGITS, "--runtime", "cloud"],
        ["run", DIGITS, "--seeds", "1,x"],
        ["run", DIGITS, "--seeds", "1,1"],
        ["run"],
        ["fly"],
    ],
)
def test_a_bad_call_has_status_2_and_no_traceback(call, words):
    status, _, err = call(*words)
    assert status == 2
    assert "Traceback" not in err
    assert err


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_a_diverging_run_has_status_1_and_no_model(call, tmp_path, runtime):
    assignments = ["step-size=1e100", "unstable-steps=allow", "privacy.mode=none", "local.max-steps=5"]
    words = [w for a in assignments for w in ("--set", a)] + ["--runtime", runtime]
    status, _, err = call("run", DIGITS, *words, "--out", tmp_path)
    assert status == 1
    assert "finite" in err
    assert not (tmp_path / "model.npz").exists()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["finished"] is False
    assert "finite" in summary["failure"]


def test_a_stationary_zero_is_announced(call, tmp_path):
    _, text, _ = call("run", DIGITS, "--set", "regulariser.weight=5", "--set", "rounds=2", "--out", tmp_path)
    assert "x = 0 is stationary" in text
    (warning,) = json.loads((tmp_path / "summary.json").read_text())["warnings"]
    assert "regulariser.weight = 5 is no less than the largest slope at 0" in warning


@pytest.mark.parametrize("name", ALGORITHMS)
def test_another_method_is_one_word(name):
    plan = read_experiment(Path(DIGITS), {"algorithm": name, "privacy.mode": "none"})
    config = plan.curves[0].config
    assert config.algorithm == name
    assert ("rho" in settings_of(ALGORITHMS[name])) == (f"{name}.rho" in config.items())
    foreign = next(key for key in ("mu", "alpha", "scale") if key not in settings_of(ALGORITHMS[name]))
    with pytest.raises(
        SettingError, match=f"is a setting of algorithm .*, and this run has algorithm {name}"
    ):
        read_experiment(Path(DIGITS), {"algorithm": name, foreign: 1.0})


def test_every_curve_is_checked_before_the_first_runs(call, tmp_path):
    bad = CURVES + "fedpdm.rho = 9.0\nfedpdm.step-size = 1.0\n"
    status, _, err = call("run", experiment(tmp_path, bad), "--out", tmp_path / "x")
    assert status == 2
    assert "rho * step-size" in err
    assert not list(tmp_path.rglob("summary.json"))


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_a_private_run_ends_with_its_guarantee(call, tmp_path, runtime):
    """In two lines; the sentence in summary.json is that of docs/guarantee.md."""
    out = tmp_path / "run"
    status, text, _ = call("run", DIGITS, "--runtime", runtime, "--set", "rounds=2", "--out", out)
    assert status == 0
    sentence = json.loads((out / "summary.json").read_text())["privacy"]["guarantee"]
    assert (
        "privacy: epsilon 8 at delta 0.0001 for each client over all 2 rounds, under replacement of one of its records "
        "(mu 1.841); simulation: the noise is seeded, not secret\nan attacker who must choose between two candidates "
        "for it is right at most 82.1% of the time (a guess: 50%)\n"
    ) in text
    guide = (ROOT / "docs" / "guarantee.md").read_text()
    quoted = " ".join(guide.split("```text\n")[1].partition("```")[0].split())
    assert sentence == f"{quoted}; simulation: the noise is seeded, not secret"
    status, text, _ = call("run", DIGITS, "--set", "privacy.mode=none", "--set", "rounds=2",
                           "--out", tmp_path / "open")  # fmt: skip
    assert (status, "privacy:" in text) == (0, False)


def test_of_several_seeds_the_guarantee_is_that_of_the_worst(call, tmp_path):
    words = [
        "--set",
        "rounds=8",
        "--set",
        "clients.per-round=3",
        "--set",
        "noise-multiplier=2",
        "--set",
        "epsilon=0",
    ]
    status, text, _ = call("run", DIGITS, "--seeds", "0,1,2", *words, "--out", tmp_path / "run")
    assert status == 0
    told = [json.loads(path.read_text())["privacy"] for path in (tmp_path / "run").rglob("summary.json")]
    assert len({privacy["mu"] for privacy in told}) > 1
    worst = max(told, key=lambda privacy: privacy["mu"])
    assert text.count("privacy: ") == 1
    assert f"privacy: epsilon {worst['epsilon']:.4g} at" in text
    assert f"(mu {worst['mu']:.4g})" in text


def test_privacy_of_several_curves_is_one_table(call, tmp_path):
    text = CURVES.replace("[run]", '[run]\nprivacy.mode = "public-state"\nprivacy.epsilon = 8.0')
    status, told, _ = call("privacy", experiment(tmp_path, text))
    assert status == 0
    assert told.count("┏") == 1
    assert told.count("8 (delta 0.0001)") == told.count("82.1%") == 2
    status, told, _ = call("privacy", DIGITS)
    assert told.count("┏") == 2
    assert "noise multiplier" in told and "right in 82.1% of the cases" in told


def test_a_figure_is_redrawn_for_the_seeds_that_ran(call, tmp_path):
    out = tmp_path / "out"
    words = ["--seeds", "5,6", "--set", "rounds=2"]
    assert call("run", experiment(tmp_path, CURVES), *words, "--out", out)[0] == 0
    picture = (out / "figure.png").read_bytes()
    assert call("figure", out)[0] == 0
    assert (out / "figure.png").read_bytes() == picture
    assert call("run", out / "experiment.toml", "--out", tmp_path / "again")[0] == 0
    models = [
        np.load(folder / "l1-0.1" / "seed-6" / "model.npz")["x"] for folder in (out, tmp_path / "again")
    ]
    np.testing.assert_array_equal(*models)


def test_compare_has_the_optimality_of_runs_that_measured_it(call, compare, tmp_path):
    ridge = """
[run]
algorithm = "isrl-dp"
rounds = 2
[run.data]
name = "linear"
bias = false
[run.objective]
name = "least-squares"
l2 = 0.1
[run.regulariser]
name = "none"
[run.clients]
count = 4
per-round = 2
[run.isrl-dp]
step-size = 0.5
"""
    path = experiment(tmp_path, ridge)
    for name, words in {"known": ["--set", "reference=true", "--seeds", "0,1"], "unknown": []}.items():
        status, text, _ = call("run", path, *words, "--out", tmp_path / name)
        assert (status, "test R^2" in text, "accuracy" in text) == (0, True, False)
        for report in (tmp_path / name).rglob("report.html"):
            html = report.read_text(encoding="utf-8")
            assert "test accuracy" not in html.lower()
            assert "test R^2" in html or "R^2 on the test rows" in html
    assert "test R^2" in compared(tmp_path / "known").headings
    ends = [read_rows(f.parent)[-1]["optimality"] for f in (tmp_path / "known").rglob("summary.json")]
    both = compared(tmp_path / "known", tmp_path / "unknown")
    told = {row[0]: row[both.headings.index("optimality")] for row in both.rows}
    assert len(ends) == 2
    assert told == {
        "known/isrl-dp": f"{np.mean(ends):.2g} +- {np.std(ends, ddof=1):.2g}",
        "unknown": "-",
    }
    status, text, _ = compare(tmp_path / "known")
    assert (status, "optimality" in text) == (0, True)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"data.name": "diabetes"}, "R^2"),
        ({"data.name": "digits"}, "accuracy"),
        ({"data.name": "own", "data.num-features": 3, "data.num-classes": 2}, "accuracy"),
        ({"data.name": "own", "data.num-features": 3, "data.num-classes": 0}, "R^2"),
        ({"data.name": "tables", "data.files": "x.csv", "data.schema": "numbers.toml"}, "R^2"),
        ({"data.name": "tables", "data.files": "x.csv", "data.schema": "classes.toml"}, "accuracy"),
        ({"data.name": "tables", "data.files": "x.csv", "data.schema": "absent.toml"}, "accuracy"),
    ],
    ids=str,
)
def test_the_score_of_a_pytorch_module_follows_from_the_labels(tmp_path, monkeypatch, keys, expected):
    monkeypatch.chdir(tmp_path)
    for name, label in {"numbers": "range = [0, 1]", "classes": "classes = [0, 1]"}.items():
        (tmp_path / f"{name}.toml").write_text(
            f'[label]\ncolumn = "y"\n{label}\n[columns]\na = {{ range = [0, 1] }}\n'
        )
    assert score(parse(keys | {"objective.name": "torch:module.py:net"})) == expected


def test_a_comparison_names_each_score_by_what_it_is():
    kinds = (False, False), (True, False), (True, True)
    runs = [{"regression": one, "survival": other} for one, other in kinds]
    assert [score_heading(kind) for kind in (runs[:1], runs[1:2], runs[2:], runs[:2])] == [
        "test accuracy",
        "test R^2",
        "test C-index",
        "test accuracy or R^2",
    ]


def test_runs_of_the_same_name_are_not_taken_for_seeds(call, compare, tmp_path):
    for name in "ab":
        call("run", DIGITS, "--set", "rounds=1", "--out", tmp_path / name / "digits")
    _, text, _ = compare(tmp_path / "a" / "digits", tmp_path / "b" / "digits")
    assert "a/digits" in text
    assert "b/digits" in text
    assert "+-" not in text
    assert "8 (delta 0.0001; attacker right 82%)" in text


def test_compare_tells_what_was_spent_and_where_nothing_is_guaranteed(call, compare, tmp_path):
    settings = {
        "published": ["privacy.mode=as-published", "noise-multiplier=1"],
        "open": ["privacy.mode=none"],
    }
    settings["published"] += ["epsilon=0", "stopping-tolerance=0.1"]
    for name, keys in settings.items():
        words = [word for key in [*keys, "rounds=1"] for word in ("--set", key)]
        assert call("run", DIGITS, *words, "--out", tmp_path / name)[0] == 0
    _, text, _ = compare(tmp_path / "published", tmp_path / "open")
    assert text.count("no guarantee") == 1


def test_the_last_line_tells_of_replies_that_were_left_out(call, tmp_path, monkeypatch):
    real = InProcessGrid.answer

    def first_is_ill(self, message):
        ill = message.metadata.dst_node_id == 1 and message.metadata.message_type == "train"
        return Message(Error(2, "ill"), reply_to=message) if ill else real(self, message)

    monkeypatch.setattr(InProcessGrid, "answer", first_is_ill)
    _, told, _ = call("run", DIGITS, "--runtime", "inprocess", "--set", "rounds=3", "--out", tmp_path / "run")
    assert "; 3 replies left out; " in told


def test_a_cohort_refuses_ledgers_that_it_would_not_charge(call, tmp_path):
    keep = "output.state-dir=" + str(tmp_path / "ledgers")
    status, _, error = call("run", DIGITS, "--runtime", "cohort", "--set", keep, "--out", tmp_path / "run")
    assert status == 2
    assert (
        "has no effect with runtime cohort, which has no replies, ledgers or masks: leave out --runtime"
        in error
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_the_last_line_names_the_bounds_that_are_not_met(call, tmp_path, runtime):
    """Also those of a run that had ended before it was resumed; the status is 0."""
    path, out = tmp_path / "bounds.toml", tmp_path / "out"
    path.write_text(
        "seeds = [0, 1]\n[run]\nalgorithm = 'ssca-constrained'\nregulariser.name = 'none'\nrounds = 2\n"
        "[[curve]]\nlabel = 'loose'\nssca-constrained.constraints = 'cost <= 9'\n"
        "[[curve]]\nlabel = 'tight'\npanel = 'hard'\nssca-constrained.constraints = 'cost <= 0.01'\n"
    )
    status, said, _ = call("run", path, "--runtime", runtime, "--out", out)
    excess = max(read_rows(out / "hard-tight" / f"seed-{seed}")[-1]["excess"] for seed in (0, 1))
    last = f"bounds NOT met: hard: tight (2 of 2 seeds, by up to {excess:.3g})"
    assert (status, said.splitlines()[-1]) == (0, last)
    (out / "loose" / "seed-0" / "summary.json").unlink()
    assert call("run", "--resume", out)[1].splitlines()[-1] == last
    met = call("run", path, "--set", "constraints=cost <= 9", "--runtime", runtime, "--out", tmp_path / "met")
    assert "NOT met" not in met[1]
    assert met[1].splitlines()[-1].startswith("results: ")


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_the_last_line_is_the_mean_over_all_seeds(call, tmp_path, runtime):
    words = ["--set", "rounds=4", "--runtime", runtime, "--out", tmp_path / "run"]
    status, told, _ = call("run", DIGITS, "--seeds", "0,1,2", *words)
    assert status == 0
    summaries = [json.loads(path.read_text()) for path in (tmp_path / "run").rglob("summary.json")]
    score, entries = ([s[key] for s in summaries] for key in ("test_accuracy", "nonzeros"))
    assert len(set(score)) > 1
    (line,) = (line for line in told.splitlines() if line.startswith("fedpdm on digits"))
    assert line.startswith(
        "fedpdm on digits, 3 seeds, mean +- standard deviation: "
        f"test accuracy {np.mean(score):.4f} +- {np.std(score, ddof=1):.4f} "
        f"(majority class: {summaries[0]['majority_baseline']:.4f}), "
        f"{np.mean(entries):.1f} +- {np.std(entries, ddof=1):.1f} of 650 entries nonzero, "
    )


def test_the_last_line_of_a_resumed_experiment_counts_the_seeds_that_were_there(call, tmp_path):
    out = tmp_path / "run"
    assert call("run", DIGITS, "--seeds", "0,1", "--set", "rounds=2", "--out", out)[0] == 0
    (out / "fedpdm" / "seed-1" / "summary.json").unlink()
    status, told, _ = call("run", "--resume", out)
    assert status == 0
    assert "fedpdm on digits, 2 seeds, mean +- standard deviation: " in told


def test_seeds_are_named_once(call, tmp_path):
    status, _, error = call("run", DIGITS, "--seeds", "0,1", "--set", "seed=3", "--out", tmp_path / "x")
    assert status == 2
    assert error == "error: --seeds 0,1 and --set seed=3 both name seeds: leave one of them out\n"
    assert not (tmp_path / "x").exists()


def test_compare_says_which_algorithm(call, compare, tmp_path):
    for name in ("fedavg", "feddyn"):
        words = ["--set", f"algorithm={name}", "--set", "rounds=1", "--out", tmp_path / name[-3:]]
        assert call("run", DIGITS, *words)[0] == 0
    _, table, _ = compare(tmp_path / "avg", tmp_path / "dyn")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines() if "│" in line]
    assert [row[:2] for row in rows] == [["avg", "fedavg"], ["dyn", "feddyn"]]


def test_a_title_says_what_the_command_line_changed(tmp_path):
    path = experiment(tmp_path, CURVES)
    plan = read_experiment(
        path, {"data.name": "mnist", "rounds": 3, "clients.count": 9, "data.dir": "/x", "seed": 4}
    )
    assert plan.title == "two curves (with data.name = mnist, clients.count = 9)"  # rounds were 3
    assert read_experiment(path).title == "two curves"
    assert (
        read_experiment(path, {"regulariser.weight": 0.1}).title
        == "two curves (with regulariser.weight = 0.1)"
    )
    assert read_experiment(path, {"rounds": 3}, [5]).title == "two curves"


def test_a_private_run_that_ends_above_its_start_says_so(call, tmp_path):
    """At epsilon 2 FedPDM ends at twice its start, at epsilon 8 below it."""
    for epsilon, warned in (("2", True), ("8", False)):
        folder = tmp_path / epsilon
        _, told, _ = call(
            "run", DIGITS, "--set", f"epsilon={epsilon}", "--set", "evaluation.every=30", "--out", folder
        )
        first, last = (row["objective"] for row in read_rows(folder))
        assert (last > first) == warned
        sentence = (
            f"warning: the objective ends above its start ({first:.3g} before round 1, {last:.3g} after 30"
        )
        assert (sentence in told) == warned
        assert [text.startswith(sentence) for text in read_summary(folder)["warnings"]] == [True] * warned


SWEEP = """
[run]
data.name = "breast-cancer"
objective.name = "logistic"
algorithm = "fedavg"
rounds = 2
privacy.mode = "none"
regulariser.name = "l1"
[[curve]]
label = "weak"
regulariser.weight = 1e-4
[[curve]]
label = "strong"
sweep = {weight = [5.0, 6.0, 7.0]}
"""


def test_a_warning_of_several_curves_is_printed_once_with_their_names(call, tmp_path):
    """Also if numbers differ; and the results of each curve have its label."""
    status, told, _ = call("run", experiment(tmp_path, SWEEP), "--out", tmp_path / "run")
    labels = ["weak", *(f"strong, weight = {weight}" for weight in (5.0, 6.0, 7.0))]
    assert status == 0
    assert [line.partition(": fedavg on breast-cancer: ")[0] for line in told.splitlines()[:4]] == labels
    (line,) = (line for line in told.splitlines() if "warning:" in line)
    names = "; ".join(labels[1:])
    assert line.startswith(f"3 of 4 curves ({names}): warning: regulariser.weight = 5 is no less")
    assert line.endswith(f"(in {labels[1]}; the numbers of the others differ)")
    _, told, _ = call("run", experiment(tmp_path, SWEEP), "--curve", labels[1], "--out", tmp_path / "one")
    assert f"{labels[1]}: warning: regulariser.weight = 5 is no less" in told


@pytest.mark.parametrize(
    ("objectives", "private", "warned"),
    [
        ([2.0, 19.9], False, False),
        ([2.0, 20.1], False, True),
        ([2.0, 90.0, 19.9], False, False),  # it came back
        ([2.0, 1.9], True, False),
        ([2.0, 2.1], True, True),
        ([2.0, 2.0], True, False),  # no progress has its own warning
        ([2.0, 9.0, 1.9], True, False),
        ([2.0], True, False),  # no round
        ([math.nan, math.nan], True, False),  # the server has no rows
        ([-2.0, -1.0], True, False),
        ([2.0, math.inf], False, False),
        ([2.0, math.inf], True, False),
        ([], False, False),
    ],
)  # fmt: skip
def test_an_objective_that_rises_is_warned_of(objectives, private, warned):
    rows = [{"round": round_, "objective": value} for round_, value in enumerate(objectives)]
    assert bool(risen(rows, private)) == warned


@pytest.mark.parametrize(
    ("keys", "warns"),
    [
        (["standardise=true"], "standardise"),
        (["data.name=breast-cancer", "objective.name=logistic"], "data breast-cancer"),
        (["data.name=diabetes", "objective.name=huber"], "data diabetes"),
        (["standardise=true", "privacy.mode=none"], ""),
        (["rounds=2"], ""),
    ],
)
def test_scaling_by_all_rows_is_named_beside_a_guarantee(keys, warns):
    (curve,) = read_experiment(Path(DIGITS), dict(map(parse_text, keys))).curves
    told = warnings(prepare(curve.config))
    sentence = f"{warns} divides columns by statistics of all rows, which the guarantee does not cover"
    assert told == ([sentence] if warns else [])


@pytest.mark.parametrize("assignment", ["max-norm=5.0", "void-rounds=2", "min-replies=3"])
def test_what_is_said_of_replies_needs_a_runtime_that_has_them(call, tmp_path, assignment):
    key, value = f"server.{assignment}".split("=")
    words = ["run", DIGITS, "--set", "rounds=1", "--set", assignment, "--out", tmp_path / "run"]
    status, _, error = call(*words, "--runtime", "cohort")
    assert (status, error.split(":")[1]) == (
        2, f" {key} = {value} has no effect with runtime cohort, which has no replies, ledgers or masks",
    )  # fmt: skip
    assert not (tmp_path / "run").exists()
    assert call(*words)[0] == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["runtime"] == "inprocess"


# --- one process in a folder, and a disk that is full ---


@pytest.mark.parametrize("role", ["run", "command"])
def test_a_folder_that_another_run_works_in_is_refused(call, tmp_path, role):
    (tmp_path / "run").mkdir()
    with claimed(tmp_path / "run", role):
        status, _, error = call("run", DIGITS, "--set", "rounds=1", "--out", tmp_path / "run")
        assert status == 2
        assert error == (
            f"error: {tmp_path / 'run'} is in use by another run: wait until it has ended, or choose another folder\n"
        )
        if role == "command":  # Flower's server app takes the other
            assert call("deploy", DIGITS, "--set", "rounds=1", "--out", tmp_path / "run")[2] == error
        assert {path.name for path in (tmp_path / "run").iterdir()} == {f".{role}.lock"}
    assert call("run", DIGITS, "--set", "rounds=1", "--out", tmp_path / "run")[0] == 0
    assert not list((tmp_path / "run").glob(".*.lock"))


def test_a_second_resume_is_refused(call, tmp_path):
    begun = ["--set", "rounds=4", "--set", "clients.count=3", "--set", "checkpoint-every=2"]
    begun += ["--runtime", "inprocess"]
    killed = [sys.executable, "-c", KILLED_AT_2, "run", DIGITS, *begun, "--out", str(tmp_path)]
    assert subprocess.run(killed, cwd=ROOT, capture_output=True).returncode == -9
    with claimed(tmp_path):  # the first of two
        status, _, error = call("run", "--resume", tmp_path)
        assert status == 2
        assert "is in use by another run" in error
        assert not (tmp_path / "summary.json").exists()
    status, told, _ = call("run", "--resume", tmp_path)
    assert status == 0  # nor does the lock of the killed process stand in the way
    assert told.splitlines()[0] == "resumed after round 2"
    assert "seed 0; resumed after round 2" in (tmp_path / "report.html").read_text()


KILLED_AT_2 = """
import os, signal, sys
from twinflower.simulation import cli, listing
from twinflower.simulation.runtimes import inprocess
real = inprocess.InProcessGrid.answer
def answer(self, message):
    config = message.content.config_records.get("fitins.config", {})
    if config.get("round", 0) > 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(self, message)
inprocess.InProcessGrid.answer = answer
cli.main()
"""


def test_a_lock_ends_with_its_process_and_a_file_left_behind_means_nothing(tmp_path):
    code = (
        "import sys, pathlib; from twinflower.simulation.results.folder import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1])):\n    print('mine', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"mine\n"
        assert in_use(tmp_path)
        with pytest.raises(SettingError, match="is in use by another run"), claimed(tmp_path):
            pass
        assert (tmp_path / ".run.lock").exists()  # still the other's
        other.kill()
    assert (tmp_path / ".run.lock").exists()
    assert not in_use(tmp_path)
    with claimed(tmp_path):
        assert in_use(tmp_path)


def test_a_run_without_out_takes_a_folder_that_nobody_works_in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = new_folder("", "digits")
    with claimed(first):
        assert new_folder("", "digits") == tmp_path / "runs" / "digits-2"
    assert new_folder("", "digits") == first


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize(
    "name", ["metrics.csv", "model.npz", "summary.json", "figure.png", "report.html", "runtime"]
)
def test_a_full_disk_names_the_file(call, tmp_path, name):
    (tmp_path / f".{name}.tmp").symlink_to("/dev/full")
    status, _, error = call("run", DIGITS, "--set", "rounds=1", "--out", tmp_path)
    assert status == 1
    assert error == f"error: {tmp_path / name} cannot be written: No space left on device\n"
    assert not (tmp_path / name).exists()


needs_full_disk = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="needs a device that is always full"
)


@needs_full_disk
@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_a_full_disk_at_a_checkpoint_is_no_mistake_of_the_user(call, tmp_path, runtime):
    """And the run goes on from the checkpoint before, once there is room."""
    words = [
        "--set",
        "rounds=4",
        "--set",
        "clients.count=3",
        "--set",
        "checkpoint-every=2",
        "--runtime",
        runtime,
    ]
    full = tmp_path / "run" / "checkpoints" / "round-2.npz.new"
    full.parent.mkdir(parents=True)
    full.symlink_to("/dev/full")
    status, _, error = call("run", DIGITS, *words, "--out", tmp_path / "run")
    assert status == 1
    assert error == f"error: the checkpoint cannot be written to {full.parent}: No space left on device\n"
    assert not (tmp_path / "run" / "summary.json").exists()
    full.unlink()
    assert call("run", "--resume", tmp_path / "run")[0] == 0
    assert call("run", DIGITS, *words, "--out", tmp_path / "whole")[0] == 0
    models = [np.load(tmp_path / name / "model.npz")["x"] for name in ("run", "whole")]
    np.testing.assert_array_equal(*models)


@needs_full_disk
@pytest.mark.parametrize("name", ["figure.png", "metrics.csv"])
def test_a_full_disk_does_not_hide_the_guarantee(call, tmp_path, name):
    (tmp_path / f".{name}.tmp").symlink_to("/dev/full")
    private = ["--set", "privacy.mode=public-state", "--set", "privacy.epsilon=8", "--set", "rounds=1"]
    status, text, error = call("run", DIGITS, *private, "--out", tmp_path)
    assert status == 1
    assert error == f"error: {tmp_path / name} cannot be written: No space left on device\n"
    assert text.count("privacy: epsilon 8 at delta 0.0001 for each client over") == 1
    assert (
        (f"results: {tmp_path}\n" in text) == (tmp_path / "summary.json").exists() == (name == "figure.png")
    )


@needs_full_disk
@pytest.mark.parametrize("name", ["figure.png", "metrics.csv"])
def test_nor_does_it_in_the_server_app(tmp_path, capsys, name):
    (tmp_path / f".{name}.tmp").symlink_to("/dev/full")
    private = {"privacy.mode": "public-state", "privacy.epsilon": 8.0, "output.dir": str(tmp_path)}
    config = parse({"clients.count": 2, "rounds": 1, **private})
    with pytest.raises((DiskError, RunError), match=f"{name} cannot be written: No space left on device"):
        server_app._run(InProcessGrid(prepare(config)), config)
    assert "privacy: epsilon 8 at delta 0.0001 for each client over" in capsys.readouterr().out


@needs_full_disk
def test_a_figure_that_finds_no_room_costs_no_results(call, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".figure.png.tmp").symlink_to("/dev/full")
    status, _, error = call("run", experiment(tmp_path, CURVES), "--out", tmp_path / "out")
    assert status == 1
    assert error.count("figure.png cannot be written: No space left on device") == 1
    assert len(list((tmp_path / "out").rglob("summary.json"))) == 4


def test_an_operating_system_error_without_a_file_is_still_a_sentence(call, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("twinflower.simulation.arguments.read_experiment", fail)
    assert call("run", DIGITS)[::2] == (1, "error: No space left on device\n")


def test_compare_names_a_summary_that_is_none(call, compare, tmp_path):
    assert call("run", DIGITS, "--set", "rounds=1", "--out", tmp_path / "run")[0] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary | {"test_accuracy": "abc"}))
    status, _, told = compare(tmp_path / "run")
    assert status == 2
    assert "summary.json is missing or not the summary of a run" in told


def test_compare_leaves_out_what_has_not_ended_and_counts_no_run_twice(call, compare, tmp_path):
    done, begun = tmp_path / "done", tmp_path / "begun"
    begun.mkdir()
    two = experiment(tmp_path, CURVES.replace("seeds = [0, 1]", "seeds = [3]"))
    assert call("run", two, "--set", "rounds=1", "--out", done)[0] == 0
    folders = [done, begun, done, done / "l1-0.1" / "seed-3", begun]
    table, left_out = compared(*folders), Study.of_folders(folders).left_out
    assert [row[table.headings.index("runs")] for row in table.rows] == ["1", "1"]
    assert left_out == [f"{begun} is left out: no run has ended there"]
    status, text, error = compare(begun, done)
    assert (status, error) == (0, "")
    assert f"{left_out[0]}\nreport: " in text
    assert compare(begun) == (2, "", f"error: {left_out[0]}\n")
    status, _, error = compare(done, tmp_path / "nowhere")
    assert (status, error) == (
        2, f"error: {tmp_path / 'nowhere'} is not a folder: give the folder of a run or an experiment\n",
    )  # fmt: skip


@pytest.mark.parametrize("said", [("--seeds", "1,1"), ()])
def test_a_seed_named_twice_leaves_no_folder_behind(call, tmp_path, said):
    file = experiment(tmp_path, CURVES if said else CURVES.replace("seeds = [0, 1]", "seeds = [1, 1]"))
    status, _, error = call("run", file, *said, "--out", tmp_path / "run")
    assert (status, error) == (2, f"error: {file}: seeds must be distinct; got [1, 1]\n")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_text_is_named_in_plain_words(call, tmp_path):
    file = tmp_path / "figure.toml"
    file.write_bytes(b"\x89PNG\r\n")
    assert call("run", file) == (
        2, "", f"error: cannot read the experiment file {file}: it is not text in UTF-8\n",
    )  # fmt: skip
    edges = tmp_path / "edges"
    networked = ["--set", "algorithm=zcdp-nfl", "--set", f"topology.name=file:{edges}"]
    for content, reason in (
        (b"\xff", "cannot be read as an edge list (it is not text in UTF-8)"),
        (b"0 1\n1 x\n", "cannot be read as an edge list, 'i j' per line (line 2 is '1 x')"),
    ):
        edges.write_bytes(content)
        status, _, error = call("graph", DIGITS, *networked)
        assert (status, error) == (2, f"error: topology: {edges} {reason}\n")


def test_a_mistake_about_the_data_leaves_no_folder_behind(call, tmp_path):
    status, _, told = call(
        "run", ROOT / "experiments/li2024-fig2.toml", "--data-dir", tmp_path, "--out", tmp_path / "run"
    )
    assert status == 2
    assert "no file" in told
    assert not (tmp_path / "run").exists()


def test_the_module_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "twinflower", "run", "nowhere.toml"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read the experiment file nowhere.toml")


def test_own_rows_are_not_looked_for_here(call, tmp_path):
    np.savez(tmp_path / "rows.npz", features=np.ones((4, 2)), labels=np.array([0, 1, 0, 1]))
    text = '[clients]\ncount = 2\n[partition]\nname = "sizes"\nsizes = "3,5"\n[data]\nname = "own"\nnum-features = 2\n'
    (tmp_path / "own.toml").write_text(f'{text}num-classes = 2\nfile = "{tmp_path / "rows.npz"}"\n')
    assert call("privacy", tmp_path / "own.toml")[0] == 0
    for command in ("run", "deploy"):
        status, _, error = call(command, tmp_path / "own.toml", "--out", tmp_path / "out")
        assert status == 2
        assert "at deployed nodes only" in error
    for key in ("data.file", "num-features", "sizes"):
        status, _, error = call("privacy", tmp_path / "own.toml", "--set", f"{key}=")
        assert status == 2


def test_a_graph_is_told_and_drawn(call, tmp_path):
    file = tmp_path / "ring.toml"
    file.write_text(
        'algorithm = "zcdp-nfl"\n[data]\nname = "linear"\n[objective]\nname = "least-squares"\n'
        '[topology]\nname = "ring"\n[clients]\ncount = 12\n'
    )
    status, text, _ = call("graph", file, "--out", tmp_path / "ring.png")
    assert status == 0
    told = dict(line.split("│")[1:3] for line in text.splitlines() if line.count("│") == 3)
    told = {key.strip(): value.strip() for key, value in told.items()}
    assert told["edges"] == "12"
    assert told["diameter"] == "6"
    assert told["connectivity"] == f"{2 - 2 * np.cos(2 * np.pi / 12):.4g}"
    assert (tmp_path / "ring.png").read_bytes().startswith(b"\x89PNG")
    assert call("graph", DIGITS)[0] == 2
    status, _, error = call("graph", file, "--out", tmp_path / "nowhere" / "ring.png")
    assert status == 2
    place = tmp_path / "nowhere" / "ring.png"
    assert error == f"error: the graph cannot be drawn into {place}: No such file or directory\n"


def test_the_ledger_of_a_node_is_told(call, tmp_path):
    folder = tmp_path / "state"
    site = FileLedger(folder / "node-0.ledger", "known data sets, node 0", 10.0, 1e-4)
    for round_ in (1, 2):
        site.charge(Charge("7", round_, 1.0, 2.0, 1, 0.25), Budget(1e9))
    status, out, _ = call("ledger", str(folder))
    assert status == 0
    for words in ("known data sets, node 0", "epsilon 10, delta 0.0001", "node-0.ledger", "2.533", "9.327"):
        assert words in out, out


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "is not a folder"),
        (lambda path: path.mkdir(), "holds no ledger"),
        (lambda path: (path.mkdir(), (path / "a.ledger").write_text("x\n")), "is damaged"),
        (lambda path: (path.mkdir(), (path / "a.ledger").mkdir()), "cannot be opened"),
    ],
)
def test_a_folder_without_a_good_ledger_is_one_sentence(call, tmp_path, make, sentence):
    make(tmp_path / "state")
    status, out, err = call("ledger", str(tmp_path / "state"))
    assert status == 2
    assert out == "" and sentence in err and err.count("\n") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("table-one", "nothere"), "no run folder at 'nothere'"),
        (("report", "nothere"), "nothere is not a folder with results: give the folder of a run or an experiment"),
        (("figure", "nothere"), "nothere is not a folder with results: give the folder of a run or an experiment"),
        (("check-node", "site-a"), "takes KEY=VALUE pairs or the path of a TOML file; got 'site-a'"),
        (("graph", "experiments/digits.toml"), "choose one, such as --set algorithm=zcdp-nfl"),
        (("schema", "examples/hospitals/sites/cleveland.csv", "--label", "zz"), "; the columns are age, "),
    ],
)  # fmt: skip
def test_a_slip_of_the_fingers_gets_the_value_and_a_remedy(call, words, sentence):
    status, _, error = call(*words)
    assert status == 2
    assert sentence in error
