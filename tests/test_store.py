"""A client's state on disk: whole rounds only, whatever stops the write, and nobody else's."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from numpy.testing import assert_array_equal
from problems import small

import twinflower.clients.store
from twinflower.clients import CLIENTS
from twinflower.clients.store import CompletedRound, ContextStore, FileStore
from twinflower.disk import write_whole
from twinflower.errors import DataError, ReplyError
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.ledger import FileLedger
from twinflower.simulation.runs.client_factory import client_of, store_of
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy

SETUP = small("scaffold-top-k")


def kept(round_, value=1.0):
    arrays = {"state.dual": np.full(5, value), "state.round": np.array(2.0)}
    return CompletedRound(
        arrays | {"reply.0": np.arange(3) * value}, {"round": round_, "session": "s", "born": 1}
    )


def same(one, other):
    assert dict(one.metrics) == dict(other.metrics)
    assert list(one.arrays) == list(other.arrays)
    for mine, theirs in zip(one.arrays.values(), other.arrays.values(), strict=True):
        assert_array_equal(mine, theirs, strict=True)


@pytest.fixture(params=["context", "file"])
def store(request, tmp_path):
    return ContextStore(RecordDict()) if request.param == "context" else FileStore(tmp_path, "me")


def test_a_round_comes_back_as_it_was(store):
    assert store.last("s") is store.at("s", 1) is None
    store.save("s", kept(1), 0)
    store.save("s", kept(4, 2.0), 3)
    same(store.last("s"), kept(4, 2.0))
    same(store.at("s", 4), kept(4, 2.0))
    assert store.at("s", 1) is None  # settled
    assert store.last("another") is None


def test_a_key_belongs_to_its_session(store):
    assert store.key("s") is None
    store.save_key("s", b"1" * 32)
    assert store.key("s") == b"1" * 32
    assert store.key("another") is None
    assert store.last("s") is None


def test_a_key_that_cannot_be_stored_is_named_without_a_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="the session's key cannot be stored: Not a directory"):
        FileStore(tmp_path / "file" / "x", "me").save_key("s", bytes(32))


def test_replies_stay_until_they_are_settled(tmp_path):
    store = FileStore(tmp_path, "me")
    for round_ in (1, 2, 5, 7):
        store.save("s", kept(round_, float(round_)), 1)
    assert store.at("s", 1) is None
    for round_ in (2, 5, 7):
        same(store.at("s", round_), kept(round_, float(round_)))
    store.save("s", kept(8), 7)
    assert [store.at("s", r) is None for r in (2, 5, 7, 8)] == [True, True, True, False]


def test_a_server_cannot_fill_the_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(twinflower.clients.store, "_MOST_ROUNDS", 4)
    store = FileStore(tmp_path, "me")
    for session in range(30):
        for round_ in range(1, 8):
            store.save(f"s{session}", kept(round_), -1)
    assert len(list(tmp_path.iterdir())) <= twinflower.clients.store._MOST_SESSIONS
    assert max(len(list(folder.iterdir())) for folder in tmp_path.iterdir()) <= 5


def test_an_old_session_loses_its_key_before_anything_else(tmp_path, monkeypatch):
    """A crash while it is forgotten must not leave a key without what was decided with it."""
    store, decisions = FileStore(tmp_path, "me"), FileStore(tmp_path, "me", "opened")
    for number in range(twinflower.clients.store._MOST_SESSIONS):
        store.save_key(f"s{number}", bytes(32))
        for place in (decisions, store):
            place.save(f"s{number}", CompletedRound({}, {"round": 1}), 0)
    gone, unlink = [], Path.unlink

    def noting(path, missing_ok=False):
        gone.append(path.name)
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", noting)
    store.save_key("new", bytes(32))
    assert gone[0] == "session.key" and {"1.round", "1.opened"} <= set(gone)


@pytest.mark.parametrize(
    "damage", [lambda t: t[:-1], lambda t: t[:40], lambda t: b"", lambda t: t[:200] + b"x" + t[201:]]
)
def test_a_damaged_state_stops_the_client_and_never_falls_back(tmp_path, damage):
    store = FileStore(tmp_path, "me")
    store.save("s", kept(1), 0)
    store.save("s", kept(2), 0)
    (path,) = tmp_path.glob("*/2.round")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"2\.round, is damaged"):
        store.last("s")


def test_a_state_of_other_settings_is_not_found_and_a_foreign_file_is_refused(tmp_path):
    FileStore(tmp_path, "me").save("s", kept(1), 0)
    other = FileStore(tmp_path, "you")
    assert other.last("s") is None
    (path,) = tmp_path.glob("*/1.round")
    write = other._path("s", 1)
    write.parent.mkdir()
    write.write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="belongs to another client or other settings"):
        other.last("s")


def test_a_folder_that_cannot_be_written_is_named_without_a_traceback(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="round 1 cannot be stored: Not a directory"):
        FileStore(tmp_path / "file" / "x", "me").save("s", kept(1), 0)


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_full_disk_costs_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    """The room for the reply is there before the round is charged."""
    setup, context = small("fedpdm-private", clients__per_round=0), Context(1, 1, {}, RecordDict(), {})
    ledger, store = (
        FileLedger(tmp_path / "ledger", "data", 1e6, 1e-4),
        store_of(setup, 0, str(tmp_path / "states")),
    )
    client = CLIENTS["fedpdm"](
        context, setup.algorithm, setup.objective, setup.shards.rows(0), setup.start, 0, 8, setup.schedule,
        guard=setup.plan.guard(0, ledger, run="1"), store=store,
    )  # fmt: skip
    client.fit([setup.start], {"round": 1})
    with monkeypatch.context() as patch:
        patch.setattr(twinflower.clients.store, "reserve", full)
        with pytest.raises(DataError, match="round 2 cannot be stored: No space left on device"):
            client.fit([setup.start], {"round": 2})
    assert [charge.round for charge in ledger.charges()] == [1]
    assert [path.name for path in (tmp_path / "states").rglob("*.*") if path.is_file()] == ["1.round"]
    client.fit([setup.start], {"round": 3})
    assert [charge.round for charge in ledger.charges()] == [1, 3]


def test_the_room_that_is_reserved_suffices_and_is_given_back(tmp_path, monkeypatch):
    """For states and replies of any variant, the file is at most as large; it is cut to what was written."""
    asked = []
    take = twinflower.clients.store.reserve
    monkeypatch.setattr(
        twinflower.clients.store, "reserve", lambda path, size: asked.append(size) or take(path, size)
    )
    for variant in (
        "fedpdm-private",
        "bsdp-private",
        "scaffold",
        "feddyn-rand-k",
        "zcdp-nfl-private",
        "fedpdm-sum",
    ):
        setup, folder = small(variant, state_dir=str(tmp_path / variant)), tmp_path / variant
        run_strategy(setup, InProcessGrid(setup), "inprocess")
        stored = [path.stat().st_size for path in folder.rglob("*.round")]
        assert stored and max(stored) <= max(asked) <= max(stored) + 2**13
        assert not list(folder.rglob("*.new"))
        asked.clear()


def test_the_room_of_a_round_that_failed_is_given_back_by_the_next(tmp_path):
    store = FileStore(tmp_path, "me")
    for round_ in (1, 2):  # nothing is saved
        with store.reserved("s", round_, 100):
            pass
    assert [path.name for path in tmp_path.rglob("*.new")] == ["2.round.new"]


def test_a_refused_charge_gives_the_room_back(tmp_path):
    store = FileStore(tmp_path, "me")
    with pytest.raises(BudgetSpent), store.reserved("s", 1, 100):
        raise BudgetSpent("spent")
    with pytest.raises(KeyboardInterrupt), store.reserved("s", 2, 100):
        raise KeyboardInterrupt
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_stopped_at_any_write_the_old_or_the_new_round_is_there(tmp_path, monkeypatch, error):
    """Every system call of `write_whole` fails once; then the client goes on."""
    calls = ["open", "fsync", "replace", "close"]
    reached = 0
    for number in range(1, 30):
        folder = tmp_path / str(number)
        store = FileStore(folder, "me")
        store.save("s", kept(1), 0)
        with monkeypatch.context() as patch:
            left = [number]

            def failing(real, left=left):
                def call(*args, **kwargs):
                    left[0] -= 1
                    if left[0] == 0:
                        raise error
                    return real(*args, **kwargs)

                return call

            for name in calls[:2]:
                patch.setattr(os, name, failing(getattr(os, name)))
            patch.setattr(Path, "replace", failing(Path.replace))
            patch.setattr(Path, "unlink", failing(Path.unlink))
            try:
                store.save("s", kept(2, 5.0), 1)
            except (DataError, OSError, KeyboardInterrupt):
                reached += 1
        found = store.last("s")
        same(found, kept(1) if found.round == 1 else kept(2, 5.0))
        store.save("s", kept(3), 2)
        same(store.last("s"), kept(3))
        if left[0] > 0:
            break
    assert reached >= 5
    assert number < 29


def test_the_names_are_on_the_disk(tmp_path, monkeypatch):
    """fsync of the file before its name, and of the folder after."""
    events = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: events.append("folder" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
    )
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: events.append("name") or rename(self, to))
    write_whole(tmp_path / "x", b"1")
    assert events == ["file", "name", "folder"]
    assert (tmp_path / "x").stat().st_mode & 0o077 == 0


def ask(client, round_, **config):
    request = SETUP.algorithm.inbox.pack(inbox(round_), SETUP.objective.d)
    return client.fit(request, {"round": round_, "session": "s", **config})


def inbox(round_):
    algorithm = SETUP.algorithm
    return algorithm.broadcast(
        algorithm.init_server(SETUP.start + 0.1, 8, np.array(0, np.uint64)), round_, np.array(1)
    )


def site(tmp_path, run=1):
    return client_of(SETUP, 1, Context(run, 1, {}, RecordDict(), {}), state_dir=str(tmp_path))


def test_a_new_process_goes_on_and_repeats_what_is_not_settled(tmp_path):
    whole = site(tmp_path / "a")
    expected = [ask(whole, round_, settled=0) for round_ in (1, 2, 3)]
    one = site(tmp_path / "b")
    ask(one, 1, settled=0)
    two = site(tmp_path / "b", run=2)
    ask(two, 2, settled=0)
    three = site(tmp_path / "b", run=3)
    for round_, theirs in zip((1, 2, 3, 2), [*expected, expected[1]], strict=True):
        mine = ask(three, round_, settled=0)
        assert_array_equal(mine[0][0], theirs[0][0])
        assert mine[2] == theirs[2]
    ask(three, 4, settled=3)
    with pytest.raises(ReplyError, match="round 2 is asked after it was settled"):
        ask(three, 2, settled=3)


def test_without_its_state_a_client_begins_anew_and_says_so(tmp_path):
    ask(site(tmp_path / "a"), 1)
    assert ask(site(tmp_path / "a", run=2), 2)[2]["born"] == 1
    assert ask(site(tmp_path / "b", run=2), 2)[2]["born"] == 2


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"session": 3}, "session must be a text"),
        ({"session": ""}, "session must be a text"),
        ({"session": "x" * 65}, "session must be a text"),
        ({"settled": "no"}, "'settled' must be a round number"),
    ],
)
def test_a_malformed_session_is_refused(tmp_path, config, sentence):
    with pytest.raises(ReplyError, match=sentence):
        ask(site(tmp_path), 1, **config)
