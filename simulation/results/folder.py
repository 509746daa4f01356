"""The folder of a run or an experiment: a new one, what it holds, and who works in it."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from twinflower.disk import LockableFile
from twinflower.errors import SettingError

from ..settings.experiment import Curve, Experiment
from . import names

_SEED = "seed-"
_WRITTEN = sorted({*names.DIGESTED, names.TITLE, names.FIGURE, names.REPORT, names.RESUME} - {names.PATH})
_ROLES = ("command", "run")

# --- a new folder


def new_folder(out: str, title: str) -> Path:
    """Create a writable folder for new results: `out`, or an unused folder with this title below runs/.

    Raises SettingError if `out` holds results already or cannot be written.
    """
    folder = Path(out).absolute() if out else _unused(Path("runs").absolute() / title)
    require_new(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise SettingError(f"results cannot be written to {folder}: {error.strerror}") from None


def _unused(folder: Path) -> Path:
    candidates = itertools.chain(
        [folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))
    )
    return next(path for path in candidates if not _has_results(path) and not in_use(path))


def require_new(folder: Path) -> None:
    """Raise SettingError if the folder holds results, or files of another origin that a run would overwrite."""
    if _has_results(folder):
        raise SettingError(f"{folder} holds results already: choose another folder, or remove it")
    foreign = [name for name in _WRITTEN if (folder / name).exists() and not _was_begun(folder)]
    if foreign:
        raise SettingError(
            f"{folder} has a file {''.join(foreign[:1])}, which a run would overwrite: choose another folder"
        )


def _was_begun(folder: Path) -> bool:
    """Whether a command was cut off in this folder."""
    return any((folder / name).exists() for name in (names.RUNTIME, names.LOGS, names.CHECKPOINTS))


def _has_results(folder: Path) -> bool:
    return any(
        (folder / name).exists() for name in (names.SUMMARY, names.METRICS, names.EXPERIMENT, names.MODEL)
    )


@contextmanager
def claimed(folder: Path, role: str = "run") -> Iterator[None]:
    """Keep other runs out of a results folder while this process works in it.

    role: "run" for the process that writes results, "command" for a command line that may have started that process.
    Raises SettingError if another process holds the same role. The operating system holds the lock and releases it when
    the process ends, however it ends; a leftover lock file has no effect.
    """
    path = _lock_of(folder, role)
    file = _lock(path)
    if file is None:
        raise SettingError(
            f"{folder} is in use by another run: wait until it has ended, or choose another folder"
        )
    try:
        yield
    finally:
        # Before the lock is released: a process that waits for this file then sees that it is gone.
        with suppress(PermissionError):  # Windows removes no open file
            path.unlink(missing_ok=True)
        file.close()


def in_use(folder: Path) -> bool:
    """Whether another process holds a lock on the folder."""
    return any(_held(_lock_of(folder, role)) for role in _ROLES)


def _lock_of(folder: Path, role: str) -> Path:
    return folder / f".{role}.lock"


def _held(path: Path) -> bool:
    """Whether another process holds the lock on a file."""
    if not path.exists():
        return False
    file = _lock(path)
    if file:
        file.close()
    return file is None


def _lock(path: Path) -> LockableFile | None:
    """The file, opened and locked; None if another process has locked it."""
    while True:
        file = LockableFile(path, "a")
        try:
            file.lock()
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            file.close()
            raise SettingError(f"{path} cannot be locked: {error.strerror}") from None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the previous holder has removed this file in the meantime: lock the new one


# --- what is where


def curve_folder(plan: Experiment, out: Path, curve: Curve) -> Path:
    """The folder that contains the runs of one curve."""
    return out if plan.single else out / curve.slug


def run_folder(plan: Experiment, out: Path, curve: Curve, seed: int) -> Path:
    """The run folder of this curve and seed."""
    return out if plan.single else curve_folder(plan, out, curve) / f"{_SEED}{seed}"


def runs_below(folder: Path) -> list[Path]:
    """The folders of all ended runs in this folder and below."""
    return sorted(path.parent for path in folder.rglob(names.SUMMARY))


def curve_of(run: Path) -> Path:
    """The folder of a run's curve: its own, or the one that holds all its seeds."""
    return run.parent if run.name.startswith(_SEED) else run


def is_part(run: Path) -> bool:
    """Whether the run in this folder is one of an experiment with several."""
    return run.name.startswith(_SEED) and is_experiment(run.parent.parent)


def has_config(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / names.CONFIG).exists()


def is_experiment(folder: Path) -> bool:
    """Whether an experiment with several runs was begun in this folder."""
    return (folder / names.EXPERIMENT).exists()


def has_ended(folder: Path) -> bool:
    """Whether a run has ended in this folder, successfully or not. Its summary is written last."""
    return (folder / names.SUMMARY).exists()
