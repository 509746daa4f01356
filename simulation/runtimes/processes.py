"""The processes of one command and its temporary folder; neither outlives the command.

`temporary_workspace` cleans up on exit and on SIGINT, SIGTERM and SIGHUP. If the command is killed, `janitor`, a small
separate process, cleans up instead. Every process writes its log to a file.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from twinflower.errors import RunError

# Windows has no SIGHUP
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
_START_TIMEOUT = 180.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LAST_LINES = 15
_PAUSE = 0.1


def cores() -> int:
    """The number of cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)  # Linux only
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Environment variables with which no proxy is asked for addresses on this machine, besides those of the user."""
    known = [environment.get(name, "") for name in ("no_proxy", "NO_PROXY")]
    if "*" in known:  # no proxy at all; only by itself has it this meaning
        return dict.fromkeys(("no_proxy", "NO_PROXY"), "*")
    hosts = dict.fromkeys(host.strip() for own in known for host in own.split(",") if host.strip())
    return dict.fromkeys(("no_proxy", "NO_PROXY"), ",".join({**hosts, **dict.fromkeys(_LOOPBACK)}))


class Interrupted(KeyboardInterrupt):
    """The command was ended by a signal, `number`; `status` is its exit status, 128 + number."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.status = 128 + number


@dataclass
class Workspace:
    """A command's folder, the environment variables of its processes, and the processes themselves.

    logs: folder of the log files. running: processes that must keep running until the command ends, by the names of
    their logs. started: all processes.
    """

    home: Path
    environment: dict[str, str]
    logs: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, name: str, command: list[str], environment: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a command in its own session, writing to NAME.log; it may end at any time."""
        with self.log(name).open("ab") as file:
            process = subprocess.Popen(
                command, env=self.environment | (environment or {}), cwd=self.home, stdin=subprocess.DEVNULL,
                stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def keep(self, name: str, command: list[str]) -> None:
        """Start a command that must keep running; `check` raises an error if it has ended."""
        self.running[name] = self.start(name, command)

    def check(self) -> None:
        """Raise RunError, with the end of the log, if a process that must keep running has ended."""
        for name, process in self.running.items():
            if process.poll() is not None:
                raise RunError(f"{name} ended early with {_how(process.returncode)}; {self.end_of(name)}")

    def reap(self) -> None:
        """Collect the exit status of ended processes, which would otherwise remain as zombies."""
        for process in self.started:
            process.poll()

    def log(self, name: str) -> Path:
        """The path of the log of the process with this name."""
        return self.logs / f"{name}.log"

    def end_of(self, name: str) -> str:
        """The last lines of a log, with its path."""
        lines = self.log(name).read_text(errors="replace").rstrip().splitlines()
        return "\n".join([f"the end of {self.log(name)}:", *(f"    {line}" for line in lines[-_LAST_LINES:])])

    def await_port(self, port: int) -> None:
        """Wait until a process listens on the port; RunError if a required one ends first, or after a timeout."""
        if listening(port, self.check):
            return
        logs = "; ".join(map(self.end_of, self.running))
        raise RunError(f"nobody listened on port {port} within {_START_TIMEOUT:g} s; {logs}")


@contextmanager
def temporary_workspace(logs: Path | None = None) -> Iterator[Workspace]:
    """A temporary folder and the processes started in it; on exit, the processes are ended and the folder is removed.

    logs: folder of the log files, by default the temporary one. Raises Interrupted, after cleaning up, if a signal
    ended the block.
    """
    from . import janitor  # needs psutil, and most commands start no process

    with _Signals() as signals, _janitor() as home:
        place = Workspace(
            home, os.environ | without_proxy(os.environ) | {janitor.MARK: str(home)}, logs or home
        )

        def urgent() -> bool:
            place.reap()
            return signals.waiting > 0

        try:
            with signals.raising():
                yield place
        finally:
            left = janitor.clear(home, _GRACE, urgent)
            place.reap()
            if left:
                print(f"warning: could not end processes {left}", file=sys.stderr)


@contextmanager
def _janitor() -> Iterator[Path]:
    """A temporary folder. If this process is killed, a separate one ends the folder's processes and removes it."""
    from . import janitor

    home = Path(tempfile.mkdtemp(prefix="twinflower-"))
    words = [sys.executable, "-I", "-S", janitor.__file__, str(home), str(janitor.PACKAGES)]
    watching = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/",
        start_new_session=True,
    )  # fmt: skip
    try:
        yield home
    finally:
        with suppress(BrokenPipeError):
            watching.communicate()  # closes the pipe, upon which the janitor ends


class _Signals:
    """Raises SIGINT, SIGTERM or SIGHUP as an exception, once and only within a `raising` block.

    got: the first signal, 0 for none. waiting: the number of signals that were recorded but not raised.
    """

    def __init__(self) -> None:
        self.got = 0
        self.armed = False
        self.waiting = 0
        self.before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> "_Signals":
        for number in SIGNALS:
            with suppress(ValueError):  # outside the main thread signal handlers cannot be set
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # ignored under nohup
                    self.before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)
        if self.got and not isinstance(error, Interrupted):
            raise Interrupted(self.got) from None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.got = self.got or number
        if self.armed:
            self.armed = False
            raise Interrupted(number)
        self.waiting += 1

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within this block the first signal is raised as an exception; outside it signals are only recorded."""
        self.armed = True
        try:
            if self.got:
                raise Interrupted(self.got)
            yield
        finally:
            self.armed = False


@contextmanager
def interruptible() -> Iterator[None]:
    """Within this block the first SIGINT, SIGTERM or SIGHUP raises Interrupted."""
    with _Signals() as signals, signals.raising():
        yield


def _how(status: int) -> str:
    return f"status {status}" if status >= 0 else signal.Signals(-status).name


class Tail:
    """A reader of the lines written to a log after its creation."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = path.stat().st_size if path.exists() else 0
        self.rest = ""

    def lines(self) -> list[str]:
        """The complete lines written since the last call."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.place)
            more = file.read()
        self.place += len(more)
        *whole, self.rest = (self.rest + more.decode(errors="replace")).split("\n")
        return whole


def listening(port: int, check: Callable[[], None] = lambda: None) -> bool:
    """Wait until a process listens on the port of this machine, and call `check` meanwhile; False after a timeout."""
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline:
        check()
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        time.sleep(_PAUSE)
    return False


def free_ports(count: int) -> list[int]:
    """Distinct ports on which no process listens."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
