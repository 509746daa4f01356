"""What a run on Flower reports to its command, without Flower: a small process stands for `flwr run`."""

import logging
import os
import sys
from dataclasses import dataclass

import pytest

from twinflower.errors import RunError
from twinflower.simulation.runtimes import progress
from twinflower.simulation.runtimes.engine import Engine, furnish
from twinflower.simulation.runtimes.processes import place_of_its_own
from twinflower.simulation.runtimes.progress import Report

IMPORTS = "from twinflower.simulation.runtimes.progress import *\nimport logging, sys\n"


@dataclass(frozen=True)
class Played(Engine):
    """An engine whose run is this text, and which has this status for Flower, if it may be asked."""

    text: str = ""
    status: str = ""

    def begin(self, config, folder, app=None):
        return self.place.start("flwr-run", [sys.executable, "-c", IMPORTS + self.text])

    def last_status(self):
        return self.status or pytest.fail("it takes a second")


def play(text, status=""):
    """The lines that the user sees."""
    lines = []
    with place_of_its_own() as place:
        furnish(place)
        (place.home / "reports.jsonl").write_text(
            '["an earlier run", false, ""]\n["", true, "its failure"]\n'
        )
        Played(place, 0, say=lines.append, text=text, status=status).run(None, None)
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
