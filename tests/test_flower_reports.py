"""What a run on Flower reports to its command, without Flower: a small process stands for `flwr run`."""

import logging
import os
import sys
from dataclasses import dataclass

import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict

from twinflower.errors import DataError, RunError
from twinflower.simulation.app.client_app import rehearsed
from twinflower.simulation.app.redact_errors import discreet
from twinflower.simulation.runtimes import flower_internals, progress
from twinflower.simulation.runtimes.flower import Engine, configure_flower_env, reports_in
from twinflower.simulation.runtimes.processes import temporary_workspace
from twinflower.simulation.runtimes.progress import Report
from twinflower.strategies.messages import fit_request, properties_request

IMPORTS = "from twinflower.simulation.runtimes.progress import *\nimport logging, sys\n"
NODE = IMPORTS + (
    "log = logging.getLogger('flwr')\nlog.warning('before')\nreport_warnings()\nreport_warnings()\n"
    "log.setLevel(logging.INFO)\nlog.info('no')\nlog.error('\\nthere is %s\\n\\nmore', 'no file'); log.error('')"
)


@dataclass(frozen=True)
class Played(Engine):
    """An engine whose run is this text, and which has this status for Flower, if it may be asked."""

    text: str = ""
    status: str = ""

    def begin(self, config, folder, app=None):
        return self.place.start("flwr-run", [sys.executable, "-c", IMPORTS + self.text])

    def last_status(self):
        return self.status or pytest.fail("it takes a second")


def play(text, status="", nodes=()):
    """The lines that the user sees."""
    lines = []
    with temporary_workspace() as place:
        configure_flower_env(place)
        (place.home / "reports.jsonl").write_text(
            '["an earlier run", false, ""]\n["", true, "its failure"]\n'
        )
        running = Played(place, 0, reports_in(place), say=lines.append, text=text, status=status)
        for name in nodes:
            running.place.start(name, [sys.executable, "-c", NODE], {progress.NODE: name}).wait()
        running.run(None, None)
    return lines


def test_the_lines_of_a_run_are_said_and_no_other():
    text = "say('one', 'two: [red] 🎊')\nprint('INFO : noise')\nreport(Report(ended=True))"
    assert play(text) == ["one", "two: [red] 🎊"]


def test_warnings_are_said_while_they_are_asked_for():
    text = (
        "log = logging.getLogger('flwr')\n"
        "with warnings_reported():\n    log.info('no'); log.warning('client %d is late', 3)\n"
        "log.warning('no')\nreport(Report(ended=True))"
    )
    assert play(text) == ["warning: client 3 is late"]


def test_warnings_of_a_node_are_said_with_its_name_once():
    """Also those from before the run."""
    said = play("say('one')\nreport(Report(ended=True))", nodes=("node-0", "node-1"))
    assert said == ["node-0: there is no file", "node-1: there is no file", "one"]


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """A function that returns what was reported."""
    monkeypatch.setenv(progress.FILE, str(tmp_path / "reports"))
    (tmp_path / "reports").touch()
    yield lambda: [progress.read(line).line for line in (tmp_path / "reports").read_text().splitlines()]
    progress.report_warnings.cache_clear()
    for handler in filter(lambda h: isinstance(h, progress._Reported), [*progress._LOGGER.handlers]):
        progress._LOGGER.removeHandler(handler)


def asked(message, fails=False):
    """What a site answers, as its server sees it."""

    def answer(message, context):
        if fails:
            raise DataError("row 3 is empty")
        return Message(RecordDict(), reply_to=message)

    def site(message, context):
        return discreet(message, context, answer)

    return rehearsed(message, Context(1, 1, {}, RecordDict(), {}), site)


@pytest.fixture
def requests():
    flower_internals.begin_run(1)
    return [
        properties_request(1),
        properties_request(1, "session"),
        fit_request(1, ArrayRecord(), {"round": 1}),
    ]


def test_a_node_that_a_command_started_says_once_that_it_is_connected(reported, requests, monkeypatch):
    monkeypatch.setenv(progress.NODE, "node-1")
    for request in requests:
        asked(request)
    assert reported() == ["node-1: connected"]


def test_a_node_that_a_command_started_says_why_it_cannot_answer(reported, requests, monkeypatch):
    """The server gets a fixed sentence; the command and the node are the same user's."""
    monkeypatch.setenv(progress.NODE, "node-1")
    reply = asked(requests[0], fails=True)
    assert reported() == ["node-1: twinflower: row 3 is empty"]
    assert reply.error.reason == "this site cannot answer; the site's own log says why"


def test_a_node_that_nobody_started_reports_nothing(reported, requests, monkeypatch):
    monkeypatch.delenv(progress.NODE, raising=False)
    for fails in (False, True):
        asked(requests[0], fails)
    assert reported() == []


def test_a_failed_run_is_an_error_with_its_reason():
    with pytest.raises(RunError, match="^no file nowhere$"):
        play("report(Report(ended=True, failure='no file nowhere'))\nprint('results: here')")


def test_flower_is_asked_about_a_run_that_does_not_say_how_it_ended():
    assert play("say('one')", status="finished:completed") == ["one"]
    with pytest.raises(
        RunError, match=r"^flwr run ended as finished:failed; the end of .*flwr-run.log:\n    results: here$"
    ):
        play("print('results: here')", status="finished:failed")


def test_nothing_is_written_where_no_command_reads(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv(progress.FILE, raising=False)
    monkeypatch.chdir(tmp_path)
    progress.say("one")
    with progress.warnings_reported():
        logging.getLogger("flwr").warning("two")
    progress.report(Report(ended=True))
    assert capsys.readouterr().out == "one\n"
    assert os.listdir(tmp_path) == []
