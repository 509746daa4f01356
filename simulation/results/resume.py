"""Whether a run is still running, and if not, how it ended; and the rules for resuming one that was cut off.

A command records its runtime. A resumed experiment runs all runs that have not ended, and a run with checkpoints
resumes from the newest one. This requires the same settings, the same runtime, and the states of all clients that took
part; otherwise resuming is refused. A run that was started by `flwr run` is resumed by `flwr run`.

The status follows from the files and locks of the folder, on the machine that writes them. So it is known when neither
Flower nor the run says anything: a SuperLink that stood still for some 45 seconds ends the server's process silently.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from twinflower.data.sets import OWN
from twinflower.errors import DataError, SettingError, require

from ..runs.setup import PreparedRun
from ..settings import Config, Value
from ..settings.experiment import Curve, Experiment
from ..settings.reader import to_tables
from ..settings.sections import Private
from . import names
from .checkpoint import Checkpoint, Checkpoints
from .files import write_text
from .folder import curve_folder, curve_of, has_config, has_ended, in_use, is_experiment, run_folder
from .reading import read_config, read_plan, read_summary
from .writing import write_config

ENDED_BY_FLOWER = (
    "Flower ended the server's process: the run was stopped (flwr stop), the SuperLink was stopped or restarted, or "
    "one of the two stood still for a minute"
)

# --- the notes of a command


def write_resume(config: Config, folder: Path) -> Path:
    """Write resume.toml, the run config with which `flwr run` resumes the run in this folder, and return its path."""
    path = resume_file(folder)
    write_text(path, to_tables(config.put({"output.resume-from": str(folder)}).items()))
    return path


def resume_file(folder: Path) -> Path:
    """The path of resume.toml, the run config with which `flwr run` resumes a run that it began."""
    return folder.absolute() / names.RESUME


def write_runtime(runtime: str, folder: Path) -> None:
    """Record the runtime of the command that works in this folder."""
    write_text(folder / names.RUNTIME, runtime)


def read_runtime(folder: Path) -> str:
    """The runtime of the command that was interrupted in this folder; empty if there is none."""
    note = folder / names.RUNTIME
    return note.read_bytes().decode(errors="replace") if note.is_file() else ""


def clear_runtime(folder: Path) -> None:
    """Remove the record of the runtime, because the command has ended normally."""
    (folder / names.RUNTIME).unlink(missing_ok=True)


def write_cause(cause: str, folder: Path) -> None:
    """Record why the run in this folder was cut off, or why it does not go on at the moment."""
    write_text(folder / names.CAUSE, cause)


def read_cause(folder: Path) -> str:
    """Why the run in this folder was cut off; empty if nobody could record it."""
    note = folder / names.CAUSE
    return note.read_text(encoding="utf-8", errors="replace") if note.is_file() else ""


def clear_cause(folder: Path) -> None:
    """Remove the record of why the run was cut off, because it goes on."""
    (folder / names.CAUSE).unlink(missing_ok=True)


def read_resumed(run: Path) -> list[int]:
    """The rounds after which the run in this folder was resumed; seeds that ran together have one note."""
    notes = [folder / names.RESUMED for folder in dict.fromkeys((run, curve_of(run)))]
    return [int(line) for note in notes if note.is_file() for line in note.read_text().split()]


def _note_resumed(folder: Path, round_: int) -> None:
    """Record that the run in this folder goes on after a round."""
    note = folder / names.RESUMED
    known = note.read_text() if note.is_file() else ""
    write_text(note, f"{known}{round_}\n")


# --- what a command goes on with


def begun(folder: Path, overrides: Mapping[str, Value]) -> Experiment:
    """The experiment of an interrupted command in this folder; SettingError if it cannot be resumed."""
    if not has_config(folder) and not is_experiment(folder):
        raise SettingError(
            f"{folder} holds neither experiment.toml nor config.toml: nothing to resume; a run leaves something to "
            "resume only with output.checkpoint-every above 0"
        )
    if not is_experiment(folder) and has_ended(folder):
        raise SettingError(f"the run in {folder} has ended already")
    if resume_file(folder).exists() and not read_runtime(folder):
        raise SettingError(
            f"the run in {folder} was started by flwr run: go on with flwr run . CONNECTION --stream --run-config "
            f"{resume_file(folder)}"
        )
    return read_plan(folder, overrides)


def runtime_of(folder: Path, asked: str) -> str:
    """The runtime on which a run began, or else the requested one (may be empty); SettingError if they differ."""
    began = read_runtime(folder)
    if asked and began and asked != began:
        raise SettingError(f"the run in {folder} began on runtime {began}: leave out --runtime")
    return asked or began


def left(plan: Experiment, out: Path, curve: Curve) -> list[int]:
    """The seeds of a curve whose run has not ended."""
    return [seed for seed in plan.seeds if not has_ended(run_folder(plan, out, curve, seed))]


def interrupted(plan: Experiment, out: Path) -> str:
    """The message of a command that was ended by a signal: how to resume, or that nothing was kept."""
    if plan.single and not plan.curves[0].config.output.checkpoint_every:
        clear_runtime(out)
        return "interrupted; without output.checkpoint-every nothing is kept"
    return f"interrupted; go on with: twinflower run --resume {out}"


# --- what a run goes on from


def newest(checkpoints: Checkpoints | None, say: Callable[[str], None]) -> Checkpoint | None:
    """The checkpoint from which a run resumes, None if there is none; says a warning for each damaged one, and records
    and says after which round the run was resumed.

    Raises SettingError if the run began with other settings.
    """
    found, warnings = _same_run(checkpoints) if checkpoints else (None, [])
    for warning in warnings:
        say(warning)
    if checkpoints and found:
        round_ = int(found.info["round"])
        _note_resumed(checkpoints.folder, round_)
        say(f"resumed after round {round_}")
    return found


def _same_run(checkpoints: Checkpoints) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint and warnings; SettingError if the run began with other settings."""
    found, warnings = checkpoints.newest()
    if found and checkpoints.config and "config" in found.info:
        _require_settings(checkpoints.folder, checkpoints.config, found.info["config"])
    return found, warnings


def _require_settings(folder: Path, config: Config, begun: dict[str, Any]) -> None:
    now, changed = config.items(), config.changed(begun)
    changes = "; ".join(f"{key} = {begun.get(key)}, and now has {now[key]}" for key in changed)
    if changed:
        raise SettingError(
            f"the run in {folder} began with {changes}: put it back, or start anew in another folder"
        )


def in_process(setup: PreparedRun, folder: Path) -> tuple[PreparedRun, Checkpoints]:
    """Prepare a run in this process: with checkpoints, its clients store their states in the run folder."""
    checkpoints = Checkpoints(folder, setup.config.output.checkpoint_every, setup.config)
    if checkpoints.every:
        # round 0 writes a checkpoint before any client computes, so states without one belong to no run
        if (folder / names.STATE).exists() and _same_run(checkpoints)[0] is None:
            raise SettingError(
                f"{folder} holds clients' states and no checkpoint: start anew in another folder"
            )
        setup = setup.with_state_dir(folder / names.STATE)
        write_config(setup.config, folder)
    return setup, checkpoints


def on_flower(config: Config, folder: Path) -> Config:
    """The configuration for Flower's engine: with checkpoints, clients store their states in the run folder, and a run
    begun there is resumed."""
    if not config.output.checkpoint_every:
        return config
    resumed = has_config(folder)
    if resumed and not (folder / names.STATE).is_dir():
        raise SettingError(
            f"{folder} no longer contains its subfolder 'state': start again in another folder"
        )
    state_dir = config.output.state_dir or str(folder / names.STATE)
    return config.put({"output.state-dir": state_dir, "output.resume-from": str(folder) if resumed else ""})


# --- what flwr run goes on with


def require_state_dir(config: Config) -> None:
    """Raise SettingError for a simulation with checkpoints but without a state-dir for the clients' states."""
    require(
        not config.output.checkpoint_every or bool(config.output.state_dir),
        "output.checkpoint-every needs an output.state-dir, where simulated clients keep their state",
    )


def require_resumable(folder: Path, config: Config) -> None:
    """Raise SettingError unless the folder holds an unfinished run of this configuration."""
    if not has_config(folder):
        raise SettingError(f"{folder} holds no config.toml: resume-from takes the folder of a run")
    if has_ended(folder):
        raise SettingError(f"the run in {folder} has ended already")
    if config.changed(read_config(folder).config.items()):
        raise SettingError(
            f"the run in {folder} has other settings: go on with --run-config {resume_file(folder)}"
        )


# --- the status


class Status(NamedTuple):
    """Lines about a run or an experiment, and whether all is well: it is running, or has ended and nothing failed."""

    lines: list[str]
    well: bool


def status(folder: Path) -> Status:
    """The status of the run or the experiment in this folder; SettingError if none was begun there."""
    if not has_config(folder) and not is_experiment(folder):
        raise SettingError(f"no run was begun in {folder}")
    plan = read_plan(folder, {})
    waiting = sum(len(left(plan, folder, curve)) for curve in plan.curves)
    failed = _failed(plan, folder)
    counted = [] if plan.single else _counted(len(plan.curves) * len(plan.seeds), waiting, failed)
    if in_use(folder):
        trouble = read_cause(folder)  # noted by a server that still works, and may yet overcome it
        running = f"running{_since(plan, folder)}{trouble and f': {trouble}'}"
        return Status([*counted, running], True)
    if waiting:
        return Status([*counted, *_cut_off(plan, folder), *_reserved(plan, folder)], False)
    return Status(counted or [_ended(folder)], not failed)


def _failed(plan: Experiment, folder: Path) -> list[str]:
    """Which runs have failed, and why."""
    found = []
    for curve, seed in product(plan.curves, plan.seeds):
        own = run_folder(plan, folder, curve, seed)
        if has_ended(own) and (failure := read_summary(own)["failure"]):
            found.append(f"{curve.label}, seed {seed}: {failure}")
    return found


def _counted(runs: int, waiting: int, failed: list[str]) -> list[str]:
    """How many runs have ended, and how many of them failed, with the reason of the first one."""
    first = f"{runs - waiting} of {runs} runs have ended"
    return [f"{first}, {len(failed)} of them failed", f"failed: {failed[0]}"] if failed else [first]


def _ended(folder: Path) -> str:
    summary = read_summary(folder)
    if summary["failure"]:
        return f"failed: {summary['failure']}"
    if summary.get("ended"):
        return f"finished: {summary['ended']}"
    return f"finished after {summary['rounds']} rounds"


def _cut_off(plan: Experiment, folder: Path) -> list[str]:
    """That nothing works in the folder, why, and the command that goes on if there is something to go on from."""
    cause = read_cause(folder)
    if plan.single and not _checkpoints(plan, folder):
        word = "cut off" if cause in ("", ENDED_BY_FLOWER) else "failed"
        return [_because(word, cause), f"there is no checkpoint to go on from{_hint(plan)}: start anew"]
    return [_because(f"cut off{_since(plan, folder)}", cause), f"to go on: {_command(folder)}"]


def _reserved(plan: Experiment, folder: Path) -> list[str]:
    """How deployed sites give up what they have reserved for a private run that was cut off."""
    config = plan.curves[0].config
    if not (plan.single and isinstance(config.privacy, Private)):
        return []
    found = None
    with suppress(DataError):
        found, _ = Checkpoints(folder, 0).newest()
    if (found.info["runtime"] != "deployment") if found else config.data.name != OWN:
        return []
    run = found.info["session"] if found else "RUN (its name is in twinflower ledger STATE-DIR)"
    return [
        "sites that were charged keep the rest of its plan reserved; if it will not go on, each of them gives that up: "
        f"twinflower ledger STATE-DIR --give-up {run}"
    ]


def _because(what: str, cause: str) -> str:
    return f"{what}: {cause or 'no process works in this folder'}"


def _hint(plan: Experiment) -> str:
    """The setting that makes checkpoints, if it was not set; otherwise the run ended before its first one."""
    return "" if plan.curves[0].config.output.checkpoint_every else " (output.checkpoint-every)"


def _command(folder: Path) -> str:
    own = resume_file(folder)
    if own.exists() and not read_runtime(folder):  # flwr run began it
        return f"flwr run . CONNECTION --stream --run-config {own}"
    return f"twinflower run --resume {folder}"


def _since(plan: Experiment, folder: Path) -> str:
    found = _checkpoints(plan, folder)
    return f"; last checkpoint after round {max(found)}" if found else ""


def _checkpoints(plan: Experiment, folder: Path) -> list[int]:
    """The rounds of all checkpoints of runs that have not ended."""
    places = {curve_folder(plan, folder, curve) for curve in plan.curves}
    places |= {run_folder(plan, folder, curve, seed) for curve in plan.curves for seed in plan.seeds}
    return [round_ for place in places if not has_ended(place) for round_ in Checkpoints(place, 0).rounds()]
