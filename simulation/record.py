"""The metrics of a run while it is running, and its run folder when it ends."""

import csv
import itertools
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.algorithms import ALGORITHMS
from twinflower.algorithms.abilities import Constrained, ServerMetrics, client_models, columns_of
from twinflower.arrays import Array
from twinflower.errors import RunError, SettingError, require
from twinflower.networks import NetworkObjective
from twinflower.objectives import Model, NamedModel
from twinflower.strategies import Round
from twinflower.trained import Inputs, TrainedClassifier, TrainedRegressor, trained

from .lock import in_use
from .privacy import spent
from .settings.config import Config
from .setup import Setup

COLUMNS = (
    "round",
    "objective",
    "test_accuracy",
    "nonzeros",
    "uplink_bits",
    "downlink_bits",
    "paper_uplink_bits",
    "local_steps",
    "stopped",
    "participants",
    "rejected",
    "seconds",
)
POINT_COLUMNS = ("consensus", "distance", "optimality", "node_error")
EXTRA_COLUMNS = (
    *POINT_COLUMNS,
    *dict.fromkeys(name for algorithm in ALGORITHMS.values() for name in columns_of(algorithm)),
)
_RISE = 10.0  # an objective this many times its start at the end is worth a warning
_FAR = 100.0  # an objective this many times its start is taken as divergence
_LIBRARIES = ("flwr", "numpy", "scipy", "scikit-learn", "ray")

_SUMMARY_KEYS = (
    "algorithm", "dataset", "seed", "finished", "rounds", "test_accuracy", "objective", "nonzeros", "uplink_bits",
    "privacy", "seconds", "parameters", "majority_baseline", "bounds_met", "rejected_replies",
)  # fmt: skip

Progress = Callable[[dict[str, Any]], None]


@dataclass
class Recorder:
    """Collects the rows of metrics.csv; bits and participants are totals since the start of the run.

    local_steps and stopped (the share of client rounds in which the stopping rule fired) are means over
    the rounds since the last row.
    """

    setup: Setup
    progress: Progress | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    def wants(self, round_: int) -> bool:
        """Whether this round is evaluated: the start, the first `early` rounds, each `every`-th one, and the last."""
        config = self.setup.config
        return (
            round_ <= config.evaluation.early
            or round_ % config.evaluation.every == 0
            or round_ == config.rounds
        )

    def note(self, done: Round) -> None:
        """Record a finished round."""
        self.rounds.append(done)

    def take_up(self, rows: list[dict[str, Any]]) -> None:
        """Continue after these rows of metrics.csv; the time between the interruption and now is not counted."""
        self.rows.extend(rows)
        self.began -= rows[-1]["seconds"] if rows else 0.0

    def evaluate(self, round_: int, x: Array, own: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Evaluate the model x (d,) and add a row to metrics.csv; own holds method-specific columns (`own_columns`)."""
        since = self.rounds[int(self.rows[-1]["round"]) :] if self.rows else []
        per_upload = self.setup.algorithm.upload.paper_bits(self.setup.objective.d)
        accepted = sum(r.accepted for r in self.rounds)
        row = {"round": round_, **self.setup.evaluate(x)} | {
            "uplink_bits": sum(r.uplink_bits for r in self.rounds),
            "downlink_bits": sum(r.downlink_bits for r in self.rounds),
            "paper_uplink_bits": per_upload * accepted,
            "local_steps": float(np.mean([r.local_steps for r in since])) if since else 0.0,
            "stopped": float(np.mean([r.stopped for r in since])) if since else 0.0,
            "participants": accepted,
            "rejected": sum(len(r.rejected) for r in self.rounds),
            "seconds": time.perf_counter() - self.began,
            **(own or {}),
        }
        self._check(row, x)
        self.rows.append(row)
        if self.progress:
            self.progress(row)
        return row

    def _check(self, row: dict[str, Any], x: Array) -> None:
        """RunError if the run diverges: x or the objective is not finite, or, without noise, far above its start."""
        outside = np.isposinf(row["objective"]) and np.isposinf(
            self.setup.regulariser.value(x)
        )  # x violates the constraint that h encodes: no divergence
        if not np.isfinite(x).all() or not (np.isfinite(row["objective"]) or outside):
            raise RunError(f"the run diverged: not finite in round {row['round']}; lower step-size")
        first = self.rows[0]["objective"] if self.rows else np.inf
        if self.setup.plan is None and not outside and row["objective"] > _FAR * max(first, 1.0):
            raise RunError(
                f"the run diverged: the objective is {row['objective']:.3g} in round {row['round']} and began at "
                f"{first:.3g}; lower step-size"
            )


def own_columns(setup: Setup, server: Any, seed: int | None = None) -> dict[str, float]:
    """The method's own server and model metrics, and the distances of the clients' points to each other and to x*.

    consensus: mean_i ||xbar - x_i||^2, xbar the mean of the x_i. With `evaluation.reference = true`, where x* is the
    optimum over all rows: distance, ||xbar - x*||^2 / ||x*||^2 (with the server's model in place of xbar if the x_i are
    unknown); optimality, which is consensus + distance (Zhang 2023); and node_error, mean_i ||x_i - x*||^2 / ||x*||^2.
    seed: index of the run among a cohort's stacked seeds.
    """

    def of_seed(array: Array) -> Array:
        return np.asarray(array if seed is None else array[seed])

    algorithm, server = setup.method, setup.own(server)
    metrics = algorithm.server_metrics(server) if isinstance(algorithm, ServerMetrics) else {}
    told = {name: float(of_seed(value)) for name, value in metrics.items()}
    points = client_models(algorithm, server)
    x = of_seed(algorithm.model(server))
    if points is not None:
        points = of_seed(points)
        x = points.mean(0)
        told["consensus"] = float(((points - x) ** 2).sum(-1).mean())
    told |= setup.assess(of_seed(algorithm.model(server)))
    if setup.config.evaluation.reference:
        best = setup.optimum
        size = float(best @ best)
        told["distance"] = float(((x - best) ** 2).sum()) / size
        told["optimality"] = told.get("consensus", 0.0) + told["distance"]
        if points is not None:
            told["node_error"] = float(((points - best) ** 2).sum(-1).mean()) / size
    return told


@dataclass(frozen=True)
class Result:
    """A run that has ended, successfully (with a model) or not (with a failure, one sentence).

    points (N, d): the clients' own models, for methods whose server knows them (`Algorithm.points`).
    """

    setup: Setup
    runtime: str
    rows: list[dict[str, Any]]
    seconds: float
    model: Array | None = None
    failure: str = ""
    rounds: list[Round] = field(default_factory=list)
    points: Array | None = None

    def privacy(self) -> dict[str, Any] | None:
        """The privacy actually spent, None without privacy. A client is charged for every round it was sampled in."""
        if self.setup.plan is None:
            return None
        shares = self.setup.plan.shares_of((done.round, done.asked) for done in self.rounds)
        return spent(self.setup.plan, shares, seeded=self.runtime != "deployment")

    def _satisfied(self, metrics: dict[str, Any]) -> bool | None:
        """Whether the last row satisfies the constraints; None for a run without constraints or without a model."""
        algorithm = self.setup.method
        if self.model is None or not isinstance(algorithm, Constrained):
            return None
        return algorithm.satisfied(metrics)

    def warnings(self) -> list[str]:
        """Warnings about settings that are allowed but probably not intended, and about an objective that rose."""
        return [*self.setup.warnings(), *_risen(self.rows, self.setup.plan is not None)]

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        config, last = self.setup.config, self.rows[-1] if self.rows else {}
        accuracy = last.get("test_accuracy")
        return {
            "algorithm": config.algorithm,
            "dataset": config.data.name,
            "runtime": self.runtime,
            "seed": config.seed,
            "rounds": last.get("round", 0),
            "finished": self.model is not None,
            "failure": self.failure or None,
            "test_accuracy": _finite(accuracy),
            "majority_baseline": self.setup.baseline(),
            "objective": _finite(last.get("objective")),
            "optimality": _finite(last.get("optimality")),
            "nonzeros": last.get("nonzeros"),
            "parameters": self.setup.objective.d,
            "uplink_bits": last.get("uplink_bits"),
            "downlink_bits": last.get("downlink_bits"),
            "paper_uplink_bits": last.get("paper_uplink_bits"),
            "stopping_rule_fired": _mean_over_rounds(self.rows, "stopped"),
            "bounds_met": self._satisfied(last),
            "warnings": self.warnings(),
            "rejected_replies": last.get("rejected"),
            "privacy": self.privacy(),
            "partition": self.setup.report(),
            "seconds": self.seconds,
            "client_updates_per_second": last.get("participants", 0) / max(self.seconds, 1e-9),
        }


def _risen(rows: list[dict[str, Any]], private: bool) -> list[str]:
    """A warning if the final objective is more than `_RISE` times the first."""
    first, last = (rows[place]["objective"] if rows else 0.0 for place in (0, -1))
    if not 0 < _RISE * first < last < np.inf:
        return []
    remedy = (
        "lower step-size, or the noise (raise epsilon, or lower rounds)" if private else "lower step-size"
    )
    return [f"warning: the objective rose from {first:.3g} to {last:.3g}: {remedy}"]


def _finite(value: float | None) -> float | None:
    """The number, or None (null in JSON) if it is not finite."""
    return value if value is not None and np.isfinite(value) else None


def _mean_over_rounds(rows: list[dict[str, Any]], column: str) -> float | None:
    spans = np.diff([row["round"] for row in rows])
    mean = float(np.average([row[column] for row in rows[1:]], weights=spans)) if len(spans) else np.nan
    return mean if np.isfinite(mean) else None


def to_toml(values: Mapping[str, Any]) -> str:
    """Settings as TOML, one per line, with dotted keys for sections."""
    return "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())


def to_tables(values: Mapping[str, Any]) -> str:
    """Settings as TOML, with a table for each section."""
    tables: dict[str, dict[str, Any]] = {"": {}}
    for name, value in values.items():
        section, _, key = name.rpartition(".")
        tables.setdefault(section, {})[key] = value
    return "\n".join((f"[{name}]\n" if name else "") + to_toml(table) for name, table in tables.items())


def toml_value(value: Any) -> str:
    """A value in TOML syntax."""
    if isinstance(value, float):
        return repr(value)  # valid TOML for inf and nan, too
    text = json.dumps(value, ensure_ascii=False)  # TOML has no surrogate pairs
    return text.replace("\x7f", "\\u007f")


def write_config(config: Config, folder: Path) -> None:
    """Write config.toml, from which the run can be repeated or resumed, before the first round.

    Omits a state-dir in the folder itself, which resuming finds anyway, and resume-from: a repeated run must not
    continue from this run's state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if config.output.state_dir == str(folder / "state"):
        config = config.put({"output.state-dir": ""})
    write_text(folder / "config.toml", to_tables(config.put({"output.resume-from": ""}).items()))


def write_resume(config: Config, folder: Path) -> Path:
    """Write resume.toml, the run config with which `flwr run` resumes the run in this folder, and return its path."""
    path = folder / "resume.toml"
    write_text(path, to_tables(config.put({"output.resume-from": str(folder)}).items()))
    return path


def write_run(result: Result, folder: Path) -> Path:
    """Write config.toml, metrics.csv, rounds.jsonl, summary.json, environment.json and model.npz; return the folder.

    A PyTorch module is also written as model.pt. Models are written only for a run that finished, and summary.json is
    written last.
    """
    write_config(result.setup.config, folder)
    with replacing(folder / "metrics.csv") as path, path.open("w", newline="") as file:
        table = csv.DictWriter(file, result.rows[0].keys() if result.rows else COLUMNS)
        table.writeheader()
        table.writerows(result.rows)
    write_text(folder / "rounds.jsonl", "".join(_told(done) for done in result.rounds))
    write_text(folder / "environment.json", json.dumps(environment(), indent=2))
    if result.model is None:
        for name in ("model.npz", "model.pt"):
            (folder / name).unlink(missing_ok=True)
    else:
        with replacing(folder / "model.npz") as path, path.open("wb") as binary:
            np.savez(binary, **_models(result, result.model))
        _write_named(result.setup.objective, result.model, folder / "model.pt")
    write_text(folder / "summary.json", json.dumps(result.summary(), indent=2, allow_nan=False))
    return folder


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


def trained_model(
    setup: Setup, x: Array, privacy: Mapping[str, Any] | None
) -> TrainedClassifier | TrainedRegressor | None:
    """The point x (d,) as a model that can predict; None for a PyTorch module, which is saved as model.pt instead."""
    config, data = setup.config, setup.dataset
    if isinstance(setup.objective, NamedModel):
        return None
    centre, spread = data.scaling or (None, None)
    inputs = Inputs(
        data.features.shape[1] - config.data.bias, data.schema, centre, spread, bias=config.data.bias,
        row_norm=config.data.row_norm,
    )  # fmt: skip
    origin = {
        "algorithm": config.algorithm, "data": config.data.name, "rounds": config.rounds, "seed": config.seed,
        "run": config.digest, "privacy": privacy["guarantee"] if privacy else "none",
    }  # fmt: skip
    hidden = config.objective.hidden_units if isinstance(config.objective, NetworkObjective) else 0
    return trained(
        x, config.objective.name, inputs, hidden_units=hidden, classes=data.class_names, origin=origin
    )


def _told(done: Round) -> str:
    """The line of rounds.jsonl for this round."""
    told = {key: _finite(v) if isinstance(v, float) else v for key, v in done._asdict().items()}
    return json.dumps(told, allow_nan=False) + "\n"


def environment() -> dict[str, Any]:
    """The versions of Python and the libraries, the platform and the number of cores, which can affect results."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
    }


def results_folder(out: str, title: str) -> Path:
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
    return any(
        (folder / name).exists() for name in ("summary.json", "metrics.csv", "experiment.toml", "model.npz")
    )


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json of a run folder; SettingError if it is missing or not the summary of a run."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        numbers = (
            summary[key] for key in ("test_accuracy", "objective", "nonzeros", "uplink_bits", "seconds")
        )
        require(all(isinstance(number, int | float | None) for number in numbers), "")
        optimality = summary.get("optimality")  # summaries of version 0.1 have none
        require(isinstance(optimality, int | float | None), "")
        return {key: summary[key] for key in _SUMMARY_KEYS} | {"optimality": optimality}
    except (OSError, ValueError, KeyError, TypeError, SettingError):
        raise SettingError(f"{folder / 'summary.json'} is missing or not the summary of a run") from None


def broken_bounds(folder: Path) -> float | None:
    """The amount by which the finished run in a folder exceeds its bounds; None if it satisfies them or has none."""
    path = folder / "summary.json"
    if not path.exists() or json.loads(path.read_text(encoding="utf-8")).get("bounds_met") is not False:
        return None
    return read_rows(folder)[-1]["excess"]


def read_rows(folder: Path) -> list[dict[str, float]]:
    """Read metrics.csv of a run folder; SettingError if it is missing or not the metrics of a run."""
    try:
        with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
            rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
        require(all(set(COLUMNS) <= row.keys() for row in rows), "")
        return rows
    except (OSError, ValueError, KeyError, TypeError, SettingError):
        raise SettingError(f"{folder / 'metrics.csv'} is missing or not the metrics of a run") from None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except ImportError:  # PackageNotFoundError; Ray comes with the simulation extra only
        return None


def write_text(path: Path, text: str) -> None:
    """Write the text to the file atomically: if writing fails, the file is unchanged."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that replaces the path when the block succeeds.

    Raises RunError, naming the path, if it cannot be written, for instance because the disk is full.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
