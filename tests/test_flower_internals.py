"""The parts of Flower that it does not document: only `flower_internals` touches them, and they are as it expects."""

import ast
import inspect
import io
import logging
import re
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import flwr
import pytest
from flwr.app import Context, Error, Message, MessageType, Metadata, RecordDict
from flwr.common import (
    Code,
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    GetPropertiesIns,
    GetPropertiesRes,
    Parameters,
    Status,
    log,
)
from flwr.common.constant import ErrorCode, MessageTypeLegacy
from flwr.common.logger import ConsoleHandler
from flwr.compat.common import recorddict_compat
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.superexec import run_superexec
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.inmemory_grid import InMemoryGrid
from flwr.supernode.runtime import run_clientapp
from packaging.version import Version
from problems import small

from twinflower.flower_messages import (
    EVALUATE,
    FIT,
    GONE,
    KINDS,
    NO_ARRAYS,
    PROPERTIES,
    RAISED,
    readable,
    reply_record,
    request_record,
)
from twinflower.simulation.runtimes import flower_internals, inprocess, progress
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
    """Each has a test below, or in test_allowed_apps.py."""
    names = {name for name in imported(ROOT / PRIVATE) if not documented(*name)}
    assert names == {
        ("flwr.cli.build", "build_fab_from_disk"),
        ("flwr.cli.config_utils", "get_fab_metadata"),
        ("flwr.common.config", "parse_config_args"),
        ("flwr.common.constant", "APP_DIR"),
        ("flwr.common.constant", "FAB_HASH_TRUNCATION"),
        ("flwr.common.logger", "update_console_handler"),
        ("flwr.supercore.run", "Run"),
        ("flwr.supercore.task_identity", "TaskIdentity"),
        ("flwr.supercore.utils", "get_flwr_home"),
        ("flwr.supernode.cli.flower_supernode", "_parse_args_run_supernode"),
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


def test_a_dated_log_has_the_time_in_every_line(monkeypatch):
    stream = io.StringIO()
    handler = ConsoleHandler(colored=False, stream=stream)
    monkeypatch.setattr(logging.getLogger("flwr"), "handlers", [handler])
    flower_internals.date_log()
    log(logging.WARNING, "a node is late")
    assert re.fullmatch(r"WARNING \d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}: +a node is late\n", stream.getvalue())


def test_a_node_config_is_read_as_flowers_command_reads_it(tmp_path):
    words = "partition-id=0 lifetime-epsilon=1.5 data-file='a b.csv' allow-non-private=true"
    read = {"partition-id": 0, "lifetime-epsilon": 1.5, "data-file": "a b.csv", "allow-non-private": True}
    assert flower_internals.node_config(words) == read
    (tmp_path / "node.toml").write_text('partition-id = 0\ndata-file = "a b.csv"\n')
    assert flower_internals.node_config(str(tmp_path / "node.toml")) == {
        "partition-id": 0,
        "data-file": "a b.csv",
    }


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


@pytest.mark.parametrize("name", ["flwr", "flower-supernode"])
def test_a_command_is_a_function_of_no_arguments(name, monkeypatch, capsys):
    command = flower_internals.command(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 0
    assert name in capsys.readouterr().out


def test_what_flower_logs_goes_to_this_logger():
    """simulation/runtimes/progress.py reports its warnings."""
    assert flwr.common.log.__self__ is logging.getLogger("flwr") is progress._LOGGER


def test_nodes_are_made_quick_by_this_variable():
    assert {run_superexec._TASK_POLL_INTERVAL_ENV: "0.25"} == flower_internals.QUICK_NODES


def test_an_error_in_process_has_the_code_of_flower():
    class Broken(InProcessGrid):
        def client(self, node):
            raise ZeroDivisionError("no")

    grid = Broken(small("fedpdm"))
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1, "train")])
    assert reply.error.code == RAISED == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert reply.error.reason == "ZeroDivisionError: no"
    assert GONE == ErrorCode.NODE_UNAVAILABLE


def test_the_reason_of_a_node_is_read_as_flower_writes_it():
    """strategies/messages.py shows it."""
    line = """reason = str(type(ex)) + ":<'" + str(ex) + "'>\""""
    assert line in inspect.getsource(run_clientapp)
    error = ValueError("no such row")
    reason = str(type(error)) + ":<'" + str(error) + "'>"
    assert readable(reason) == short(reason) == "ValueError: no such row"
    assert readable(reason[:-6]) == "ValueError: no such"  # cut off
    assert readable("no such row") == "no such row"


STATUS = Status(Code.OK, "Success")
ARRAYS = Parameters([b"x"], "numpy.ndarray")
MADE_BY_FLOWER = [
    (FIT, recorddict_compat.fitins_to_recorddict(FitIns(ARRAYS, {"a": 1}), True), request_record),
    (FIT, recorddict_compat.fitres_to_recorddict(FitRes(STATUS, ARRAYS, 1, {"a": 1}), True), reply_record),
    (
        EVALUATE,
        recorddict_compat.evaluateins_to_recorddict(EvaluateIns(ARRAYS, {"a": 1}), True),
        request_record,
    ),
    (
        EVALUATE,
        recorddict_compat.evaluateres_to_recorddict(EvaluateRes(STATUS, 1.0, 1, {"a": 1})),
        reply_record,
    ),
    (
        PROPERTIES,
        recorddict_compat.getpropertiesins_to_recorddict(GetPropertiesIns({"a": 1})),
        request_record,
    ),
    (
        PROPERTIES,
        recorddict_compat.getpropertiesres_to_recorddict(GetPropertiesRes(STATUS, {"a": 1})),
        reply_record,
    ),
]


@pytest.mark.parametrize(("kind", "made", "name"), MADE_BY_FLOWER)
def test_the_records_of_a_message_have_the_names_that_flower_gives_them(kind, made, name):
    """The parts are the ones that the docstrings list, and ours make the same content."""
    assert "config" in inspect.getdoc(request_record)
    parts = {record.partition(".")[2] for record in made}
    assert set(made) == {name(kind, part) for part in parts}
    for part in parts:
        assert re.search(rf"\b{part}\b", inspect.getdoc(name)), part


def test_the_types_of_messages_are_those_of_flower():
    assert {"train", "evaluate", "get_properties"} == set(KINDS)
    assert (MessageType.TRAIN, MessageType.EVALUATE) == ("train", "evaluate")
    assert MessageTypeLegacy.GET_PROPERTIES == "get_properties"


def test_a_record_without_arrays_holds_this_placeholder():
    assert recorddict_compat.EMPTY_TENSOR_KEY == NO_ARRAYS
    empty = recorddict_compat.fitins_to_recorddict(FitIns(Parameters([], ""), {}), True)
    assert list(empty[request_record(FIT, "parameters")]) == [NO_ARRAYS]


def test_only_one_module_knows_the_names_of_records():
    pattern = re.compile(r"^(fit|evaluate|getproperties)(ins|res)\b|^_empty$")
    named = {
        str(path.relative_to(ROOT))
        for folder in ("twinflower", "strategies", "clients", "simulation")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for part in ast.walk(ast.parse(path.read_text()))
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and pattern.match(part.value)
    }
    assert named == {"twinflower/flower_messages.py"}


def test_a_run_passes_through_flowers_client_app():
    result = inprocess.train(small("fedpdm", rounds=1))
    assert result.failure == ""
    assert isinstance(InProcessGrid(small("fedpdm")).context(1), Context)
