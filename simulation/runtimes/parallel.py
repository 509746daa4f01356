"""The runs of an experiment in several worker processes, with the same results as one after another.

A worker trains and stores one part of the experiment at a time: a curve with one seed on the `inprocess` runtime, a
curve with all its seeds on the `cohort` runtime. Its reports to the user go through a queue to the command, which shows
the progress of all parts together. The workers end with the command, also if the command is killed.
"""

import os
import queue
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import Queue
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from twinflower.errors import RunError, TwinflowerError

from ..results.folder import Checkpoints, curve_folder
from ..results.record import Ending
from ..results.resume import left
from ..settings.experiment import Curve, Experiment
from . import cohort, inprocess
from .local import Train, run_part
from .observer import Observer
from .processes import interruptible

_PAUSE = 0.1  # seconds between two looks at the reports
_TRAINERS: dict[str, Callable[[Experiment, Path, Observer], Train]] = {
    "inprocess": inprocess.trainer,
    "cohort": cohort.trainer,
}
RUNTIMES = tuple(_TRAINERS)
"""The runtimes whose runs can be divided among workers."""


class _Part(NamedTuple):
    """A curve, by its place in the experiment, and the seeds to run it with."""

    curve: int
    seeds: tuple[int, ...]


class _Report(NamedTuple):
    """A worker's report on a part: a line of output, or the round of its newest row."""

    part: _Part
    line: str = ""
    round: int = 0


class _Outcome(NamedTuple):
    """The result of a part: a message for each failure, the endings of its runs, and the error that stopped it."""

    failures: list[str]
    endings: list[Ending]
    error: TwinflowerError | None = None


def run(plan: Experiment, folder: Path, observer: Observer, runtime: str, jobs: int) -> list[str]:
    """Run the remaining runs of an experiment in up to `jobs` processes; return an error message for each failure."""
    work = _Work(plan, folder, observer, _parts(plan, folder, runtime))
    reports: Queue[_Report] = get_context("spawn").Queue()
    with observer.together(work.total), _workers(min(jobs, len(work.parts)) or 1, reports) as pool:
        running = {part: pool.submit(_run_part, plan, folder, runtime, part) for part in work.parts}
        try:
            _follow(work, running, reports)
        except BrokenProcessPool:
            raise RunError(
                "a worker process ended unexpectedly, perhaps because memory ran out: use fewer --jobs, and go on "
                f"with: twinflower run --resume {folder}"
            ) from None
        finally:
            work.close()
    return [failure for part in work.parts for failure in running[part].result().failures]


def _parts(plan: Experiment, folder: Path, runtime: str) -> list[_Part]:
    """The parts of an experiment that remain to be run."""
    seeds = {place: tuple(left(plan, folder, curve)) for place, curve in enumerate(plan.curves)}
    if runtime == "cohort":
        return [_Part(place, own) for place, own in seeds.items() if own]
    return [_Part(place, (seed,)) for place, own in seeds.items() for seed in own]


@dataclass
class _Work:
    """What remains of an experiment, and what was reported of it.

    rounds: the rounds done of each part. endings: those of each curve whose guarantee has not been printed yet.
    """

    plan: Experiment
    folder: Path
    observer: Observer
    parts: list[_Part]
    rounds: dict[_Part, int] = field(default_factory=dict)
    endings: dict[int, list[Ending]] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of rounds of all parts together."""
        return sum(self._rounds_of(part) * len(part.seeds) for part in self.parts)

    def _rounds_of(self, part: _Part) -> int:
        return self.plan.curves[part.curve].config.rounds

    def take(self, report: _Report) -> None:
        """Pass a report on to the user."""
        if report.line:
            self.observer.line(report.line)
        if report.round:
            self._advance(report.part, report.round)

    def _advance(self, part: _Part, round_: int) -> None:
        before = self.rounds.get(part, 0)
        self.rounds[part] = max(before, round_)
        self.observer.advance((self.rounds[part] - before) * len(part.seeds))

    def ended(self, part: _Part, outcome: _Outcome, others: bool) -> None:
        """Note the outcome of a part, and raise its error; others: whether other parts of its curve still run."""
        self._advance(part, self._rounds_of(part))
        self.endings.setdefault(part.curve, []).extend(outcome.endings)
        if outcome.error:
            raise outcome.error
        if not others:
            self._curve_ended(part.curve)

    def _curve_ended(self, place: int) -> None:
        curve, endings = self.plan.curves[place], self.endings.pop(place)
        Checkpoints(curve_folder(self.plan, self.folder, curve), 0).clear()
        self.observer.ended(curve, endings)
        self.observer.spent(endings)

    def close(self) -> None:
        """Print the guarantees of curves that did not end."""
        for endings in self.endings.values():
            self.observer.spent(endings)


def _follow(work: _Work, running: Mapping[_Part, "Future[_Outcome]"], reports: "Queue[_Report]") -> None:
    """Pass reports on until all parts have ended; raises the error of a part that could not be run."""
    parts = {future: part for part, future in running.items()}
    while parts:
        done, _ = wait(parts, _PAUSE, FIRST_COMPLETED)
        for report in _waiting(reports):
            work.take(report)
        for future in [future for future in parts if future in done]:
            part = parts.pop(future)
            work.ended(part, future.result(), any(other.curve == part.curve for other in parts.values()))


def _waiting(reports: "Queue[_Report]") -> Iterator[_Report]:
    """The reports in the queue."""
    with suppress(queue.Empty):
        while True:
            yield reports.get_nowait()


@contextmanager
def _workers(jobs: int, reports: "Queue[_Report]") -> Iterator[ProcessPoolExecutor]:
    """A pool of worker processes, which are ended with the block."""
    before = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (reports, jobs))
    try:
        with interruptible():
            yield pool
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - before:
            worker.terminate()


# --- in a worker

_queue: "Queue[_Report] | None" = None  # a pool hands a queue to its workers only through `_begin`


def _begin(reports: "Queue[_Report]", jobs: int) -> None:
    """Prepare one of `jobs` workers: it leaves Ctrl-C to the command, and ends when the command does."""
    global _queue
    _queue = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent:
        parent.join()
    os._exit(1)


def _run_part(plan: Experiment, folder: Path, runtime: str, part: _Part) -> _Outcome:
    """Train and store a part."""
    assert _queue is not None
    observer = _Reporter(part, _queue)
    train = _TRAINERS[runtime](plan, folder, observer)
    try:
        failures = run_part(plan, folder, observer, train, plan.curves[part.curve], list(part.seeds))
    except TwinflowerError as error:
        return _Outcome([], observer.endings, error)
    return _Outcome(failures, observer.endings)


@dataclass(frozen=True)
class _Reporter:
    """The observer of a part, which reports to the command and keeps the endings of the part's runs."""

    part: _Part
    reports: "Queue[_Report]"
    endings: list[Ending] = field(default_factory=list)

    def line(self, text: str) -> None:
        """See `Observer`."""
        self.reports.put(_Report(self.part, line=text))

    def row(self, row: dict[str, Any]) -> None:
        """See `Observer`."""
        self.reports.put(_Report(self.part, round=row["round"]))

    def following(self, curve: Curve) -> AbstractContextManager[None]:
        """See `Observer`."""
        return nullcontext()

    def together(self, rounds: int) -> AbstractContextManager[None]:
        """See `Observer`."""
        return nullcontext()

    def advance(self, rounds: int) -> None:
        """See `Observer`."""

    def ended(self, curve: Curve, endings: Sequence[Ending]) -> None:
        """See `Observer`. The command itself reports the end of a curve."""

    def spent(self, endings: Sequence[Ending]) -> None:
        """See `Observer`."""
        self.endings.extend(endings)
