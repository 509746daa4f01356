"""The loop shared by the runtimes in this process: train every curve, and store and present its runs."""

from collections.abc import Callable, Iterable
from pathlib import Path

from ..report.present import present_run
from ..results.checkpoint import Checkpoints
from ..results.folder import curve_folder, run_folder
from ..results.record import Ending, Result
from ..results.resume import left
from ..results.writing import write_run
from ..settings.experiment import Curve, Experiment
from .observer import Observer

# bytes of an array for a block of clients, so that all arrays of the block fit into the last level of the cache
BLOCK = 2**21

Train = Callable[[Curve, list[int]], Iterable[Result]]  # runs a curve with these seeds


def run_curves(plan: Experiment, folder: Path, observer: Observer, train: Train) -> list[str]:
    """Train and store the remaining runs of an experiment; return an error message for each failure."""
    failures = []
    for curve in plan.curves:
        if seeds := left(plan, folder, curve):
            failures += _run_curve(plan, folder, observer, train, curve, seeds)
        Checkpoints(curve_folder(plan, folder, curve), 0).clear()
    return failures


def _run_curve(
    plan: Experiment, folder: Path, observer: Observer, train: Train, curve: Curve, seeds: list[int]
) -> list[str]:
    endings: list[Ending] = []
    stored = False
    try:
        with observer.following(curve.label, curve.config.rounds):
            failures = run_part(plan, folder, train, curve, seeds, endings)
        stored = True
    finally:
        observer.ended(curve, endings, stored)
    return failures


def run_part(
    plan: Experiment, folder: Path, train: Train, curve: Curve, seeds: list[int], endings: list[Ending]
) -> list[str]:
    """Train and store the runs of one curve with these seeds; return an error message for each failure.

    endings: a list to which the ending of every run is appended, whether or not the run can be stored.
    """
    failures: list[str] = []
    for result in train(curve, seeds):
        endings.append(result.ending())
        own = run_folder(plan, folder, curve, result.setup.config.seed)
        write_run(result, own)
        failures += present_run(own, result.setup.config)
    return [f"{curve.label}: {ending.failure}" for ending in endings if ending.failure] + failures
