"""What a command starts ends with it: after every signal, at every moment, in any session, and its folder with it.

The processes here are small ones that ignore every request to end; those of Flower are in test_deployment.
"""

import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from twinflower.errors import RunError
from twinflower.simulation.runtimes import janitor, processes
from twinflower.simulation.runtimes.processes import Interrupted, Tail, temporary_workspace

PROJECT = Path(__file__).resolve().parent.parent
PATIENCE = 300.0  # seconds; far above what anything here takes
SIGNALS = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]

DEAF = "import signal, subprocess, sys, time\nfor s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)\n"
WAIT = "time.sleep(600)\n"


def parent_of(text, **how):
    """A process that hears nothing, and has a child that runs this text in a session of its own."""
    return (
        f"{DEAF}subprocess.Popen([sys.executable, '-c', {text!r}], start_new_session=True, **{how})\n{WAIT}"
    )


# The youngest has lost its environment.
FAMILY = parent_of(parent_of(DEAF + WAIT, env={}))

COMMAND = f"""
import sys, time
from twinflower.simulation.runtimes import processes
BEFORE
try:
    with processes.temporary_workspace() as place:
        (place.home / "key").write_text("secret")
        place.keep("family", [sys.executable, "-c", {FAMILY!r}])
        print(place.home, flush=True)
        INSIDE
except processes.Interrupted as interrupted:
    print("after", flush=True)
    sys.exit(interrupted.status)
print("ended well", flush=True)
"""


@pytest.fixture(autouse=True)
def no_signal_is_ignored():
    """Background jobs ignore SIGINT, those under nohup SIGHUP, and children inherit that."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in (number for number, handler in before.items() if handler is signal.SIG_IGN):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def until(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def family_of(home):
    """The three processes of FAMILY, once they are there."""
    until(lambda: len(janitor.family(home)) == 3, "the family never came")
    return janitor.family(home)


def command(before="", inside="time.sleep(600)"):
    """A command that has started a family; its process, folder and family."""
    text = COMMAND.replace("BEFORE", before).replace("INSIDE", inside)
    process = subprocess.Popen(
        [sys.executable, "-c", text], cwd=PROJECT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    home = Path(process.stdout.readline().strip())
    return process, home, family_of(home)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_signal_ends_everything(number):
    process, home, members = command()
    process.send_signal(number)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    assert output == "after\n"
    assert not janitor.alive(members)
    assert not home.exists()


def test_killing_the_command_ends_everything():
    """Nobody is left to clear up but the janitor, which no signal to the command's group reaches."""
    process, home, members = command()
    os.killpg(process.pid, signal.SIGTERM)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(PATIENCE)
    until(lambda: not janitor.alive(members) and not home.exists(), "something was left")


def test_a_second_signal_does_not_wait():
    """The grace is longer than this test would wait."""
    process, home, members = command(before=f"processes._GRACE = {100 * PATIENCE}")
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 130
    assert not janitor.alive(members)
    assert not home.exists()


def test_a_signal_during_the_ordinary_end_is_told_after_it():
    waits = f"processes._GRACE = {100 * PATIENCE}"
    process, home, members = command(before=waits, inside="time.sleep(2); print('leaving', flush=True)")
    assert process.stdout.readline() == "leaving\n"
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (143, "after\n")
    assert not janitor.alive(members) and not home.exists()


def test_what_was_told_to_ignore_hangups_goes_on():
    """As under nohup."""
    ignores = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"
    process, home, members = command(before=ignores, inside="time.sleep(2)")
    process.send_signal(signal.SIGHUP)
    output, _ = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "ended well\n")
    assert not janitor.alive(members) and not home.exists()


def test_signals_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in SIGNALS]
    with temporary_workspace():
        assert all(
            signal.getsignal(number) != handler for number, handler in zip(SIGNALS, before, strict=True)
        )
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_is_raised_once_where_it_may_be():
    with pytest.raises(Interrupted) as told, temporary_workspace() as place:
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(PATIENCE)
    assert told.value.status == 129
    assert not place.home.exists()


def test_an_error_of_the_caller_ends_everything_and_is_passed_on():
    with pytest.raises(ZeroDivisionError), temporary_workspace() as place:
        place.keep("deaf", [sys.executable, "-c", f"{DEAF}time.sleep(600)"])
        _ = 1 // 0
    assert place.running["deaf"].wait(PATIENCE)
    assert not place.home.exists()


@pytest.mark.parametrize(
    ("end", "how"),
    [("sys.exit(3)", "status 3"), ("os.kill(os.getpid(), 9)", "SIGKILL")],
    ids=["exit", "killed"],
)
def test_a_process_that_ends_early_is_one_clear_error(tmp_path, end, how):
    text = f"import os, sys\nfor i in range(100): print('line', i)\nsys.stdout.flush()\n{end}"
    with temporary_workspace(tmp_path) as place:
        place.check()
        place.keep("node-7", [sys.executable, "-c", text])
        place.running["node-7"].wait(PATIENCE)
        with pytest.raises(RunError) as told:
            place.check()
    sentence, *log = str(told.value).splitlines()
    assert sentence == f"node-7 ended early with {how}; the end of {tmp_path / 'node-7.log'}:"
    assert log[-1].strip() == "line 99" and len(log) < 30
    assert (tmp_path / "node-7.log").exists()


def test_a_process_that_never_listens_is_an_error(monkeypatch):
    monkeypatch.setattr(processes, "_START_TIMEOUT", 0.5)
    with temporary_workspace() as place:
        place.keep(
            "silent", [sys.executable, "-c", "import time; print('I am here', flush=True); time.sleep(600)"]
        )
        with pytest.raises(RunError, match="nobody listened on port (?s:.*)silent.log:\n    I am here"):
            place.await_port(*processes.free_ports(1))


def test_waiting_ends_when_a_process_listens_or_in_time(monkeypatch):
    (port,) = processes.free_ports(1)
    monkeypatch.setattr(processes, "_START_TIMEOUT", 0.2)
    assert not processes.listening(port)
    with socket.create_server(("127.0.0.1", port)):
        assert processes.listening(port)


def test_a_zombie_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE, "it never ended")
        assert not janitor.alive([psutil.Process(process.pid)])


def test_a_process_that_got_the_number_of_another_is_left_alone():
    with subprocess.Popen([sys.executable, "-c", f"import time\n{WAIT}"]) as process:
        earlier = psutil.Process(process.pid)
        assert janitor.alive([earlier]) == {earlier}
        earlier._create_time = 0.0
        earlier._ident = process.pid, 0.0
        janitor._send(psutil.Process.kill, [earlier])
        assert not janitor.alive([earlier])
        assert process.poll() is None
        process.kill()


def test_others_are_left_alone():
    """A process of another command, with another folder, and the command itself."""
    with temporary_workspace() as one:
        one.keep("one", [sys.executable, "-c", "import time; time.sleep(600)"])
        with temporary_workspace() as other:
            other.keep("other", [sys.executable, "-c", "import time; time.sleep(600)"])
        assert other.running["other"].poll() is not None
        one.check()


def test_a_tail_gives_whole_lines_once(tmp_path):
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("w") as file:
        for text, lines in [("a\nb", ["a"]), ("", []), ("c\nd\n", ["bc", "d"]), ("e", []), ("\n", ["e"])]:
            file.write(text)
            file.flush()
            assert tail.lines() == lines
    assert Tail(path).lines() == []


def test_deploy_says_one_line_and_leaves_no_key(tmp_path):
    """Ended while it waits for a SuperLink that does not come and does not listen to requests to end."""
    deaf = tmp_path / "flower-superlink"
    deaf.write_text(f"#!{sys.executable}\n{DEAF}{WAIT}")
    deaf.chmod(0o755)
    text = (
        "from twinflower.simulation import cli; from twinflower.simulation.runtimes import flower; "
        f"flower.command_of = lambda *_: {str(deaf)!r}; cli.main()"
    )
    words = [
        "deploy",
        "experiments/digits.toml",
        "--set",
        "clients.count=2",
        "--secure",
        "--out",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", text, *words], cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    until(lambda: any(map(janitor.family, tmp_path.glob("twinflower-*"))), "nothing was started")
    assert [*tmp_path.glob("twinflower-*/server.key")]
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 143
    assert (
        errors
        == f"error: interrupted; all processes are ended, their logs are in {tmp_path / 'run' / 'logs'}\n"
    )
    assert output.startswith("starting a SuperLink on port ") and output.count("\n") == 1
    assert not [*tmp_path.glob("twinflower-*")]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_large_arrays_are_made_of_memory_that_was_freed():
    """Counted in pages that the operating system had to supply for 50 growing arrays of 2 MiB or more."""
    code = """
import resource
import numpy as np
from twinflower.simulation.runtimes.computing import reuse_freed_memory
reuse_freed_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for more in range(50):
    np.ones(2**18 + 4096 * more)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 50 * 2**21 / os.sysconf("SC_PAGE_SIZE") / 5
