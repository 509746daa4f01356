"""What may happen to a deployment on this machine while its runs go on; for `test_soak`.

Every fault happens to a `Scene`, which has a source of random numbers of its own. It takes its time, undoes what it did
and returns it in words.
"""

import os
import random
import signal
import socket
import socketserver
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
from deployed import await_, kill_node, resume, status_of, stop_superlink

from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runtimes.flower import SUPERLINK

NODES = 5
PROXIED, ON_SMALL_DISK = 0, 4  # nodes
MOST_RESUMED = 6


@dataclass
class Run:
    """A run, how often it was resumed, and (client, round) of the releases that a killed node had begun."""

    config: object
    folder: Path
    process: subprocess.Popen
    session: str = ""
    resumed: int = 0
    unfinished: set = field(default_factory=set)

    @property
    def checkpoints(self):
        return Checkpoints(self.folder, 0)

    @property
    def round(self):
        return max(self.checkpoints.rounds(), default=-1)

    @property
    def ended(self):
        return (self.folder / "summary.json").exists()


@dataclass
class Scene:
    """A deployment under faults: its nodes' settings, its runs, and what may fail besides processes."""

    running: object
    draw: random.Random
    app: Path
    own: list
    proxy: object
    disk: Path | None
    runs: list[Run] = field(default_factory=list)

    def start_node(self, number):
        """The nodes of the deployment; one reaches the SuperLink through the proxy."""
        port = self.proxy.port if number == PROXIED else self.running.port
        replace(self.running, port=port).start_node(number, NODES, self.own[number])

    def begin(self, config, folder):
        self.runs.append(Run(config, folder, self.running.begin(config, folder, self.app)))
        await_(lambda: self.runs[-1].round >= 0, "its first checkpoint")
        self.runs[-1].session = self.runs[-1].checkpoints.newest()[0].info["session"]

    def resume(self, run):
        run.process = resume(self.running, run.folder, self.app)
        run.resumed += 1

    def reach(self, run, round_):
        """Whether the run came to this round; it is resumed as often as it takes."""

        def there():
            if run.round >= round_ or run.ended:
                return True
            if run.process.poll() is not None and not run.ended:
                assert run.resumed < MOST_RESUMED, f"{run.folder} does not go on: {status_of(run.folder)}"
                self.resume(run)
            return False

        await_(there, f"round {round_}")
        return not run.ended

    def state(self, number):
        return Path(self.own[number]["state-dir"])


# --- faults: each does something, waits, undoes it, and returns what it did


def a_node_is_killed(scene):
    number, pause = scene.draw.randrange(NODES), scene.draw.uniform(1, 8)
    kill_node(scene.running, number)
    for run in scene.runs:
        begun = scene.state(number).glob("**/*.round.new")
        run.unfinished |= {(number, int(path.name.split(".")[0])) for path in begun}
    time.sleep(pause)
    scene.start_node(number)
    return f"kill -9 of node {number}, back after {pause:.0f} s"


def a_node_stands_still(scene):
    number, seconds = scene.draw.randrange(NODES), scene.draw.uniform(5, 45)
    os.killpg(scene.running.nodes[number].pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.killpg(scene.running.nodes[number].pid, signal.SIGCONT)
    return f"node {number} stopped for {seconds:.0f} s"


def the_training_is_killed(scene):
    """The process that works on one message, as by a machine without memory."""
    number = scene.draw.randrange(NODES)

    def killed():
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(scene.running.nodes[number].pid).children(recursive=True):
                if "flwr-clientapp" in " ".join(process.cmdline()):
                    return process.kill() or True
        return all(run.process.poll() is not None for run in scene.runs)

    await_(killed, "a message to be worked on")
    return f"kill -9 of the training at node {number}"


def the_superlink_stands_still(scene):
    seconds = scene.draw.uniform(10, 35)
    stop_superlink(scene.running, seconds)
    return f"SuperLink stopped for {seconds:.0f} s"


def the_superlink_stands_still_for_long(scene):
    """Longer than Flower waits for a sign of the server's process, so the run has to be resumed."""
    seconds = scene.draw.uniform(62, 90)
    stop_superlink(scene.running, seconds)
    return f"SuperLink stopped for {seconds:.0f} s"


def the_superlink_is_restarted(scene):
    place, pause = scene.running.place, scene.draw.uniform(1, 10)
    link = place.running[SUPERLINK]
    os.killpg(link.pid, signal.SIGKILL)
    link.wait()
    time.sleep(pause)
    place.keep(SUPERLINK, list(link.args))
    place.await_port(scene.running.port)
    return f"kill -9 of the SuperLink, back after {pause:.0f} s"


def the_disk_is_full(scene):
    seconds = scene.draw.uniform(20, 50)
    if scene.disk is None:
        return "no small disk can be mounted: left out"
    filler = scene.disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    time.sleep(seconds)
    filler.unlink()
    return f"no space for node {ON_SMALL_DISK} for {seconds:.0f} s"


def the_network_is_slow(scene):
    delay, seconds = scene.draw.uniform(0.1, 1.5), scene.draw.uniform(15, 40)
    scene.proxy.delay = delay
    time.sleep(seconds)
    scene.proxy.delay = 0.0
    return f"{delay:.1f} s per packet of node {PROXIED} for {seconds:.0f} s"


def the_network_is_cut(scene):
    seconds = scene.draw.uniform(5, 45)
    scene.proxy.cut(seconds)
    return f"node {PROXIED} without network for {seconds:.0f} s"


FAULTS = [
    a_node_is_killed, a_node_stands_still, the_training_is_killed, the_superlink_stands_still,
    the_superlink_stands_still_for_long, the_superlink_is_restarted, the_disk_is_full, the_network_is_slow,
    the_network_is_cut,
]  # fmt: skip


class Proxy(socketserver.ThreadingTCPServer):
    """Passes connections on to a port of this machine: late, or not at all."""

    daemon_threads = True
    delay, closed = 0.0, False

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), None)
        self.target, self.port, self.open = target, self.server_address[1], set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def finish_request(self, near, address):
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as far:
            if self.closed:
                return
            self.open |= {near, far}
            back = threading.Thread(target=self.pass_on, args=(far, near), daemon=True)
            back.start()
            self.pass_on(near, far)
            back.join()

    def pass_on(self, source, sink):
        with suppress(OSError):
            while data := source.recv(2**16):
                time.sleep(self.delay)
                sink.sendall(data)
        for end in (source, sink):
            self.open.discard(end)
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *error):
        self.shutdown()
        super().__exit__(*error)

    def cut(self, seconds):
        self.closed = True
        for end in list(self.open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        time.sleep(seconds)
        self.closed = False


@contextmanager
def small_disk(folder):
    """A file system of half a megabyte in this folder, None where it may not be mounted."""
    folder.mkdir(parents=True)
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", folder], capture_output=True)
    try:
        yield None if mount.returncode else folder
    finally:
        if not mount.returncode:
            subprocess.run(["umount", folder], check=True)
