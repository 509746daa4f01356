"""Run the curves of an experiment: one after another in this process, or parts of it in several, with the same results.

A worker process trains and stores one part of the experiment at a time: a curve with one seed on the `inprocess`
runtime, a curve with all its seeds on the `cohort` runtime. The workers count the rounds they have done together, and
the command shows the count. They end with the command, even if the command is killed.
"""

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from twinflower.errors import RunError, TwinflowerError

from ..report.present import present_run
from ..results.checkpoint import Checkpoints
from ..results.folder import curve_folder, run_folder
from ..results.resume import left
from ..results.writing import write_run
from ..runs.run import Progress
from ..settings.experiment import Curve, Experiment
from . import runtime as runtime_module
from .processes import SIGNALS, interruptible
from .progress import Observer, Summary

_PAUSE = 0.1  # seconds between two looks at the number of rounds done
RUNTIMES = ("inprocess", "cohort")
"""The runtimes whose runs can be divided among workers."""


def run(plan: Experiment, folder: Path, observer: Observer, runtime: str) -> list[str]:
    """Run the remaining runs of an experiment in this process; return an error message for each failure."""
    failures = []
    for curve in plan.curves:
        summaries: list[Summary] = []
        stored = False
        if seeds := left(plan, folder, curve):
            try:
                with observer.following(curve.label, curve.config.rounds):
                    failures += _run_seeds(plan, folder, curve, seeds, runtime, observer.row, summaries)
                stored = True
            finally:
                observer.ended(curve, summaries, stored)
        Checkpoints(curve_folder(plan, folder, curve), 0).clear()
    return failures


def _run_seeds(
    plan: Experiment,
    folder: Path,
    curve: Curve,
    seeds: list[int],
    runtime: str,
    progress: Progress,
    summaries: list[Summary],
) -> list[str]:
    """Train and store the runs of one curve with these seeds; return an error message for each failure.

    summaries: a list to which the summary of every run is appended, whether or not the run can be stored.
    """
    failures: list[str] = []
    for run in runtime_module(runtime).train_seeds(plan, folder, curve, seeds, progress):
        summary = run.summary()
        summaries.append(summary)
        own = run_folder(plan, folder, curve, run.setup.config.seed)
        write_run(run, own, summary)
        failures += present_run(own, run.setup.config)
    return [f"{curve.label}: {own['failure']}" for own in summaries if own["failure"]] + failures


# --- in several processes


class _Part(NamedTuple):
    """A curve, by its place in the experiment, and the seeds to run it with."""

    curve: int
    seeds: tuple[int, ...]


class _PartResult(NamedTuple):
    """What came of a part: a message for each failure, the summaries of its runs, and the error that stopped it."""

    failures: list[str]
    summaries: list[Summary]
    error: TwinflowerError | None = None


def run_parallel(plan: Experiment, folder: Path, observer: Observer, runtime: str, jobs: int) -> list[str]:
    """Run the remaining runs of an experiment in up to `jobs` processes; return an error message for each failure."""
    parts = _parts(plan, folder, runtime)
    rounds = sum(plan.curves[part.curve].config.rounds * len(part.seeds) for part in parts)
    done = get_context("spawn").Value("q", 0)
    number, go_on = min(jobs, len(parts)) or 1, f"with: twinflower run --resume {folder}"
    with observer.following("all runs", rounds), workers(number, done, go_on) as pool:
        futures = {pool.submit(_run_part, plan, folder, runtime, part): part for part in parts}
        results = _follow(plan, folder, observer, futures, done.get_obj())
    return [failure for part in parts for failure in results[part].failures]


def _parts(plan: Experiment, folder: Path, runtime: str) -> list[_Part]:
    """The parts of an experiment that remain to be run."""
    seeds = {place: tuple(left(plan, folder, curve)) for place, curve in enumerate(plan.curves)}
    if runtime == "cohort":
        return [_Part(place, own) for place, own in seeds.items() if own]
    return [_Part(place, (seed,)) for place, own in seeds.items() for seed in own]


def _follow(
    plan: Experiment, folder: Path, observer: Observer, futures: Mapping["Future[_PartResult]", _Part], done: Any
) -> dict[_Part, _PartResult]:  # fmt: skip
    """Report on the parts until all have ended; raises the error of a part that could not be run.

    done: the number of rounds that the workers have done, which is read without its lock: a killed worker may hold it.
    """
    results: dict[_Part, _PartResult] = {}
    running = {
        place: [part for part in futures.values() if part.curve == place] for place, _ in futures.values()
    }
    try:
        for future in _as_they_end(futures, lambda: observer.reached(done.value)):
            part, result = futures[future], future.result()
            results[part] = result
            if result.error:
                raise result.error
            if all(other in results for other in running[part.curve]):
                summaries = _summaries(running.pop(part.curve), results)
                curve = plan.curves[part.curve]
                Checkpoints(curve_folder(plan, folder, curve), 0).clear()
                observer.ended(curve, summaries)
    finally:
        for place, parts in running.items():
            observer.ended(plan.curves[place], _summaries(parts, results), stored=False)
    return results


def _as_they_end(
    futures: Mapping["Future[_PartResult]", _Part], look: Callable[[], None]
) -> Iterator["Future[_PartResult]"]:
    """The futures as they end; `look` is called at short intervals until all have."""
    running = set(futures)
    while running:
        ended, running = wait(running, _PAUSE, FIRST_COMPLETED)
        look()
        yield from ended


def _summaries(parts: list[_Part], results: Mapping[_Part, _PartResult]) -> list[Summary]:
    return [own for part in parts if part in results for own in results[part].summaries]


@contextmanager
def workers(jobs: int, done: Any, go_on: str) -> Iterator[ProcessPoolExecutor]:
    """A pool of worker processes, which are ended with the block; done: see `_follow`.

    Raises RunError if a worker is killed; go_on: how a user goes on after that, as the end of a sentence.
    """
    before = set(active_children())
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (done,))
    try:
        with interruptible():
            yield pool
    except BrokenProcessPool:
        raise RunError(
            "a worker process ended unexpectedly, perhaps because memory ran out: use fewer --jobs, and go on "
            f"{go_on}"
        ) from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(active_children()) - before:
            worker.terminate()


# --- in a worker

_done: Any = None  # the rounds done by all workers; a pool hands it to its workers only through `_begin`


def _begin(done: Any) -> None:
    """Prepare a worker: it leaves Ctrl-C to the command, and ends when the command does."""
    global _done
    _done = done
    for number in {*SIGNALS} - {signal.SIGTERM}:
        signal.signal(number, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent:
        parent.join()
    os._exit(1)


def _run_part(plan: Experiment, folder: Path, runtime: str, part: _Part) -> _PartResult:
    """Train and store a part."""
    curve, rounds, summaries = plan.curves[part.curve], _Rounds(len(part.seeds)), list[Summary]()

    def progress(row: Mapping[str, Any]) -> None:
        rounds.reach(row["round"])

    try:
        failures = _run_seeds(plan, folder, curve, list(part.seeds), runtime, progress, summaries)
        return _PartResult(failures, summaries)
    except TwinflowerError as error:
        return _PartResult([], summaries, error)
    finally:
        rounds.reach(curve.config.rounds)


class _Rounds:
    """The rounds done of a part with this number of seeds, which count together."""

    def __init__(self, seeds: int) -> None:
        self.seeds, self.reached = seeds, 0

    def reach(self, round_: int) -> None:
        """Count the rounds up to this one, unless they are counted already."""
        new = max(round_ - self.reached, 0)
        self.reached += new
        with _done.get_lock():
            _done.value += new * self.seeds
