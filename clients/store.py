"""Where a client's state lives from round to round: in Flower's context, or on the site's own disk.

Both keep a round as one thing, the state after it and the reply that was sent, so that neither is ever there without
the other. A session is one training, through all restarts of server and nodes; the server names it.

In the context (`ContextStore`) the last round is kept, as long as Flower's run and the node's process live. On the disk
(`FileStore`) every round is a file, kept until the server has settled it, that is, until no restart of the server can
ask for it again: a server that goes on from its last checkpoint gets the replies of the rounds it lost once more,
byte by byte, and no dual moves twice.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from twinflower.errors import DataError

_ARRAYS, _METRICS = "twinflower.arrays", "twinflower.done"  # records of context.state
_MAGIC = b"twinflower-round 1 "
_CHECKSUM = 64  # hexadecimal digits
_MOST_ROUNDS, _MOST_SESSIONS = 256, 8  # kept on the disk, whatever a server says


class Kept(NamedTuple):
    """A completed round: arrays of the client's state and of its reply by name, and the reply's metrics."""

    arrays: Mapping[str, Array]
    metrics: ConfigRecord

    @property
    def round(self) -> int:
        """Its number."""
        return cast(int, self.metrics["round"])


class StateStore(Protocol):
    """Where rounds are kept."""

    def last(self, session: str) -> Kept | None:
        """The newest round of the session."""

    def at(self, session: str, round_: int) -> Kept | None:
        """One round of the session, if it is still there."""

    def save(self, session: str, kept: Kept, settled: int) -> None:
        """Keep a round; those up to `settled` will not be asked for again."""


@dataclass(frozen=True)
class ContextStore:
    """The last round, in `context.state`."""

    state: RecordDict

    def last(self, session: str) -> Kept | None:
        """See `StateStore`."""
        if _METRICS not in self.state:
            return None
        metrics = cast(ConfigRecord, self.state[_METRICS])
        if metrics["session"] != session:
            return None
        return Kept(cast(ArrayRecord, self.state[_ARRAYS]), metrics)

    def at(self, session: str, round_: int) -> Kept | None:
        """The last round, if it is this one."""
        kept = self.last(session)
        return kept if kept and kept.round == round_ else None

    def save(self, session: str, kept: Kept, settled: int) -> None:
        """Fill a record first, so that the two assignments cannot fail half-way."""
        arrays = ArrayRecord()
        for name, array in kept.arrays.items():
            arrays[name] = array
        self.state[_ARRAYS] = arrays
        self.state[_METRICS] = kept.metrics


@dataclass(frozen=True)
class FileStore:
    """Rounds as files in a folder of the site, each written completely or not at all.

    owner: what the state belongs to (client, algorithm and its settings, model size); files of another owner are
    refused. Raises DataError where a file is damaged or foreign: a client must not go on from an older state, because
    it would send the same round twice with different numbers.
    """

    folder: Path
    owner: str

    def last(self, session: str) -> Kept | None:
        """See `StateStore`."""
        rounds = self._rounds(session)
        return self._read(self._path(session, rounds[-1])) if rounds else None

    def at(self, session: str, round_: int) -> Kept | None:
        """See `StateStore`."""
        return self._read(self._path(session, round_)) if round_ in self._rounds(session) else None

    def save(self, session: str, kept: Kept, settled: int) -> None:
        """Write, fsync, rename, and drop what is settled."""
        path = self._path(session, kept.round)
        try:
            if not path.parent.exists():
                self._forget_old_sessions()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, self._encoded(kept))
        except OSError as error:
            raise DataError(f"round {kept.round} cannot be stored: {error.strerror}") from None
        rounds = self._rounds(session)
        for round_ in rounds[:-1]:
            if round_ <= settled or round_ not in rounds[-_MOST_ROUNDS:]:
                self._path(session, round_).unlink(missing_ok=True)

    def _folder_of(self, session: str) -> Path:
        return self.folder / hashlib.sha256(f"{self.owner} {session}".encode()).hexdigest()[:24]

    def key_path(self, session: str) -> Path:
        """Where a secret key for this session belongs."""
        return self._folder_of(session) / "session.key"

    def _path(self, session: str, round_: int) -> Path:
        return self._folder_of(session) / f"{round_}.round"

    def _rounds(self, session: str) -> list[int]:
        """Rounds that are there, ascending."""
        names = (re.fullmatch(r"(\d+)\.round", path.name) for path in _entries(self._folder_of(session)))
        return sorted(int(name[1]) for name in names if name)

    def _forget_old_sessions(self) -> None:
        folders = sorted((p for p in _entries(self.folder) if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for folder in folders[: -_MOST_SESSIONS + 1]:
            for path in (*folder.glob("*.round*"), folder / "session.key"):
                path.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()

    def _encoded(self, kept: Kept) -> bytes:
        arrays = {name: [array.dtype, array.shape, len(array.data)] for name, array in kept.arrays.items()}
        head = {"owner": self.owner, "metrics": dict(kept.metrics), "arrays": arrays}
        body = b"\n".join([json.dumps(head).encode(), b"".join(a.data for a in kept.arrays.values())])
        return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body

    def _read(self, path: Path) -> Kept:
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"the stored state, {path.name}, cannot be read: {error.strerror}") from None
        start = len(_MAGIC) + _CHECKSUM + 1
        body = text[start:]
        if text[:start] != _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n":
            raise DataError(
                f"the stored state, {path.name}, is damaged: this client cannot go on with the run"
            )
        head_text, _, data = body.partition(b"\n")
        head = json.loads(head_text)
        if head["owner"] != self.owner:
            raise DataError(f"the stored state, {path.name}, belongs to another client or other settings")
        return Kept(dict(_decoded(head["arrays"], data)), ConfigRecord(head["metrics"]))


def _decoded(arrays: dict[str, list[Any]], data: bytes) -> Iterator[tuple[str, Array]]:
    start = 0
    for name, (dtype, shape, size) in arrays.items():
        yield name, Array(dtype, tuple(shape), "numpy.ndarray", data[start : start + size])
        start += size


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file atomically and flush it to disk; until then the old content stays."""
    temporary = path.with_name(f"{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
