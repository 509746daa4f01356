"""The record of the privacy budget that a site has spent: an append-only file that persists across runs and restarts.

The first line names the data and the lifetime budget. Every further line is the charge of one round, with the running
sums including it, or ends a reservation. A line is

    checksum body\\n        checksum: of the whole file before the line, followed by the body

so the last checksum covers every byte: changing, deleting, repeating or moving a line invalidates all checksums after
it. A charge is flushed to disk before the round is computed. An incomplete last line, left by a crash, was never acted
on and is dropped. If anything else differs from what was written, the ledger is damaged and refuses all further
charges.

The first charge of a run reserves what its plan still needs, and each charge takes its cost out of that. A run begins
only if the lifetime budget covers its plan besides what was spent and what other runs have reserved, so that no run is
refused half-way because of another one. A run that completes its plan has nothing reserved. What another run has left
over is released when the server ends it, or by the site (`twinflower ledger --give-up`).

A site's `data-file` has one ledger: before each charge, the digest of the data is compared with those of all ledgers in
the folder, so that the same bytes under another path get no second lifetime budget.

Truncation cannot be detected: a file cut off after a complete line is a valid older ledger. So a backup must never be
restored, and two copies of a site must not both continue. The checksums detect accidents and not forgery, because
anyone who can write the file can also compute them.
"""

import hashlib
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..disk import LockableFile, open_regular, sync_folder
from ..errors import SettingError
from .accountant import ROUNDING, Budget, gdp_epsilon
from .charges import BudgetSpent, Charge, LedgerError, added_cost, check_cost, total_cost
from .ledger_lines import (
    charges_in,
    header,
    in_order,
    last_charge,
    line,
    reservations,
    reserved_in,
    start_of,
    torn,
)
from .unit import ONE_RECORD, RECORD, Unit


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

        The first charge of a run, and of a session that is resumed, raises BudgetSpent unless the lifetime budget
        covers what the run still has to charge of its plan. Charges for other settings are no part of it.
        """
        if not self.path.exists():
            self.check_others()  # before there is a file, which a refusal would leave empty
        with self._locked() as file:
            book = self._read(file)
            with self._beginning() if self.sole and not book else nullcontext():
                self.check_others()
                self._add(file, book, charge, budget)

    def _add(self, file: LockableFile, book: bytes, charge: Charge, budget: Budget) -> None:
        in_run, ever = _sum(book, "run_sum", charge.run), _sum(book, "sum")
        known = start_of(charge.run, charge.round) in book
        cost = charge.cost if charge.adds_up else added_cost(charge, charges_in(book, charge.run))
        check_cost(charge, known, budget, in_run, cost)
        reserved = self._reserved(book, charge.run, charge.config, budget, cost)
        reserved[charge.run] -= cost
        sums = {"run_sum": in_run + cost, "sum": ever + cost, **self._stated(reserved)}
        text = b"" if book else self._header
        self._append(file, len(book), text + line(book + text, asdict(charge) | sums))

    def check_plan(self, run: str, config: str, budget: Budget) -> float:
        """Return what a run still has to charge of its plan, in mu^2; nothing is written.

        run, config: as in the run's charges. Raises BudgetSpent unless the lifetime budget covers it, and LedgerError.
        """
        self.check_others()
        return self._reserved(self._book(), run, config, budget)[run]

    def release(self, run: str) -> float:
        """End the reservation of a run, and return what it was, in mu^2; nothing is written if it is 0.

        If the run goes on later, its next charge reserves the rest of its plan anew, or is refused.
        """
        if not self.path.exists():
            return 0.0
        with self._locked() as file:
            book = self._read(file)
            reserved = reserved_in(book)
            rest = reserved.pop(run, 0.0)
            if rest:
                ended = {"released": run, "time": time.time(), **self._stated(reserved)}
                self._append(file, len(book), line(book, ended))
        return rest

    def _reserved(
        self, book: bytes, run: str, config: str, budget: Budget, cost: float = 0.0
    ) -> dict[str, float]:
        """What each run has reserved once this one has. Raises BudgetSpent unless the lifetime budget covers all of it,
        and a charge of this cost."""
        others = reserved_in(book)
        mine = others.pop(run, None)
        if mine is None or last_charge(book, start_of(run)).get("config") != config:
            mine = _unpaid(book, run, config, budget)
        self._check_lifetime(_sum(book, "sum"), others, mine, cost)
        return others | {run: mine}

    def _stated(self, reserved: Mapping[str, float]) -> dict[str, object]:
        """The reservations as the field of a line, without those that only rounding leaves."""
        least = ROUNDING * Budget.for_target(self.epsilon, self.delta).mu_max_squared
        return reservations({run: held for run, held in reserved.items() if held > least})

    def check_others(self) -> None:
        """Raise LedgerError if another ledger in the folder is of the same data, or cannot be read and may be."""
        for path in sorted(self.path.parent.glob("*.ledger")) if self.sole else ():
            if path.name != self.path.name and _data_in(path) == self.data:
                raise LedgerError(_twice(self.path, path))

    def charges(self) -> list[Charge]:
        """Return all charges so far, in order."""
        with self._locked() as file:
            return charges_in(self._read(file))

    def _book(self) -> bytes:
        """The complete lines, empty for a ledger that does not exist yet."""
        if not self.path.exists():
            return b""
        with self._locked() as file:
            return self._read(file)

    def _check_lifetime(self, spent: float, others: Mapping[str, float], planned: float, cost: float) -> None:
        """Raise BudgetSpent unless the lifetime budget covers what was spent, what other runs have reserved, and what
        this run still plans, or this charge, if that is more."""
        held = math.fsum(others.values())
        budget = replace(Budget.for_target(self.epsilon, self.delta), spent=spent + held)
        if budget.fits(max(planned, cost)):
            return
        lifetime = f"the lifetime budget epsilon {self.epsilon:g}, delta {self.delta:g}"
        runs, remedy = self._others(others)
        if planned < (1 - ROUNDING) * cost:  # it has no plan, or has completed it
            raise BudgetSpent(f"{lifetime} is spent{runs and ', or ' + runs}{remedy}")
        raise BudgetSpent(
            f"the run plans epsilon {_epsilon(planned, self.delta)}, and of {lifetime} what is left"
            f"{runs and ' beside ' + runs + ','} allows {_epsilon(budget.remaining, self.delta)}: it does not begin, "
            f"and nothing is spent{remedy}"
        )

    def _others(self, others: Mapping[str, float]) -> tuple[str, str]:
        """A phrase on what other runs have reserved, and a clause on what to do; empty if they have nothing."""
        if not others:
            return "", ""
        names = ["".join(filter(str.isprintable, run)) for run in others]  # a server has chosen them
        held, several = _epsilon(math.fsum(others.values()), self.delta), len(names) > 1
        return (
            f"epsilon {held} reserved by run{'s' if several else ''} {', '.join(names)}",
            f"; wait until {'they end' if several else 'it ends'} or, if one will not go on, release what it has "
            f"reserved: twinflower ledger {self.path.parent} --give-up {names[0]}",
        )

    @contextmanager
    def _beginning(self) -> Iterator[None]:
        """Let no other process begin a ledger in this folder meanwhile, which could be of the same data."""
        path = self.path.parent / "ledgers.lock"
        with (
            _told(path, "opened, and nothing is released", "lock"),
            LockableFile(path, "a+", opener=open_regular) as file,
        ):
            file.wait(self.patience)
            yield

    @property
    def _header(self) -> bytes:
        """The first line."""
        budget = {"epsilon": float(self.epsilon), "delta": float(self.delta)}
        unit = {} if self.unit == ONE_RECORD else {"protects": self.unit.kind, "group-size": self.unit.size}
        return line(b"", {"twinflower-ledger": 1, "data": self.data} | budget | unit)

    @contextmanager
    def _locked(self) -> Iterator[LockableFile]:
        """Open the file under an exclusive lock, which is released when the file is closed or the process ends."""
        with self._told("opened"):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = LockableFile(self.path, "a+", opener=open_regular)
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
    """The content of a ledger file: the identity of the data, the lifetime budget, the charges, what is protected, and
    what each run has reserved for what it still has to charge, in mu^2."""

    data: str
    epsilon: float
    delta: float
    charges: list[Charge]
    unit: Unit = ONE_RECORD
    reserved: Mapping[str, float] = MappingProxyType({})

    @property
    def left(self) -> float:
        """The part of the lifetime budget that is neither spent nor reserved, in mu^2."""
        spent = total_cost(self.charges) + math.fsum(self.reserved.values())
        return replace(Budget.for_target(self.epsilon, self.delta), spent=spent).remaining

    def ledger(self, path: Path) -> FileLedger:
        """The ledger at this path, whose content this is."""
        return FileLedger(path, self.data, self.epsilon, self.delta, unit=self.unit)


def read_ledger(path: Path, patience: float = 5.0) -> Book | None:
    """Read a ledger without knowing its data or budget, None before its first charge; nothing is written.

    Waits at most `patience` seconds for a lock. Raises LedgerError if the file is damaged or is not a ledger.
    """
    with _told(path, "opened"):
        file = LockableFile(path, "r", opener=open_regular)
    with file, _told(path, "read"):
        file.wait(patience, shared=True)
        book = _whole_lines(path, file.readall())
    if not book:
        return None
    with _of_a_ledger(path):
        head, charges = header(book), charges_in(book)
        return Book(head["data"], head["epsilon"], head["delta"], charges, _unit(head), reserved_in(book))


def _data_in(path: Path) -> str:
    """The identity of a ledger's data, empty before the first charge; LedgerError as for `read_ledger`.

    It takes no lock. While a line is written over an incomplete one, a reader may see a mixture of both, and refuse
    once. Otherwise it misses at most the end of the file, and the first line never changes.
    """
    with _told(path, "read, and nothing is released"), LockableFile(path, "r", opener=open_regular) as file:
        book = _whole_lines(path, file.readall())
    with _of_a_ledger(path):
        return str(header(book)["data"]) if book else ""


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


def _unpaid(book: bytes, run: str, config: str, budget: Budget) -> float:
    """What a run with these settings still has to charge of its plan, in mu^2; 0 without a plan.

    budget: the run's, before all charges in the ledger. Raises BudgetSpent if its session was charged for other
    settings, and the budget does not cover this plan, too.
    """
    if not budget.planned:
        return 0.0
    paid = total_cost(charge for charge in charges_in(book, run) if charge.config == config)
    rest = max(0.0, budget.planned - paid)
    if not replace(budget, spent=budget.spent + _sum(book, "run_sum", run)).fits(rest):
        raise BudgetSpent(
            "this session was charged for a run with other settings, and its budget does not cover this run's plan, "
            "too: the run does not begin, and nothing is spent; it needs a session of its own"
        )
    return rest


def _sum(book: bytes, name: str, run: str | None = None) -> float:
    """The running sum `name` in the latest charge, or in that of a run; 0 if there is none."""
    charge = last_charge(book) if run is None else last_charge(book, start_of(run))
    return float(charge.get(name, 0.0))


def _whole_lines(path: Path, text: bytes) -> bytes:
    """The file without an incomplete last line; LedgerError if any byte differs from what was written."""
    book, tail = text[: text.rfind(b"\n") + 1], text[text.rfind(b"\n") + 1 :]
    if not (in_order(book) and torn(book, tail)):
        raise LedgerError(
            f"the ledger {path} is damaged: what was spent is not known, and nothing is released any more"
        )
    return book


def _epsilon(cost: float, delta: float) -> str:
    return f"{gdp_epsilon(math.sqrt(cost), delta):.4g}"


def fingerprint(arrays: Iterable[memoryview | bytes]) -> str:
    """The SHA-256 digest of the arrays' bytes, in hexadecimal. It identifies the data and must not leave the site."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array)
    return digest.hexdigest()


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


def _write(descriptor: int, text: bytes) -> None:
    """Write all of `text`, because one os.write may write only a part of it."""
    while text:
        text = text[os.write(descriptor, text) :]


def _sync_folders(path: Path) -> None:
    """Flush all parent folders, so that the directory entries of a new file and its folders are on disk."""
    for folder in path.absolute().parents:
        sync_folder(folder)
