"""The ledger: no kill, fault or damage makes it count too little, and a spent budget stays spent."""

import errno
import fcntl
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_array_equal
from problems import small

import twinflower.clients.request
import twinflower.clients.shell
import twinflower.clients.steps
import twinflower.clients.store
from twinflower import disk
from twinflower.algorithms import FedPDM
from twinflower.algorithms.layout import Layout
from twinflower.clients.store import ContextLedger
from twinflower.errors import ReplyError, SettingError, TwinflowerError
from twinflower.privacy import Budget, gdp_epsilon, gdp_mu, guard, ledger, mechanism
from twinflower.privacy.charges import BudgetSpent, Charge, LedgerError, check_charge
from twinflower.privacy.guard import Guard
from twinflower.privacy.ledger import FileLedger, fingerprint, read_ledger
from twinflower.privacy.release import Release
from twinflower.simulation.app.client_app import site_guard
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.sections.ledger import accounts, read_books, runs
from twinflower.simulation.runs.client_factory import client_of, guard_of, ledger_of

TESTS = Path(__file__).resolve().parent
PLENTY = Budget(1e9)
REAL_WRITE, REAL_FSYNC = os.write, os.fsync


def address(charge: Charge) -> tuple[str, int]:
    return charge.run, charge.round


def book(folder: Path, epsilon: float = 1e5, data: str = "data", name: str = "site") -> FileLedger:
    """A ledger with room for about everything."""
    return FileLedger(folder / f"{name}.ledger", data, epsilon, 1e-4)


def put(path: Path, text: bytes) -> None:
    """A new file in place of the old; ext4 would wait for the disk to cut the old one."""
    path.unlink(missing_ok=True)
    path.write_bytes(text)


def one(round_: int, run: str = "run", cost: float = 0.25, config: str = "") -> Charge:
    return Charge(run, round_, 0.5, 1.0, 1, cost, config, 0.0)


def rounds(site: FileLedger) -> list[int]:
    return [charge.round for charge in site.charges()]


def filled(folder: Path, count: int, **names: Any) -> FileLedger:
    site = book(folder, **names)
    for round_ in range(1, count + 1):
        site.charge(one(round_), PLENTY)
    return site


@pytest.fixture
def quick(monkeypatch):
    """Where only the content counts, the disk need not be waited for."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


# ------------------------------------------------------------------------------------------- what it keeps


def test_charges_come_back_as_they_were_in_another_process_too(tmp_path):
    site = book(tmp_path)
    charges = [
        Charge('{"run": "a", "round": 1, ', 1, 0.1 + 0.2, 1 / 3, 2, 0.1, 'quote " brace } line \n é', 12.5),
        Charge('{"run": "a", "round": 1, ', 10, 5e-324, 1e308, 1, 0.1),
        Charge("a", 1, 0.5, 1.0, 1, 1e-9, "}"),
    ]
    for charge in charges:
        site.charge(charge, PLENTY)
    assert site.charges() == charges
    assert FileLedger(site.path, "data", 100000, 1e-4).charges() == charges  # 100000 is 100000.0
    code = "from twinflower.privacy.ledger import FileLedger; from pathlib import Path; "
    code += f"print(*[c.round for c in FileLedger(Path({str(site.path)!r}), 'data', 1e5, 1e-4).charges()])"
    assert run_here(code).split() == ["1", "10", "1"]


def run_here(code: str) -> str:
    """Standard output of code in a fresh process that knows the tests and the package."""
    path = os.pathsep.join([str(TESTS.parent), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_ledger_that_is_locked_for_a_moment_is_waited_for(tmp_path):
    site, other = filled(tmp_path, 1), (tmp_path / "site.ledger").open()
    fcntl.flock(other, fcntl.LOCK_EX)
    timer = threading.Timer(0.3, other.close)
    timer.start()
    site.charge(one(2), PLENTY)
    timer.join()
    assert rounds(site) == [1, 2]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["file", "context"])
def test_a_round_is_charged_once_and_runs_do_not_mix(tmp_path, kind):
    """Against the plain list of charges, over interleaved runs with their own budgets."""
    site = {"file": book(tmp_path), "context": ContextLedger(RecordDict())}[kind]
    rng, model = np.random.default_rng(0), []
    lives = Budget.for_target(1e5, 1e-5)
    budgets = {run: Budget(limit) for run, limit in (("a", 5.0), ("ab", 9.0), ("b", 1e9), ('"', 3.0))}
    results = Counter()
    for _ in range(300):
        run = str(rng.choice(list(budgets)))
        charge = one(int(rng.integers(1, 120)), run, float(rng.choice([0.1, 0.3, 2.0])))
        try:
            check_charge(charge, model, budgets[run])
            expected = None
        except TwinflowerError as error:
            expected = error
        if expected is None:
            site.charge(charge, budgets[run])
            model.append(charge)
        else:
            with pytest.raises(type(expected), match=str(expected)):
                site.charge(charge, budgets[run])
        results[type(expected)] += 1
    assert sorted(site.charges(), key=address) == sorted(model, key=address)
    assert min(results.values()) > 20 and len(results) == 3
    assert sum(charge.cost for charge in model) < lives.mu_max_squared


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [1, 3, 7, 10, 49, 700])
@pytest.mark.parametrize("limit", ["lifetime", "run"])
def test_a_budget_stops_at_the_right_release(tmp_path, count, limit):
    """Equal shares of exactly the budget fit, whatever the rounding; then nothing does."""
    share = gdp_mu(2.0, 1e-4) ** 2 / count
    site = book(tmp_path, epsilon=2.0 if limit == "lifetime" else 1e5)
    budget = Budget.for_target(2.0, 1e-4) if limit == "run" else PLENTY
    for round_ in range(1, count + 1):
        site.charge(one(round_, cost=share), budget)
    before = site.path.read_bytes()
    for cost in (share, share * 1e-6):
        with pytest.raises(
            BudgetSpent, match="lifetime budget epsilon 2, delta" if budget is PLENTY else "run's"
        ):
            site.charge(one(count + 1, cost=cost), budget)
    assert site.path.read_bytes() == before


@pytest.mark.usefixtures("quick")
def test_the_lifetime_is_of_all_runs_and_outlives_them(tmp_path):
    share = gdp_mu(1.0, 1e-4) ** 2 / 4
    for run in "abcd":
        book(tmp_path, 1.0).charge(one(1, run, share), Budget(share))
    with pytest.raises(BudgetSpent, match="lifetime"):
        book(tmp_path, 1.0).charge(one(1, "e", share), Budget(share))


@pytest.mark.parametrize("cost", [float("nan"), -1.0, float("inf")])
def test_a_cost_that_is_no_cost_is_never_written(tmp_path, cost):
    site = filled(tmp_path, 1)
    with pytest.raises((SettingError, BudgetSpent)):
        site.charge(one(2, cost=cost), PLENTY)
    assert rounds(site) == [1]


# -------------------------------------------------------------------------------------------- damage


def refuses(site: FileLedger, text: bytes, match: str = "is damaged") -> None:
    """With this content the ledger neither reads nor charges, and leaves the file alone."""
    put(site.path, text)
    for act in (site.charges, lambda: site.charge(one(99), PLENTY)):
        with pytest.raises(LedgerError, match=match):
            act()
    assert site.path.read_bytes() == text


@pytest.mark.parametrize("count", [1, 3])
def test_every_flipped_bit_closes_the_ledger(tmp_path, count):
    """Also one that turns the last newline into something else: that line was acted on, it is not torn."""
    site = filled(tmp_path, count)
    text = site.path.read_bytes()
    descriptor = os.open(site.path, os.O_WRONLY)
    for place in range(len(text)):
        for bit in range(8):
            os.pwrite(descriptor, bytes([text[place] ^ 1 << bit]), place)
            with pytest.raises(LedgerError, match="damaged"):
                site.charges()
        os.pwrite(descriptor, text[place : place + 1], place)
    os.close(descriptor)
    assert rounds(site) == list(range(1, count + 1))


def test_lines_deleted_moved_repeated_or_taken_from_elsewhere_close_the_ledger(tmp_path):
    site = filled(tmp_path, 5)
    lines = site.path.read_bytes().splitlines(keepends=True)
    for first, last in combinations(range(len(lines)), 2):  # all but the end: that is an older ledger
        refuses(site, b"".join(lines[:first] + lines[last:]))
        swapped = list(lines)
        swapped[first], swapped[last] = lines[last], lines[first]
        refuses(site, b"".join(swapped))
    for place, line in enumerate(lines):
        refuses(site, b"".join(lines[:place] + [line] + lines[place:]))
        refuses(site, b"".join([*lines, line]))
    other = filled(tmp_path, 3, name="other", epsilon=50.0).path.read_bytes().splitlines(keepends=True)
    refuses(site, b"".join(lines[:3] + other[3:]))
    refuses(site, b"".join(lines).replace(b"\n", b"\r\n"))
    refuses(site, b"\n".join(lines))


@pytest.mark.usefixtures("quick")
def test_a_torn_last_line_is_dropped_and_written_over(tmp_path):
    """Wherever it was cut; nothing else of the file changes."""
    site = filled(tmp_path, 3)
    text = site.path.read_bytes()
    last = text[:-1].rfind(b"\n") + 1
    for end in range(last, len(text)):
        put(site.path, text[:end])
        assert rounds(site) == [1, 2]
    for end in (last, last + 1, last + 16, last + 17, last + 100, len(text) - 1):
        put(site.path, text[:end])
        site.charge(one(3), PLENTY)
        assert site.path.read_bytes() == text


@pytest.mark.usefixtures("quick")
def test_a_torn_first_line_is_a_new_ledger(tmp_path):
    site = filled(tmp_path, 1)
    text = site.path.read_bytes()
    for end in range(text.index(b"\n") + 2):
        put(site.path, text[:end])
        assert site.charges() == []
        if end % 16 == 0 or end > text.index(b"\n") - 1:
            site.charge(one(1), PLENTY)
            assert site.path.read_bytes() == text


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 100, b"0123456789abcdef {\0\0", b"0123456789abcdef {\xff", b"hello", b"0123456789abcdef hello"],
)
def test_a_tail_that_no_crash_leaves_closes_the_ledger(tmp_path, tail):
    site = filled(tmp_path, 2)
    text = site.path.read_bytes()
    refuses(site, text + tail)
    refuses(site, tail)
    refuses(site, text[:-1] + tail)  # the last line is still there, with its end spoilt
    refuses(site, text[:-1] + b" 0123456789abcdef {}}")


def test_a_ledger_cut_off_at_its_end_cannot_be_told_from_an_older_one(tmp_path):
    """The limit of any single file; the module says so. What is left is still counted."""
    site = filled(tmp_path, 3)
    text = site.path.read_bytes()
    put(site.path, text[: text[:-1].rfind(b"\n") + 1])
    assert rounds(site) == [1, 2]


@pytest.mark.parametrize("change", [{"data": "others"}, {"epsilon": 2e5}, {"delta": 1e-3}])
def test_another_header_is_refused(tmp_path, change):
    site = filled(tmp_path, 1)
    refuses(replace(site, **change), site.path.read_bytes(), "made for other data or another lifetime budget")


def sole(folder: Path, name: str, data: str = "data") -> FileLedger:
    return replace(book(folder, name=name, data=data), sole=True)


@pytest.mark.usefixtures("quick")
def test_the_same_data_get_no_second_ledger_in_a_folder(tmp_path):
    """Whether or not the other name has a file by now; other data begin a ledger of their own."""
    first, second, other = sole(tmp_path, "a"), sole(tmp_path, "b"), sole(tmp_path, "c", "other data")
    first.charge(one(1), PLENTY)
    other.charge(one(1), PLENTY)
    with pytest.raises(LedgerError, match="these rows have the ledger"):
        second.charge(one(1), PLENTY)
    assert not second.path.exists()
    second.charges()  # an empty file, as after a charge that no budget covered
    assert [name for name, _ in read_books(tmp_path)] == ["a.ledger", "c.ledger"]
    for act in (second.check_others, lambda: second.charge(one(1), PLENTY)):
        with pytest.raises(
            LedgerError, match=r"these rows have the ledger .*a\.ledger.* rename its .* b\.ledger"
        ):
            act()
    first.charge(one(2), PLENTY)
    first.path.rename(second.path)  # what the sentence says
    second.charge(one(3), PLENTY)
    assert rounds(second) == [1, 2, 3] and rounds(other) == [1]


@pytest.mark.usefixtures("quick")
def test_two_ledgers_of_the_same_data_from_before_both_refuse(tmp_path):
    for name in "ab":
        filled(tmp_path, 1, name=name)
    for name in "ab":
        with pytest.raises(LedgerError, match="the same rows have two ledgers"):
            sole(tmp_path, name).charge(one(2), PLENTY)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", ["damaged", "no ledger", "a folder", "a link"])
def test_a_ledger_nearby_that_cannot_be_read_may_be_of_the_same_data(tmp_path, kind):
    site, path = sole(tmp_path, "a"), tmp_path / "b.ledger"
    site.charge(one(1), PLENTY)
    if kind == "damaged":
        path.write_bytes(site.path.read_bytes().replace(b"data", b"Data"))
    elif kind == "no ledger":
        path.write_bytes(ledger.line(b"", {"some": "json"}))
    elif kind == "a folder":
        path.mkdir()
    else:
        path.symlink_to(site.path)
    with pytest.raises(LedgerError, match=r"b\.ledger (is damaged|is not a ledger|cannot be read)"):
        site.charge(one(2), PLENTY)
    assert rounds(site) == [1]


@pytest.mark.usefixtures("quick")
def test_of_processes_that_begin_ledgers_of_the_same_data_at_once_one_succeeds(tmp_path):
    ledgers, begun, start = [sole(tmp_path, name) for name in "abcdef"], [], threading.Barrier(6)

    def work(site: FileLedger) -> None:
        start.wait()
        with suppress(LedgerError):
            site.charge(one(1), PLENTY)
            begun.append(site)

    threads = [threading.Thread(target=work, args=(site,)) for site in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == 1
    assert sum(path.stat().st_size > 0 for path in tmp_path.glob("*.ledger")) == 1


def test_the_identity_of_data_is_of_their_bytes():
    rows = np.arange(6.0)
    assert fingerprint([rows.data]) == fingerprint([rows[:3].tobytes(), rows[3:].tobytes()])
    assert fingerprint([rows.data]) != fingerprint([np.nextafter(rows, 9).data])


# ------------------------------------------------------------------------------------ the file and its lock


def test_the_file_is_for_its_owner_only(tmp_path):
    before = os.umask(0)
    try:
        site = filled(tmp_path / "new" / "folder", 1)
    finally:
        os.umask(before)
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.path.parent.stat().st_mode) == 0o700
    site.path.chmod(0o666)
    site.charge(one(2), PLENTY)
    assert stat.S_IMODE(site.path.stat().st_mode) == 0o600


def test_what_is_not_a_plain_file_is_refused(tmp_path):
    target = filled(tmp_path, 1).path
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    kinds = {
        "link": "symbolic link",
        "dangling": "symbolic link",
        "fifo": "not a regular",
        "folder": "director|regular",
    }
    before = target.read_bytes()
    for name, reason in kinds.items():
        with pytest.raises(LedgerError, match=f"cannot be opened, and nothing is released: .*({reason})"):
            FileLedger(tmp_path / name, "data", 1e5, 1e-4).charge(one(2), PLENTY)
    with pytest.raises(LedgerError, match="not a regular"):
        FileLedger(Path("/dev/null"), "data", 1e5, 1e-4).charge(one(1), PLENTY)
    with pytest.raises(LedgerError, match="cannot be opened"):
        FileLedger(target / "below", "data", 1e5, 1e-4).charge(one(1), PLENTY)
    assert target.read_bytes() == before and not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("end", ["exit", "kill"])
def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path, end):
    site = replace(filled(tmp_path, 1), patience=0.1)
    code = (
        "import fcntl, sys; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_EX); "
        "print('locked', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, site.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdout.readline() == "locked\n"
    for act in (site.charges, lambda: site.charge(one(2), PLENTY)):
        with pytest.raises(LedgerError, match=r"the ledger .*site\.ledger is in use by another process$"):
            act()
    if end == "kill":
        other.send_signal(signal.SIGKILL)
        other.communicate()
    else:
        other.communicate("\n")
    site.charge(one(2), PLENTY)
    assert rounds(site) == [1, 2]


@pytest.mark.usefixtures("quick")
def test_threads_that_charge_at_once_lose_nothing(tmp_path):
    site, done = book(tmp_path), []

    def work(run: str) -> None:
        for round_ in range(1, 31):
            with suppress(LedgerError):  # in use
                site.charge(one(round_, run), PLENTY)
                done.append((run, round_))

    threads = [threading.Thread(target=work, args=(run,)) for run in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted((charge.run, charge.round) for charge in site.charges()) == sorted(done)


@pytest.mark.usefixtures("quick")
def test_the_lock_covers_the_charge_from_reading_to_the_disk(tmp_path, monkeypatch):
    site, seen = filled(tmp_path, 1), []

    def nosy(descriptor: int) -> None:
        with pytest.raises(LedgerError, match="in use"):
            site.charges()
        seen.append(descriptor)

    monkeypatch.setattr(os, "fsync", nosy)
    site.charge(one(2), PLENTY)
    assert len(seen) == 1


# ------------------------------------------------------------------------------------------ a failing disk


def failing(after: int, error: int = errno.ENOSPC) -> Any:
    """os.write on a disk with room for `after` more bytes, which takes at most 50 at a time."""
    room = after

    def write(descriptor: int, text: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(error, os.strerror(error))
        count = REAL_WRITE(descriptor, text[: min(room, 50)])
        room -= count
        return count

    return write


def test_writes_in_pieces_are_put_together(tmp_path, monkeypatch):
    expected = filled(tmp_path, 3).path.read_bytes()
    monkeypatch.setattr(os, "write", failing(10**9))
    assert filled(tmp_path, 3, name="pieces").path.read_bytes() == expected


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize("stuck", [False, True])
def test_a_full_disk_charges_nothing_and_blocks_nothing(tmp_path, monkeypatch, count, stuck):
    """stuck: the half line cannot be taken back either."""
    site = filled(tmp_path, count)
    before = site.path.read_bytes() if count else b""
    real, calls = os.ftruncate, Counter()

    def truncate(descriptor: int, end: int) -> None:
        calls["truncate"] += 1
        if stuck and calls["truncate"] == 2:
            raise OSError(errno.EIO, "no")
        real(descriptor, end)

    for room in range(0, 140, 9):
        calls.clear()
        with monkeypatch.context() as disk:
            disk.setattr(os, "write", failing(room))
            disk.setattr(os, "ftruncate", truncate)
            with pytest.raises(
                LedgerError, match="cannot be written, and nothing is released: No space left"
            ):
                site.charge(one(count + 1), PLENTY)
        assert stuck or site.path.read_bytes() == before
        assert rounds(site) == list(range(1, count + 1))
    site.charge(one(count + 1), PLENTY)
    assert rounds(site) == list(range(1, count + 2))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_failed_fsync_is_a_failed_charge(tmp_path, monkeypatch, error):
    site = filled(tmp_path, 1)
    with monkeypatch.context() as disk:

        def fsync(descriptor: int) -> None:
            raise error

        disk.setattr(os, "fsync", fsync)
        with pytest.raises(LedgerError if isinstance(error, OSError) else KeyboardInterrupt):
            site.charge(one(2), PLENTY)
    site.charge(one(2), PLENTY)
    assert rounds(site) == [1, 2]


def test_one_fsync_for_a_charge_and_the_folders_first(tmp_path, monkeypatch):
    """A name that is not on the disk yet loses the whole ledger when the power goes."""
    synced: list[bool] = []

    def fsync(descriptor: int) -> None:
        synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode))
        REAL_FSYNC(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    site = filled(tmp_path / "new", 1)
    assert synced[0] and synced[-1] is False and sum(synced) == len(synced) - 1 >= 2
    synced.clear()
    site.charge(one(2), PLENTY)
    assert synced == [False]


# ----------------------------------------------------------------------------------------- through the shell

SETUP = small("fedpdm-private")


def client(site: Any, run: str = "run", budget: Budget = PLENTY, guard_class: type[Guard] = Guard) -> Any:
    """A freshly started client with this ledger; its context is lost."""
    its = guard_of(SETUP, 0, site, run)
    its = guard_class(**{name: getattr(its, name) for name in its.__dataclass_fields__} | {"budget": budget})
    return client_of(SETUP, 0, Context(1, 1, {}, RecordDict(), {}), its)


def ask(one_client: Any, round_: int) -> tuple[list[Any], int, dict[str, Any]]:
    return one_client.fit([SETUP.start], {"round": round_})


def listening(note: Any) -> ExitStack:
    """Tells of every step of a release; the steps do what they do."""
    stack = ExitStack()

    def listen(owner: Any, name: str, event: str) -> None:
        real = getattr(owner, name)

        def step(*args: Any, **kwargs: Any) -> Any:
            note(event)
            return real(*args, **kwargs)

        stack.enter_context(patch.object(owner, name, step))

    for owner, name, event in (
        (Layout, "unpack", "validate"), (FedPDM, "release", "sensitivity"), (Budget, "fits", "budget"),
        (os, "write", "append"), (os, "fsync", "fsync"), (FedPDM, "client_update", "train"),
        (mechanism.GaussianNoise, "__call__", "noise"), (Layout, "pack", "reply"),
    ):  # fmt: skip
        listen(owner, name, event)
    return stack


ORDER = ["validate", "sensitivity", "budget", "budget", "append", "fsync", "train", "noise", "reply"]


def test_the_order_of_a_release(tmp_path):
    site, events = filled(tmp_path, 1), []
    with listening(events.append):
        ask(client(site), 2)
    assert events == ORDER


def test_a_malformed_request_costs_nothing(tmp_path):
    site = filled(tmp_path, 1)
    one_client = client(site)
    for parameters, config in (
        ([np.zeros(3)], {"round": 2}),
        ([SETUP.start], {"round": "2"}),
        ([], {"round": 2}),
    ):
        with pytest.raises(ReplyError):
            one_client.fit(parameters, config)
    assert rounds(site) == [1]


class Refusing:
    """A ledger that refuses everything."""

    def charge(self, charge: Charge, budget: Budget) -> None:
        raise BudgetSpent("spent")

    def charges(self) -> list[Charge]:
        return []


class LateGuard(Guard):
    """Planted: charges when the noise is drawn, after the round was computed."""

    def open(self, *asked: Any) -> Any:  # type: ignore[override]
        def noise(*args: Any, **kwargs: Any) -> Any:
            return Guard.open(self, *asked)(*args, **kwargs)

        return noise


class LatestGuard(Guard):
    """Planted: draws the noise first, and charges then."""

    def open(self, *asked: Any) -> Any:  # type: ignore[override]
        free = replace(self, ledger=ledger_of(SETUP, 0, Context(1, 1, {}, RecordDict(), {})))

        def noise(*args: Any, **kwargs: Any) -> Any:
            noisy = Guard.open(free, *asked)(*args, **kwargs)
            Guard.open(self, *asked)
            return noisy

        return noise


def charges_first(guard_class: type[Guard]) -> bool:
    """Whether a client with a ledger that refuses answers so, and never computes anything."""
    events: list[str] = []
    reply = None
    with listening(events.append), suppress(BudgetSpent):
        reply = ask(client(Refusing(), guard_class=guard_class), 1)
    refused = reply == ([], 0, {"round": 1, "refused": True})
    return refused and "train" not in events and "noise" not in events


def test_nothing_is_computed_before_it_is_paid():
    assert charges_first(Guard)


@pytest.mark.parametrize("guard_class", [LateGuard, LatestGuard])
def test_planted_charge_after_computing_is_caught(guard_class):
    assert not charges_first(guard_class)


@pytest.mark.parametrize("limit", ["lifetime", "run"])
def test_a_spent_budget_refuses_in_a_constant_shape_for_good(tmp_path, limit):
    share = 1 / SETUP.plan.multipliers[0] ** 2
    site = book(tmp_path, 1e3)
    used = Budget.for_target(1e3, 1e-4).mu_max_squared - 1.5 * share if limit == "lifetime" else 0.0
    if used:
        site.charge(one(1, "earlier", used), PLENTY)
    budget = PLENTY if limit == "lifetime" else Budget(1.5 * share)
    one_client = client(site, budget=budget)
    reply, count, metrics = ask(one_client, 1)
    assert len(reply) == 1 and count == len(SETUP.shards.rows(0).labels) and metrics["round"] == 1
    before = site.path.read_bytes()
    for who in (one_client, client(site, budget=budget)):
        for round_ in (2, 2, 3, 50):
            assert ask(who, round_) == ([], 0, {"round": round_, "refused": True})
    assert site.path.read_bytes() == before
    again, _, _ = ask(one_client, 1)  # what was paid is still told
    assert_array_equal(again, reply)


def test_a_repeated_round_is_the_same_reply_for_one_charge(tmp_path):
    site, events = book(tmp_path), []
    one_client = client(site)
    ask(one_client, 1)
    reply, count, metrics = ask(one_client, 2)
    with listening(events.append):
        again = ask(one_client, 2)
    assert_array_equal(again[0], reply)
    assert again[1:] == (count, metrics) and set(events) <= {"validate"}
    assert rounds(site) == [1, 2]


def test_a_lost_context_does_not_draw_a_second_noise(tmp_path):
    site, events = book(tmp_path), []
    ask(client(site), 1)
    restarted = client(site)
    with listening(events.append), pytest.raises(LedgerError, match="round 1 of this run was charged before"):
        ask(restarted, 1)
    assert "train" not in events and "noise" not in events
    ask(restarted, 2)
    assert rounds(site) == [1, 2]


@pytest.mark.parametrize("error", [RuntimeError("no"), MemoryError(), KeyboardInterrupt()])
@pytest.mark.parametrize(
    "step", [(FedPDM, "client_update"), (Layout, "pack"), (twinflower.clients.store, "encode")]
)
def test_what_fails_after_the_charge_keeps_the_charge(tmp_path, step, error):
    site = book(tmp_path)
    one_client = client(site)
    with patch.object(*step, side_effect=error), pytest.raises(type(error)):
        ask(one_client, 1)
    assert rounds(site) == [1]
    with pytest.raises(LedgerError, match="charged before"):
        ask(one_client, 1)
    assert len(ask(one_client, 2)[0]) == 1


def test_a_damaged_ledger_lets_nothing_out(tmp_path):
    site = filled(tmp_path, 2)
    put(site.path, site.path.read_bytes().replace(b"0.25", b"0.02"))
    events: list[str] = []
    with listening(events.append), pytest.raises(LedgerError, match="damaged"):
        ask(client(site), 3)
    assert set(events) == {"validate", "sensitivity"}


def test_a_deployed_site_keeps_its_ledger_and_its_lifetime(tmp_path):
    node = {"partition-id": 0, "num-partitions": 8, "lifetime-epsilon": 31.0, "state-dir": str(tmp_path)}

    def site(run: str) -> Any:
        return client_of(
            SETUP, 0, Context(1, 1, node, RecordDict(), {}), site_guard(SETUP, read_site(node), run)
        )

    first = site("1")
    limit = first.guard.ledger
    planned = 0
    while ask(first, planned + 1)[0]:
        planned += 1
    assert planned == SETUP.plan.releases.rounds_in[0]
    second = site("2")  # the lifetime is hardly longer than one run
    assert ask(second, 1) == ([], 0, {"round": 1, "refused": True})
    (path,) = tmp_path.iterdir()
    assert path == limit.path and len(limit.charges()) == planned
    assert {charge.config for charge in limit.charges()} == {SETUP.config.result_digest}
    with pytest.raises(LedgerError, match="another lifetime budget"):
        node["lifetime-epsilon"] = 62.0
        ask(site("3"), 1)


# ------------------------------------------------------------------------------- killed at every single step

CLIENT = (
    twinflower.clients.steps,
    twinflower.clients.request,
    twinflower.clients.shell,
    twinflower.clients.store,
)
FILES = {module.__file__ for module in (disk, ledger, guard, mechanism, *CLIENT)}
DISK = {"_append", "_write"}
DEEDS = DISK | {"charge", "_add", "_beginning", "_begin", "update", "close"}  # where something happens


def at_step(number: int, act: Any, functions: set[str]) -> Any:
    """A trace that acts before the number-th line (or return) of a release in these functions, or in all."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        code = frame.f_code
        if code.co_filename not in FILES or (functions and code.co_name not in functions):
            return None
        seen += event in ("line", "return")
        if seen == number and event in ("line", "return"):
            act()
        return trace

    return trace


class Lab:
    """Releases of round 2 that are stopped somewhere, and what is found afterwards.

    start: what is there before: a "new" ledger, an "old" one with round 1, one "torn" at its end, or one on a
    "full" disk. A release is killed by os._exit in a process of its own, which also tells what a loss of
    power would leave, the file as of its last fsync; or it is stopped by an exception. The marks file says
    what was computed, drawn and sent. Runs in a fresh process, because it forks.
    """

    def __init__(self, folder: Path, start: str, guard_class: type[Guard] = Guard) -> None:
        os.fsync = lambda descriptor: None
        folder.mkdir()
        self.start, self.guard_class = start, guard_class
        self.site, self.marks, self.disk = book(folder), folder / "marks", folder / "disk"
        self.before = b"" if start == "new" else filled(folder, 1).path.read_bytes()
        if start == "torn":
            self.before += b"0123456789abcdef {" + b"x" * 400

    def mark(self, event: str) -> None:
        with self.marks.open("a") as file:
            file.write(event + "\n")

    def fsync(self, descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            put(self.disk, self.site.path.read_bytes())

    def release(self, trace: Any) -> None:
        """Ask for round 2 under a trace, on a disk that takes 50 bytes at a time."""
        one_client = client(self.site, guard_class=self.guard_class)
        with listening(lambda event: self.mark(event) if event in ("train", "noise") else None):
            os.fsync, os.write = self.fsync, failing(100 if self.start == "full" else 10**9)
            sys.settrace(trace)
            try:
                ask(one_client, 2)
            finally:
                sys.settrace(None)
        self.mark("sent")

    def killed(self, number: int, functions: set[str]) -> list[bytes]:
        """What a kill at this step, and a loss of power, leave in the ledger; nothing if there is no such step."""
        child = os.fork()
        if not child:
            with suppress(LedgerError):
                self.release(at_step(number, lambda: os._exit(9), functions))
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 9:
            return []
        return [self.site.path.read_bytes(), self.disk.read_bytes()]

    def raised(self, number: int, functions: set[str], error: Any) -> list[bytes]:
        """What an exception at this step leaves."""
        reached = []

        def stop() -> None:
            reached.append(number)
            raise error()

        with suppress(KeyboardInterrupt, OSError, LedgerError):
            self.release(at_step(number, stop, functions))
        os.fsync, os.write = lambda descriptor: None, REAL_WRITE
        return [self.site.path.read_bytes()] if reached else []

    def wrong(self, left: bytes, marks: str) -> str:
        """What is wrong after this was left and the client restarted; empty if nothing is."""
        put(self.site.path, left)
        charged, restarted, events = 2 in rounds(self.site), client(self.site), []
        if marks and not charged:
            return f"computed ({marks.split()}) and not charged"
        with listening(events.append), suppress(LedgerError):
            ask(restarted, 2)
        if ("reply" in events) == charged or marks.count("noise") + events.count("noise") > 1:
            return f"charged: {charged}; then {marks.split()}, and after the restart {events}"
        before = [] if self.start == "new" else [1]
        if not ask(restarted, 3)[0] or rounds(self.site) != [*before, 2, 3]:
            return f"not continued: {rounds(self.site)}"
        return ""

    def all(self, how: str, functions: set[str] = frozenset()) -> tuple[int, list[str]]:
        """Stop at every step; how many steps there were, and what was wrong."""
        errors = {"interrupt": KeyboardInterrupt, "error": lambda: OSError(errno.EIO, "Input/output error")}
        faults: list[str] = []
        for number in range(1, 10**6):
            put(self.marks, b"")
            for path in (self.site.path, self.disk):
                put(path, self.before)
            stop = (number, functions)
            remains = self.killed(*stop) if how == "kill" else self.raised(*stop, errors[how])
            if not remains:
                return number - 1, faults
            marks = self.marks.read_text()
            found = [self.wrong(left, marks) for left in remains]
            faults += [f"{self.start}, {how} at step {number}: {text}" for text in found if text]
        raise AssertionError("a release without an end")


def labs(folder: Path, *experiments: tuple[str, str, str, set[str]]) -> list[tuple[int, list[str]]]:
    """Experiments (start, guard, how, functions) in a process of their own: steps and faults of each."""
    code = ["import json, test_ledger as t", "results = []"]
    for number, (start, guard_name, how, functions) in enumerate(experiments):
        place = str(folder / str(number))
        code += [f"lab = t.Lab(t.Path({place!r}), {start!r}, t.{guard_name})"]
        code += [f"results.append(lab.all({how!r}, set({sorted(functions)!r})))"]
    return json.loads(run_here("\n".join([*code, "print(json.dumps(results))"])))


def test_killed_or_interrupted_nothing_is_lost_and_the_run_goes_on(tmp_path):
    """Killed by os._exit, and out of power, at every line that does something; interrupted
    at more of them. (All lines of all modules: the slow test.)

    The last experiment shows that the others can fail: a planted guard charges after computing.
    """
    *found, (_, planted) = labs(
        tmp_path,
        ("old", "Guard", "kill", DEEDS),
        ("new", "Guard", "kill", DISK),
        ("torn", "Guard", "kill", DISK),
        ("full", "Guard", "kill", DISK),
        (
            "old",
            "Guard",
            "interrupt",
            DEEDS | {"_locked", "_read", "open_regular", "open", "__call__", "save"},
        ),
        ("old", "LateGuard", "kill", {"_append"}),
    )
    assert [faults for _, faults in found] == [[]] * 5
    assert all(steps > least for (steps, _), least in zip(found, (30, 10, 10, 10, 70), strict=True))
    assert any("computed" in fault for fault in planted)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["new", "old", "torn", "full"])
def test_stopped_at_any_line_nothing_is_lost_and_the_run_goes_on(tmp_path, start):
    found = labs(tmp_path, *((start, "Guard", how, set()) for how in ("kill", "interrupt", "error")))
    assert [faults for _, faults in found] == [[]] * 3
    assert min(steps for steps, _ in found) > 60


# ------------------------------------------------------------------------------------ a run that could not finish


def test_a_run_begins_only_if_all_of_it_fits_what_is_left(tmp_path):
    """8 of 10 are spent: a run that plans 8 more is refused in its first round, and nothing is charged for it."""
    site, eight = book(tmp_path, 10.0), Budget.for_target(8.0, 1e-4)
    site.charge(one(1, "earlier", eight.mu_max_squared), eight)
    before = site.path.read_bytes()
    share = eight.mu_max_squared / 12
    for round_ in (1, 2, 12):
        with pytest.raises(
            BudgetSpent, match=r"plans epsilon 8, and of .* 10, .* left allows 4.719: it does not begin"
        ):
            site.charge(one(round_, "next", share), replace(eight, planned=eight.mu_max_squared))
    assert site.path.read_bytes() == before
    small = Budget.for_target(4.7, 1e-4)
    for round_ in range(1, 13):  # what fits begins, and goes on whatever is left by then
        site.charge(
            one(round_, "small", small.mu_max_squared / 12), replace(small, planned=small.mu_max_squared)
        )
    assert rounds(site)[1:] == list(range(1, 13))


def in_session(round_: int, cost: float, config: str = "settings", flower_run: str = "2") -> Charge:
    return replace(one(round_, "session", cost, config), flower_run=flower_run)


@pytest.mark.parametrize("config", ["settings", "others"])
def test_a_session_that_was_used_before_spares_no_run_the_check_of_its_plan(tmp_path, config):
    """A first run was charged a little of its plan of 8 and given up, and another run most of the lifetime since."""
    site, eight = book(tmp_path, 10.0), Budget.for_target(8.0, 1e-4)
    plan = replace(eight, planned=eight.mu_max_squared)
    site.charge(in_session(1, 0.01 * plan.planned, config, "1"), plan)
    assert site.release("session") == pytest.approx(0.99 * plan.planned)
    site.charge(one(1, "another", 0.9 * plan.planned), PLENTY)
    before = site.path.read_bytes()
    with pytest.raises(
        BudgetSpent, match="it does not begin" if config == "settings" else "session of its own"
    ):
        site.charge(in_session(2, 0.1 * plan.planned), plan)
    assert site.path.read_bytes() == before


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("restarts", [(), (2,), (6,), (2, 6, 11)])
def test_a_run_is_resumed_as_long_as_the_rest_of_its_plan_fits(tmp_path, restarts):
    """What was charged counts, in every run of Flower; here the lifetime is spent exactly by the session's plan."""
    ten = Budget.for_target(10.0, 1e-4)
    site, plan = book(tmp_path, 10.0), replace(ten, planned=0.5 * ten.mu_max_squared)
    site.charge(one(1, "earlier", 0.5 * ten.mu_max_squared), PLENTY)
    for round_ in range(1, 13):
        runs_before = sum(round_ > place for place in restarts)
        site.charge(in_session(round_, plan.planned / 12, flower_run=str(runs_before)), plan)
    with pytest.raises(BudgetSpent):
        site.charge(in_session(13, plan.planned / 12), plan)


# ------------------------------------------------------------------------------------ what runs have reserved


def shares(run: str, epsilon: float, count: int) -> tuple[list[Charge], Budget]:
    """The charges of a run with this many equal rounds, and its budget."""
    budget = Budget.for_target(epsilon, 1e-4)
    cost = budget.mu_max_squared / count
    return [one(t, run, cost, "settings") for t in range(1, count + 1)], replace(
        budget, planned=budget.mu_max_squared
    )


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("begun", [1, 3, 4])
def test_of_two_runs_that_do_not_fit_together_the_second_is_refused_before_it_costs_anything(tmp_path, begun):
    """Two of epsilon 7 with a lifetime of 10, however far the first one is; it then ends, and the sum is exact."""
    site = book(tmp_path, 10.0)
    (first, plan), (second, _) = shares("first", 7.0, 5), shares("second", 7.0, 5)
    for charge in first[:begun]:
        site.charge(charge, plan)
    before = site.path.read_bytes()
    refusal = r"plans epsilon 7, .* reserved by run first, allows .* nothing is spent; .* --give-up first"
    for ask_for in (
        lambda: site.charge(second[0], plan),
        lambda: site.check_plan("second", "settings", plan),
        lambda: site.charge(one(1, "third", second[0].cost * 4), PLENTY),  # a run without a plan
    ):
        with pytest.raises(BudgetSpent, match="reserved by run first"):
            ask_for()
    with pytest.raises(BudgetSpent, match=refusal):
        site.check_plan("second", "settings", plan)
    assert site.path.read_bytes() == before
    for charge in first[begun:]:
        site.charge(charge, plan)
    assert site.charges() == first and not read_ledger(site.path).reserved
    with pytest.raises(BudgetSpent, match="plans epsilon 7, and of .* what is left allows"):
        site.charge(second[0], plan)


@pytest.mark.usefixtures("quick")
def test_what_an_interrupted_run_has_reserved_is_what_it_can_still_charge_and_giving_it_up_releases_it(
    tmp_path,
):
    site = book(tmp_path, 10.0)
    (first, plan), (second, _) = shares("first", 7.0, 5), shares("second", 7.0, 5)
    for charge in first[:2]:
        site.charge(charge, plan)
    rest = plan.planned * 3 / 5
    found = read_ledger(site.path)
    assert found.reserved == {"first": pytest.approx(rest)}
    spent = sum(charge.cost for charge in first[:2])
    assert found.left == pytest.approx(Budget.for_target(10.0, 1e-4).mu_max_squared - spent - rest)
    assert site.check_plan("first", "settings", plan) == pytest.approx(rest)  # of its own session
    assert site.release("first") == pytest.approx(rest) and site.release("first") == 0.0
    assert site.charges() == first[:2]
    with pytest.raises(BudgetSpent, match="what is left allows"):  # what it spent stays spent
        site.check_plan("third", "settings", shares("third", 9.0, 5)[1])
    site.charge(second[0], plan)
    with pytest.raises(BudgetSpent, match="reserved by run second"):  # it was given up
        site.charge(first[2], plan)
    for charge in second[1:]:
        site.charge(charge, plan)
    assert site.charges() == [*first[:2], *second]


@pytest.mark.usefixtures("quick")
def test_a_run_that_goes_on_after_it_was_given_up_reserves_its_rest_again(tmp_path):
    site = book(tmp_path, 10.0)
    charges, plan = shares("first", 7.0, 5)
    site.charge(charges[0], plan)
    site.release("first")
    site.charge(charges[1], plan)
    assert read_ledger(site.path).reserved == {"first": pytest.approx(plan.planned * 3 / 5)}


@pytest.mark.usefixtures("quick")
def test_a_ledger_without_reservations_is_read_and_its_run_goes_on(tmp_path):
    """As version 0.3 wrote it."""
    site = book(tmp_path, 10.0)
    charges, plan = shares("run", 7.0, 5)
    entries = [asdict(c) | {"run_sum": t * c.cost, "sum": t * c.cost} for t, c in enumerate(charges[:2], 1)]
    text = site._header
    for entry in entries:
        text += ledger.line(text, entry)
    put(site.path, text)
    assert site.charges() == charges[:2] and not read_ledger(site.path).reserved
    for charge in charges[2:]:
        site.charge(charge, plan)
        assert read_ledger(site.path).reserved == (
            {} if charge is charges[-1] else {"run": pytest.approx((5 - charge.round) * charge.cost)}
        )
    assert site.charges() == charges


@pytest.mark.usefixtures("quick")
def test_runs_that_fit_together_end_in_whatever_order_they_charge(tmp_path):
    """Plans that add up to the whole lifetime; against the plain list of charges, with restarts and odd names."""
    lifetime, rng = Budget.for_target(10.0, 1e-4).mu_max_squared, np.random.default_rng(0)
    site, names = book(tmp_path, 10.0), ["run", '{"run": "run", ', "é }", "round"]
    parts = rng.dirichlet(np.ones(4)) * lifetime
    plans = {n: Budget(p * (1 + 1e-12), planned=p) for n, p in zip(names, parts, strict=True)}
    left = {n: [one(t, n, plans[n].planned / 9, "settings") for t in range(1, 10)] for n in names}
    for name in names:
        site.charge(left[name].pop(0), plans[name])
    while any(left.values()):
        name = str(rng.choice([name for name in names if left[name]]))
        place = int(rng.integers(len(left[name])))
        flower_run = str(rng.integers(3))
        site.charge(replace(left[name].pop(place), flower_run=flower_run), plans[name])
        reserved = read_ledger(site.path).reserved
        for other in names:
            rest = sum(charge.cost for charge in left[other])
            assert reserved.get(other, 0.0) == pytest.approx(rest, abs=1e-9)
    assert sum(charge.cost for charge in site.charges()) == pytest.approx(lifetime, rel=1e-12)
    with pytest.raises(BudgetSpent, match="is spent$"):
        site.charge(one(1, "late", 1e-6 * lifetime), PLENTY)


def test_a_deployed_client_refuses_such_a_run_at_once_and_its_log_says_why(tmp_path, caplog):
    node = {"partition-id": 0, "num-partitions": 8, "lifetime-epsilon": 40.0, "state-dir": str(tmp_path)}
    site = site_guard(SETUP, read_site(node), "2")
    most = Budget.for_target(40.0, 1e-4).mu_max_squared
    site.ledger.charge(one(1, "earlier", 0.7 * most), PLENTY)
    before = site.ledger.path.read_bytes()
    asked = client_of(SETUP, 0, Context(1, 1, node, RecordDict(), {}), site)
    logging.getLogger("flwr").addHandler(caplog.handler)
    for round_ in (1, 2, 5):
        assert ask(asked, round_) == ([], 0, {"round": round_, "refused": True})
    logging.getLogger("flwr").removeHandler(caplog.handler)
    assert site.ledger.path.read_bytes() == before
    assert "the run plans epsilon 30, and of the lifetime budget epsilon 40" in caplog.text


def test_a_client_plans_its_own_rounds(tmp_path):
    """With a fixed noise whoever is asked less often spends less, and may begin where the busiest may not."""
    setup = small("fedpdm-gradient", rounds=6, batch_size=0)
    costs = setup.plan.mu**2
    rare, busy = int(np.where(costs > 0, costs, np.inf).argmin()), int(costs.argmax())
    assert 0 < 1.5 * costs[rare] < costs[busy]
    for number, begins in ((rare, True), (busy, False)):
        lifetime = gdp_epsilon(np.sqrt(1.2 * costs[busy]), 1e-4)
        folder = str(tmp_path / str(number))
        node = {
            "partition-id": number,
            "num-partitions": 8,
            "lifetime-epsilon": lifetime,
            "state-dir": folder,
        }
        site = site_guard(setup, read_site(node), "run")
        site.ledger.charge(one(1, "earlier", 0.3 * costs[busy]), PLENTY)
        if begins:
            site.open(Release(1.0), 1)
        else:
            with pytest.raises(BudgetSpent, match="does not begin"):
                site.open(Release(1.0), 1)


# ------------------------------------------------------------------------------------- told to those who keep it


def test_a_reader_sees_what_was_charged(tmp_path):
    site = book(tmp_path, 10.0)
    for run, round_, cost in (("a", 1, 0.25), ("b", 1, 0.5), ("a", 2, 0.25)):
        site.charge(one(round_, run, cost), PLENTY)
    text = site.path.read_bytes()
    found = read_ledger(site.path)
    assert (found.data, found.epsilon, found.delta) == ("data", 10.0, 1e-4)
    assert found.charges == site.charges()
    most = Budget.for_target(10.0, 1e-4).mu_max_squared
    assert found.left == pytest.approx(most - 1.0)
    ((_, unit, lifetime, spent, guess, left, number, name),) = accounts([("site.ledger", found)])
    assert (unit, lifetime, number, name) == ("a record", "epsilon 10, delta 0.0001", "2", "site.ledger")
    assert float(spent) == pytest.approx(gdp_epsilon(1.0, 1e-4), rel=1e-3)
    assert guess == "69.1%"  # Phi(1/2)
    assert float(left) == pytest.approx(gdp_epsilon(np.sqrt(most - 1.0), 1e-4), rel=1e-3)
    told = [(run, count, float(epsilon)) for _, run, count, epsilon, *_ in runs([("site.ledger", found)])]
    half = pytest.approx(gdp_epsilon(np.sqrt(0.5), 1e-4), rel=1e-3)
    assert told == [("a", "2", half), ("b", "1", half)]
    assert site.path.read_bytes() == text
    put(site.path, text[:-9])  # a torn last line was never acted on
    assert len(read_ledger(site.path).charges) == 2


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be opened: No such file"),
        (b"patients\n", "is damaged"),
        (ledger.line(b"", {"some": "json"}), "is not a ledger"),
        (ledger.line(b"", [1]), "is not a ledger"),
    ],
)
def test_what_is_no_ledger_is_told_in_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "site.ledger"
    if content is not None:
        put(path, content)
    with pytest.raises(LedgerError, match=sentence):
        read_ledger(path)
    assert path.exists() == (content is not None)
