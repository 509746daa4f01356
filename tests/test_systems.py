"""What other machines do: proxies, and errors in the processes of Flower's engine."""

import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from urllib.request import proxy_bypass_environment

import pytest
from flwr.app import Error
from flwr.clientapp.client_app import ClientAppException

from twinflower.disk import LockableFile
from twinflower.errors import DataError, RunError, SettingError
from twinflower.simulation.runtimes import flower, processes
from twinflower.simulation.runtimes.processes import temporary_workspace, without_proxy
from twinflower.strategies.messages import short
from twinflower.strategies.nodes import _too_few

# ------------------------------------------------------------------------------------- proxies


@pytest.mark.parametrize(
    ("before", "bypassed", "asked"),
    [
        ({}, [], ["example.org"]),
        ({"no_proxy": "hospital.example, 10.0.0.1"}, ["hospital.example", "10.0.0.1"], ["example.org"]),
        ({"NO_PROXY": ".example"}, ["a.example"], ["example.org"]),
        ({"no_proxy": "*"}, ["example.org"], []),
    ],
)
def test_no_proxy_is_asked_for_this_machine_and_the_users_exceptions_remain(before, bypassed, asked):
    after = without_proxy(before)
    assert after["no_proxy"] == after["NO_PROXY"]
    for host in ("127.0.0.1", "localhost", *bypassed):
        assert proxy_bypass_environment(host, {"no": after["no_proxy"]})
    for host in asked:
        assert not proxy_bypass_environment(host, {"no": after["no_proxy"]})


@pytest.mark.parametrize("name", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
def test_a_process_that_we_start_reaches_this_machine_past_a_dead_proxy(name, monkeypatch):
    """By httpx, as Flower's command line does."""
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    text = (
        "import httpx, http.server, threading\n"
        "server = http.server.HTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
        "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
        "print(httpx.get(f'http://127.0.0.1:{server.server_port}/').status_code)"
    )
    with temporary_workspace() as place:
        place.start("asks", [sys.executable, "-c", text]).wait()
        assert place.log("asks").read_text().splitlines()[-1] == "200"


def test_flowers_error_in_json_is_a_sentence(tmp_path, monkeypatch):
    text = "Using SuperLink: ours\n Listing all runs...\n\nConnection to the SuperLink is unavailable."
    monkeypatch.setattr(
        flower.Engine, "flwr", lambda *words: json.dumps({"success": False, "error-message": text})
    )
    place = processes.Workspace(tmp_path, dict(os.environ), tmp_path)
    place.log("flwr-run").write_text("it ended\n")
    sentence = (
        "flwr cannot list its runs: .* Connection to the SuperLink is unavailable.; the end of .*flwr-run.log"
    )
    with pytest.raises(RunError, match=sentence):
        flower.Engine(place, 1, SimpleNamespace(lines=list)).last_status()


# ------------------------------------------------------------------------------------- causes


def in_ray(error):
    """The reason in the error reply for an exception in a client, as Flower's engine makes it."""
    from ray.exceptions import RayTaskError

    try:
        try:
            raise error
        except Exception as cause:
            raise ClientAppException(str(cause)) from cause
    except ClientAppException as found:
        text = "\n".join(f"  File {'x' * 300}.py, line {k}, in call" for k in range(20))
        ray = RayTaskError(
            "ClientAppActor.run", text + "\n" + traceback.format_exc(), found
        ).as_instanceof_cause()
    return f"{type(ray)}:<'{ray}'>"


def handled():
    """An error of ours that was raised while another one was handled."""
    try:
        {}["ill"]
    except KeyError:
        return SettingError(COUNT)


COUNT = "clients.count is 2, but there are 3 nodes"
LONG = "the table has no column 'age', " + "which the schema names, " * 20 + "so leave it out"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SettingError(COUNT), f"SettingError: {COUNT}"),
        (DataError(LONG), f"DataError: {LONG}"),
        (ValueError("matmul: Input operand 1 has a mismatch"), "ValueError: matmul: Input operand 1 has a mismatch"),
        (handled(), f"SettingError: {COUNT}"),
    ],
)  # fmt: skip
def test_the_cause_of_a_nodes_failure_is_said_in_full(error, said):
    reason = in_ray(error)
    assert len(reason) > 1000 and short(reason) == said
    failures = {node: Error(2, reason) for node in (7, 8, 9)}
    assert _too_few({}, 2, 1.0, failures, ()) == f"3 of 3 nodes cannot take part: nodes 7, 8, 9: {said}"


def test_what_a_node_sends_stays_one_line_of_bounded_length():
    endless = "Traceback\n" + "twinflower.errors.DataError: " + "x" * 10**6
    assert re.fullmatch("DataError: x+", short(endless)) and len(short(endless)) == 1000


# ------------------------------------------------------------------------------------- Windows

HERE = Path(__file__).parent
RUN = """
[run]
algorithm = "fedavg"
rounds = 2
data.name = "breast-cancer"
clients.count = 3
objective.name = "logistic"
regulariser.name = "none"
"""
LEDGER = """
from pathlib import Path
from twinflower.privacy import Budget
from twinflower.privacy.charges import Charge
from twinflower.privacy.ledger import FileLedger, read_ledger
from twinflower.privacy.ledger import LedgerError
ledger = FileLedger(Path("a.ledger"), "data", 2.0, 1e-4, patience=0.1)
ledger.charge(Charge("r", 1, 0.1, 1.0, 1, 0.01), Budget(1.0))
with ledger._locked():
    for other in (lambda: read_ledger(Path("a.ledger"), 0.1), ledger.charges):
        try:
            other()
        except LedgerError as error:
            assert "in use by another process" in str(error), error
        else:
            raise AssertionError("the ledger was not locked")
ledger.charge(Charge("r", 2, 0.1, 1.0, 1, 0.01), Budget(1.0))
print(len(read_ledger(Path("a.ledger")).charges))
"""
FIT = """
import numpy as np, twinflower
twinflower.FederatedClassifier(rounds=2).fit(np.random.rand(30, 2), np.arange(30) % 2)
print("fitted")
"""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "run.toml", "--out", "out"], "^results: "),
        (["privacy", "run.toml"], "no noise is added"),
        (["ledger", "."], "holds no ledger"),
        (["check-node", "partition-id=0"], "a node needs --node-config"),
        (["report", "."], "give the folder of a run"),
        (["status", "."], "^error: no run was begun in "),
        (["--python", FIT], "fitted"),
        (["--python", LEDGER], "^2$"),
    ],
    ids=["run", "privacy", "ledger", "check-node", "report", "status", "fit", "a ledger is locked"],
)
def test_commands_work_without_what_windows_lacks(words, said, tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", HERE / "like_windows.py", *words], cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | {"PYTHONPATH": str(HERE.parent)},
    )  # fmt: skip
    assert "Traceback" not in done.stdout and re.search(said, done.stdout, re.MULTILINE), done.stdout[-2000:]


def test_existing_ledgers_are_locked_in_the_file_itself(tmp_path):
    """So that processes of earlier versions respect the lock, too, and no file is left beside it."""
    fcntl = pytest.importorskip("fcntl")
    with LockableFile(tmp_path / "a.ledger", "a+") as file, (tmp_path / "a.ledger").open() as other:
        file.lock()
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
    assert [own.name for own in tmp_path.iterdir()] == ["a.ledger"]
