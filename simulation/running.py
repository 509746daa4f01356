"""Run an experiment on one of the runtimes and store it in its folder."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from twinflower.data.schema_file import draft_warning
from twinflower.data.sets import OWN, TableData
from twinflower.errors import SettingError, require

from .report.present import present_experiment, report_begun, report_experiment
from .report.tracking import tracker
from .results.folder import claimed, new_folder, require_new
from .results.resume import begun, clear_runtime, runtime_of, write_runtime
from .results.writing import write_plan
from .runs.setup import prepare, prepare_server
from .runtimes import RUNTIMES, curves
from .runtimes import runtime as runtime_module
from .runtimes.processes import cores
from .runtimes.progress import Observer
from .settings import Value
from .settings.catalogue import DEFAULTS
from .settings.experiment import Curve, Experiment

_MESSAGES_ONLY = ("server.min-replies", "server.void-rounds", "server.max-norm", "privacy.masks")


def new(plan: Experiment, runtime: str, out: str) -> Path:
    """Validate a plan and create a folder for its results: `out`, or one with the plan's name."""
    _check(plan, runtime)
    # on Flower, another process computes the rows
    prepared = prepare_server if runtime == "flower" else prepare
    prepared(replace(plan.curves[0].config, seed=plan.seeds[0]))  # errors must not leave a folder behind
    return _folder(plan, out)


def again(folder: Path, asked: str, overrides: Mapping[str, Value]) -> tuple[Experiment, str]:
    """The plan and the runtime of the interrupted command in this folder; asked: the requested runtime, or empty."""
    began = runtime_of(folder, asked)
    plan = begun(folder, overrides)
    runtime = chosen(plan, began if began in RUNTIMES else "")
    _check(plan, runtime)
    return plan, runtime


def new_rehearsal(plan: Experiment, out: str) -> Path:
    """Validate a plan for SuperNodes on this machine and create a folder for its results."""
    require(plan.single, "deploy takes one curve and one seed")
    _check_rows(plan)
    return _folder(plan, out)


def _folder(plan: Experiment, out: str) -> Path:
    return new_folder(out or plan.curves[0].config.output.dir, plan.name)


def run(
    plan: Experiment, folder: Path, runtime: str, observer: Observer, is_new: bool = True, jobs: int = 1
) -> list[str]:
    """Run the remaining runs of an experiment in up to `jobs` processes and draw its figure; return an error message
    for each failure."""
    with claimed(folder, "command"), _writing(folder, runtime):
        if is_new:
            require_new(folder)
        write_plan(plan, folder)
        write_runtime(runtime, folder)
        _announce(plan, folder)
        _warn_of_drafts(plan, observer)
        if runtime == "flower":
            failures = runtime_module(runtime).run(plan, folder, observer)
        elif jobs > 1 and not plan.single:
            failures = curves.run_parallel(plan, folder, observer, runtime, jobs)
        else:
            failures = curves.run(plan, folder, observer, runtime)
        clear_runtime(folder)
        return failures + ([] if plan.single else present_experiment(plan, folder))


def _announce(plan: Experiment, folder: Path) -> None:
    """Write the report that says that the results are not there yet."""
    if plan.single:
        report_begun(plan.curves[0].config, folder)
    else:
        report_experiment(plan, folder)


def _warn_of_drafts(plan: Experiment, observer: Observer) -> None:
    """Say once for each schema of a private run that it is still a draft, if it is."""
    configs = [curve.config for curve in plan.curves if curve.config.privacy.mode != "none"]
    for schema in sorted({config.data.schema for config in configs if isinstance(config.data, TableData)}):
        if warning := draft_warning(schema):
            observer.line(warning)


def _writing(folder: Path, runtime: str) -> AbstractContextManager[None]:
    """Lock the folder for this process if it writes the results; on Flower, the server app locks it instead."""
    return nullcontext() if runtime == "flower" else claimed(folder)


def rehearse(plan: Experiment, folder: Path, observer: Observer, secure: bool) -> list[str]:
    """Run a plan on SuperNodes on this machine, in a new folder; return an error message if it failed."""
    from .runtimes import rehearsal

    with claimed(folder, "command"):
        require_new(folder)
        write_plan(plan, folder)
        return rehearsal.run(plan, folder, observer, secure)


def _check(plan: Experiment, runtime: str) -> None:
    """Raise SettingError for a plan that cannot run here, or with settings that have no effect on this runtime."""
    _check_rows(plan)
    for curve in plan.curves:
        tracker(curve.config.output.tracker)
        require(
            runtime == "flower" or not curve.config.output.openmetrics,
            "output.openmetrics is written by the server of a run on Flower: use --runtime flower, twinflower deploy "
            "or flwr run, or leave it out",
        )
    if runtime == "cohort":
        _check_messages(plan)


def processes(jobs: int, runtime: str) -> int:
    """The number of processes for --jobs, 0 meaning one for each core; SettingError if it does not suit the runtime."""
    if not jobs >= 0:
        raise SettingError(f"--jobs must be at least 0 (0: one for each core); got {jobs}")
    if jobs != 1 and runtime not in curves.RUNTIMES:
        raise SettingError(
            f"--jobs needs runtime {' or '.join(curves.RUNTIMES)}: Flower's engine uses all cores itself; leave it "
            "out"
        )
    return jobs or cores()


def _check_rows(plan: Experiment) -> None:
    """Raise SettingError for data.name = own, whose rows exist only at deployed sites."""
    require(
        all(curve.config.data.name != OWN for curve in plan.curves),
        "the rows of data own are at deployed nodes only: run it with flwr run on their SuperLink",
    )


def chosen(plan: Experiment, asked: str) -> str:
    """The runtime to use: the requested one, or else arrays, unless a setting needs messages."""
    return asked or ("inprocess" if any(map(_needs_messages, plan.curves)) else "cohort")


def _needs_messages(curve: Curve) -> str:
    """The first setting of a curve that only messages to real clients can honour, with its value; empty if none is.

    These settings are about replies, about ledgers on disk, and about masks.
    """
    items, private = curve.config.items(), curve.config.privacy.mode != "none"
    keys = (*_MESSAGES_ONLY, "output.state-dir") if private else _MESSAGES_ONLY
    needs = (f"{key} = {items[key]}" for key in keys if items.get(key, DEFAULTS[key]) != DEFAULTS[key])
    return next(needs, "")


def _check_messages(plan: Experiment) -> None:
    """Raise SettingError for settings that have no effect on the runtime cohort, which has no messages."""
    setting = next(filter(None, map(_needs_messages, plan.curves)), "")
    if setting:
        raise SettingError(
            f"{setting} has no effect with runtime cohort, which has no replies, ledgers or masks: leave out "
            "--runtime, or this setting"
        )
