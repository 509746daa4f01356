"""The `flower` runtime: every run uses `flwr run` on one simulation SuperLink, which stops with the command.

By default `flwr run` leaves a SuperLink daemon running. Here the SuperLink has its own FLWR_HOME and ports.
`rehearsal` does the same with SuperNodes.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from twinflower.errors import RunError
from twinflower.problems.topologies import FromFile

from ..results.folder import run_folder
from ..results.resume import left, on_flower
from ..settings import PATHS, Config
from ..settings.experiment import Curve, Experiment
from ..settings.reader import to_tables
from . import progress
from .processes import Tail, Workspace, free_ports, temporary_workspace
from .progress import Observer

_PROJECT = Path(__file__).resolve().parents[2]  # root of a checkout; in a wheel, the folder of the package
_CHECKOUT = (_PROJECT / "pyproject.toml").exists()
CONNECTION = "ours"
FLOWER_COMMAND = [sys.executable, "-P", "-m", "twinflower.simulation.runtimes.flower_commands"]
SUPERLINK, _FLWR_RUN = "superlink", "flwr-run"  # processes, and their logs
_REPORTS = "reports.jsonl"
_BUNDLED = re.compile(  # settings about a bundle's files, which exist only in a checkout
    r"^(fab-include = \[.*?^\]|fab-format-version = \d+|flwr-version-target = [^\n]*)\n",
    re.DOTALL | re.MULTILINE,
)
_PAUSE = 0.2  # seconds between two looks at reports and logs

Say = Callable[[str], None]  # reports a line to the user


def own_app(home: Path) -> Path:
    """An app folder in `home` for `flwr run`, which refers to this package where it is.

    Flower then neither bundles nor unpacks it, and Python finds it compiled.
    """
    text = (_PROJECT / ("pyproject.toml" if _CHECKOUT else "app.toml")).read_text(encoding="utf-8")
    folder = home / "app"
    folder.mkdir(exist_ok=True)
    (folder / "pyproject.toml").write_text(_BUNDLED.sub("", text), encoding="utf-8")
    return folder


def silent(line: str) -> None:
    """Discard the line."""


@dataclass(frozen=True)
class Engine:
    """A simulation SuperLink, which may still be starting, its folder and its processes.

    port: where `flwr` reaches it. reports: what runs and nodes report. say: reports lines to the user.
    """

    place: Workspace
    port: int
    reports: Tail
    simulated: bool = True
    say: Say = silent

    @property
    def home(self) -> Path:
        """The folder used as FLWR_HOME."""
        return self.place.home

    def run(self, config: Config, folder: Path, app: Path | None = None) -> None:
        """Call `flwr run`, which writes the run folder; its lines are reported through `say` as they come.

        Raises RunError unless the run completed, or as soon as a required process ends.
        """
        self.look()  # at what came before
        process, ended = self.begin(config, folder, app), None
        while process.poll() is None:
            ended = self.look() or ended
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PAUSE)
        ended = self.look() or ended
        if ended is None:
            self._require_completed()
        elif ended.failure:
            raise RunError(ended.failure)

    def _require_completed(self) -> None:
        """Raise RunError, with the end of the log, unless Flower reports finished:completed; for an app that reports
        nothing or ended before it could."""
        status = self.last_status()
        if status != "finished:completed":
            raise RunError(f"flwr run ended as {status}; {self.place.end_of(_FLWR_RUN)}")

    def begin(self, config: Config, folder: Path, app: Path | None = None) -> subprocess.Popen[bytes]:
        """Start `flwr run` in the background, with its output in the log flwr-run."""
        command = [*FLOWER_COMMAND, "flwr", str(self.port), *self.words(config, folder, app)]
        return self.place.start(_FLWR_RUN, command, {"PYTHONUNBUFFERED": "1"})

    def look(self) -> progress.Report | None:
        """Say what the run and the nodes report; return the report of the run's end, if it came. RunError if a required
        process has ended."""
        ended = None
        for report in map(progress.read, self.reports.lines()):
            if report.ended:
                ended = report
            else:
                self.say(report.line)
        self.place.check()
        return ended

    def words(self, config: Config, folder: Path, app: Path | None = None) -> list[str]:
        """The arguments of `flwr` for this run."""
        config = _absolute(config.with_clients().put({"output.dir": str(folder)}))
        run_config = self.home / "run-config.toml"
        run_config.write_text(to_tables(config.items()))
        nodes = f"num-supernodes={config.clients.count} client-resources-num-cpus=1"
        words = ["run", str(app or own_app(self.home)), CONNECTION, "--stream"]
        words += ["--run-config", str(run_config)]
        return [*words, "--federation-config", nodes] if self.simulated else words

    def last_status(self) -> str:
        """The status of the newest run, such as finished:completed."""
        listing = json.loads(self.flwr("ls", CONNECTION, "--format", "json"))
        if "runs" not in listing:
            reason = " ".join(str(listing.get("error-message", listing)).split())
            raise RunError(f"flwr cannot list its runs: {reason}; {self.place.end_of(_FLWR_RUN)}")
        runs = sorted(listing["runs"], key=lambda run: run["pending-at"])
        return str(runs[-1]["status"]) if runs else "never started"

    def flwr(self, *words: str) -> str:
        """Call Flower's command line and return its output; RunError if it fails."""
        self.place.await_port(self.port)
        done = subprocess.run(
            [command_of("flwr"), *words], env=self.place.environment, cwd=self.home, capture_output=True, text=True,
            start_new_session=True,
        )  # fmt: skip
        if done.returncode:
            raise RunError(f"flwr {words[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")
        return done.stdout


def _absolute(config: Config) -> Config:
    """The same run with absolute paths, because Flower's processes have other working directories than the user."""
    items, graph, objective = config.items(), config.topology, config.objective
    if isinstance(graph, FromFile):
        config = replace(config, topology=FromFile(_named_file("file", graph.name)))
    config = replace(config, objective=replace(objective, name=_named_file("torch", objective.name)))
    return config.put({name: from_here(str(items[name])) for name in PATHS if items.get(name)})


def _named_file(kind: str, name: str) -> str:
    """KIND:PATH with an absolute path; any other name unchanged."""
    found, colon, path = name.partition(":")
    return f"{kind}:{from_here(path)}" if (found, colon) == (kind, ":") else name


def from_here(path: str) -> str:
    """The absolute path of a user's file."""
    return os.path.abspath(os.path.expanduser(path))


@contextmanager
def engine(say: Say = silent) -> Iterator[Engine]:
    """Begin to start a simulation SuperLink; on exit, stop it and everything it started."""
    with temporary_workspace() as place:
        configure_flower_env(place)
        port, control = free_ports(2)
        write_connection(place.home, f'address = "127.0.0.1:{port}"\ninsecure = true\n')
        words = ["--insecure", "--simulation", "--isolation", "subprocess"]
        begin_superlink(place, port, [*words, "--control-api-address", f"127.0.0.1:{control}"])
        yield Engine(place, port, reports_in(place), say=say)


def configure_flower_env(place: Workspace) -> None:
    """Set up the folder as FLWR_HOME, without telemetry, update checks and installation of dependencies."""
    place.environment |= {
        "FLWR_HOME": str(place.home),
        progress.FILE: str(place.home / _REPORTS),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PATH": _prepended(Path(sys.executable).parent, "PATH"),
    }
    if _CHECKOUT:  # which need not be installed
        place.environment["PYTHONPATH"] = _prepended(_PROJECT, "PYTHONPATH")


def reports_in(place: Workspace) -> Tail:
    """A reader of what runs and nodes report."""
    return Tail(place.home / _REPORTS)


def _prepended(folder: Path, variable: str) -> str:
    """The folders of an environment variable with another one in front."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get(variable)])])


def write_connection(home: Path, text: str) -> None:
    """Write the connection settings with which `flwr` finds this SuperLink."""
    (home / "config.toml").write_text(f"[superlink.{CONNECTION}]\n{text}")


def start_superlink(place: Workspace, port: int, words: list[str], commands: Path | None = None) -> None:
    """Start a SuperLink and wait until it listens on the port; commands: folder of another Python's scripts."""
    begin_superlink(place, port, words, commands)
    place.await_port(port)


def begin_superlink(place: Workspace, port: int, words: list[str], commands: Path | None = None) -> None:
    """Start a SuperLink without waiting for it."""
    command = [command_of("flower-superlink", commands), "--host", "127.0.0.1", "--port", str(port)]
    place.keep(SUPERLINK, [*command, "--database", str(place.home / "state.db"), *words])


def command_of(name: str, folder: Path | None = None) -> str:
    """The path of a console script of the running Python, or of the Python installation with this scripts folder."""
    return str((folder or Path(sys.executable).parent) / name)


def run(plan: Experiment, folder: Path, observer: Observer) -> list[str]:
    """Run the remaining runs of an experiment; return an error message for each failure."""
    failures = []
    with engine(observer.line) as flower:
        for curve in plan.curves:
            seeds = left(plan, folder, curve)
            for seed in seeds:
                failures += _run_one(flower, curve, seed, run_folder(plan, folder, curve, seed))
            if seeds:
                observer.ended(curve, ())
    return failures


def _run_one(flower: Engine, curve: Curve, seed: int, folder: Path) -> list[str]:
    try:
        flower.run(on_flower(replace(curve.config, seed=seed), folder), folder)
        return []
    except RunError as error:
        return [f"{curve.label}: {error}"]
