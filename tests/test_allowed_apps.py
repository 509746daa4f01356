"""A SuperNode runs only the apps that its administrator allowed: in Flower's own steps, and on real processes."""

import hashlib
import os
import subprocess
import sys
from importlib import import_module
from socket import socket

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode.nodestate import NodeStateFactory

from twinflower.errors import DataError, SettingError
from twinflower.simulation.app.allowed_apps import allow, read_allowed, refusal, run_node
from twinflower.simulation.app.node_check import allowed_apps
from twinflower.simulation.runtimes import flower_internals
from twinflower.simulation.runtimes.flower import CONNECTION, command_of
from twinflower.simulation.runtimes.flower_internals import build_bundle, restrict_bundles
from twinflower.simulation.runtimes.processes import free_ports
from twinflower.simulation.runtimes.rehearsal import deployment

FLOWER = import_module("flwr.supernode.start_client_internal")
PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "counter"
version = "1.0.0"
description = "Counts what it is asked"
license = "Apache-2.0"
dependencies = ["flwr>=1.41.0", "numpy"]
[tool.flwr.app]
publisher = "hospitals"
[tool.flwr.app.components]
serverapp = "counter.server:app"
clientapp = "counter.client:app"
[tool.flwr.app.config]
rounds = 1
"""
SERVER = '''
"""Asks every node once and prints what it replies."""
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    while not (nodes := list(grid.get_node_ids())):
        time.sleep(0.2)
    asked = [Message(RecordDict({"config": ConfigRecord({})}), node, "query") for node in nodes]
    for reply in grid.send_and_receive(asked, timeout=120):
        print("REPLY", reply.error.code if reply.has_error() else "ran", flush=True)
        print("WHY", reply.error.reason if reply.has_error() else "", flush=True)
'''
CLIENT = '''
"""Says that it was imported."""
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.app import ConfigRecord, Message, RecordDict
Path("MARKS", "imported").touch()
app = ClientApp()

@app.query()
def query(message, context):
    return Message(RecordDict({"config": ConfigRecord({})}), reply_to=message)
'''
MARK = 'from pathlib import Path\nPath("MARKS", "{}").touch()\n'


def write_app(folder, marks):
    """The app, whose client leaves a file in `marks` when it is imported."""
    (folder / "counter").mkdir(parents=True)
    files = {"pyproject.toml": PROJECT, "README.md": "# Counter\n", "counter/__init__.py": '"""Counter."""\n'}
    files |= {"counter/server.py": SERVER, "counter/client.py": CLIENT.replace("MARKS", str(marks))}
    files |= {"counter/settings.json": "{}\n", "counter/extra.py": "X = 1\n"}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def put(name, text):
    """An alteration: a file more, or another one; MARKS in it is the folder of marks."""
    return lambda app, marks: (app / name).write_text(text.replace("MARKS", str(marks)))


def replaced(name, old, new):
    """An alteration of a file: new in place of old."""

    def alter(app, marks):
        text = (app / name).read_text()
        assert old in text
        (app / name).write_text(text.replace(old, new), newline="")

    return alter


def shadow(name):
    """A module that Python finds before the installed one."""

    def alter(app, marks):
        (app / name).parent.mkdir(exist_ok=True)
        (app / name).write_text(MARK.replace("MARKS", str(marks)).format("shadow"))

    return alter


ALTERED = {
    "one byte of the client": replaced("counter/client.py", "imported.", "imported!"),
    "one byte of the server": replaced("counter/server.py", "once and", "once, and"),
    "one byte of a page": replaced("README.md", "Counter", "counter"),
    "line ends": replaced("counter/client.py", "\n", "\r\n"),
    "another publisher": replaced("pyproject.toml", '"hospitals"', '"hospital"'),
    "another version": replaced("pyproject.toml", "1.0.0", "1.0.1"),
    "another name": replaced("pyproject.toml", 'name = "counter"', 'name = "counters"'),
    "another description": replaced("pyproject.toml", "Counts what", "Counts"),
    "a dependency more": replaced("pyproject.toml", '"numpy"', '"numpy", "requests"'),
    "a dependency less": replaced("pyproject.toml", ', "numpy"', ""),
    "another version of a dependency": replaced("pyproject.toml", '"numpy"', '"numpy<3"'),
    "another default": replaced("pyproject.toml", "rounds = 1", "rounds = 2"),
    "another client": replaced("pyproject.toml", "counter.client:app", "counter.server:app"),
    "sitecustomize": shadow("sitecustomize.py"),
    "usercustomize": shadow("usercustomize.py"),
    "a shadow of numpy": shadow("numpy.py"),
    "a shadow of twinflower": shadow("twinflower/__init__.py"),
    "a module more": put("counter/more.py", "X = 2\n"),
    "a module less": lambda app, marks: (app / "counter" / "extra.py").unlink(),
    "other data": put("counter/settings.json", '{"a": 1}\n'),
}  # fmt: skip


@pytest.fixture
def app(tmp_path):
    (tmp_path / "marks").mkdir()
    return write_app(tmp_path / "app", tmp_path / "marks")


# ------------------------------------------------------------------------------------- the list


def test_an_app_is_allowed_by_the_hash_of_its_bundle(app, tmp_path):
    """A folder and a bundle of it are the same; a second time changes nothing."""
    file, bundle = tmp_path / "list" / "allowed", build_bundle(app)
    (tmp_path / "app.fab").write_bytes(bundle)
    line = allow(app, file)
    assert line == f"{hashlib.sha256(bundle).hexdigest()}  hospitals/counter 1.0.0"
    assert allow(tmp_path / "app.fab", file) == line
    assert file.read_text() == f"{line}\n"
    assert allowed_apps(file) == f"apps: {file} allows hospitals/counter 1.0.0 ({line[:8]})"
    assert not refusal(bundle, file)


@pytest.mark.parametrize("alter", ALTERED.values(), ids=ALTERED)
def test_every_alteration_makes_another_bundle_which_is_refused(app, tmp_path, alter):
    allow(app, tmp_path / "allowed")
    alter(app, tmp_path / "marks")
    bundle = build_bundle(app)
    sentence = refusal(bundle, tmp_path / "allowed")
    assert sentence.startswith("this node runs only apps that its administrator has allowed; the bundle ")
    assert hashlib.sha256(bundle).hexdigest() in sentence


@pytest.mark.parametrize("text", ["", "# none\n", "abc  an app\n", "\x00\xff"])
def test_without_a_list_that_can_be_read_every_bundle_is_refused(app, tmp_path, text):
    (tmp_path / "allowed").write_bytes(text.encode("latin-1"))
    for file in (tmp_path / "allowed", tmp_path / "missing", tmp_path):
        assert refusal(build_bundle(app), file)
        with pytest.raises(DataError):
            allowed_apps(file)
        with pytest.raises((DataError, SettingError)):
            run_node(["--insecure"], file)


@pytest.mark.parametrize("name", ["missing", "marks", "app/README.md"])
def test_what_is_no_app_is_not_allowed(app, tmp_path, name):
    with pytest.raises(SettingError, match="is no Flower app and no bundle of one"):
        allow(tmp_path / name, tmp_path / "allowed")
    assert not read_allowed(tmp_path / "allowed")


@pytest.mark.parametrize(
    "option", ["--allow-runtime-dependency-installation", "--allow", "--trusted-entities=x.yaml"]
)
def test_a_node_lets_no_other_code_in(app, tmp_path, option):
    allow(app, tmp_path / "allowed")
    with pytest.raises(SettingError, match=f"leave out {option.partition('=')[0]}"):
        run_node(["--insecure", option], tmp_path / "allowed")


def test_a_port_in_use_is_named(app, tmp_path):
    """The node of Flower tries it in a thread, whose error would be a traceback."""
    allow(app, tmp_path / "allowed")
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["node", "--insecure", "--superlink", "127.0.0.1:1", "--port", str(port)]
        words += ["--allowed", str(tmp_path / "allowed")]
        done = subprocess.run(
            [sys.executable, "-m", "twinflower", *words], capture_output=True, text=True, timeout=120,
            env=os.environ | {"FLWR_HOME": str(tmp_path / "home")},
        )  # fmt: skip
    assert done.returncode == 2 and f"cannot use the port {port}" in done.stderr
    assert "Traceback" not in done.stderr


# ------------------------------------------------------------------------------------- Flower's own steps


class Node:
    """The steps of Flower's SuperNode with messages of run 7; fab: the bundle that the SuperLink sends."""

    def __init__(self, fab):
        flower_internals.begin_run(7)
        factory = ObjectStoreFactory()
        self.state, self.store, self.fab = NodeStateFactory(factory).state(), factory.store(), fab
        self.state.set_node_id(3)

    def confirm(self, run_id, message_id):
        """What the SuperLink does when the node has received a message."""

    def pull(self, number=1):
        message = Message(RecordDict({"config": ConfigRecord({"number": number})}), 3, "query")
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {id_: own.deflate() for id_, own in get_all_nested_objects(message).items()}
        run = Run.create_empty(7)
        run.fab_hash, run.fab_id, run.fab_version = self.fab.hash_str, "hospitals/counter", "1.0.0"
        self.asked = message.metadata.message_id
        return FLOWER._pull_and_store_message(
            state=self.state, object_store=self.store, node_config={}, trusted_entities=None,
            receive=lambda: (message, get_object_tree(message)), get_run=lambda run_id: run,
            get_fab=lambda hash_, run_id: self.fab, pull_object=lambda run_id, id_: objects[id_],
            confirm_message_received=self.confirm,
        )  # fmt: skip

    def compute(self):
        """What the process of the client does: it takes a task and a message, replies, and ends."""
        task = self.state.get_tasks(statuses=["pending"])[0]
        assert self.state.claim_task(task.task_id) and self.state.activate_task(task.task_id)
        (message,) = self.state.get_messages_legacy(run_ids=[task.run_id], is_reply=False, limit=1)
        self.state.record_message_processing_start(message_id=message.metadata.message_id)
        tree = self.store.get_object_tree(message.metadata.message_id)
        objects = {t.object_id: self.store.get(t.object_id) for t in iterate_object_tree(tree)}
        message = inflate_object_from_contents(tree.object_id, objects)
        message.metadata.__dict__["_message_id"] = tree.object_id
        self.store.delete(tree.object_id)
        self.state.record_message_processing_end(message_id=tree.object_id)
        FLOWER._insert_message(Message(message.content, reply_to=message), self.state, self.store)
        self.state.finish_task(task.task_id, sub_status="completed", details="")

    def push(self):
        """What the SuperLink receives: (the id of the message that it replies to, the number in it)."""
        sent = []

        def send(reply, tree, seconds):
            sent.append((reply.metadata.reply_to_message_id, reply.content["config"]["number"]))
            return set(), ""

        FLOWER._push_messages(self.state, self.store, send, lambda *_: None)
        return sent

    def errors(self):
        return [reply.error for reply in self.state.get_messages_legacy(is_reply=True) if reply.has_error()]


@pytest.fixture
def restricted(monkeypatch):
    """Restrict the SuperNode of this process for the time of a test; the argument refuses bundles."""
    for name in ("_pull_and_store_message", "_verify_fab", "FAB_VERIFICATION_ERROR"):
        monkeypatch.setattr(FLOWER, name, getattr(FLOWER, name))
    return restrict_bundles


def fab_of(app):
    bundle = build_bundle(app)
    return Fab(hashlib.sha256(bundle).hexdigest(), bundle, {})


def test_flower_stores_an_allowed_bundle_and_makes_a_task_and_answers_for_another(app, restricted):
    fab = fab_of(app)
    restricted(lambda bundle: "" if bundle == fab.content else "not this one")
    node = Node(fab)
    assert node.pull() == 7
    assert node.state.get_fab(fab.hash_str).content == fab.content
    assert len(node.state.get_tasks()) == 1 and not node.errors()
    other = Node(Fab("0" * 64, fab.content + b" ", {"valid_license": "allowed"}))
    for _ in range(2):  # the refused run is asked about again
        assert other.pull() == 7
    assert not other.state.get_run(7) and not other.state.get_tasks()
    assert {(error.code, error.reason) for error in other.errors()} == {(7, "not this one")}


@pytest.mark.parametrize("quick", [False, True], ids=["not begun", "replied"])
def test_a_message_of_a_run_that_ends_meanwhile_does_not_shift_the_replies(app, restricted, quick):
    """Flower keeps it, and from then on sends for every message the reply to the one before."""
    fab = fab_of(app)
    restricted(lambda bundle: "")
    node = Node(fab)

    def stopped(run_id, message_id):
        if quick:  # the SuperLink was away for so long that the client has replied before
            node.compute()
        raise RunNotRunningException

    node.confirm, confirm = stopped, node.confirm
    assert node.pull(number=1) is None
    assert not node.state.msg_store and not node.store.store
    assert not node.state.get_tasks(statuses=["pending", "starting", "running"])
    node.confirm = confirm
    for number in (2, 3):
        assert node.pull(number) == 7
        node.compute()
        assert node.push() == [(node.asked, number)]


def test_a_folder_that_another_bundle_left_is_not_taken_for_the_allowed_one(
    app, restricted, tmp_path, monkeypatch
):
    """Flower unpacks nothing over a folder with the name and 8 digits of the hash, whatever is in it."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    fab = fab_of(app)
    left = [
        tmp_path / "home" / "apps" / f"{name}.{fab.hash_str[:8]}"
        for name in ("hospitals.counter.1.0.0", "a.b.2")
    ]
    others = tmp_path / "home" / "apps" / "hospitals.counter.1.0.0.00000000"
    for folder in (*left, others):
        (folder / "counter").mkdir(parents=True)
    restricted(lambda bundle: "")
    Node(fab).pull()
    assert others.exists() and not any(folder.exists() for folder in left)


def test_another_version_of_flower_is_not_trusted_to_refuse(monkeypatch, app, tmp_path):
    allow(app, tmp_path / "allowed")
    monkeypatch.setattr(flower_internals, "version", lambda name: "1.43.0")
    with pytest.raises(
        SettingError, match="cannot be refused with Flower 1.43.0: install Flower 1.41 or 1.42"
    ):
        run_node(["--insecure"], tmp_path / "allowed")


# ------------------------------------------------------------------------------------- real processes


def reply_to(running, app):
    """What `flwr run` shows of the node's reply, and why there is none."""
    command = [command_of("flwr"), "run", str(app), CONNECTION, "--stream"]
    shown = subprocess.run(
        command, env=running.place.environment, cwd=running.home, capture_output=True, text=True, check=False
    ).stdout
    lines = [line.split(" ", 1) for line in shown.splitlines() if line.startswith(("REPLY ", "WHY "))]
    return dict(lines), shown


@pytest.mark.deployment
def test_a_real_node_runs_the_allowed_app_and_refuses_every_other_before_import(tmp_path):
    """Through `flwr run`, one after the other; before them, another client lies where the allowed one is unpacked."""
    marks = tmp_path / "marks"
    marks.mkdir()
    right = write_app(tmp_path / "app", marks)
    line = allow(right, tmp_path / "allowed")
    with deployment() as running:
        home = running.home / "node"
        planted = home / "apps" / f"hospitals.counter.1.0.0.{line[:8]}"
        write_app(planted, marks)
        shadow("counter/client.py")(planted, marks)
        words = [
            "node",
            "--allowed",
            str(tmp_path / "allowed"),
            "--insecure",
            "--superlink",
            f"127.0.0.1:{running.port}",
        ]
        words += ["--port", str(free_ports(1)[0])]
        running.place.running["node"] = running.place.start(
            "node", [command_of("twinflower"), *words], {"FLWR_HOME": str(home)}
        )
        refused = {}
        for number, (name, alter) in enumerate(ALTERED.items()):
            altered = write_app(tmp_path / f"altered-{number}" / "app", marks)
            alter(altered, marks)
            (found, shown) = reply_to(running, altered)
            assert found.get("REPLY") == "7", (name, shown[-3000:])
            assert "this node runs only apps that its administrator has allowed" in found["WHY"]
            refused[name] = not list(marks.iterdir())
        assert refused == dict.fromkeys(ALTERED, True)
        assert len(refused) == 20
        found, shown = reply_to(running, right)
        assert found.get("REPLY") == "ran", shown[-3000:]
        assert {mark.name for mark in marks.iterdir()} == {"imported"}
