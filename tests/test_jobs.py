"""`run --jobs N`: the same results as one run after another, and no process left over, however the command ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import pytest

from twinflower.errors import SettingError
from twinflower.simulation import running
from twinflower.simulation.results.folder import runs_below
from twinflower.simulation.results.reading import read_rows, read_summary
from twinflower.simulation.runtimes.processes import cores
from twinflower.simulation.settings.experiment import read_experiment

ROOT = Path(__file__).resolve().parent.parent
TEXT = """
title = "two curves"
seeds = [0, 1]
[run]
rounds = 3
clients.count = 4
[run.privacy]
epsilon = 8.0
mode = "public-state"
[run.objective]
clip-norm = 1.0
[[curve]]
label = "FedPDM"
algorithm = "fedpdm"
[[curve]]
label = "FedAvg"
algorithm = "fedavg"
"""


DIVERGING = """
seeds = [0, 1]
[run]
rounds = 3
clients.count = 4
data.name = "linear"
objective.name = "least-squares"
[[curve]]
label = "FedPDM"
algorithm = "fedpdm"
fedpdm.step-size = 0.01
[[curve]]
label = "FedAvg"
algorithm = "fedavg"
fedavg.step-size = 1e100
"""


class Notes:
    """An observer that keeps what it receives."""

    def __init__(self):
        self.rounds, self.total, self.ends, self.guarantees = 0, 0, [], []

    def line(self, text):
        raise AssertionError(text)

    def row(self, row):
        raise AssertionError("a row of a run in another process")

    def following(self, label, rounds):
        self.total = rounds
        return nullcontext()

    def reached(self, rounds):
        assert rounds >= self.rounds
        self.rounds = rounds

    def ended(self, curve, summaries, stored=True):
        if stored:
            self.ends.append((curve.label, len(summaries)))
        self.guarantees.append([own["privacy"]["epsilon"] for own in summaries if own["privacy"]])


class Alone(Notes):
    """An observer of runs in this process."""

    def row(self, row):
        pass


def plan_of(folder, text=TEXT):
    path = folder / "two.toml"
    path.write_text(text)
    return read_experiment(path)


def run(plan, folder, runtime="inprocess", jobs=2, is_new=True):
    notes = Notes()
    folder.mkdir(exist_ok=True)
    return running.run(plan, folder, runtime, notes, is_new=is_new, jobs=jobs), notes


def results(folder):
    """Models and metrics of all runs below a folder, without times."""
    found = {}
    for own in runs_below(folder):
        rows = [[value for key, value in row.items() if key != "seconds"] for row in read_rows(own)]
        found[str(own.relative_to(folder))] = np.array(rows), np.load(own / "model.npz")["x"]
    return found


@pytest.mark.parametrize("runtime", ["inprocess", "cohort"])
def test_two_jobs_compute_what_one_computes(tmp_path, runtime):
    plan = plan_of(tmp_path)
    failures, notes = run(plan, tmp_path / "two", runtime)
    assert failures == []
    assert notes.rounds == notes.total == 3 * 4
    assert sorted(notes.ends) == [("FedAvg", 2), ("FedPDM", 2)]
    assert [len(curve) for curve in notes.guarantees] == [2, 2]
    assert np.allclose(notes.guarantees, 8.0)

    (tmp_path / "one").mkdir()
    running.run(plan, tmp_path / "one", runtime, Alone())
    one, two = results(tmp_path / "one"), results(tmp_path / "two")
    assert one.keys() == two.keys() == {f"{curve}/seed-{s}" for curve in ("fedpdm", "fedavg") for s in (0, 1)}
    for name, arrays in one.items():
        for ours, theirs in zip(arrays, two[name], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (tmp_path / "two" / "figure.png").exists()


def test_only_what_has_not_ended_is_run_again(tmp_path):
    plan, folder = plan_of(tmp_path), tmp_path / "out"
    run(plan, folder)
    before = {own: read_summary(own)["seconds"] for own in runs_below(folder)}
    (gone,) = (own for own in before if own.match("fedavg/seed-1"))
    (gone / "summary.json").unlink()
    _, notes = run(plan, folder, is_new=False)
    assert notes.ends == [("FedAvg", 1)]
    after = {own: read_summary(own)["seconds"] for own in runs_below(folder)}
    assert {own for own in before if before[own] != after[own]} == {gone}


def test_a_failed_run_is_named_and_the_others_are_stored(tmp_path):
    plan = plan_of(tmp_path, DIVERGING)
    failures, notes = run(plan, tmp_path / "out")
    assert len(failures) == 2 and all(text.startswith("FedAvg: ") for text in failures), failures
    assert sorted(notes.ends) == [("FedAvg", 2), ("FedPDM", 2)]
    assert len(runs_below(tmp_path / "out")) == 4


def test_an_error_of_a_worker_is_that_of_the_command(tmp_path):
    plan, folder = plan_of(tmp_path), tmp_path / "out"
    (folder / "fedavg").mkdir(parents=True)
    (folder / "fedavg" / "seed-0").write_text("not a folder")
    with pytest.raises(OSError):
        run(plan, folder)


@pytest.mark.parametrize(
    ("jobs", "runtime", "sentence"),
    [
        (-1, "inprocess", "--jobs must be at least 0"),
        (2, "flower", "--jobs needs runtime inprocess or cohort"),
    ],
)
def test_unsuitable_jobs_are_refused(jobs, runtime, sentence):
    with pytest.raises(SettingError, match=sentence):
        running.processes(jobs, runtime)
    assert running.processes(0, "cohort") == cores()


def heed_ctrl_c():
    """In a child: a job in the background ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def command(folder):
    """A command with two workers, in a session of its own, once both have begun a run of several minutes."""
    (folder / "two.toml").write_text(TEXT.replace("rounds = 3", "rounds = 20000"))
    words = [
        "run",
        folder / "two.toml",
        "--jobs",
        "2",
        "--runtime",
        "inprocess",
        "--out",
        folder / "out",
        "--set",
        "checkpoint-every=1",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "twinflower", *map(str, words)], cwd=ROOT, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=heed_ctrl_c,
    )  # fmt: skip
    while len(list((folder / "out").glob("*/seed-*/config.toml"))) < 2:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.fixture
def process(tmp_path):
    """The command, whose session is ended with the test."""
    process = command(tmp_path)
    yield process
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def session(process):
    """The living processes of the command's session."""
    stats = (path.read_text().rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat"))
    return [stat for stat in stats if int(stat[3]) == process.pid and stat[0] != "Z"]


def await_end(process):
    """Wait until no process of the session is left."""
    deadline = time.monotonic() + 60
    while session(process) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert session(process) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_an_interrupted_command(process, number):
    assert len(session(process)) >= 3
    process.send_signal(number)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert error.startswith("error: interrupted; go on with: twinflower run --resume ")
    await_end(process)


def test_no_worker_outlives_a_killed_command(process):
    process.kill()
    await_end(process)


@pytest.mark.slow
def test_a_killed_worker_ends_the_command_with_one_sentence(process):
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    worker = next(pid for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text())
    os.kill(int(worker), signal.SIGKILL)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "a worker process ended unexpectedly" in error and "Traceback" not in error
    await_end(process)
