"""`twinflower status`: what is told from the files and locks of a folder alone."""

import re
import signal
import threading
import time
from dataclasses import replace

import pytest

from twinflower.errors import SettingError
from twinflower.simulation.app import server_app
from twinflower.simulation.app.watched_grid import WatchedGrid
from twinflower.simulation.cli import main
from twinflower.simulation.results.checkpoint import Checkpoint, Checkpoints
from twinflower.simulation.results.folder import claimed, in_use
from twinflower.simulation.results.resume import (
    ENDED_BY_FLOWER,
    status,
    write_cause,
    write_resume,
    write_runtime,
)
from twinflower.simulation.results.writing import write_config, write_plan, write_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import cohort
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.processes import Interrupted
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.simulation.settings.experiment import read_experiment

SMALL = {"clients.count": 3, "rounds": 2}


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SettingError, match="no run was begun in"):
        status(tmp_path)


def test_a_run_that_has_ended_says_how(tmp_path):
    (result,) = cohort.train([prepare(parse(SMALL))])
    write_run(result, tmp_path)
    assert status(tmp_path) == (["finished after 2 rounds"], True)
    write_run(replace(result, model=None, failure="two nodes hold partition 1"), tmp_path)
    assert status(tmp_path) == (["failed: two nodes hold partition 1"], False)


def test_a_run_that_flower_cut_off_says_with_which_command_it_goes_on(tmp_path):
    config = parse(SMALL | {"output.checkpoint-every": 1})
    write_config(config, tmp_path)
    resume = write_resume(config, tmp_path)
    Checkpoints(tmp_path, 1).save(5, Checkpoint({}, {}))
    with claimed(tmp_path):
        assert status(tmp_path) == (["running; last checkpoint after round 5"], True)
    assert status(tmp_path) == (
        [
            "cut off; last checkpoint after round 5: no process works in this folder",
            f"to go on: flwr run . CONNECTION --stream --run-config {resume}",
        ],
        False,
    )
    write_cause("client 2 did not answer", tmp_path)
    assert status(tmp_path).lines[0] == "cut off; last checkpoint after round 5: client 2 did not answer"


@pytest.mark.parametrize("runtime", ["deployment", "flower"])
def test_what_sites_have_reserved_for_a_run_that_was_cut_off_is_said(tmp_path, runtime):
    """With the command that gives it up; the states of a simulation are nobody's lifetime budget."""
    private = SMALL | {"privacy.mode": "public-state", "privacy.epsilon": 4.0, "output.checkpoint-every": 1}
    write_config(parse(private), tmp_path)
    assert len(status(tmp_path).lines) == 2
    grid = InProcessGrid(prepare(parse(private)))
    run = run_strategy(grid.setup, grid, runtime, checkpoints=Checkpoints(tmp_path, 1))
    (line,) = status(tmp_path).lines[2:] or [""]
    assert line.endswith(f": twinflower ledger STATE-DIR --give-up {run.session}") == (
        runtime == "deployment"
    )


def test_a_superlink_that_does_not_answer_is_said_while_it_does_not(tmp_path, capsys):
    """The server waits in a request that Flower repeats, so another thread says it, and ends."""
    write_config(parse(SMALL), tmp_path)
    seen, before = [], threading.active_count()

    class Silent(InProcessGrid):
        seconds = 0.0

        def pull_messages(self, message_ids):
            time.sleep(self.seconds)
            seen.append(status(tmp_path).lines[0])
            return super().pull_messages(message_ids)

    inner = Silent(prepare(parse(SMALL)))
    grid = server_app._quick(inner, tmp_path)
    assert isinstance(grid.grid, WatchedGrid)
    grid.grid.patience = 0.2
    with claimed(tmp_path):
        for inner.seconds in (0.0, 0.6, 0.0):
            grid.pull_messages([])
        seen.append(status(tmp_path).lines[0])
    silent = r"running: the SuperLink has answered no request since \d\d:\d\d:\d\d"
    assert [bool(re.fullmatch(silent, line)) for line in seen] == [False, True, False, False]
    assert {seen[0], seen[2], seen[3]} == {"running"}
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and re.fullmatch(silent, f"running: {lines[0]}")
    assert re.fullmatch(r"the SuperLink answers again, after \d+ s", lines[1])
    assert threading.active_count() == before


def test_a_superlink_that_never_answers_is_the_cause(tmp_path):
    """If nobody could note another one, as after `kill -9`."""
    write_config(parse(SMALL), tmp_path)

    class Gone(InProcessGrid):
        def push_messages(self, messages):
            time.sleep(0.4)
            raise RuntimeError("Flower gives up")

    grid = server_app._quick(Gone(prepare(parse(SMALL))), tmp_path)
    grid.grid.patience = 0.1
    with claimed(tmp_path), pytest.raises(RuntimeError, match="gives up"):
        grid.push_messages([])
    assert "the SuperLink has answered no request since" in status(tmp_path).lines[0]


def test_a_simulation_is_not_watched(tmp_path):
    class Simulated(InProcessGrid):
        state = None

    assert not isinstance(server_app._quick(Simulated(prepare(parse(SMALL))), tmp_path).grid, WatchedGrid)


def test_a_run_without_checkpoints_begins_anew(tmp_path):
    write_config(parse(SMALL), tmp_path)
    write_runtime("cohort", tmp_path)
    assert status(tmp_path).lines[-1] == (
        "there is no checkpoint to go on from (output.checkpoint-every): start anew"
    )
    write_config(parse(SMALL | {"output.checkpoint-every": 1}), tmp_path)
    assert status(tmp_path).lines[-1] == "there is no checkpoint to go on from: start anew"


def test_a_run_that_failed_before_its_first_checkpoint_says_so(tmp_path):
    write_config(parse(SMALL), tmp_path)
    write_cause("waited 25 s for 3 nodes", tmp_path)
    assert status(tmp_path).lines[0] == "failed: waited 25 s for 3 nodes"
    write_cause(ENDED_BY_FLOWER, tmp_path)
    assert status(tmp_path).lines[0].startswith("cut off: Flower ended the server's process")


def test_an_experiment_counts_its_runs_and_goes_on(tmp_path):
    (tmp_path / "plan.toml").write_text("seeds = [0, 1]\n[run]\nrounds = 2\n[run.clients]\ncount = 3\n")
    plan, out = read_experiment(tmp_path / "plan.toml"), tmp_path / "out"
    out.mkdir()
    write_plan(plan, out)
    write_runtime("cohort", out)
    (result,) = cohort.train([prepare(plan.curves[0].config)])
    write_run(result, out / plan.curves[0].slug / "seed-0")
    first = out / plan.curves[0].slug / "seed-0"
    assert status(out) == (
        [
            "1 of 2 runs have ended",
            "cut off: no process works in this folder",
            f"to go on: twinflower run --resume {out}",
        ],
        False,
    )
    write_run(result, first.with_name("seed-1"))
    assert status(out) == (["2 of 2 runs have ended"], True)
    write_run(replace(result, model=None, failure="the model diverged"), first)
    assert status(out) == (
        ["2 of 2 runs have ended, 1 of them failed", "failed: fedpdm, seed 0: the model diverged"],
        False,
    )


@pytest.mark.parametrize("failure", ["", "two nodes hold partition 1"])
def test_the_command_ends_with_a_status_for_monitors(failure, tmp_path, monkeypatch, capsys):
    (result,) = cohort.train([prepare(parse(SMALL))])
    write_run(replace(result, model=None, failure=failure) if failure else result, tmp_path)
    monkeypatch.setattr("sys.argv", ["twinflower", "status", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == bool(failure)
    assert capsys.readouterr().out == (f"failed: {failure}\n" if failure else "finished after 2 rounds\n")


def test_a_server_that_flower_ends_has_left_its_folder_before_flower_takes_over(tmp_path, monkeypatch):
    """Flower's own handler may take a minute, because it reports to a SuperLink that is gone."""
    left = []

    def interrupted(*_):
        raise Interrupted(signal.SIGTERM)

    monkeypatch.setattr(server_app, "_train", interrupted)
    monkeypatch.setattr(
        server_app.signal, "raise_signal", lambda number: left.append((number, in_use(folder)))
    )
    folder = tmp_path / "run"
    config = parse({"clients.count": 2, "output.dir": str(folder)})
    monkeypatch.setattr(server_app, "_note_cause", lambda cause, where: left.append((cause, in_use(where))))
    server_app._run(InProcessGrid(prepare(config)), config)
    assert left == [(ENDED_BY_FLOWER, True), (signal.SIGTERM, False)]
