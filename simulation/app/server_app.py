"""The ServerApp that `flwr run` loads: it runs the strategy, writes the run folder and prints its path."""

import hashlib
import signal
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

import twinflower
from twinflower.errors import DiskError, RunError, SettingError, TwinflowerError
from twinflower.flower_messages import PLACES, SITE
from twinflower.strategies.messages import properties_in
from twinflower.strategies.nodes import Reminder, meet, partitions
from twinflower.strategies.sites import WrappedGrid

from ..report.labels import score
from ..report.messages import bounds, evaluated, guarantee, row_line, warnings
from ..report.openmetrics import of_run, require_prometheus
from ..report.present import present_run, report_begun
from ..report.tracking import tracker
from ..results.checkpoint import Checkpoints
from ..results.files import require_free, write_text
from ..results.folder import claimed, has_ended, new_folder
from ..results.resume import (
    ENDED_BY_FLOWER,
    clear_cause,
    require_resumable,
    require_state_dir,
    write_cause,
    write_resume,
)
from ..results.writing import write_config, write_run
from ..runs.facts import described
from ..runs.run import Run
from ..runs.setup import PreparedRun, prepare_server
from ..runtimes.computing import computing, keep_all
from ..runtimes.flower_internals import is_simulated
from ..runtimes.processes import Interrupted, interruptible
from ..runtimes.progress import Report, report, say, warnings_reported
from ..runtimes.strategy import run_strategy
from ..settings import Config, check, parse_run_config
from .watched_grid import WatchedGrid

app = ServerApp()
BUNDLE = Path(twinflower.__file__).resolve().parents[1]
_SHARE = 0.1  # pause before the next request, as a share of the time waited so far
_PARTS = ("twinflower", "strategies", "clients", "simulation")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app. Any Twinflower error is printed as one sentence, and Flower marks the run as failed."""
    try:
        with computing(), warnings_reported():
            _run(grid, parse_run_config(context.run_config))
    except TwinflowerError as error:
        cause = _other_app(Path.cwd()) if isinstance(error, RunError) and is_simulated(grid) else ""
        text = f"{cause}{error}"
        print(f"twinflower: {text}", flush=True)
        report(Report(ended=True, failure=text))
        raise RunError(text) from None  # an exit code alone would count as finished:completed
    report(Report(ended=True))


def _other_app(folder: Path) -> str:
    """The likely cause of a failure, as text, if the local SuperLink was started in another app's folder; else empty.

    The nodes then import that app's modules.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
        if "app" not in project["tool"]["flwr"] or project["project"]["name"] == "twinflower":
            return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return (
        f"Flower's local SuperLink was started in {folder}, the folder of another app, and its nodes import that one's "
        "modules: end that flower-superlink and start this run again, or set FLWR_LOCAL_SUPERLINK_HTTP_API_PORT and "
        "FLWR_LOCAL_CONTROL_API_PORT to free ports. The run ended with: "
    )


def other_source(folder: Path, bundle: Path = BUNDLE) -> list[str]:
    """A warning for the user if nodes started in this folder import other modules than those of the bundle that was
    sent, which the server itself runs.

    Flower's engine starts the nodes in the folder in which its SuperLink was started, and Python finds the modules of
    that folder first.
    """
    if not (folder / "twinflower" / "__init__.py").is_file() or _digest(folder) == _digest(bundle):
        return []
    return [
        f"warning: Flower's local SuperLink was started in {folder}, so the nodes run the modules there and not those "
        "of the bundle that was sent, and results are written there: end that flower-superlink and start this run "
        "again, or set FLWR_LOCAL_SUPERLINK_HTTP_API_PORT and FLWR_LOCAL_CONTROL_API_PORT to free ports"
    ]


def _digest(folder: Path) -> str:
    """A hash of the names and contents of all modules in a checkout or a bundle."""
    found = hashlib.sha256()
    for file in sorted(file for part in _PARTS for file in (folder / part).rglob("*.py")):
        found.update(f"{file.relative_to(folder)}\0{file.stat().st_size}\0".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def _run(grid: Grid, config: Config) -> None:
    check(config)  # before waiting for nodes
    tracker(config.output.tracker)
    if config.output.openmetrics:
        require_prometheus()
    if is_simulated(grid):
        say(*other_source(Path.cwd()))
    if not config.clients.count:
        config = config.with_clients(len(meet(grid, 0, config.server.node_timeout)))
    setup = prepare_server(config)
    keep_all()
    folder = _folder(config)
    try:
        with claimed(folder), _cause_noted(folder):
            _train(grid, setup, folder)
    except Interrupted as end:
        # Again, for Flower's own handler, which ends this process. That may take a minute, and the folder is free.
        signal.raise_signal(end.number)


@contextmanager
def _cause_noted(folder: Path) -> Iterator[None]:
    """Note in the folder why the block was cut off, for `twinflower status`: perhaps Flower cannot inform the user."""
    try:
        with interruptible():
            yield
    except Interrupted:
        _note_cause(ENDED_BY_FLOWER, folder)
        report(Report(ended=True, failure=ENDED_BY_FLOWER))
        raise
    except TwinflowerError as error:
        _note_cause(str(error), folder)
        raise


def _note_cause(cause: str, folder: Path) -> None:
    if not has_ended(folder):
        with suppress(DiskError):
            write_cause(cause, folder)


def _train(grid: Grid, setup: PreparedRun, folder: Path) -> None:
    """Run the strategy and write the run folder; RunError if the run failed."""
    if setup.config.output.resume_from:
        say(f"this run was cut off, and goes on from its last checkpoint in {folder}")
    say(*described(setup).splitlines())
    runtime = "flower" if is_simulated(grid) else "deployment"
    checkpoints = _checkpoints(setup.config, folder, runtime)
    watch, quick = partial(_export, setup.config.output.openmetrics, folder.name), _quick(grid, folder)

    def show(row: dict[str, float]) -> None:
        _print_row(setup.config, row)
        quick.reminder.spoken()

    run = run_strategy(setup, quick, runtime, show, checkpoints, watch)
    watch(run)
    summary = run.summary()
    # Before writing, so that they are said even if the disk is full.
    say(*warnings([summary]), *evaluated(summary), *guarantee([summary]))
    write_run(run, folder, summary)
    failures = [*filter(None, [run.failure]), *present_run(folder, setup.config)]
    if summary["bounds_met"] is not None:
        say(bounds(summary["bounds_met"], run.rows[-1]["excess"]))
    print(f"{'results of a failed run' if failures else 'results'}: {folder}", flush=True)
    if failures:
        raise RunError("; ".join(failures))


def _export(file: str, name: str, run: Run) -> None:
    """Write the metrics of a run to the file, if the run has one. If it cannot be written, say so and go on."""
    try:
        if file:
            require_free(Path(file))
            write_text(Path(file).expanduser(), of_run(name, run))
    except (DiskError, SettingError) as error:
        say(f"warning: {error}")


def _quick(grid: Grid, folder: Path) -> "PollingGrid":
    """The grid with shorter pauses between two requests for replies.

    In a simulation a request keeps the nodes' processes from their work, so the pauses grow while Ray starts. In a
    deployment a SuperLink that does not answer is noted in the folder.
    """
    if is_simulated(grid):
        return PollingGrid(grid, 0.01, 0.05)

    def silent(text: str) -> None:
        _note_cause(text, folder)
        say(text)

    def answers(text: str) -> None:
        clear_cause(folder)
        say(text)

    return PollingGrid(WatchedGrid(grid, silent, answers))


def _checkpoints(config: Config, folder: Path, runtime: str) -> Checkpoints:
    """The checkpoints of the run; if it writes any, it can be resumed from now on."""
    checkpoints = Checkpoints(folder, config.output.checkpoint_every, config)
    if runtime == "flower":
        require_state_dir(config)
    write_config(config, folder)
    clear_cause(folder)
    report_begun(config, folder)
    if checkpoints.every:
        resume = write_resume(config, folder)
        say(f"to go on if this run is cut off: flwr run . CONNECTION --stream --run-config {resume}")
    return checkpoints


def _folder(config: Config) -> Path:
    """The folder for the results: that of the resumed run, or a new one."""
    if not config.output.resume_from:
        return new_folder(config.output.dir, f"{config.algorithm}-{config.data.name}".replace(":", "-"))
    folder = Path(config.output.resume_from).absolute()
    require_resumable(folder, config)
    return folder


def _print_row(config: Config, row: dict[str, float]) -> None:
    """Print the row. The first one comes while the nodes train, so that what draws the figure is imported by then."""
    from ..report import figures  # noqa: F401  takes as long to import as everything else here

    say(row_line(row, score(config)))


class PollingGrid(WrappedGrid):
    """A wrapper of another grid that polls for replies more often than Flower's own, and says for whom it waits.

    It uses only the public methods of that grid, whose intervals are 3 s in deployment and 0.1 s in a simulation.
    shortest, longest: of the pauses, in seconds. reminder: of all waits, however many exchanges a round has.
    """

    def __init__(self, grid: Grid, shortest: float = 0.2, longest: float = 3.0) -> None:
        super().__init__(grid)
        self.shortest, self.longest = shortest, longest
        self.reminder = Reminder(say)
        self._known: dict[int, str | int] = {}  # node -> its name, or the partition that it reported

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send all messages; return their replies, or those that arrive within the timeout in seconds."""
        sent = {id_: message.metadata.dst_node_id for id_, message in self._pushed(messages)}
        missing, began = dict(sent), time.monotonic()
        replies: list[Message] = []

        def waits() -> str:
            return self._waiting(list(missing.values()), replies, timeout, time.monotonic() - began)

        while missing:
            waited = time.monotonic() - began
            if timeout is not None and waited >= timeout:
                break
            self.reminder.look(waits)
            time.sleep(min(max(_SHARE * waited, self.shortest), self.longest))
            for reply in self.pull_messages(set(missing)):
                missing.pop(reply.metadata.reply_to_message_id, None)
                replies.append(reply)
        return replies

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """See Flower's `Grid`. What the replies say of their nodes is kept, for the sentences about who is missing."""
        replies = list(super().pull_messages(message_ids))
        for reply in replies:
            self._note(reply)
        return replies

    def _pushed(self, messages: Iterable[Message]) -> list[tuple[str, Message]]:
        """The messages that were sent, with their ids."""
        messages = list(messages)
        return [pair for pair in zip(self.push_messages(messages), messages, strict=False) if pair[0]]

    def _note(self, reply: Message) -> None:
        """Note the name or the partition that a node reports; one with a name reports later how it is numbered."""
        found, node = properties_in(reply) if reply.has_content() else {}, reply.metadata.src_node_id
        if isinstance(name := found.get(SITE), str):
            self._known[node] = name
        elif isinstance(number := found.get(PLACES[0]), int):
            self._known.setdefault(node, number)

    def _waiting(self, nodes: list[int], here: list[Message], timeout: float | None, waited: float) -> str:
        """What is waited for: the names or partitions of these nodes, if they are known."""
        names = {node: self._known[node] for node in nodes if node in self._known}
        numbers = sorted(place for place in names.values() if isinstance(place, int))
        sites = sorted(place for place in names.values() if isinstance(place, str))
        who = partitions(range(len(sites)), sites) if sites else partitions(numbers)
        if len(names) < len(nodes):
            who = f"{len(nodes)} node{'s' * (len(nodes) > 1)}"
        left = "" if timeout is None else f", at most {timeout - waited:.0f} s more"
        errors = sum(reply.has_error() for reply in here)
        failed = f" ({errors} failed)" if errors else ""
        return f"{len(here)} of {len(here) + len(nodes)} replies are here{failed}; waiting for {who}{left}"
