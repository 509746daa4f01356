"""The `flower` runtime: `flwr run` on a simulation SuperLink of our own.

`flwr run` would otherwise leave a SuperLink daemon behind. Here it has its own FLWR_HOME and ports, and
ends with the command. `deployment` does the same with SuperNodes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinflower.errors import RunError

from .config import DEFAULT_CLIENTS, PATHS, Config, Value
from .record import to_toml

PROJECT = Path(__file__).resolve().parent.parent
CONNECTION = "ours"
_START_TIMEOUT = 60.0
_STOP_TIMEOUT = 20.0


@dataclass(frozen=True)
class Engine:
    """A running simulation SuperLink and the environment that finds it."""

    environment: dict[str, str]
    home: Path
    simulated: bool = True

    def run(self, config: Config, folder: Path, app: Path = PROJECT) -> str:
        """One `flwr run` that writes its run folder; returns Flower's output.

        Raises RunError unless Flower says finished:completed.
        """
        output = self.flwr(*self.words(config, folder, app))
        status = self.last_status()
        if status != "finished:completed":
            lines = [line for line in output.splitlines() if line.startswith("twinflower: ")]
            raise RunError(lines[-1][12:] if lines else f"flwr run ended as {status}:\n{output[-2000:]}")
        return output

    def words(self, config: Config, folder: Path, app: Path = PROJECT) -> list[str]:
        """The arguments of `flwr` for this run."""
        config = _absolute(replace(config.with_clients(DEFAULT_CLIENTS), out=str(folder)))
        run_config = self.home / "run-config.toml"
        run_config.write_text(to_toml(config.items()))
        nodes = f"num-supernodes={config.num_clients} client-resources-num-cpus=1"
        words = ["run", str(app), CONNECTION, "--stream", "--run-config", str(run_config)]
        return [*words, "--federation-config", nodes] if self.simulated else words

    def last_status(self) -> str:
        """Status of the newest run."""
        listing = json.loads(self.flwr("ls", CONNECTION, "--format", "json"))
        runs = sorted(listing["runs"], key=lambda run: run["pending-at"])
        return str(runs[-1]["status"]) if runs else "never started"

    def flwr(self, *words: str) -> str:
        """Output of Flower's own command line; RunError if it fails."""
        done = subprocess.run(
            [_command("flwr"), *words], env=self.environment, cwd=self.home, capture_output=True, text=True
        )
        if done.returncode:
            raise RunError(f"flwr {words[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout


def _absolute(config: Config) -> Config:
    """The same run with every path absolute: Flower's processes work in other folders than the user."""
    paths: dict[str, Any] = {name: _from_here(value) for name in PATHS if (value := getattr(config, name))}
    settings = tuple(
        (name, _graph_file(value) if name == "topology" else value) for name, value in config.settings
    )
    return replace(config, settings=settings, **paths)


def _graph_file(topology: Value) -> Value:
    """file:PATH with the path absolute; the name of a graph as it is."""
    kind, colon, path = str(topology).partition(":")
    return f"file:{_from_here(path)}" if (kind, colon) == ("file", ":") else topology


def _from_here(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


@contextmanager
def engine() -> Iterator[Engine]:
    """Start a simulation SuperLink; end it, and everything it started, on leaving."""
    with place_of_its_own() as (home, environment):
        port, control = free_ports(2)
        write_connection(home, f'address = "127.0.0.1:{port}"\ninsecure = true\n')
        words = [
            "--insecure",
            "--simulation",
            "--isolation",
            "subprocess",
            "--control-api-address",
            f"127.0.0.1:{control}",
        ]
        with superlink(home, environment, port, words):
            yield Engine(environment, home)


@contextmanager
def place_of_its_own() -> Iterator[tuple[Path, dict[str, str]]]:
    """A temporary FLWR_HOME and the environment that leads there; ends whatever was started in it."""
    with tempfile.TemporaryDirectory(prefix="twinflower-", ignore_cleanup_errors=True) as name:
        environment = os.environ | {
            "FLWR_HOME": name,
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        try:
            yield Path(name), environment
        finally:
            _end_strays(name)


def write_connection(home: Path, text: str) -> None:
    """How `flwr` finds our SuperLink."""
    (home / "config.toml").write_text(f"[superlink.{CONNECTION}]\n{text}")


@contextmanager
def superlink(
    home: Path, environment: dict[str, str], port: int, words: list[str], commands: Path | None = None
) -> Iterator[None]:
    """A SuperLink that listens on the port while the context lasts; commands: folder of another Python's Flower."""
    command = [
        "flower-superlink",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--database",
        str(home / "state.db"),
    ]
    process = spawn([*command, *words], environment, home / "superlink.log", commands)
    try:
        await_port(port, process, home / "superlink.log")
        yield
    finally:
        end(process)


def spawn(
    command: list[str], environment: dict[str, str], log: Path, commands: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start one of Flower's commands in a session of its own, writing to a log."""
    with log.open("a") as file:
        return subprocess.Popen(
            [_command(command[0], commands), *command[1:]], env=environment, cwd=log.parent, stdout=file, stderr=file,
            start_new_session=True,
        )  # fmt: skip


def _end_strays(home: str) -> None:
    """End what Flower and Ray started for this FLWR_HOME in sessions of their own (where there is /proc)."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"\0FLWR_HOME={home}".encode() in b"\0" + (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)


def _command(name: str, folder: Path | None = None) -> str:
    """A console script of the Python that runs us, or of the one in this folder."""
    return str((folder or Path(sys.executable).parent) / name)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until somebody listens; RunError if the process ends or a minute passes first."""
    deadline = time.monotonic() + _START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.2)
    raise RunError(f"Flower's SuperLink did not start: {log.read_text()[-1000:]}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the whole process group to end, then insist."""
    for request in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, request)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_TIMEOUT)
