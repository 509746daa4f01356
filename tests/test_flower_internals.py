"""The parts of Flower that it does not document: only `flower_internals` touches them, and they are as it expects."""

import ast
import inspect
import logging
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import flwr
import pytest
from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.logger import ConsoleHandler
from flwr.supercore.run import Run
from flwr.supercore.superexec import run_superexec
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr.supernode import start_client_internal
from flwr.supernode.runtime import run_clientapp
from packaging.version import Version
from problems import small

from twinflower.simulation.runtimes import flower_internals, inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.strategies.nodes import short

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("twinflower", "strategies", "clients", "simulation", "examples", "benchmarks")
PRIVATE = "simulation/runtimes/flower_internals.py"
PUBLIC = {  # the pages of Flower's API reference
    "flwr.app", "flwr.client", "flwr.client.mod", "flwr.clientapp", "flwr.clientapp.mod", "flwr.common", "flwr.server",
    "flwr.server.strategy", "flwr.server.workflow", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.simulation",
}  # fmt: skip


def is_flower(module):
    return (module or "").partition(".")[0] == "flwr"


def imported(path):
    """The names that a file imports from Flower, as (module, name)."""
    for statement in ast.walk(ast.parse(path.read_text())):
        if isinstance(statement, ast.ImportFrom) and is_flower(statement.module) and not statement.level:
            yield from ((statement.module, alias.name) for alias in statement.names)
        if isinstance(statement, ast.Import):
            yield from ((alias.name, "") for alias in statement.names if is_flower(alias.name))


def documented(module, name):
    return module in PUBLIC and name in import_module(module).__all__


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        ("from flwr.app import Message", True),
        ("from flwr.common import log", True),
        ("from flwr.common.logger import log", False),
        ("from flwr.supercore.run import Run", False),
        ("from flwr.app import message_type", False),
        ("import flwr.cli.app", False),
    ],
)
def test_documented_are_the_names_that_public_modules_export(tmp_path, line, fine):
    (tmp_path / "module.py").write_text(line)
    assert [documented(*name) for name in imported(tmp_path / "module.py")] == [fine]


def test_only_one_module_imports_what_flower_does_not_document():
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {str(path.relative_to(ROOT)): set(imported(path)) for path in files}
    private = {name: [n for n in names if not documented(*n)] for name, names in found.items()}
    assert {name for name, names in private.items() if names} == {PRIVATE}
    assert sum(map(bool, found.values())) > 20


def test_the_private_imports_are_these():
    """Each has a test below."""
    names = {name for name in imported(ROOT / PRIVATE) if not documented(*name)}
    assert names == {
        ("flwr.supercore.run", "Run"),
        ("flwr.supercore.task_identity", "TaskIdentity"),
    }


def test_the_version_is_one_that_we_know():
    assert Version("1.41") <= Version(flwr.__version__) < Version("2")


def parameters(function):
    return list(inspect.signature(function).parameters)


def test_an_identity_is_what_a_message_needs(monkeypatch):
    assert {name for name, part in vars(type(TaskIdentity)).items() if isinstance(part, property)} == {
        "task_id", "run_id", "node_id",
    }  # fmt: skip
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, None)
    with pytest.raises(RuntimeError, match="is not set"):
        Message(RecordDict(), 1, "train")
    run = flower_internals.begin_run(7)
    assert run.run_id == 7
    assert Message(RecordDict(), 1, "train").metadata.run_id == 7
    assert (TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id) == (7, 0, 1)


def test_a_run_is_described_by_its_number():
    assert parameters(Run.create_empty) == ["run_id"]
    assert "run_id" in {field.name for field in fields(Run)}


def test_the_id_of_a_message_is_an_entry_of_its_metadata():
    flower_internals.begin_run(1)
    message = Message(RecordDict(), 1, "train")
    assert "_message_id" in vars(message.metadata)
    assert isinstance(Metadata.message_id, property) and Metadata.message_id.fset is None
    assert flower_internals.number(message, 7) == message.metadata.message_id == "7"
    reply = Message(Error(1, "no"), reply_to=message)
    assert reply.metadata.reply_to_message_id == "7"


def test_only_the_grid_of_a_simulation_has_a_state():
    class Factory:
        def state(self):
            return object()

    assert flower_internals.is_simulated(InMemoryGrid(Factory()))
    assert not flower_internals.is_simulated(InProcessGrid(small("fedpdm")))
    grids = {kind for kind in Grid.__subclasses__() if kind.__module__.startswith("flwr.")}
    others = grids - {InMemoryGrid}
    assert others, "Flower's grid of a deployment is another class"
    assert not [kind for kind in others if "self.state " in inspect.getsource(kind)]


def test_the_command_line_is_a_function_of_no_arguments(monkeypatch, capsys):
    command = flower_internals.command_line()
    monkeypatch.setattr(sys, "argv", ["flwr", "--help"])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 0
    assert "flwr" in capsys.readouterr().out


def line_of(level, text, **how):
    """What Flower's handler writes to a log."""
    return ConsoleHandler(**how).format(logging.LogRecord("flwr", level, "", 1, text, (), None))


@pytest.mark.parametrize("colored", [True, False])
def test_warnings_are_recognised_in_a_log(colored):
    for level in (logging.WARNING, logging.ERROR):
        assert flower_internals.news(line_of(level, "it is late", colored=colored)) == "it is late"
    for level in (logging.DEBUG, logging.INFO):
        assert flower_internals.news(line_of(level, "it is late", colored=colored)) == ""


def test_a_connected_node_says_so():
    assert 'log(INFO, "SuperNode ID: %s", node_id)' in inspect.getsource(start_client_internal)
    assert flower_internals.news(line_of(logging.INFO, "SuperNode ID: 123")) == "connected"


def test_nodes_are_made_quick_by_this_variable():
    assert {run_superexec._TASK_POLL_INTERVAL_ENV: "0.25"} == flower_internals.QUICK_NODES


def test_an_error_in_process_has_the_code_of_flower():
    class Broken(InProcessGrid):
        def client(self, node):
            raise ZeroDivisionError("no")

    grid = Broken(small("fedpdm"))
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1, "train")])
    assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == "ZeroDivisionError: no"


def test_the_reason_of_a_node_is_read_as_flower_writes_it():
    """strategies/nodes.py shortens it."""
    line = """reason = str(type(ex)) + ":<'" + str(ex) + "'>\""""
    assert line in inspect.getsource(run_clientapp)
    error = ValueError("no such row")
    assert short(str(type(error)) + ":<'" + str(error) + "'>") == "ValueError: no such row"


def test_a_run_passes_through_flowers_client_app():
    result = inprocess.train(small("fedpdm", rounds=1))
    assert result.failure == ""
    assert isinstance(InProcessGrid(small("fedpdm")).context(1), Context)
