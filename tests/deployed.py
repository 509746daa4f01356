"""Real nodes for tests: start, watch and kill them; and the same run in one process, which loses the same replies."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from flwr.app import Error, Message

from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import janitor
from twinflower.simulation.runtimes.flower import CONNECTION, SUPERLINK, command_of
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 900.0  # seconds for whatever is waited for


class Losing(InProcessGrid):
    """Loses the replies of (client, round): with the work done, or with none."""

    def __init__(self, setup, lost, idle):
        super().__init__(setup)
        self.lost, self.idle = lost, idle

    def answer(self, message):
        if message.metadata.message_type == "train":
            address = message.metadata.dst_node_id - 1, message.content["fitins.config"]["round"]
            if address in self.idle:
                return Message(Error(1, "no work done"), reply_to=message)
            if address in self.lost:
                super().answer(message)
                return Message(Error(1, "lost"), reply_to=message)
        return super().answer(message)


def expected(config, lost=(), idle=(), grid=Losing):
    """The result of the run in one process; lost, idle: of (client, round)."""
    setup = prepare(config.put(dict.fromkeys(("output.state-dir", "output.resume-from", "output.dir"), "")))
    return run_strategy(setup, grid(setup, set(lost), set(idle)), "inprocess")


def rounds_in(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def start(running, count, **own):
    """Nodes with a state-dir each; own: node number -> further settings, {"state-dir": ""} for none."""
    for number in range(count):
        settings = {"state-dir": str(running.home / f"state-{number}"), **own.get(f"n{number}", {})}
        settings |= {"ignore-keys": "faults"} if "faults" in settings else {}
        running.start_node(number, count, {key: value for key, value in settings.items() if value})


def wait_for(folder, round_, process, seconds=400):
    """Until the run has a checkpoint of this round or a later one."""
    end = time.monotonic() + seconds
    while max(Checkpoints(folder, 0).rounds(), default=-1) < round_:
        assert time.monotonic() < end and process.poll() is None, f"round {round_} never came"
        time.sleep(0.1)


def await_(true, what):
    """What the function returns, as soon as it is true."""
    end = time.monotonic() + PATIENCE
    while not (found := true()):
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.3)
    return found


def status_of(folder):
    """What `twinflower status` says."""
    words = [sys.executable, "-m", "twinflower", "status", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False).stdout


def resume(running, folder, app):
    """Start the command that `twinflower status` names as soon as nothing works in the folder any more."""
    command = await_(
        lambda: re.search("^to go on: flwr run . CONNECTION (.*)", status_of(folder), re.M), folder
    )
    running.place.await_port(running.port)
    return running.place.start(
        "flwr-run", [command_of("flwr"), "run", str(app), CONNECTION, *command[1].split()]
    )


def stop_superlink(running, seconds):
    """Suspend the SuperLink for a time, as the pause of a virtual machine does."""
    link = running.place.running[SUPERLINK]
    link.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    link.send_signal(signal.SIGCONT)


def kill(running, name):
    """Kill the processes of a deployment with this word in their command line."""
    for process in janitor.family(running.home):
        with suppress(psutil.NoSuchProcess):
            if name in " ".join(process.cmdline()):
                process.kill()


def kill_node(running, number):
    """Kill the node and its children, as a power failure would."""
    os.killpg(running.nodes[number].pid, signal.SIGKILL)
    running.nodes.pop(number).wait()


def log_of(running, name):
    return running.place.log(name).read_text(errors="replace")
