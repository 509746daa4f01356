"""Write the files of a run or an experiment into its folder."""

import csv
import json
import os
import platform
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from twinflower.algorithms.newton_path import LOWEST, SIMPLEST, PathPoint, choices
from twinflower.arrays import Array
from twinflower.problems.interfaces import Model, NamedModel
from twinflower.queries.query import SiteQuery
from twinflower.rounds import Round

from ..runs.ended import entry_names
from ..runs.run import Run, finite, trained_model
from ..settings import Config
from ..settings.columns import (
    CLIENT_COLUMNS,
    COLUMNS,
    PATH_COLUMNS,
)
from ..settings.experiment import Experiment, experiment_text
from ..settings.reader import to_tables
from . import names
from .checkpoint import Checkpoints
from .files import replacing, write_text

_LIBRARIES = ("twinflower", "flwr", "numpy", "scipy", "scikit-learn", "ray")


def write_config(config: Config, folder: Path) -> None:
    """Write config.toml, from which the run can be repeated or resumed, before the first round.

    Omits a state-dir in the folder itself, which resuming finds anyway, and resume-from: a repeated run must not
    continue from this run's state.
    """
    folder.mkdir(parents=True, exist_ok=True)
    items = config.items() | {"output.resume-from": ""}
    if config.output.state_dir == str(folder / names.STATE):
        items["output.state-dir"] = ""
    write_text(folder / names.CONFIG, to_tables(items))


def write_plan(plan: Experiment, folder: Path) -> None:
    """Write the experiment as it was run, so that it can be redrawn or repeated; of a single run only its title.

    All else about a single run is in its config.toml, which Flower reads, too, and which can hold settings only.
    """
    if not plan.single:
        write_text(folder / names.EXPERIMENT, experiment_text(plan))
    elif plan.title != plan.name:
        write_text(folder / names.TITLE, plan.title)


def write_run(run: Run, folder: Path, summary: Mapping[str, Any] | None = None) -> Path:
    """Write all files of an ended run except its figure; return the folder. summary: that of the run, if it is known.

    Models are written only for a run that finished. The summary is written last; then the checkpoints and resume.toml
    are removed.
    """
    write_config(run.setup.config, folder)
    _write_table(folder / names.METRICS, run.rows[0].keys() if run.rows else COLUMNS, run.rows)
    write_text(folder / names.ROUNDS, "".join(map(_line, run.rounds)))
    _write_table(folder / names.CLIENTS, CLIENT_COLUMNS, run.clients())
    for query, found in _answered(run):
        for file, columns, rows in query.answers.files(found):
            _write_table(folder / file, columns, rows)
    write_text(folder / names.ENVIRONMENT, json.dumps(environment(), indent=2))
    summary = summary or run.summary()
    _write_model(run, folder, summary["privacy"])
    if points := run.path:
        write_path(points, entry_names(run.setup), folder)
    write_text(folder / names.SUMMARY, json.dumps(summary, indent=2, allow_nan=False))
    (folder / names.RESUME).unlink(missing_ok=True)
    Checkpoints(folder, 0).clear()
    return folder


def write_path(points: Sequence[PathPoint], entries: Sequence[str], folder: Path) -> None:
    """Write path.csv: the points of a path over the weights of a penalty, and the entries of their models, which have
    these names (d,)."""
    best, simplest = choices(points)
    rows = [
        {
            **dict(zip(own._fields[:-2], own, strict=False)),
            "nonzeros": np.count_nonzero(own.x) if own.x.size else "",
            "choice": " ".join(word for word, at in ((LOWEST, best), (SIMPLEST, simplest)) if at == place),
        }
        | dict(zip(entries, own.x.tolist(), strict=False))
        for place, own in enumerate(points)
    ]
    _write_table(folder / names.PATH, dict.fromkeys([*PATH_COLUMNS, *rows[0]]), rows)


def _answered(run: Run) -> Iterator[tuple[SiteQuery, Any]]:
    """The questions of a run that have answers, with these."""
    answers = run.every_answer
    for query in run.setup.queries:
        if answers.get(query.name) is not None:
            yield query, answers[query.name]


def _write_table(path: Path, columns: Collection[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="") as file:
        table = csv.DictWriter(file, columns)
        table.writeheader()
        table.writerows(rows)


def _write_model(run: Run, folder: Path, privacy: Mapping[str, Any] | None) -> None:
    for name in (names.MODEL, names.MODULE, *(own for own in names.ANSWERS if own.endswith(".npz"))):
        (folder / name).unlink(missing_ok=True)
    if run.model is None:
        return
    _write_arrays(folder / names.MODEL, _models(run, run.model, privacy))
    for query, found in _answered(run):
        if arrays := query.answers.arrays(found):
            _write_arrays(folder / f"{query.name}.npz", {"x": run.model, **arrays})
    _write_named(run.setup.objective, run.model, folder / names.MODULE)


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as binary:
        np.savez(binary, **arrays)


def _write_named(objective: Model, x: Array, path: Path) -> None:
    """Write the model x (d,) of a PyTorch module in PyTorch's own format; nothing for other models."""
    if isinstance(objective, NamedModel):
        with replacing(path) as temporary:
            objective.save(x, temporary)


def _models(run: Run, x: Array, privacy: Mapping[str, Any] | None) -> dict[str, Any]:
    """The arrays of model.npz: the model x (d,), the shapes of its layers, the clients' own models `points` (N, d), and
    what is needed to predict."""
    shapes = run.setup.objective.shapes
    own = {} if run.points is None else {"points": run.points}
    model = trained_model(run.setup, x, privacy)
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


@cache
def _version(name: str) -> str | None:
    from importlib.metadata import version  # not needed before a run has ended

    try:
        return version(name)
    except ImportError:  # PackageNotFoundError; Ray comes with the simulation extra only
        return None
