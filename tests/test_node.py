"""A process of Flower's engine: it serves many nodes, and handles every message with a new client."""

import pickle
import sys
from copy import copy
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, FitRes, Parameters, Status
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, fitres_to_recorddict
from grids import Wire
from numpy.testing import assert_array_equal
from problems import SMALL, VARIANTS, first_variant, run_config, small
from threadpoolctl import threadpool_info, threadpool_limits

from twinflower.algorithms import ALGORITHMS
from twinflower.data.features import Deferred
from twinflower.errors import ReplyError
from twinflower.problems.batches import LocalSchedule
from twinflower.simulation.app import client_app, entry
from twinflower.simulation.runs.client_factory import client_of
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of
from twinflower.strategies.messages import fit_results


@pytest.fixture(autouse=True)
def simulation(monkeypatch):
    """Nodes are simulated, as on Flower's engine, and nothing is prepared yet."""
    monkeypatch.setattr(client_app, "simulated", lambda node_config: True)
    client_app._simulated_setup.cache_clear()


class OneProcess(InProcessGrid):
    """The nodes of a process of the engine: a new client for every message, and what lasts is in the context."""

    def answer(self, message):
        context = self.context(message.metadata.dst_node_id)
        context.run_config = self.setup.config.items()
        return client_app.app(message, context)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_new_client_for_every_message_gives_the_bits_of_one_that_stays(variant):
    setup = small(variant)
    result = run_strategy(setup, OneProcess(setup), "inprocess")
    np.testing.assert_array_equal(result.model, inprocess.train(setup).model)


@pytest.mark.parametrize("keys", [{}, {"clip_norm": 0.1}], ids=str)
@pytest.mark.parametrize("batch", [0, 10])
def test_rows_that_are_computed_late_make_the_same_run(keys, batch):
    """At the server and at the clients, which look them up or get a copy of them."""
    setup = small("fedpdm")
    setup = replace(setup, objective=replace(setup.objective, **keys), schedule=LocalSchedule(batch, 3))
    dataset = copy(setup.dataset)
    for part in ("features", "test_features"):
        object.__setattr__(dataset, part, Deferred(np.ascontiguousarray, getattr(dataset, part)))
    later = replace(setup, dataset=dataset)
    whole = inprocess.train(setup)
    late = run_strategy(later, InProcessGrid(later), "flower")
    assert_array_equal(late.model, whole.model)
    assert_array_equal(inprocess.train(later).model, whole.model)
    assert [row | {"seconds": 0} for row in late.rows] == [row | {"seconds": 0} for row in whole.rows]


def test_a_process_prepares_its_run_once(monkeypatch):
    prepared = []
    real = client_app.prepare_node
    monkeypatch.setattr(client_app, "prepare_node", lambda config: prepared.append(config) or real(config))
    setup = small("fedavg")
    run_strategy(setup, OneProcess(setup), "inprocess")
    assert len(prepared) == 1


def test_the_rows_of_a_node_are_those_of_the_data_set_itself():
    context = Context(1, 1, {"partition-id": 2, "num-partitions": 8}, RecordDict(), run_config(SMALL))
    first, second = (client_app.client_fn(context).numpy_client.shards for _ in range(2))
    assert first.features is second.features


def test_a_library_that_is_loaded_later_gets_one_thread_too(monkeypatch):
    context = Context(1, 1, {"partition-id": 0, "num-partitions": 8}, RecordDict(), run_config(SMALL))
    with threadpool_limits(2):
        client_app.client_fn(context)
        threadpool_limits(2)  # as a library would start
        monkeypatch.setitem(sys.modules, "a_new_library", ModuleType("a_new_library"))
        client_app.client_fn(context)
        assert {library["num_threads"] for library in threadpool_info()} == {1}


def test_the_app_that_the_engine_sends_with_every_message_is_its_name():
    assert pickle.loads(pickle.dumps(entry.client)) is entry.client
    assert len(pickle.dumps(entry.client)) < 100


@pytest.mark.parametrize("variant", sorted({first_variant(algorithm) for algorithm in ALGORITHMS}))
def test_evaluating_while_the_next_rounds_run_gives_the_rows_of_waiting(variant):
    setup = small(variant)
    aside, waiting = (
        run_strategy(setup, InProcessGrid(setup), runtime) for runtime in ("flower", "inprocess")
    )
    assert_array_equal(aside.model, waiting.model)
    for row, same in zip(aside.rows, waiting.rows, strict=True):
        np.testing.assert_equal(row | {"seconds": 0}, same | {"seconds": 0})


def request_and_context(setup):
    """A message of round 1 and the context of its node."""
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.begin({client: client + 1 for client in range(8)}, setup.start)
    message = next(iter(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)))
    context = grid.context(message.metadata.dst_node_id)
    context.run_config = setup.config.items()
    return message, context


@pytest.mark.parametrize("variant", ["fedpdm", "feddyn", "isrl-dp"])
def test_a_reply_and_the_context_that_stores_it_are_pickled_with_one_copy_of_its_arrays(variant):
    message, context = request_and_context(small(variant))
    reply = client_app.app(message, context)
    arrays = sum(len(array.data) for array in reply.content["fitres.parameters"].values())
    apart = len(pickle.dumps(reply)) + len(pickle.dumps(context))
    assert arrays > 0
    assert len(pickle.dumps((reply, context))) <= apart - arrays


@pytest.mark.parametrize("variant", ["fedavg", "ssca", "ssca-constrained", "isrl-dp-top-k"])
def test_a_client_without_state_and_noise_stores_no_array_and_repeats_its_reply(variant):
    message, context = request_and_context(small(variant))
    first, again = (client_app.app(message, context).content["fitres.parameters"] for _ in range(2))
    assert [array.data for array in first.values()] == [array.data for array in again.values()]
    assert not any(record.values() for record in context.state.array_records.values())


def test_a_client_without_state_refuses_a_round_that_it_has_left_behind():
    setup = small("fedavg")
    client = client_of(setup, 1, Context(1, 1, {}, RecordDict(), {}))
    for round_ in (1, 2):
        client.fit([setup.start], {"round": round_})
    with pytest.raises(ReplyError, match="round 1 is asked after it was settled"):
        client.fit([setup.start], {"round": 1})


def test_a_site_with_a_disk_repeats_what_it_has_stored_even_if_it_has_no_state(tmp_path):
    setup = small("fedavg")
    client = client_of(setup, 1, Context(1, 1, {}, RecordDict(), {}), state_dir=str(tmp_path))
    (first, *_), _, _ = client.fit([setup.start], {"round": 1})
    (again, *_), _, _ = client.fit([setup.start + 1.0], {"round": 1})  # another point: not computed again
    assert_array_equal(first, again)


def test_a_request_of_flowers_own_making_may_hold_no_array():
    empty = fitins_to_recorddict(FitIns(Parameters([], "numpy.ndarray"), {"round": 1}), keep_input=True)
    _, context = request_and_context(small("fedpdm"))
    with pytest.raises(ReplyError, match=r"expected \d arrays, got 0"):
        ClientApp(client_app.client_fn)(Message(empty, dst_node_id=1, message_type="train"), context)


def test_every_client_gets_the_last_point(caplog):
    """Flower puts an empty array into a NumPyClient's reply without arrays, as to the message after the last round."""
    setup = small("ldp-primal-dual")
    run_strategy(setup, OneProcess(setup), "flower")
    run_strategy(setup, Wire(setup), "flower")
    assert "last point" not in caplog.text


def test_a_refusal_in_a_reply_of_flowers_own_making_is_understood():
    refused = FitRes(Status(Code.OK, ""), Parameters([], "numpy.ndarray"), 0, {"round": 1, "refused": True})
    request = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Message(fitres_to_recorddict(refused, keep_input=False), reply_to=request)
    with pytest.raises(ReplyError, match="it refuses: its privacy budget is spent"):
        fit_results(reply, 1, "s")


@pytest.mark.parametrize("missing", ["fitins.parameters", "fitins.config"])
def test_a_request_without_a_record_is_refused(missing):
    message, context = request_and_context(small("fedpdm"))
    del message.content[missing]
    with pytest.raises(KeyError, match=missing):
        ClientApp(client_app.client_fn)(message, context)
    assert not context.state
