"""Where a client's state is stored between rounds, in Flower's context or on the site's own disk, and the ledgers of
simulated clients.

Both stores save the state after a round and the reply of that round together, so neither exists without the other. A
session is one training, through all restarts of server and nodes; the server names it. In runs whose server sees only
sums, a store also holds the client's secret key of the session; in runs whose noise is correlated over steps, the seeds
of its last steps.

In the context (`ContextStore`) only the last round is stored, until Flower's run or the node's process ends, without a
reply that the client can compute again, because Flower passes the context along with every message. On disk
(`FileStore`) every round is a file. It is kept until the round is settled, that is, until no restart of the server can
request it again. A server that resumes from its last checkpoint gets the same replies, byte for byte, for the rounds
that it lost, and no dual is updated twice.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from twinflower.disk import LockableFile, reserve, temporary_of, write_whole
from twinflower.errors import DataError
from twinflower.privacy import Budget
from twinflower.privacy.charges import Charge, ChargedBefore, check_charge
from twinflower.privacy.ledger import FileLedger
from twinflower.problems.turns import Span
from twinflower.wire import dtype_name, from_npy, to_npy

from .records import encode

_ARRAYS, _METRICS = "twinflower.arrays", "twinflower.done"  # records of context.state
_KEY_FILE = "session.key"
_KEY = "twinflower.session-key"  # record of context.state
_SEED = 8 + 32  # bytes of a round's first step and its seed
_MAGIC = b"twinflower-round 1 "
_CHECKSUM = 64  # hexadecimal digits
_HEAD = 2**13  # bytes of a stored round besides its arrays, at most
_PATIENCE = 10.0  # seconds to wait for a lock
_MOST_ROUNDS, _MOST_SESSIONS = 256, 8  # limits on disk, whatever the server requests


class CompletedRound(NamedTuple):
    """A completed round: the arrays of the client's state and of its reply, by name, and the metrics of the reply."""

    arrays: Mapping[str, NDArray[Any]]
    metrics: Mapping[str, Any]

    @property
    def round(self) -> int:
        """The number of the round."""
        return cast(int, self.metrics["round"])


class StateStore(Protocol):
    """A store of completed rounds, and of the secret key (or seeds) of a session."""

    def last(self, session: str) -> CompletedRound | None:
        """Return the newest round of the session, if there is one."""

    def at(self, session: str, round_: int) -> CompletedRound | None:
        """Return a round of the session, if it is still stored."""

    def save(self, session: str, done: CompletedRound, settled: int) -> None:
        """Store a round; earlier rounds up to `settled` may be deleted, because they will not be requested again."""

    def reserved(self, session: str, round_: int, size: int) -> AbstractContextManager[None]:
        """Make sure that a round of `size` bytes can be saved later; give the room up if the block raises an error.

        A private client charges the round in the block. Raises DataError if there is no room.
        """

    def key(self, session: str) -> bytes | None:
        """Return the key of the session, if there is one."""

    def save_key(self, session: str, key: bytes) -> None:
        """Store a new key."""

    def locked(self, session: str) -> AbstractContextManager[None]:
        """Keep other processes from a block that has its turn before or after this one; DataError if that fails."""

    def of(self, kind: str) -> "StateStore":
        """A separate store, in the same place, for what the client released when it answered questions of a kind."""


def noise_seeds(store: StateStore, session: str, config: str, span: Span) -> dict[int, bytes]:
    """The seeds of noise that is correlated over steps, by their rounds' first steps: a new one for this span, and
    those of earlier rounds of the session with the same settings that the noise of this one needs; others are erased.

    Whoever reads them beside the client's messages can take their noise out of these. If they are lost, earlier noise
    is left out of later steps, which costs no privacy (`correlated`).
    """
    head = hashlib.sha256(f"{config} {span.per_epoch}".encode()).digest()
    text = store.key(session) or head
    lines = [text[i : i + _SEED] for i in range(len(head), len(text), _SEED)] if text.startswith(head) else []
    known = {int.from_bytes(line[:8], "big"): line[8:] for line in lines}
    needed = span.first - span.bandwidth + 1
    seeds = {first: seed for first, seed in known.items() if needed < first + span.steps <= span.first}
    seeds[span.first] = os.urandom(32)
    store.save_key(session, head + b"".join(first.to_bytes(8, "big") + seed for first, seed in seeds.items()))
    return seeds


@dataclass(frozen=True)
class ContextStore:
    """Stores the last round in `context.state`, in Flower's records. kind: a suffix of their names."""

    state: RecordDict
    kind: str = ""

    def of(self, kind: str) -> "ContextStore":
        """See `StateStore`."""
        return ContextStore(self.state, f".{kind}")

    def last(self, session: str) -> CompletedRound | None:
        """See `StateStore`."""
        if _METRICS + self.kind not in self.state:
            return None
        metrics = cast(ConfigRecord, self.state[_METRICS + self.kind])
        if metrics["session"] != session:
            return None
        arrays = cast(ArrayRecord, self.state[_ARRAYS + self.kind])
        return CompletedRound({name: from_npy(array.data) for name, array in arrays.items()}, metrics)

    def at(self, session: str, round_: int) -> CompletedRound | None:
        """Return the last round if it has this number."""
        done = self.last(session)
        return done if done and done.round == round_ else None

    def reserved(self, session: str, round_: int, size: int) -> AbstractContextManager[None]:
        """See `StateStore`; there is room in memory."""
        return nullcontext()

    def save(self, session: str, done: CompletedRound, settled: int) -> None:
        """See `StateStore`. The record is filled first, so that the two assignments cannot fail half-way."""
        arrays = ArrayRecord()
        for name, array in done.arrays.items():
            arrays[name] = encode(array)
        self.state[_ARRAYS + self.kind] = arrays
        self.state[_METRICS + self.kind] = ConfigRecord(dict(done.metrics))

    def locked(self, session: str) -> AbstractContextManager[None]:
        """See `StateStore`; a context belongs to one process."""
        return nullcontext()

    def key(self, session: str) -> bytes | None:
        """See `StateStore`."""
        record = cast(ConfigRecord, self.state[_KEY]) if _KEY in self.state else {}
        return cast(bytes, record["key"]) if record.get("session") == session else None

    def save_key(self, session: str, key: bytes) -> None:
        """See `StateStore`; only one key is stored."""
        self.state[_KEY] = ConfigRecord({"session": session, "key": key})


@dataclass(frozen=True)
class FileStore:
    """Stores rounds as files in a folder of the site, each written completely or not at all.

    owner: identifies what the state belongs to (client, algorithm and its settings, model size). kind: the suffix of
    the files. Raises DataError if a file is damaged or has another owner. A client must not continue from an older
    state, because it would send the same round twice with different numbers.
    """

    folder: Path
    owner: str
    kind: str = "round"

    def of(self, kind: str) -> "FileStore":
        """See `StateStore`."""
        return replace(self, kind=kind)

    def last(self, session: str) -> CompletedRound | None:
        """See `StateStore`."""
        rounds = self._rounds(session)
        return self._read(self._path(session, rounds[-1])) if rounds else None

    def at(self, session: str, round_: int) -> CompletedRound | None:
        """See `StateStore`."""
        return self._read(self._path(session, round_)) if round_ in self._rounds(session) else None

    def save(self, session: str, done: CompletedRound, settled: int) -> None:
        """See `StateStore`. Writes, flushes and renames the file, then deletes settled rounds."""
        path = self._path(session, done.round)
        with self._writing(path, f"{self.kind} {done.round}"):
            write_whole(path, _encoded(self.owner, done))
        rounds = self._rounds(session)
        for round_ in rounds[:-1]:
            if round_ <= settled or round_ not in rounds[-_MOST_ROUNDS:]:
                self._path(session, round_).unlink(missing_ok=True)

    @contextmanager
    def reserved(self, session: str, round_: int, size: int) -> Iterator[None]:
        """See `StateStore`; `save` fills the file that is made here."""
        path = self._path(session, round_)
        with self._writing(path, f"{self.kind} {round_}"):
            # of rounds that were charged and then failed
            for unfinished in path.parent.glob(f"*.{self.kind}.new"):
                unfinished.unlink()
            reserve(path, size + _HEAD)
        try:
            yield
        except BaseException:
            temporary_of(path).unlink(missing_ok=True)
            raise

    def key(self, session: str) -> bytes | None:
        """See `StateStore`."""
        path = self._key_path(session)
        try:
            return path.read_bytes() if path.exists() else None
        except OSError as error:
            raise DataError(f"the session's key cannot be read: {error.strerror}") from None

    def save_key(self, session: str, key: bytes) -> None:
        """See `StateStore`; only the owner may read the file."""
        path = self._key_path(session)
        with self._writing(path, "the session's key"):
            write_whole(path, key)

    @contextmanager
    def locked(self, session: str) -> Iterator[None]:
        """See `StateStore`; the key of the session is locked."""
        try:
            file = LockableFile(self._key_path(session), "r+")
            file.wait(_PATIENCE)
        except OSError as error:
            raise DataError(f"the session's key cannot be locked: {error.strerror}") from None
        with file:
            yield

    @contextmanager
    def _writing(self, path: Path, content: str) -> Iterator[None]:
        """Create the folder of a file; DataError, and no unfinished file, if the block cannot write this content."""
        try:
            if not path.parent.exists():
                self._forget_old_sessions()
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            yield
        except OSError as error:
            with suppress(OSError):
                temporary_of(path).unlink()
            raise DataError(f"{content} cannot be stored: {error.strerror}") from None

    def _folder_of(self, session: str) -> Path:
        return self.folder / hashlib.sha256(f"{self.owner} {session}".encode()).hexdigest()[:24]

    def _key_path(self, session: str) -> Path:
        return self._folder_of(session) / _KEY_FILE

    def _path(self, session: str, round_: int) -> Path:
        return self._folder_of(session) / f"{round_}.{self.kind}"

    def _rounds(self, session: str) -> list[int]:
        """The numbers of the stored rounds, ascending."""
        names = (
            re.fullmatch(rf"(\d+)\.{self.kind}", path.name) for path in _entries(self._folder_of(session))
        )
        return sorted(int(name[1]) for name in names if name)

    def _forget_old_sessions(self) -> None:
        folders = sorted((p for p in _entries(self.folder) if p.is_dir()), key=lambda p: p.stat().st_mtime)
        for folder in folders[: -_MOST_SESSIONS + 1]:
            key_first = sorted(_entries(folder), key=lambda path: path.name != _KEY_FILE)
            for path in key_first:  # without the key nothing that a crash leaves can be used
                path.unlink(missing_ok=True)
            with suppress(OSError):
                folder.rmdir()

    def _read(self, path: Path) -> CompletedRound:
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
        return CompletedRound(dict(_decoded(head["arrays"], data)), head["metrics"])


def _encoded(owner: str, done: CompletedRound) -> bytes:
    """The content of a round's file."""
    data = [to_npy(array) for array in done.arrays.values()]
    arrays = {
        name: [dtype_name(array.dtype), array.shape, len(own)]
        for (name, array), own in zip(done.arrays.items(), data, strict=True)
    }
    head = {"owner": owner, "metrics": dict(done.metrics), "arrays": arrays}
    body = b"\n".join([json.dumps(head).encode(), b"".join(data)])
    return _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def _decoded(arrays: dict[str, list[Any]], data: bytes) -> Iterator[tuple[str, NDArray[Any]]]:
    start = 0
    for name, (_, _, size) in arrays.items():
        yield name, from_npy(data[start : start + size])
        start += size


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


_RECORD = "twinflower.ledger"


@dataclass(frozen=True)
class ContextLedger:
    """Charges as lines of JSON in `context.state`; see `twinflower.privacy.charges.Ledger`."""

    state: RecordDict

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge, or raise BudgetSpent or LedgerError."""
        check_charge(charge, self.charges(), budget)
        self.state[_RECORD] = ConfigRecord({"charges": [*self._lines(), json.dumps(vars(charge))]})

    def charges(self) -> list[Charge]:
        """All charges so far."""
        return [Charge(**json.loads(line)) for line in self._lines()]

    def check_plan(self, run: str, config: str, budget: Budget) -> float:
        """See `Ledger`; it lasts as long as the run, so there is no other one."""
        return budget.planned

    def release(self, run: str) -> float:
        """See `Ledger`; nothing is reserved."""
        return 0.0

    def _lines(self) -> list[str]:
        if _RECORD not in self.state:
            return []
        return cast(list[str], cast(ConfigRecord, self.state[_RECORD])["charges"])


class SeededLedger(FileLedger):
    """A `FileLedger` for seeded noise, which may charge the same round twice but counts it once.

    If the process is killed after a charge and before the reply was stored, repeating the round gives the same values,
    so it costs nothing more. This ledger must never be used with secret noise.
    """

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record a charge unless it is already recorded; may raise BudgetSpent or LedgerError."""
        with suppress(ChargedBefore):
            super().charge(charge, budget)
