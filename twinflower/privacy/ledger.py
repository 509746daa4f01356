"""What a site has spent: an append-only file that outlives Flower, runs and restarts.

The first line names the data and the lifetime budget; every further line is one round's charge, with the
sums up to and with it. A line is

    checksum body\\n        checksum: of the whole file before the line, then the body

so the last checksum vouches for every byte: a line that was changed, deleted, repeated or moved breaks all
that follow. A charge is on the disk before the round is computed. A last line cut short by a crash was never
acted on and is dropped; anything else that does not read as it was written closes the ledger for good.

What no file can tell of itself: cut off at its end, it is an older ledger in good order. So a backup must
never be put back, and a copied site must not go on twice. And the checksums find accidents, not forgers:
whoever may write the file can also compute them.
"""

import fcntl
import hashlib
import json
import math
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

from ..errors import TwinflowerError
from .accountant import Budget, gdp_epsilon

_CHECKSUM = 16  # hexadecimal digits at the start of a line, then a blank
_PAUSE = 0.05  # seconds between two tries to lock
_TORN = re.compile(rb"[0-9a-f]{0,16}|[0-9a-f]{16} (\{[ -~]*)?")  # how every proper beginning of a line looks


class LedgerError(TwinflowerError):
    """The ledger cannot vouch for what was spent; nothing may be released."""


class ChargedBefore(LedgerError):
    """The round of this run was charged, and its reply is gone."""


class BudgetSpent(TwinflowerError):
    """The release does not fit what is left of a budget."""


@dataclass(frozen=True)
class Charge:
    """One round's releases: `touched` Gaussian releases of this sensitivity and sigma, at this cost in mu^2.

    alone: of a sum, the cost against everybody else together, where `cost` counts on other sites' noise; else None.
    """

    run: str
    round: int
    sensitivity: float
    sigma: float
    touched: int
    cost: float
    config: str = ""
    time: float = field(default_factory=time.time)
    alone: float | None = None

    @property
    def cost_alone(self) -> float:
        """The cost against everybody else together."""
        return self.cost if self.alone is None else self.alone


class Ledger(Protocol):
    """Where charges are kept."""

    def charge(self, charge: Charge, budget: Budget) -> None:
        """Record the charge for good, before anything is released.

        budget: the run's; a lasting ledger has a lifetime budget of its own beside it. Raises BudgetSpent
        where the charge fits not both, and ChargedBefore for a (run, round) that was charged before: its
        reply is gone, and noise must not be drawn twice for one charge.
        """

    def charges(self) -> list[Charge]:
        """All charges so far."""


@dataclass(frozen=True)
class FileLedger:
    """The ledger of one site's data at `path`.

    data: an identity of the data (`fingerprint`). epsilon, delta: the lifetime budget of every record in them,
    fixed by the first charge. The file is locked while it is read and written; a second process waits for at most
    `patience` seconds and is refused then, and symbolic links are not followed.
    """

    path: Path
    data: str
    epsilon: float
    delta: float
    patience: float = 5.0

    def charge(self, charge: Charge, budget: Budget) -> None:
        """See `Ledger.charge`. When it raises, nothing was charged, or the charge stands: never half of it.

        The first charge of a run is refused unless everything that the run plans fits what is left of the lifetime.
        """
        with self._locked() as file:
            book = self._read(file)
            in_run, ever = _sum(book, "run_sum", _start(run=charge.run)), _sum(book, "sum", _ANY)
            known = _start(run=charge.run, round=charge.round) in book
            _check(charge, known, budget, in_run)
            self._check_lifetime(ever, 0.0 if in_run else budget.planned, charge.cost)
            sums = {"run_sum": in_run + charge.cost, "sum": ever + charge.cost}
            text = b"" if book else self._header
            self._append(file, len(book), text + _line(book + text, asdict(charge) | sums))

    def charges(self) -> list[Charge]:
        """All charges so far."""
        with self._locked() as file:
            return _charges(self._read(file))

    def _check_lifetime(self, spent: float, planned: float, cost: float) -> None:
        """BudgetSpent where the lifetime's rest is short of a run's plan, or of one charge."""
        budget = replace(Budget.for_target(self.epsilon, self.delta), spent=spent)
        lifetime = f"the lifetime budget epsilon {self.epsilon:g}, delta {self.delta:g}"
        if planned and not budget.fits(planned):
            raise BudgetSpent(
                f"the run plans epsilon {_epsilon(planned, self.delta)}, and of {lifetime} what is left allows "
                f"{_epsilon(budget.remaining, self.delta)}: it does not begin, and nothing is spent"
            )
        if not budget.fits(cost):
            raise BudgetSpent(f"{lifetime} is spent")

    @property
    def _header(self) -> bytes:
        """The first line."""
        budget = {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        return _line(b"", {"twinflower-ledger": 1, "data": self.data} | budget)

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """The open file, ours alone; the lock goes with the file or with the process."""
        with self._told("opened"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = FileIO(self.path, "a+", opener=_open)
        with file:
            with self._told("locked"):
                os.fchmod(file.fileno(), 0o600)
                _lock(file, fcntl.LOCK_EX, self.patience)
            yield file

    def _read(self, file: FileIO) -> bytes:
        """The whole lines, none for a new ledger, when every byte is as it was written."""
        with self._told("read"):
            file.seek(0)
            text = file.readall()
        book = _whole_lines(self.path, text)
        if book and not book.startswith(self._header):
            raise LedgerError(
                f"the ledger {self.path} was made for other data or another lifetime budget: restore the "
                "node's settings, or give these data a ledger of their own"
            )
        return book

    def _append(self, file: FileIO, end: int, text: bytes) -> None:
        """Put `text` at `end`, in place of a torn line, and on the disk; or leave the file as it was."""
        with self._told("written"):
            if end == 0:
                _sync_folders(self.path)
            try:
                os.ftruncate(file.fileno(), end)
                _write(file.fileno(), text)
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):  # what stays then is a torn line, or a charge for nothing
                    os.ftruncate(file.fileno(), end)
                    os.fsync(file.fileno())
                raise

    def _told(self, done: str) -> AbstractContextManager[None]:
        """Trouble with the file in one sentence."""
        return _told(self.path, f"{done}, and nothing is released")


class Book(NamedTuple):
    """What a ledger's file says: whose data, the lifetime budget, and all charges."""

    data: str
    epsilon: float
    delta: float
    charges: list[Charge]

    @property
    def left(self) -> float:
        """mu^2 that may still be spent."""
        spent = math.fsum(charge.cost for charge in self.charges)
        return replace(Budget.for_target(self.epsilon, self.delta), spent=spent).remaining


def read_ledger(path: Path, patience: float = 5.0) -> Book:
    """A ledger's content, for a reader who does not know whose data it is of; nothing is written.

    Raises LedgerError where it is damaged, or no ledger.
    """
    with _told(path, "opened"):
        file = FileIO(path, "r", opener=_open)
    with file, _told(path, "read"):
        _lock(file, fcntl.LOCK_SH, patience)
        book = _whole_lines(path, file.readall())
    try:
        head = json.loads(book[_CHECKSUM : book.index(b"\n")])
        return Book(head["data"], head["epsilon"], head["delta"], _charges(book))
    except (ValueError, KeyError, TypeError):
        raise LedgerError(f"{path} is not a ledger") from None


def _charges(book: bytes) -> list[Charge]:
    entries = [json.loads(line[_CHECKSUM:]) for line in book.split(b"\n")[1:-1]]
    names = {f.name for f in fields(Charge)}
    return [Charge(**{name: entry[name] for name in names & entry.keys()}) for entry in entries]


def _epsilon(cost: float, delta: float) -> str:
    return f"{gdp_epsilon(math.sqrt(cost), delta):.4g}"


def fingerprint(*arrays: memoryview | bytes) -> str:
    """An identity of data that does not leave the site."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


def check_charge(charge: Charge, entries: list[Charge], budget: Budget) -> None:
    """Raise ChargedBefore for a round that was charged before, BudgetSpent where the run's budget is short."""
    mine = [entry for entry in entries if entry.run == charge.run]
    known = any(entry.round == charge.round for entry in mine)
    _check(charge, known, budget, sum(entry.cost for entry in mine))


def _check(charge: Charge, known: bool, budget: Budget, spent: float) -> None:
    if known:
        raise ChargedBefore(f"round {charge.round} of this run was charged before, and its reply is gone")
    if not replace(budget, spent=budget.spent + spent).fits(charge.cost):
        raise BudgetSpent("the run's privacy budget is spent")


# --- lines ---


def _line(before: bytes, content: dict[str, object]) -> bytes:
    """The line with this content, at the end of a file that so far reads `before`."""
    return _sealed(before, json.dumps(content).encode())


def _sealed(before: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(body)
    return digest.hexdigest()[:_CHECKSUM].encode() + b" " + body + b"\n"


def _whole_lines(path: Path, text: bytes) -> bytes:
    """The file without a torn last line; LedgerError unless every byte is as it was written."""
    book, tail = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
    if not (_in_order(book) and _torn(book, tail)):
        raise LedgerError(
            f"the ledger {path} is damaged: what was spent is not known, and nothing is released any more"
        )
    return book


def _in_order(book: bytes) -> bool:
    """Whether whole lines, perhaps none, are what was written: their last checksum covers them all."""
    last = book.rfind(b"\n", 0, -1) + 1
    return not book or book[last:] == _sealed(book[:last], book[last + _CHECKSUM + 1 : -1])


def _torn(book: bytes, tail: bytes) -> bool:
    """Whether a crash while appending to `book` can have left `tail`: no line with its end spoilt is in it."""
    ends = [found.end() for found in re.finditer(rb"}", tail[:-1])]
    return bool(_TORN.fullmatch(tail)) and not any(_in_order(book + tail[:end] + b"\n") for end in ends)


_ANY = b'{"run": '


def _start(**first: str | int) -> bytes:
    """How the body of a charge with these first fields begins.

    It occurs nowhere else: inside a text, a quotation mark has a backslash before it.
    """
    return json.dumps(first)[:-1].encode() + b", "


def _sum(book: bytes, name: str, start: bytes) -> float:
    """The sum that the latest charge with this start has noted."""
    place = book.rfind(start)
    return float(json.loads(book[place : book.index(b"\n", place)])[name]) if place >= 0 else 0.0


# --- the disk ---


@contextmanager
def _told(path: Path, done: str) -> Iterator[None]:
    """Trouble with the file in one sentence."""
    try:
        yield
    except BlockingIOError:
        raise LedgerError(f"the ledger {path} is in use by another process") from None
    except OSError as error:
        raise LedgerError(f"the ledger {path} cannot be {done}: {error.strerror}") from None


def _lock(file: FileIO, kind: int, patience: float) -> None:
    """The lock, when whoever has it lets go within so many seconds; else BlockingIOError."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_PAUSE)


def _open(path: str, flags: int) -> int:
    """Open or make a regular file for its owner only, and no symbolic link."""
    if os.path.islink(path):
        raise OSError(None, "it is a symbolic link")
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(None, "it is not a regular file")


def _write(descriptor: int, text: bytes) -> None:
    """All of `text`; the system may take it in pieces."""
    while text:
        text = text[os.write(descriptor, text) :]


def _sync_folders(path: Path) -> None:
    """Put the names of a new file and of its folders on the disk."""
    for folder in path.absolute().parents:
        with suppress(PermissionError):
            descriptor = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
