"""Checkpoints of runs. A resumed run is bit-identical to an uninterrupted one.

A checkpoint holds the algorithm's server state, on arrays also the clients' states, and the rounds and metrics so far.
The positions of the sampling and noise streams follow from the round.
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
from twinflower.errors import DataError, DiskError, SettingError, require
from twinflower.queries import QUERIES
from twinflower.rounds import Round

from ..runs.run import Run
from ..settings import Config
from . import names

_FORMAT = 2  # until Twinflower 0.2 there were two, without a number
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

        Raises DataError if checkpoints exist but none is readable, or if they are of another version's format.
        """
        warnings: list[str] = []
        for round_ in reversed(self.rounds()):
            try:
                found = _read_checkpoint(self._file(round_))
            except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
                warnings.append(
                    f"warning: {self._file(round_)} is damaged; going on from the checkpoint before it"
                )
                continue
            self._require_format(found.info.get("format", 1))
            return found, warnings
        if warnings:
            raise DataError(f"no checkpoint in {self.path} is readable: start anew in another folder")
        return None, []

    def _require_format(self, found: int) -> None:
        if found != _FORMAT:
            version = "0.2 or older" if found < _FORMAT else "of a later version"
            raise DataError(
                f"the checkpoints in {self.path} were written by Twinflower {version}, and this version cannot read "
                "them: go on with that one, or start anew in another folder"
            )

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


# --- runs, which share their states if their seeds are stacked


def checkpoint(runs: Sequence[Run]) -> Checkpoint:
    """The checkpoint of these runs after their last round: all that the next ones follow from, and the metrics so far.

    Runs with stacked seeds have one training. On arrays it includes the states of the clients.
    """
    first = runs[0]
    arrays = named("server-", flatten(first.server))
    if first.states:
        arrays["visited"], states = first.states.visited()
        arrays |= {} if states is None else named("state-", flatten(states))
    info = {
        "format": _FORMAT,
        "runtime": first.runtime,
        "round": first.round,
        "session": first.session,
        "born": list(first.born.items()),
        "sites": first.sites,
        "ranges": None if first.ranges is None else first.ranges.hex(),
        "runs": list(map(_record, runs)),
    }
    return Checkpoint(arrays, info)


def _record(run: Run) -> dict[str, Any]:
    """What a run has for itself, as JSON-compatible values."""
    answers = run.every_answer
    return {
        "seed": run.setup.config.seed,
        "rows": run.rows,
        "rounds": [done._asdict() for done in run.rounds],
        "answers": {
            kind.name: kind.reported.stored(answers[kind.name])
            for kind in QUERIES
            if answers.get(kind.name) is not None
        },
    }


def restore(saved: Checkpoint, runs: Sequence[Run], client: Any) -> None:
    """Let runs that have not begun go on after a checkpoint; the time since the interruption is not counted.

    client: the initial state of one client, on arrays. Raises SettingError if the checkpoint is of other seeds, another
    algorithm, or the other kind of runtime.
    """
    info, first = saved.info, runs[0]
    if ("visited" in saved.arrays) != (first.states is not None):
        raise SettingError(f"the checkpoint is of runtime {info['runtime']}: resume the run on that")
    seeds = [record["seed"] for record in info["runs"]]
    if seeds != [run.setup.config.seed for run in runs]:
        raise SettingError(f"the checkpoint has the seeds {seeds}")
    server = unflatten(first.server, leaves_of("server-", saved.arrays))
    if first.states and (leaves := leaves_of("state-", saved.arrays)):
        first.states.restore(saved.arrays["visited"], unflatten(client, leaves))
    for run, record in zip(runs, info["runs"], strict=True):
        run.server, run.session, run.born = server, info["session"], dict(info["born"])
        run.ranges = None if info["ranges"] is None else bytes.fromhex(info["ranges"])
        run.sites, run.met = info["sites"], True
        _continue(run, record)


def _continue(run: Run, record: Mapping[str, Any]) -> None:
    """Inverse of `_record`, for a run whose training is restored."""
    run.rows, run.rounds = record["rows"], list(map(_to_round, record["rounds"]))
    run.began -= run.rows[-1]["seconds"] if run.rows else 0.0
    run.answers = {
        kind.name: kind.reported.restored(record["answers"][kind.name])
        for kind in QUERIES
        if kind.name in record["answers"]
    }
    if run.setup.first and run.answers:
        run.setup = run.setup.first.taken_up(run.answers)


def _to_round(stored: dict[str, Any]) -> Round:
    """The round from its JSON form, in which keys are strings and tuples are lists."""
    rejected = {int(client): reason for client, reason in stored["rejected"].items()}
    return Round(**{**stored, "asked": tuple(stored["asked"]), "rejected": rejected})
