"""No command overwrites a file that it has read or has not written itself, unless it is given --force."""

import inspect
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from twinflower.errors import SettingError
from twinflower.simulation.cli import app
from twinflower.simulation.report.openmetrics import _text
from twinflower.simulation.results.files import require_free
from twinflower.simulation.results.folder import new_folder
from twinflower.simulation.runs.division import _dataset
from twinflower.simulation.runs.setup import prepare

SCHEMA = '[label]\ncolumn = "ill"\nclasses = ["no", "yes"]\n[columns]\nage = { range = [20, 90] }\n'
TABLE = "age,ill\n" + "".join(f"{age},{'yes' if age % 3 else 'no'}\n" for age in range(20, 60))
RUN = """[run]
algorithm = "fedavg"
rounds = 2
data.name = "tables"
data.files = "a.csv"
data.schema = "s.toml"
data.row-scaling = "all"
clients.count = 2
objective.name = "logistic"
regulariser.name = "none"
"""
# What every command writes, with arguments without which it does not begin
FILES = {
    ("tune", "out"): ["run.toml"],
    ("privacy", "out"): ["run.toml", "--statement"],
    ("graph", "out"): ["run.toml"],
    ("predict", "out"): ["r", "a.csv"],
    ("coefficients", "out"): ["r"],
    ("compare", "out"): ["r"],
    ("schema", "out"): ["a.csv"],
    ("ledger", "openmetrics"): ["ledgers"],
}
FOLDERS = {(name, "out") for name in ("run", "deploy", "path", "refit", "audit")}
KEYS = {("identity", "file")}  # never overwritten
READ = {  # files and folders, some of which get a report of their own
    "experiment", "resume", "folder", "model", "against", "rows", "folders", "files", "check", "ledger", "run_config",
    "data_dir", "allowed", "join",
}  # fmt: skip
COMMANDS = get_command(app).commands


def invoke(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def paths():
    """Every parameter of a command that is a path or goes by a name of one."""
    for name, command in COMMANDS.items():
        hints = inspect.signature(command.callback).parameters
        for param in command.params:
            hint = str(hints[param.name].annotation) if param.name in hints else ""
            if "Path" in hint or param.name in ("out", "file", "folder", "data_dir"):
                yield name, param.name


def test_every_path_of_every_command_is_known_as_read_or_written():
    known = {*FILES, *FOLDERS, *KEYS}
    assert known <= set(paths())
    assert [own for own in paths() if own not in known and own[1] not in READ] == []


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in {"a.csv": TABLE, "s.toml": SCHEMA, "run.toml": RUN}.items():
        Path(name).write_text(text)
    for known in (prepare, _dataset):  # by settings, which name files relative to the folder
        known.cache_clear()
    yield tmp_path
    for known in (prepare, _dataset):
        known.cache_clear()


@pytest.mark.parametrize(("command", "option"), FILES)
def test_no_command_overwrites_a_file_without_force(here, command, option):
    file, words = here / "mine", [command, *FILES[command, option], f"--{option}", "mine"]
    file.write_text("precious")
    refused = invoke(*words)
    assert isinstance(refused.exception, SettingError) and "mine is there already" in str(refused.exception)
    assert file.read_text() == "precious"
    assert "is there already" not in str(invoke(*words, "--force").exception)


@pytest.mark.parametrize("name", ["audit.json", "audit.html"])
def test_an_audit_overwrites_no_file_of_others(here, name):
    (here / name).write_text("precious")
    assert "is there already" in str(invoke("audit", "cases.py", "--out", here).exception)
    assert (here / name).read_text() == "precious"


@pytest.fixture
def trained(here):
    assert invoke("run", "run.toml", "--out", "r").exit_code == 0
    return here


@pytest.mark.parametrize(
    ("words", "over"),
    [(["predict", "r", "a.csv"], "a.csv"), (["predict", "r", "a.csv", "--evaluate"], "a.csv"),
     (["coefficients", "r"], "s.toml"), (["privacy", "r", "--statement"], "r/config.toml"),
     (["predict", "r", "a.csv"], "r/model.npz")],
)  # fmt: skip
def test_inputs_survive_but_with_force(trained, words, over):
    before = Path(over).read_bytes()
    assert "is there already" in str(invoke(*words, "--out", over).exception)
    assert Path(over).read_bytes() == before
    assert invoke(*words, "--out", over, "--force").exit_code == 0
    assert Path(over).read_bytes() != before


def test_a_link_to_an_input_is_the_input(trained):
    Path("link.csv").symlink_to("a.csv")
    assert "is there already" in str(invoke("predict", "r", "a.csv", "--out", "link.csv").exception)
    assert Path("a.csv").read_text() == TABLE


def test_our_own_report_and_an_empty_file_are_written_again(trained):
    for _ in range(2):
        assert invoke("compare", "r").exit_code == 0
    Path("new.csv").touch()
    assert invoke("predict", "r", "a.csv", "--out", "new.csv").exit_code == 0
    require_free(Path("/dev/null"))


def test_metrics_are_written_again(here):
    pytest.importorskip("prometheus_client")
    Path("m.prom").write_text(
        _text("twinflower_ledger", [({"ledger": "a"}, [("runs", "runs that were charged", 1.0)])])
    )
    require_free(Path("m.prom"))


@pytest.mark.parametrize("name", ["config.toml", "report.html", "figure.png"])
def test_a_run_overwrites_no_file_of_others_in_its_folder(here, name):
    (here / name).write_text("precious")
    with pytest.raises(SettingError, match=f"has a file {name}, which a run would overwrite"):
        new_folder(str(here), "title")


def test_an_experiment_in_a_file_config_toml_is_not_overwritten(here):
    Path("run.toml").rename("config.toml")
    assert "config.toml" in str(invoke("run", "config.toml", "--out", ".").exception)
    assert Path("config.toml").read_text() == RUN
