"""The record of the privacy budget that a site has spent: an append-only file that persists across runs and restarts.

The first line names the data and the lifetime budget. Every further line is the charge of one round, with the running
sums including it. A line is

    checksum body\\n        checksum: of the whole file before the line, followed by the body

so the last checksum covers every byte: changing, deleting, repeating or moving a line invalidates all checksums after
it. A charge is flushed to disk before the round is computed. An incomplete last line, left by a crash, was never acted
on and is dropped. If anything else differs from what was written, the ledger is damaged and refuses all further
charges.

A site's `data-file` has one ledger: before each charge, the digest of the data is compared with those of all ledgers in
the folder, so that the same bytes under another path get no second lifetime budget.

Truncation cannot be detected: a file cut off after a complete line is a valid older ledger. So a backup must never be
restored, and two copies of a site must not both continue. The checksums detect accidents and not forgery, because
anyone who can write the file can also compute them.
"""

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..disk import LockableFile, sync_folder
from ..errors import SettingError
from .accountant import Budget, gdp_epsilon
from .charges import BudgetSpent, Charge, LedgerError, added_cost, check_cost, total_cost
from .unit import ONE_RECORD, RECORD, Unit

_CHECKSUM = 16  # hexadecimal digits at the start of a line, followed by a space
_TORN = re.compile(rb"[0-9a-f]{0,16}|[0-9a-f]{16} (\{[ -~]*)?")  # matches every incomplete line


@dataclass(frozen=True)
class FileLedger:
    """The ledger of one site's data at `path`.

    data: an identity of the data (`fingerprint`). epsilon, delta: the lifetime budget of every protected `unit` of the
    data, fixed by the first charge. Charges may be for a larger unit, which costs more. The file is locked while it is
    read and written. A second process waits for at most `patience` seconds and then gets a LedgerError. Symbolic links
    are refused. sole: whether the data may have no other ledger in the folder; then every charge reads all of them.
    """

    path: Path
    data: str
    epsilon: float
    delta: float
    patience: float = 5.0
    unit: Unit = ONE_RECORD
    sole: bool = False

    def charge(self, charge: Charge, budget: Budget) -> None:
        """See `Ledger.charge`. If this raises, the charge is recorded either completely or not at all.

        The first charge of a run raises BudgetSpent unless the run's plan fits into the rest of the lifetime budget; of
        a session that is resumed it is what is left of the plan. Charges for other settings are no part of it.
        """
        if not self.path.exists():
            self.check_others()  # before there is a file, which a refusal would leave empty
        with self._locked() as file:
            book = self._read(file)
            with self._beginning() if self.sole and not book else nullcontext():
                self.check_others()
                self._add(file, book, charge, budget)

    def _add(self, file: LockableFile, book: bytes, charge: Charge, budget: Budget) -> None:
        in_run, ever = _sum(book, "run_sum", _start(run=charge.run)), _sum(book, "sum", _ANY)
        known = _start(run=charge.run, round=charge.round) in book
        cost = added_cost(charge, _charges_of(book, charge.run)) if charge.split else charge.cost
        check_cost(charge, known, budget, in_run, cost)
        self._check_lifetime(ever, _unpaid(book, charge, replace(budget, spent=budget.spent + in_run)), cost)
        sums = {"run_sum": in_run + cost, "sum": ever + cost}
        text = b"" if book else self._header
        self._append(file, len(book), text + _line(book + text, asdict(charge) | sums))

    def check_others(self) -> None:
        """Raise LedgerError if another ledger in the folder is of the same data, or cannot be read and may be."""
        for path in sorted(self.path.parent.glob("*.ledger")) if self.sole else ():
            if path.name != self.path.name and _data_in(path) == self.data:
                raise LedgerError(_twice(self.path, path))

    def charges(self) -> list[Charge]:
        """Return all charges so far, in order."""
        with self._locked() as file:
            return _charges(self._read(file))

    def check_plan(self, planned: float) -> None:
        """Raise BudgetSpent unless the rest of the lifetime budget covers a run with this plan; nothing is written."""
        charges = self.charges() if self.path.exists() else []
        self._check_lifetime(total_cost(charges), planned, 0.0)

    def _check_lifetime(self, spent: float, planned: float, cost: float) -> None:
        """Raise BudgetSpent if the rest of the lifetime budget does not cover the planned cost, or this charge."""
        budget = replace(Budget.for_target(self.epsilon, self.delta), spent=spent)
        lifetime = f"the lifetime budget epsilon {self.epsilon:g}, delta {self.delta:g}"
        if planned and not budget.fits(planned):
            raise BudgetSpent(
                f"the run plans epsilon {_epsilon(planned, self.delta)}, and of {lifetime} what is left allows "
                f"{_epsilon(budget.remaining, self.delta)}: it does not begin, and nothing is spent"
            )
        if not budget.fits(cost):
            raise BudgetSpent(f"{lifetime} is spent")

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Let no other process begin a ledger in this folder meanwhile, which could be of the same data."""
        path = self.path.parent / "ledgers.lock"
        with (
            _told(path, "opened, and nothing is released", "lock"),
            LockableFile(path, "a+", opener=_open) as file,
        ):
            file.wait(self.patience)
            yield

    @property
    def _header(self) -> bytes:
        """The first line."""
        budget = {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        unit = {} if self.unit == ONE_RECORD else {"protects": self.unit.kind, "group-size": self.unit.size}
        return _line(b"", {"twinflower-ledger": 1, "data": self.data} | budget | unit)

    @contextmanager
    def _locked(self) -> Iterator[LockableFile]:
        """Open the file under an exclusive lock, which is released when the file is closed or the process ends."""
        with self._told("opened"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = LockableFile(self.path, "a+", opener=_open)
        with file:
            with self._told("locked"):
                if hasattr(os, "fchmod"):  # not on Windows
                    os.fchmod(file.fileno(), 0o600)
                file.wait(self.patience)
            yield file

    def _read(self, file: LockableFile) -> bytes:
        """Return the complete lines, empty for a new ledger; LedgerError if any byte differs from what was written."""
        with self._told("read"):
            file.seek(0)
            text = file.readall()
        book = _whole_lines(self.path, text)
        if book and not book.startswith(self._header):
            raise LedgerError(
                f"the ledger {self.path} was made for other data or another lifetime budget, or protects other groups: "
                "restore the node's settings and the rows; if other rows are at the same path now, a new ledger begins "
                "once this one is moved out of its folder, and what it spent on persons in both is no longer counted"
            )
        return book

    def _append(self, file: LockableFile, end: int, text: bytes) -> None:
        """Write `text` at `end`, over an incomplete line, and flush it to disk; if this fails, truncate to `end`."""
        with self._told("written"):
            if end == 0:
                _sync_folders(self.path)
            try:
                os.ftruncate(file.fileno(), end)
                _write(file.fileno(), text)
                os.fsync(file.fileno())
            except BaseException:
                with suppress(OSError):  # if this fails too, an incomplete line or an unused charge remains
                    os.ftruncate(file.fileno(), end)
                    os.fsync(file.fileno())
                raise

    def _told(self, done: str) -> AbstractContextManager[None]:
        """Turn an OSError in the block into a LedgerError: the ledger cannot be `done`, and nothing is released."""
        return _told(self.path, f"{done}, and nothing is released")


class Book(NamedTuple):
    """The content of a ledger file: the identity of the data, the lifetime budget, the charges, what is protected."""

    data: str
    epsilon: float
    delta: float
    charges: list[Charge]
    unit: Unit = ONE_RECORD

    @property
    def left(self) -> float:
        """The unspent part of the lifetime budget, in mu^2."""
        spent = total_cost(self.charges)
        return replace(Budget.for_target(self.epsilon, self.delta), spent=spent).remaining


def read_ledger(path: Path, patience: float = 5.0) -> Book | None:
    """Read a ledger without knowing its data or budget, None before its first charge; nothing is written.

    Waits at most `patience` seconds for a lock. Raises LedgerError if the file is damaged or is not a ledger.
    """
    with _told(path, "opened"):
        file = LockableFile(path, "r", opener=_open)
    with file, _told(path, "read"):
        file.wait(patience, shared=True)
        book = _whole_lines(path, file.readall())
    if not book:
        return None
    with _of_a_ledger(path):
        head = json.loads(book[_CHECKSUM : book.index(b"\n")])
        return Book(head["data"], head["epsilon"], head["delta"], _charges(book), _unit(head))


def _data_in(path: Path) -> str:
    """The identity of a ledger's data, empty before the first charge; LedgerError as for `read_ledger`.

    It takes no lock. While a line is written over an incomplete one, a reader may see a mixture of both, and refuse
    once. Otherwise it misses at most the end of the file, and the first line never changes.
    """
    with _told(path, "read, and nothing is released"), LockableFile(path, "r", opener=_open) as file:
        book = _whole_lines(path, file.readall())
    with _of_a_ledger(path):
        return str(json.loads(book[_CHECKSUM : book.index(b"\n")])["data"]) if book else ""


@contextmanager
def _of_a_ledger(path: Path) -> Iterator[None]:
    """Turn errors of reading the lines of a file into a LedgerError: they are not those of a ledger."""
    try:
        yield
    except (ValueError, KeyError, TypeError, SettingError):
        raise LedgerError(f"{path} is not a ledger") from None


def _twice(mine: Path, other: Path) -> str:
    """The sentence about data that have the ledger `other`, under another path of `data-file` than that of `mine`."""
    if mine.exists() and mine.stat().st_size:
        return (
            f"the same rows have two ledgers, {mine} and {other.name}, and what was spent is the sum of both: keep the "
            "one that spent more, and move the other one away if the site accepts that its costs no longer count"
        )
    return (
        f"these rows have the ledger {other}, made under another path of data-file: restore that path or, if the file "
        f"has moved, stop the node and rename its ledger to {mine.name}"
    )


def _unit(head: dict[str, Any]) -> Unit:
    return Unit(head.get("protects", RECORD), head.get("group-size", 0))


def _charges(book: bytes) -> list[Charge]:
    return list(map(_read_charge, book.split(b"\n")[1:-1]))


def _charges_of(book: bytes, run: str) -> list[Charge]:
    """The charges of one run."""
    start = _start(run=run)
    return [_read_charge(line) for line in book.split(b"\n")[1:-1] if line[_CHECKSUM + 1 :].startswith(start)]


def _read_charge(line: bytes) -> Charge:
    entry = json.loads(line[_CHECKSUM:])
    names = {f.name for f in fields(Charge)}
    return Charge(**{name: entry[name] for name in names & entry.keys()})


def _unpaid(book: bytes, charge: Charge, budget: Budget) -> float:
    """What a run still has to pay of its plan at the first charge for its settings in a run of Flower, later 0.

    budget: the run's, of which its session has spent a part. Raises BudgetSpent if that was spent on other settings and
    the budget does not cover the plan, too.
    """
    last = _last(book, _start(run=charge.run))
    goes_on = (last.get("config"), last.get("flower_run", "")) == (charge.config, charge.flower_run)
    if goes_on or not budget.planned:
        return 0.0
    paid = total_cost(entry for entry in _charges_of(book, charge.run) if entry.config == charge.config)
    rest = max(0.0, budget.planned - paid)
    if not budget.fits(rest):
        raise BudgetSpent(
            "this session was charged for a run with other settings, and its budget does not cover this run's plan, "
            "too: the run does not begin, and nothing is spent; it needs a session of its own"
        )
    return rest


def _epsilon(cost: float, delta: float) -> str:
    return f"{gdp_epsilon(math.sqrt(cost), delta):.4g}"


def fingerprint(arrays: Iterable[memoryview | bytes]) -> str:
    """The SHA-256 digest of the arrays' bytes, in hexadecimal. It identifies the data and must not leave the site."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


# --- lines ---


def _line(before: bytes, content: dict[str, object]) -> bytes:
    """Encode the content as a line to append to a file whose bytes so far are `before`."""
    return _sealed(before, json.dumps(content).encode())


def _sealed(before: bytes, body: bytes) -> bytes:
    digest = hashlib.sha256(before)
    digest.update(body)
    return digest.hexdigest()[:_CHECKSUM].encode() + b" " + body + b"\n"


def _whole_lines(path: Path, text: bytes) -> bytes:
    """The file without an incomplete last line; LedgerError if any byte differs from what was written."""
    book, tail = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
    if not (_in_order(book) and _torn(book, tail)):
        raise LedgerError(
            f"the ledger {path} is damaged: what was spent is not known, and nothing is released any more"
        )
    return book


def _in_order(book: bytes) -> bool:
    """Whether complete lines (possibly none) are unchanged: the checksum of the last one covers all of them."""
    last = book.rfind(b"\n", 0, -1) + 1
    return not book or book[last:] == _sealed(book[:last], book[last + _CHECKSUM + 1 : -1])


def _torn(book: bytes, tail: bytes) -> bool:
    """Whether a crash while appending to `book` can leave `tail`; a complete line with a damaged end does not count."""
    ends = [found.end() for found in re.finditer(rb"}", tail[:-1])]
    return bool(_TORN.fullmatch(tail)) and not any(_in_order(book + tail[:end] + b"\n") for end in ends)


_ANY = b'{"run": '


def _start(**first: str | int) -> bytes:
    """The first bytes of the body of a charge with these first fields.

    They cannot occur anywhere else, because JSON escapes quotation marks inside strings.
    """
    return json.dumps(first)[:-1].encode() + b", "


def _last(book: bytes, start: bytes) -> dict[str, Any]:
    """The latest charge, with its sums, whose body begins with `start`; empty if there is none."""
    place = book.rfind(start)
    return dict(json.loads(book[place : book.index(b"\n", place)])) if place >= 0 else {}


def _sum(book: bytes, name: str, start: bytes) -> float:
    """The running sum `name` in the latest charge whose body begins with `start`; 0 if there is none."""
    return float(_last(book, start).get(name, 0.0))


# --- the disk ---


@contextmanager
def _told(path: Path, done: str, kind: str = "ledger") -> Iterator[None]:
    """Turn an OSError in the block into a LedgerError that names the file of this kind and what cannot be `done`."""
    try:
        yield
    except BlockingIOError:
        raise LedgerError(f"the {kind} {path} is in use by another process") from None
    except OSError as error:
        raise LedgerError(f"the {kind} {path} cannot be {done}: {error.strerror}") from None


def _open(path: str, flags: int) -> int:
    """Open or create a regular file with mode 0600; OSError for a symbolic link or anything else."""
    if os.path.islink(path):
        raise OSError(None, "it is a symbolic link")
    for name in ("O_NOFOLLOW", "O_NONBLOCK"):  # not on Windows
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(None, "it is not a regular file")


def _write(descriptor: int, text: bytes) -> None:
    """Write all of `text`, because one os.write may write only a part of it."""
    while text:
        text = text[os.write(descriptor, text) :]


def _sync_folders(path: Path) -> None:
    """Flush all parent folders, so that the directory entries of a new file and its folders are on disk."""
    for folder in path.absolute().parents:
        sync_folder(folder)
