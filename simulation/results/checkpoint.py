"""Checkpoints of the server's side of a run. A resumed run is bit-identical to an uninterrupted one.

A checkpoint holds the algorithm's server state, the rounds and metrics so far, and what else the strategy needs. The
positions of the sampling and noise streams follow from the round.
"""

import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twinflower.disk import write_whole
from twinflower.errors import DataError, DiskError, require
from twinflower.models.class_scores import ClassTable
from twinflower.models.discrimination import ScoreTable
from twinflower.models.survival import SurvivalTable
from twinflower.models.time_scores import TimeTable
from twinflower.rounds import Round, Training

from ..settings import Config
from . import names

_KEPT = 2  # checkpoints
Leaves = list[NDArray[Any]]


class Checkpoint(NamedTuple):
    """The arrays of a checkpoint by name, and everything else as JSON-compatible values."""

    arrays: dict[str, NDArray[Any]]
    info: dict[str, Any]


# --- their files


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
        for old in self.rounds()[:-_KEPT]:
            self._file(old).unlink(missing_ok=True)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest readable checkpoint (None if there are no checkpoints), and a warning for each damaged one.

        Raises DataError if checkpoints exist but none is readable.
        """
        warnings: list[str] = []
        for round_ in reversed(self.rounds()):
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
        return min(self.rounds(), default=0)

    def clear(self) -> None:
        """Remove all checkpoints after the run has finished."""
        for round_ in self.rounds():
            self._file(round_).unlink(missing_ok=True)

    @property
    def path(self) -> Path:
        """The folder of the checkpoint files."""
        return self.folder / names.CHECKPOINTS

    def _file(self, round_: int) -> Path:
        return self.path / f"round-{round_}.npz"

    def rounds(self) -> list[int]:
        """The rounds of all checkpoints, in order."""
        names = (re.fullmatch(r"round-(\d+)\.npz", path.name) for path in self.path.glob("*.npz"))
        return sorted(int(name[1]) for name in names if name)


def _read_checkpoint(path: Path) -> Checkpoint:
    with np.load(path, allow_pickle=False) as file:  # every member has a checksum of its own
        arrays = {name[6:]: file[name] for name in file.files if name.startswith("array-")}
        return Checkpoint(arrays, json.loads(file["info"].tobytes()))


# --- trees of NamedTuples of arrays


def flatten(tree: Any) -> Leaves:
    """The arrays of a state (nested NamedTuples) as a flat list, in the order of the fields."""
    return (
        [leaf for part in tree for leaf in flatten(part)] if isinstance(tree, tuple) else [np.asarray(tree)]
    )


def unflatten(template: Any, leaves: Sequence[NDArray[Any]]) -> Any:
    """Inverse of `flatten`, for a state with the structure of the template; SettingError if the number differs."""
    require(
        len(flatten(template)) == len(leaves),
        "the checkpoint was made for another algorithm or other settings",
    )
    return _filled(template, iter(leaves))


def _filled(template: Any, leaves: Iterator[NDArray[Any]]) -> Any:
    if not isinstance(template, tuple):
        return next(leaves)
    return type(template)(*(_filled(part, leaves) for part in template))


def named(prefix: str, leaves: Leaves) -> dict[str, NDArray[Any]]:
    """Leaves by name, prefix0, prefix1, ..., for `Checkpoint.arrays`."""
    return {f"{prefix}{place}": leaf for place, leaf in enumerate(leaves)}


def leaves_of(prefix: str, arrays: dict[str, NDArray[Any]]) -> Leaves:
    """Inverse of `named`."""
    count = sum(name.startswith(prefix) for name in arrays)
    return [arrays[f"{prefix}{place}"] for place in range(count)]


_TABLES: dict[str, Any] = {kind.__name__: kind for kind in (ScoreTable, ClassTable, TimeTable)}


# --- a strategy's run


def of_strategy(
    training: Training,
    rows: list[dict[str, Any]],
    scores: Mapping[int, Any],
    by_site: Mapping[int, float],
    persons: Mapping[int, SurvivalTable],
) -> Checkpoint:
    """The checkpoint of a strategy's training, the metrics so far (rows of metrics.csv), the clients' last counts by
    bin, the last model's scores on the rows that they hold out, and their persons by the cells of a survival curve."""
    info = {
        "round": training.round,
        "session": training.session,
        "rounds": [done._asdict() for done in training.rounds],
        "born": list(training.born.items()),
        "ranges": None if training.ranges is None else training.ranges.hex(),
        "rows": rows,
        "scores": score_records(scores),
        "by_site": list(by_site.items()),
        "persons": [[i, own.cells.tolist(), own.edges.tolist(), *own[2:]] for i, own in persons.items()],
    }
    return Checkpoint(named("server-", flatten(training.server)), info)


def to_strategy(
    checkpoint: Checkpoint, server: Any
) -> tuple[Training, list[dict[str, Any]], dict[int, Any], dict[int, float], dict[int, SurvivalTable]]:
    """Inverse of `of_strategy`; server is any server state of the same algorithm, used as a template."""
    info = checkpoint.info
    require("session" in info, "the checkpoint is the cohort runtime's: resume the run on that")
    state = unflatten(server, leaves_of("server-", checkpoint.arrays))
    rounds = [to_round(done) for done in info["rounds"]]
    ranges = None if info["ranges"] is None else bytes.fromhex(info["ranges"])
    training = Training(info["session"], state, rounds, dict(info["born"]), ranges)
    persons = {
        client: SurvivalTable(np.array(cells), np.array(edges), *others)
        for client, cells, edges, *others in info["persons"]
    }
    return training, info["rows"], to_scores(info["scores"]), dict(info["by_site"]), persons


def score_records(scores: Mapping[int, Any]) -> list[Any]:
    """The clients' counts by bin as JSON-compatible values."""
    return [
        [client, type(own).__name__, *(np.asarray(part).tolist() for part in own)]
        for client, own in scores.items()
    ]


def to_scores(records: list[Any]) -> dict[int, Any]:
    """Inverse of `score_records`."""
    return {client: _TABLES[kind](*map(np.array, arrays), sigma) for client, kind, *arrays, sigma in records}


def to_round(stored: dict[str, Any]) -> Round:
    """The round from its JSON form, in which keys are strings and tuples are lists."""
    rejected = {int(client): reason for client, reason in stored["rejected"].items()}
    return Round(**{**stored, "asked": tuple(stored["asked"]), "rejected": rejected})
