"""What a site has spent: an append-only file that outlives Flower, runs and restarts.

The first line names the data and the lifetime budget; every further line is one round's charge, with a
checksum. A charge is on the disk before the round is computed. A last line cut short by a crash was never
acted on and is dropped; anything else that does not read as it was written closes the ledger for good.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

from ..errors import TwinflowerError
from .accountant import Budget


class LedgerError(TwinflowerError):
    """The ledger cannot vouch for what was spent; nothing may be released."""


class BudgetSpent(TwinflowerError):
    """The release does not fit what is left of a budget."""


@dataclass(frozen=True)
class Charge:
    """One round's releases: `touched` Gaussian releases of this sensitivity and sigma, at this cost in mu^2."""

    run: str
    round: int
    sensitivity: float
    sigma: float
    touched: int
    cost: float
    config: str = ""
    time: float = field(default_factory=time.time)


class Ledger(Protocol):
    """Where charges are kept."""

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record the charge for good, before anything is released.

        budget: the run's; a lasting ledger has a lifetime budget of its own beside it. Raises BudgetSpent
        where the charge fits not both, and LedgerError for a (run, round) that was charged before: its
        reply is gone, and noise must not be drawn twice for one charge.
        """

    def charges(self) -> list[Charge]:
        """All charges so far."""


@dataclass(frozen=True)
class FileLedger:
    """The ledger of one site's data at `path`.

    data: an identity of the data (`fingerprint`). epsilon, delta: the lifetime budget of every record in them,
    fixed when the ledger is made. The file is locked while it is read and written; a second process is
    refused, not queued, and symbolic links are not followed.
    """

    path: Path
    data: str
    epsilon: float
    delta: float

    def charge(self, charge: Charge, budget: Budget) -> None:
        """See `Ledger.charge`."""
        with self._locked() as file:
            entries = self._read(file)
            check_charge(charge, entries, budget)
            if not _fits(Budget.for_target(self.epsilon, self.delta), entries, charge):
                raise BudgetSpent(
                    f"the lifetime budget epsilon {self.epsilon:g}, delta {self.delta:g} is spent"
                )
            file.seek(0, os.SEEK_END)
            _append(file, asdict(charge))

    def charges(self) -> list[Charge]:
        """All charges so far."""
        with self._locked() as file:
            return self._read(file)

    @property
    def _header(self) -> dict[str, object]:
        return {"twinflower-ledger": 1, "data": self.data, "epsilon": self.epsilon, "delta": self.delta}

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o600)
        except OSError as error:
            raise LedgerError(f"the ledger {self.path} cannot be opened: {error.strerror}") from None
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise LedgerError(f"the ledger {self.path} is in use by another process") from None
            yield file

    def _read(self, file: IO[bytes]) -> list[Charge]:
        """All charges; drops a torn last line, writes the header of a new ledger."""
        file.seek(0)
        text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        if len(whole) < len(text):
            file.truncate(len(whole))
        lines = [self._line(number, line) for number, line in enumerate(whole.splitlines(), 1)]
        if not lines:
            _append(file, self._header)
            _sync_folder(self.path.parent)
            return []
        if lines[0] != self._header:
            raise LedgerError(
                f"the ledger {self.path} was made for other data or another lifetime budget: restore the "
                "node's settings, or give these data a ledger of their own"
            )
        return [self._entry(number, line) for number, line in enumerate(lines[1:], 2)]

    def _line(self, number: int, line: bytes) -> dict[str, object]:
        checksum, _, body = line.partition(b" ")
        if checksum != _checksum(body):
            raise LedgerError(
                f"line {number} of the ledger {self.path} is damaged: nothing is released any more"
            )
        return dict(json.loads(body))

    def _entry(self, number: int, line: dict[str, object]) -> Charge:
        try:
            return Charge(**line)  # type: ignore[arg-type]
        except TypeError:
            raise LedgerError(f"line {number} of the ledger {self.path} is not a charge") from None


def fingerprint(*arrays: memoryview | bytes) -> str:
    """An identity of data that does not leave the site."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


def check_charge(charge: Charge, entries: list[Charge], budget: Budget) -> None:
    """Raise LedgerError for a round that was charged before, BudgetSpent where the run's budget is short."""
    mine = [entry for entry in entries if entry.run == charge.run]
    if any(entry.round == charge.round for entry in mine):
        raise LedgerError(f"round {charge.round} of this run was charged before, and its reply is gone")
    if not _fits(budget, mine, charge):
        raise BudgetSpent("the run's privacy budget is spent")


def _fits(budget: Budget, entries: list[Charge], charge: Charge) -> bool:
    return replace(budget, spent=budget.spent + sum(e.cost for e in entries)).fits(charge.cost)


def _append(file: IO[bytes], content: dict[str, object]) -> None:
    body = json.dumps(content, sort_keys=True).encode()
    file.write(_checksum(body) + b" " + body + b"\n")
    os.fsync(file.fileno())


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest()[:16].encode()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
