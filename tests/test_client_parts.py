"""The parts of a client, each alone: reading a request, its own rows, what is stored of a round, Flower's wrapper."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.client import NumPyClient
from flwr.common import EvaluateIns, FitIns, GetPropertiesIns, Parameters
from numpy.testing import assert_allclose, assert_array_equal
from problems import VARIANTS, small

from twinflower.clients.records import StrictClient
from twinflower.clients.request import RequestReader, RoundRequest
from twinflower.clients.shell import admitted, check_precision, check_rows
from twinflower.clients.steps import CompletedRounds, reply_of
from twinflower.clients.store import ContextStore, FileStore
from twinflower.errors import ReplyError, SettingError
from twinflower.privacy.guard import Guard
from twinflower.problems.batches import Shards
from twinflower.problems.interfaces import Batch
from twinflower.simulation.runs.client_factory import client_of
from twinflower.wire import from_npy, to_npy

# ------------------------------------------------------------------------------------- requests


def reader(variant="fedavg-group", **keys):
    return RequestReader(small(variant, regulariser__name="none").algorithm, RecordDict(), "run", **keys)


def test_what_a_config_does_not_name_has_a_default():
    assert reader().read({"round": 3}) == RoundRequest(3, "run", 2, False, False, None)


def test_a_config_is_read_as_it_is():
    config = {"round": 3, "session": "s", "settled": 1, "closing": True, "model-only": True, "ranges": b"r"}
    assert reader().read(config) == RoundRequest(3, "s", 1, True, True, b"r")


def test_only_true_is_true():
    request = reader("fedpdm").read({"round": 1, "closing": 1, "model-only": "yes"})
    assert not request.closing and not request.model_only


@pytest.mark.parametrize("session", [3, "", "x" * 65, b"s", None])
def test_an_invalid_session_is_refused(session):
    for read in (reader().session, reader().read, reader().evaluation):
        with pytest.raises(ReplyError, match="session must be a text of 1 to 64 characters"):
            read({"round": 1, "session": session})


@pytest.mark.parametrize("round_", [None, "1", 1.0, True, 0, -1])
def test_a_round_is_a_whole_number_from_the_first(round_):
    for read in (reader().read, reader().evaluation):
        with pytest.raises(ReplyError, match="a whole number from 1"):
            read({"round": round_})


def test_with_private_ranges_the_first_round_is_that_of_the_counts():
    own = reader(first_round=0)
    assert own.read({"round": 0}).settled == -1
    with pytest.raises(ReplyError, match="a whole number from 0"):
        own.read({"round": -1})
    with pytest.raises(ReplyError, match="a whole number from 1"):
        own.evaluation({"round": 0})


def test_a_run_has_one_session_from_when_it_is_bound():
    """Reading binds nothing; another session would have a budget of its own."""
    own = reader()
    own.read({"round": 1, "session": "a"})
    assert not own.state
    own.bind("b")
    own.bind("c")
    assert own.read({"round": 1, "session": "b"}).session == "b"
    for read in (own.session, own.read, own.evaluation):
        with pytest.raises(ReplyError, match="another session than this run's"):
            read({"round": 1, "session": "a"})


def test_the_model_alone_is_for_servers_that_average():
    assert reader().read({"round": 1, "model-only": True}).model_only
    with pytest.raises(ReplyError, match="does more than average models"):
        reader("scaffold").read({"round": 1, "model-only": True})


@pytest.mark.parametrize("variant", ["fedpdm", "fedpdm-private"])
def test_a_request_is_bound_only_once_it_is_valid(variant):
    setup, context = small(variant), Context(1, 1, {}, RecordDict(), {})
    client = client_of(setup, 0, context)
    for arrays in ([], [setup.start[1:]], [setup.start * np.nan]):
        for config in ({"round": 1, "session": "a"}, {"round": 6, "session": "a", "closing": True}):
            with pytest.raises(ReplyError):
                client.fit(arrays, config)
    assert not context.state
    assert client.fit([setup.start], {"round": 1, "session": "b"})[2]["session"] == "b"
    with pytest.raises(ReplyError, match="another session"):
        client.fit([setup.start], {"round": 2, "session": "a"})


# ------------------------------------------------------------------------------------- completed rounds


@pytest.fixture(params=["context", "file"])
def store(request, tmp_path):
    return ContextStore(RecordDict()) if request.param == "context" else FileStore(tmp_path, "me")


def rounds_of(setup, store, private=False):
    return CompletedRounds(store, setup.algorithm, setup.start, private)


def asked(round_, settled=0):
    return RoundRequest(round_, "s", settled, False, False, None)


def random_state(setup):
    """A client state of random numbers, with the shapes and the type of the algorithm's."""
    state, draw = setup.algorithm.init_client(setup.start), np.random.default_rng(0)
    return type(state)(*(draw.normal(size=np.shape(part)).astype(setup.start.dtype) for part in state))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_state_and_its_reply_are_read_back_to_the_bit(variant, store):
    setup = small(variant)
    rounds, state, reply = rounds_of(setup, store, private=True), random_state(setup), [np.arange(3.0) / 7]
    rounds.save(asked(2), rounds.completed(asked(2), None, state, reply, {"local-steps": 4}))
    last = rounds.last("s")
    assert dict(last.metrics) == {"round": 2, "session": "s", "born": 2, "local-steps": 4}
    for read, written in zip(rounds.state(last), state, strict=True):
        assert_array_equal(read, written, strict=True)
    assert_array_equal(reply_of(last), reply)


def test_a_state_knows_when_it_began(store):
    setup = small("fedpdm")
    rounds, last = rounds_of(setup, store), None
    for round_ in (3, 5):
        rounds.save(asked(round_), rounds.completed(asked(round_), last, random_state(setup), [], {}))
        last = rounds.last("s")
        assert last.metrics["born"] == 3
    assert_array_equal(rounds.state(None).dual, setup.algorithm.init_client(setup.start).dual)


def test_a_stale_round_is_refused_and_a_stored_one_repeated(store):
    setup = small("fedpdm")
    rounds = rounds_of(setup, store)
    assert rounds.repeated(asked(1), None) is None
    for round_ in (1, 2):
        done = rounds.completed(asked(round_), None, random_state(setup), [np.full(2, float(round_))], {})
        rounds.save(asked(round_, settled=round_ - 1), done)
    last = rounds.last("s")
    assert rounds.repeated(asked(3), last) is None
    assert_array_equal(reply_of(rounds.repeated(asked(2), last)), [[2.0, 2.0]])
    with pytest.raises(ReplyError, match="round 1 is asked after it was settled"):
        rounds.repeated(asked(1), last)


@pytest.mark.parametrize(
    ("variant", "private", "stored"),
    [("fedavg", False, False), ("fedavg", True, True), ("fedpdm", False, True)],
)
def test_in_memory_only_a_reply_that_can_be_computed_again_is_not_stored(variant, private, stored, tmp_path):
    setup = small(variant)
    for store, expected in ((ContextStore(RecordDict()), stored), (FileStore(tmp_path, "me"), True)):
        rounds = rounds_of(setup, store, private)
        done = rounds.completed(asked(1), None, setup.algorithm.init_client(setup.start), [np.ones(2)], {})
        rounds.save(asked(1), done)
        assert bool(rounds.last("s").arrays) == expected
        assert (rounds.repeated(asked(1), rounds.last("s")) is not None) == expected


def test_the_room_that_is_reserved_holds_state_and_reply(tmp_path):
    setup, store = small("scaffold"), FileStore(tmp_path, "me")
    rounds, reply = rounds_of(setup, store, private=True), [np.ones(1000)]
    done = rounds.completed(asked(1), None, random_state(setup), reply, {})
    with rounds.reserved(asked(1), reply[0].nbytes):
        (taken,) = (path.stat().st_size for path in tmp_path.rglob("*.new"))
    rounds.save(asked(1), done)
    (used,) = (path.stat().st_size for path in tmp_path.rglob("*.round"))
    assert used <= taken


# ------------------------------------------------------------------------------------- rows


def private_guard(row_norm):
    """As much of a guard as rows need."""
    return Guard(small("fedpdm-private").plan.bounds, 1.0, None, None, None, row_norm=row_norm)


def test_rows_within_their_bounds_are_not_copied():
    shards = small("fedpdm").shards
    start = np.zeros(1)
    assert admitted(shards, start, 1, None) is shards
    assert admitted(shards, start, 1, private_guard(np.inf)) is shards


def test_longer_rows_are_scaled_and_the_site_is_told(caplog):
    rows = Batch(np.array([[3.0, 4.0], [0.3, 0.4]]), np.array([0, 1]))
    own = admitted(rows, np.zeros(1), 2, private_guard(1.0)).rows(2)
    assert_allclose(own.features, [[0.6, 0.8], [0.3, 0.4]], rtol=1e-15)
    assert "client 2: rows outside their public bounds were scaled" in caplog.text


def test_rows_get_the_type_of_the_start_but_classes_stay_whole_numbers():
    start = np.zeros(1, np.float32)
    for labels, kind in ((np.array([0, 1]), "i"), (np.array([0.5, 1.5]), "f")):
        own = admitted(Batch(np.eye(2), labels), start, 0, None).rows(0)
        assert (own.features.dtype, own.labels.dtype.kind) == (np.float32, kind)
        assert kind == "i" or own.labels.dtype == np.float32


def test_a_client_has_one_precision_and_a_private_one_double():
    start, rows = np.zeros(2, np.float32), Batch(np.eye(2, dtype=np.float32), np.array([0, 1]))
    check_precision(start, rows, None)
    check_precision(np.zeros(2), rows, None)
    with pytest.raises(SettingError, match="start must be float64, .*; got float32"):
        check_precision(start, rows, private_guard(1.0))
    check_precision(np.zeros(2), rows, private_guard(1.0))  # rows in a Batch are cast
    with pytest.raises(SettingError, match="rows in Shards, too; got float32"):
        check_precision(np.zeros(2), Shards.site(rows, 0), private_guard(1.0))
    with pytest.raises(SettingError, match="features, real labels and weights must be, too; got float64"):
        check_precision(start, Shards.site(Batch(np.eye(2), np.array([0, 1])), 0), None)


class Picky:
    """An objective that writes down the labels that it is to accept."""

    def check_rows(self, rows):
        self.labels = rows.labels


def test_an_objective_does_not_see_the_real_labels_of_a_private_client():
    picky, real, classes = Picky(), Batch(np.eye(2), np.array([0.5, 7.0])), Batch(np.eye(2), np.array([0, 7]))
    for rows, guard, seen in (
        (real, None, [0.5, 7.0]),
        (real, private_guard(1.0), [0, 0]),
        (classes, private_guard(1.0), [0, 7]),
    ):
        check_rows(picky, rows, guard)
        assert_array_equal(picky.labels, seen)
    check_rows(SimpleNamespace(), real, None)


# ------------------------------------------------------------------------------------- Flower's wrapper


class Doubling(NumPyClient):
    def get_properties(self, config):
        return {"asked": config["name"]}

    def fit(self, parameters, config):
        return [2 * array for array in parameters], 5, dict(config)

    def evaluate(self, parameters, config):
        return float(sum(array.sum() for array in parameters)), 5, dict(config)


def test_flowers_messages_become_arrays_and_back():
    client, array = StrictClient(Doubling()), np.array([[1.0, -0.0], [np.inf, 3.0]])
    sent = Parameters([to_npy(array)], "numpy.ndarray")
    reply = client.fit(FitIns(sent, {"round": 1}))
    assert_array_equal(from_npy(reply.parameters.tensors[0]), 2 * array, strict=True)
    assert (reply.num_examples, reply.metrics) == (5, {"round": 1})
    evaluated = client.evaluate(EvaluateIns(sent, {}))
    assert (evaluated.loss, evaluated.num_examples, evaluated.metrics) == (np.inf, 5, {})
    assert client.get_properties(GetPropertiesIns({"name": "x"})).properties == {"asked": "x"}


def test_bytes_that_are_no_array_reach_no_client():
    broken = Parameters([to_npy(np.ones(3))[:-1]], "numpy.ndarray")
    client = StrictClient(NumPyClient())
    for call, ins in ((client.fit, FitIns), (client.evaluate, EvaluateIns)):
        with pytest.raises(ReplyError, match="wrong number of bytes"):
            call(ins(broken, {}))
