"""Whether a run is still running, and if not, how it ended, and how it goes on if it was cut off.

It follows from the files and locks of the folder, on the machine that writes them. So it is known when neither
Flower nor the run says anything: a SuperLink that stood still for some 45 seconds ends the server's process silently.
"""

from itertools import product
from pathlib import Path
from typing import NamedTuple

from twinflower.errors import SettingError

from ..settings.experiment import Experiment
from .checkpoint import Checkpoints
from .folder import curve_folder, has_config, has_ended, in_use, is_experiment, run_folder
from .reading import read_plan, read_summary
from .resume import ENDED_BY_FLOWER, left, read_cause, read_runtime, resume_file


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
        return Status([*counted, f"running{_since(plan, folder)}"], True)
    if waiting:
        return Status([*counted, *_cut_off(plan, folder)], False)
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
