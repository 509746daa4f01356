"""The folder of a run or an experiment: reading and writing its files.

No other module uses the names of these files:

    config.toml, experiment.toml           the configuration, written before the first round
    metrics.csv, rounds.jsonl              the evaluated rounds; the participants of every round
    summary.json, environment.json         the results and the versions; a run with a summary has ended
    clients.csv                            what each client took part in and spent
    model.npz, model.pt, figure.png        the model, a PyTorch module in its own format, and the figure
    report.html                            the report, one page that needs no other file
    LABEL/seed-N/                          the runs of an experiment with several runs
    checkpoints/, state/, resume.toml      the data for resuming, only until a run has ended
    runtime, .run.lock, .command.lock      only while a command works in the folder
    logs/                                  the logs of a deployment's processes
"""

import csv
import hashlib
import io
import itertools
import json
import os
import platform
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.arrays import Array
from twinflower.clients.store import write_whole
from twinflower.errors import DataError, DiskError, SettingError, require
from twinflower.problems.interfaces import Model, NamedModel
from twinflower.strategies import Round

from ..settings import Config, Value
from ..settings.experiment import Curve, Experiment, experiment_text, read_experiment
from ..settings.toml import to_tables
from .checkpoint import Checkpoint
from .columns import COLUMNS, SITE_COLUMNS
from .lock import held, holding
from .record import Result, finite, trained_model

SUMMARY_KEYS = (
    "algorithm", "dataset", "seed", "finished", "rounds", "test_accuracy", "objective", "nonzeros", "uplink_bits",
    "privacy", "seconds", "parameters", "majority_baseline", "bounds_met", "rejected_replies",
)  # fmt: skip
_NEWER_KEYS = (  # that summaries of older versions may lack
    "optimality", "runtime", "failure", "warnings", "partition", "downlink_bits", "standardised",
    "regression", "test_accuracy_from", *SITE_COLUMNS,
)  # fmt: skip
_CONFIG, _EXPERIMENT, _RESUME, _RUNTIME = "config.toml", "experiment.toml", "resume.toml", "runtime"
_METRICS, _SUMMARY, _MODEL, _MODULE, _FIGURE = (
    "metrics.csv", "summary.json", "model.npz", "model.pt", "figure.png",
)  # fmt: skip
_ROUNDS, _CLIENTS, _ENVIRONMENT, _REPORT = "rounds.jsonl", "clients.csv", "environment.json", "report.html"
_DIGESTED = (_EXPERIMENT, _CONFIG, _SUMMARY, _METRICS, _CLIENTS, _ROUNDS, _ENVIRONMENT, _MODEL, _MODULE)
_CLIENT_COLUMNS = ("client", "rows", "asked", "used", "mu", "mu_alone")
_SEED = "seed-"
_ROLES = ("command", "run")
_LIBRARIES = ("twinflower", "flwr", "numpy", "scipy", "scikit-learn", "ray")
_KEPT = 2  # checkpoints


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
    """Raise SettingError if the folder holds results."""
    require(not _has_results(folder), f"{folder} holds results already: choose another folder, or remove it")


def _has_results(folder: Path) -> bool:
    return any((folder / name).exists() for name in (_SUMMARY, _METRICS, _EXPERIMENT, _MODEL))


def claimed(folder: Path, role: str = "run") -> AbstractContextManager[None]:
    """Keep other runs out of a results folder while this process works in it.

    role: "run" for the process that writes results, "command" for a command line that may have started that process.
    Raises SettingError if another process holds the same role.
    """
    refusal = f"{folder} is in use by another run: wait until it has ended, or choose another folder"
    return holding(_lock_of(folder, role), refusal)


def in_use(folder: Path) -> bool:
    """Whether another process holds a lock on the folder."""
    return any(held(_lock_of(folder, role)) for role in _ROLES)


def _lock_of(folder: Path, role: str) -> Path:
    return folder / f".{role}.lock"


# --- where things are


def curve_folder(plan: Experiment, out: Path, curve: Curve) -> Path:
    """The folder that contains the runs of one curve."""
    return out if plan.single else out / curve.slug


def run_folder(plan: Experiment, out: Path, curve: Curve, seed: int) -> Path:
    """The run folder of this curve and seed."""
    return out if plan.single else curve_folder(plan, out, curve) / f"{_SEED}{seed}"


def runs_below(folder: Path) -> list[Path]:
    """The folders of all ended runs in this folder and below."""
    return sorted(path.parent for path in folder.rglob(_SUMMARY))


def curve_of(run: Path) -> Path:
    """The folder of a run's curve: its own, or the one that holds all its seeds."""
    return run.parent if run.name.startswith(_SEED) else run


def has_config(folder: Path) -> bool:
    """Whether a run was begun in this folder."""
    return (folder / _CONFIG).exists()


def is_experiment(folder: Path) -> bool:
    """Whether an experiment with several runs was begun in this folder."""
    return (folder / _EXPERIMENT).exists()


def has_metrics(folder: Path) -> bool:
    """Whether the folder holds the metrics of an ended run."""
    return (folder / _METRICS).exists()


def has_model(folder: Path) -> bool:
    """Whether the folder holds the model of a successful run."""
    return (folder / _MODEL).exists()


def has_ended(folder: Path) -> bool:
    """Whether a run has ended in this folder, successfully or not. Its summary is written last."""
    return (folder / _SUMMARY).exists()


def figure_of(folder: Path) -> Path:
    """The path of the figure of a run or an experiment."""
    return folder / _FIGURE


def report_of(folder: Path) -> Path:
    """The path of the report on a run or an experiment."""
    return folder / _REPORT


def state_folder(folder: Path) -> Path:
    """The folder in which simulated clients store their states until the run has ended."""
    return folder / "state"


def logs_folder(folder: Path) -> Path:
    """The folder for the logs of a deployment's processes."""
    return folder / "logs"


# --- what is to be run


def write_config(config: Config, folder: Path) -> None:
    """Write config.toml, from which the run can be repeated or resumed, before the first round.

    Omits a state-dir in the folder itself, which resuming finds anyway, and resume-from: a repeated run must not
    continue from this run's state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if config.output.state_dir == str(state_folder(folder)):
        config = config.put({"output.state-dir": ""})
    write_text(folder / _CONFIG, to_tables(config.put({"output.resume-from": ""}).items()))


def read_config(folder: Path) -> Curve:
    """The configuration of the run that was begun in this folder, as a curve."""
    (curve,) = read_experiment(folder / _CONFIG).curves
    return curve


def write_experiment(plan: Experiment, folder: Path) -> None:
    """Write the experiment as it was run, so that it can be redrawn or repeated."""
    write_text(folder / _EXPERIMENT, experiment_text(plan))


def read_plan(folder: Path, overrides: Mapping[str, Value] | None = None) -> Experiment:
    """Read the experiment or the run that was begun in this folder; overrides take precedence over the file."""
    return read_experiment(folder / (_EXPERIMENT if is_experiment(folder) else _CONFIG), overrides)


def write_resume(config: Config, folder: Path) -> Path:
    """Write resume.toml, the run config with which `flwr run` resumes the run in this folder, and return its path."""
    path = resume_file(folder)
    write_text(path, to_tables(config.put({"output.resume-from": str(folder)}).items()))
    return path


def resume_file(folder: Path) -> Path:
    """The path of resume.toml, the run config with which `flwr run` resumes a run that it began."""
    return folder.absolute() / _RESUME


def write_runtime(runtime: str, folder: Path) -> None:
    """Record the runtime of the command that works in this folder."""
    write_text(folder / _RUNTIME, runtime)


def read_runtime(folder: Path) -> str:
    """The runtime of the command that was interrupted in this folder; empty if there is none."""
    note = folder / _RUNTIME
    return note.read_bytes().decode(errors="replace") if note.is_file() else ""


def clear_runtime(folder: Path) -> None:
    """Remove the record of the runtime, because the command has ended normally."""
    (folder / _RUNTIME).unlink(missing_ok=True)


# --- results


def write_run(result: Result, folder: Path) -> Path:
    """Write all files of an ended run except its figure; return the folder.

    Models are written only for a run that finished. The summary is written last; then the checkpoints and resume.toml
    are removed.
    """
    write_config(result.setup.config, folder)
    with replacing(folder / _METRICS) as path, path.open("w", newline="") as file:
        table = csv.DictWriter(file, result.rows[0].keys() if result.rows else COLUMNS)
        table.writeheader()
        table.writerows(result.rows)
    write_text(folder / _ROUNDS, "".join(map(_line, result.rounds)))
    _write_clients(result, folder / _CLIENTS)
    write_text(folder / _ENVIRONMENT, json.dumps(environment(), indent=2))
    _write_model(result, folder)
    write_text(folder / _SUMMARY, json.dumps(result.summary(), indent=2, allow_nan=False))
    resume_file(folder).unlink(missing_ok=True)
    Checkpoints(folder, 0).clear()
    return folder


def _write_clients(result: Result, path: Path) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, _CLIENT_COLUMNS)
        table.writeheader()
        table.writerows(result.clients())


def _write_model(result: Result, folder: Path) -> None:
    if result.model is None:
        for name in (_MODEL, _MODULE):
            (folder / name).unlink(missing_ok=True)
        return
    with replacing(folder / _MODEL) as path, path.open("wb") as binary:
        np.savez(binary, **_models(result, result.model))
    _write_named(result.setup.objective, result.model, folder / _MODULE)


def _write_named(objective: Model, x: Array, path: Path) -> None:
    """Write the model x (d,) of a PyTorch module in PyTorch's own format; nothing for other models."""
    if isinstance(objective, NamedModel):
        with replacing(path) as temporary:
            objective.save(x, temporary)


def _models(result: Result, x: Array) -> dict[str, Any]:
    """The arrays of model.npz: the model x (d,), the shapes of its layers, the clients' own models `points` (N, d), and
    what is needed to predict."""
    shapes = result.setup.objective.shapes
    own = {} if result.points is None else {"points": result.points}
    model = trained_model(result.setup, x, result.privacy())
    return {"x": x, "shape": shapes[-1], "shapes": shapes, **own, **(model.arrays() if model else {})}


def _line(done: Round) -> str:
    """The line of rounds.jsonl for this round."""
    values = {key: finite(v) if isinstance(v, float) else v for key, v in done._asdict().items()}
    return json.dumps(values, allow_nan=False) + "\n"


def environment() -> dict[str, Any]:
    """The versions of Python and the libraries, the platform and the number of cores, which can affect results, and the
    time."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:  # PackageNotFoundError; Ray comes with the simulation extra only
        return None


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run folder; SettingError if it is missing or not the summary of a run."""
    try:
        summary = json.loads((folder / _SUMMARY).read_text(encoding="utf-8"))
        numbers = (
            summary[key] for key in ("test_accuracy", "objective", "nonzeros", "uplink_bits", "seconds")
        )
        require(all(isinstance(number, int | float | None) for number in numbers), "")
        require(isinstance(summary.get("optimality"), int | float | None), "")
        return {key: summary[key] for key in SUMMARY_KEYS} | {key: summary.get(key) for key in _NEWER_KEYS}
    except (OSError, ValueError, KeyError, TypeError, SettingError):
        raise SettingError(f"{folder / _SUMMARY} is missing or not the summary of a run") from None


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Read metrics.csv of a run folder; SettingError if it is missing or not the metrics of a run."""
    try:
        with (folder / _METRICS).open(newline="", encoding="utf-8") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        require(all(set(COLUMNS) <= row.keys() for row in rows), "")
        return rows
    except (OSError, ValueError, KeyError, TypeError, SettingError):
        raise SettingError(f"{folder / _METRICS} is missing or not the metrics of a run") from None


def read_clients(folder: Path) -> list[dict[str, float | None]]:
    """Read clients.csv of a run folder, empty fields as None; empty for a run of an older version, which has none.

    Raises SettingError if it is damaged.
    """
    path = folder / _CLIENTS
    if not path.exists():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            table = csv.DictReader(file)
            return [{key: float(row[key]) if row[key] else None for key in _CLIENT_COLUMNS} for row in table]
    except (OSError, ValueError, KeyError, TypeError):
        raise SettingError(f"{path} is not the list of clients of a run") from None


def read_rejections(folder: Path) -> list[tuple[int, int, str]]:
    """The replies that a run left out, as (round, client, reason), from rounds.jsonl; SettingError if it is damaged."""
    path = folder / _ROUNDS
    try:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        rounds = [json.loads(line) for line in lines]
        return [
            (int(done["round"]), int(client), str(reason))
            for done in rounds
            for client, reason in done["rejected"].items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise SettingError(f"{path} is not the list of rounds of a run") from None


def read_environment(folder: Path) -> list[tuple[str, str]]:
    """The content of environment.json as (name, value) pairs; empty if it is missing."""
    path = folder / _ENVIRONMENT
    try:
        return flat(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []
    except (OSError, ValueError, AttributeError):
        raise SettingError(f"{path} is not the environment of a run") from None


def flat(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An environment as (name, value) pairs, with the libraries among them."""
    libraries = {name: number or "not installed" for name, number in found.get("libraries", {}).items()}
    named = {name: value for name, value in found.items() if name != "libraries"}
    return [(name, str(value)) for name, value in (named | libraries).items()]


def digests(folder: Path) -> list[tuple[str, str]]:
    """The files of a run or an experiment with their SHA-256 digests, as (name, hexadecimal digits)."""
    found = [folder / name for name in _DIGESTED]
    return [(path.name, digest(path)) for path in found if path.is_file()]


def digest(path: Path) -> str:
    """The SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def broken_bounds(folder: Path) -> float | None:
    """The amount by which the finished run in a folder exceeds its bounds; None if it satisfies them or has none."""
    if not has_ended(folder) or read_summary(folder)["bounds_met"] is not False:
        return None
    return read_rows(folder)[-1]["excess"]


# --- checkpoints


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one run, or of a curve's seeds together; one is written every `every` rounds (0: never).

    Files are written atomically, the newest `_KEPT` are kept, and if one is damaged, the run resumes from the one
    before it. config: the configuration of the run.
    """

    folder: Path
    every: int
    config: Config | None = None

    def due(self, round_: int) -> bool:
        """Whether a checkpoint is written after this round. Round 0 gets one, because it records the session."""
        return self.every > 0 and round_ % self.every == 0

    def save(self, round_: int, checkpoint: Checkpoint) -> None:
        """Write the round's checkpoint and delete all but the newest `_KEPT`; DiskError if it cannot be written."""
        buffer = io.BytesIO()
        content = checkpoint.info | ({"config": self.config.items()} if self.config else {})
        info = np.frombuffer(json.dumps(content).encode(), np.uint8)
        np.savez(buffer, info=info, **{f"array-{name}": a for name, a in checkpoint.arrays.items()})  # type: ignore[arg-type]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_whole(self._file(round_), buffer.getvalue())
        except OSError as error:
            raise DiskError(f"the checkpoint cannot be written to {self.path}: {error.strerror}") from None
        for old in self._rounds()[:-_KEPT]:
            self._file(old).unlink(missing_ok=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest readable checkpoint (None if there are no checkpoints), and a warning for each damaged one.

        Raises DataError if checkpoints exist but none is readable.
        """
        warnings: list[str] = []
        for round_ in reversed(self._rounds()):
            try:
                return _read_checkpoint(self._file(round_)), warnings
            except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
                warnings.append(
                    f"warning: {self._file(round_)} is damaged; going on from the checkpoint before it"
                )
        if warnings:
            raise DataError(f"no checkpoint in {self.path} is readable: start anew in another folder")
        return None, []

    def settled(self) -> int:
        """The oldest checkpoint's round: no restart begins earlier, even if newer checkpoints are damaged."""
        return min(self._rounds(), default=0)

    def clear(self) -> None:
        """Remove all checkpoints after the run has finished."""
        for round_ in self._rounds():
            self._file(round_).unlink(missing_ok=True)

    @property
    def path(self) -> Path:
        """The folder of the checkpoint files."""
        return self.folder / "checkpoints"

    def _file(self, round_: int) -> Path:
        return self.path / f"round-{round_}.npz"

    def _rounds(self) -> list[int]:
        names = (re.fullmatch(r"round-(\d+)\.npz", path.name) for path in self.path.glob("*.npz"))
        return sorted(int(name[1]) for name in names if name)


def _read_checkpoint(path: Path) -> Checkpoint:
    with np.load(path, allow_pickle=False) as file:  # every member has a checksum of its own
        arrays = {name[6:]: file[name] for name in file.files if name.startswith("array-")}
        return Checkpoint(arrays, json.loads(file["info"].tobytes()))


# --- files that are there completely or not at all


def write_text(path: Path, text: str) -> None:
    """Write the text to the file atomically: if writing fails, the file is unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces the path when the block succeeds.

    Raises DiskError, naming the path, if it cannot be written, for instance because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from None
