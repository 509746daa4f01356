"""What clients may do wrong, and what the run does then."""

import logging
import re
import signal

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from grids import Faulty, arrays_of, rewrite
from numpy.testing import assert_array_equal
from problems import run_config, small, state_of

from twinflower.clients.records import record_of
from twinflower.errors import ReplyError, RunError
from twinflower.randomness import participants
from twinflower.simulation.app import server_app
from twinflower.simulation.app.server_app import BUNDLE
from twinflower.simulation.results.resume import status
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy, strategy_of
from twinflower.strategies.nodes import meet
from twinflower.work import LocalWork, no_noise

ROUND = 2
VICTIM = int(participants(0, ROUND, 8, 3)[1])


def with_first(change):
    """A fault that changes the reply's first array."""

    def fault(reply):
        first, *rest = arrays_of(reply)
        return rewrite(reply, record_of([change(first), *rest]))

    return fault


def poison(value):
    def change(array):
        array[1] = value
        return array

    return change


FAULTS = {
    "raises": lambda reply: Message(error=Error(3, "ValueError: boom"), metadata=reply.metadata),
    "NaN": with_first(poison(np.nan)),
    "infinity": with_first(poison(np.inf)),
    "shape": with_first(lambda a: a[:-1]),
    "more axes": with_first(lambda a: a[None]),
    "float32": with_first(lambda a: a.astype(np.float32)),
    "int64": with_first(lambda a: a.astype(np.int64)),
    "objects": lambda reply: rewrite(
        reply, ArrayRecord({"0": Array("object", (1,), "numpy.ndarray", b"\x93NUMPY\x01\x00\x04\x00{}\n\n")})
    ),
    "pickle": lambda reply: rewrite(reply, ArrayRecord({"0": Array("x", (), "numpy.ndarray", b"\x80\x04.")})),
    "nothing": lambda reply: rewrite(reply, ArrayRecord()),
    "an array too many": lambda reply: rewrite(reply, record_of([*arrays_of(reply), np.zeros(1)])),
    "no parameters": lambda reply: rewrite(reply, drop="fitres.parameters"),
    "no metrics": lambda reply: rewrite(reply, drop="fitres.metrics"),
    "no round": lambda reply: rewrite(reply, metrics={"local-steps": 1}),
    "wrong kind of record": lambda reply: rewrite(reply, arrays=MetricRecord({"a": 1.0})),
    "an old round": lambda reply: rewrite(reply, metrics={"round": ROUND - 1}),
    "a round in words": lambda reply: rewrite(reply, metrics={"round": "two"}),
    "no reply": lambda reply: None,
}


def faulty(setup, fault, victims=(VICTIM,)):
    return Faulty(setup, fault, victims, (ROUND,))


def duals(grid):
    return {node: state_of(grid.client(node)).dual for node, c in grid.contexts.items() if len(c.state)}


@pytest.mark.parametrize("variant", ["fedpdm", "bsdp-top-k", "bsdp-rand-k"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_reply_is_named_and_left_out_and_the_run_goes_on(variant, fault, caplog):
    setup = small(variant, rounds=ROUND)
    grid, strategy = faulty(setup, FAULTS[fault]), strategy_of(setup)
    with caplog.at_level(logging.WARNING):
        strategy.start(grid, record_of([setup.start]), num_rounds=ROUND)
    last = strategy.rounds[-1]
    assert (last.accepted, list(last.rejected)) == (2, [VICTIM])
    assert (last.rejected[VICTIM] == "no reply") == (fault == "no reply")
    assert f"round {ROUND}: client {VICTIM} left out: {last.rejected[VICTIM]}" in caplog.text
    assert np.isfinite(setup.algorithm.model(strategy.server)).all()
    # the others' duals, and the server's mean over them, are as if the victim had not answered
    silent, without = faulty(setup, FAULTS["no reply"]), strategy_of(setup)
    without.start(silent, record_of([setup.start]), num_rounds=ROUND)
    assert_array_equal(setup.algorithm.model(strategy.server), setup.algorithm.model(without.server))
    for node, dual in duals(silent).items():
        assert_array_equal(duals(grid)[node], dual)


def test_indices_out_of_range_or_twice_are_left_out():
    setup = small("bsdp-top-k", rounds=1)
    algorithm, d = setup.algorithm, setup.objective.d
    inbox = algorithm.broadcast(algorithm.init_server(setup.start, 8, np.array(0, np.uint64)), 1, np.array(0))
    batches = setup.schedule.batches(setup.shards, 0, 0, 1)
    _, upload, _ = algorithm.client_update(
        algorithm.init_client(setup.start), inbox, LocalWork(setup.objective, batches, no_noise, 1)
    )
    k = len(upload.indices)
    for place, index in ((k - 1, d), (k - 1, 1023), (1, upload.indices[0])):
        bad = upload.indices.copy()
        bad[place] = index
        with pytest.raises(ReplyError, match="indices must be distinct, ascending and below 650"):
            algorithm.upload.unpack(algorithm.upload.pack(upload._replace(indices=bad), d), d, inbox)


def test_when_all_replies_are_bad_the_run_says_so_and_stops():
    setup = small("fedpdm")
    result = run_strategy(setup, faulty(setup, FAULTS["NaN"], range(8)), "inprocess")
    assert result.failure == (
        f"round {ROUND}: none of the 3 replies could be used, the run stops (client "
        f"{participants(0, ROUND, 8, 3)[0]}: y must be finite; got NaN or infinity)"
    )
    assert result.model is None
    assert [row["round"] for row in result.rows] == [0, 1]


@pytest.mark.parametrize("runtime", ["inprocess", "flower"])
@pytest.mark.parametrize("step_size", [1e6, 1e30])
def test_a_diverging_run_says_so_and_gives_no_model(step_size, runtime):
    setup = small("fedpdm", rho=10.0, step_size=step_size, unstable_steps="allow", rounds=30)
    result = run_strategy(setup, InProcessGrid(setup), runtime)
    assert "diverged" in result.failure
    assert result.model is None


def test_a_run_whose_objective_rises_ends_one_evaluation_later_if_that_is_not_waited_for():
    setup = small("fedpdm", rho=10.0, step_size=1e6, unstable_steps="allow", rounds=30, evaluation__every=2)
    waiting, aside = (
        run_strategy(setup, InProcessGrid(setup), runtime) for runtime in ("inprocess", "flower")
    )
    assert aside.failure == waiting.failure
    assert [row["round"] for row in aside.rows] == [row["round"] for row in waiting.rows] == [0]
    assert (len(waiting.rounds), len(aside.rounds)) == (2, 4)


def test_a_client_that_fails_keeps_its_state():
    setup = small("fedpdm")
    grid = InProcessGrid(setup)
    client = grid.client(1)
    x0 = np.linspace(-5.0, 5.0, setup.objective.d)
    client.fit([x0], {"round": 1})
    before = dict(client.context.state.items())
    with pytest.raises(ReplyError, match="client 0: the local update of round 2 is not finite"):
        client.fit([x0 * 3e307], {"round": 2})
    for request, config in (
        ([x0 * np.inf], {"round": 2}),
        ([x0[1:]], {"round": 2}),
        ([x0], {}),
        ([x0], {"round": "2"}),
        ([], {"round": 2}),
    ):
        with pytest.raises(ReplyError):
            client.fit(request, config)
    assert dict(client.context.state.items()) == before
    client.fit([x0], {"round": 3})
    with pytest.raises(ReplyError, match="round 2 is asked after it was settled"):
        client.fit([x0], {"round": 2})


def test_replies_of_strangers_are_ignored():
    setup = small("fedpdm", clients__per_round=2)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.begin(meet(grid, 8, 10), setup.start)
    messages = list(strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid))
    replies = list(grid.send_and_receive(messages))
    asked = {message.metadata.dst_node_id for message in messages}
    outsider = min(set(range(1, 9)) - asked)
    replies[0].metadata.__dict__["_src_node_id"] = outsider
    strategy.aggregate_train(1, replies)
    assert strategy.rounds[-1].accepted == 1


class Short(InProcessGrid):
    """A grid on which only some nodes are connected."""

    def get_node_ids(self):
        return range(1, 4)


def test_too_few_nodes_end_in_one_sentence():
    setup = small("fedpdm")
    text = "waited 0.3 s for 8 nodes, but only 3 reported their partition (nobody holds partition 3, 4, 5, 6, 7): start"
    with pytest.raises(RunError, match=re.escape(text)):
        meet(Short(setup), 8, 0.3)


def test_a_wrong_number_of_partitions_is_named():
    setup = small("fedpdm")
    with pytest.raises(RunError, match="clients.count is 5, but a node holds partition 0 of 8"):
        meet(InProcessGrid(setup), 5, 1.0)


def test_nodes_tell_how_many_clients_there_are():
    setup = small("fedpdm")
    assert meet(InProcessGrid(setup), 0, 1.0) == {i: i + 1 for i in range(8)}


def test_bad_settings_are_told_before_anybody_waits_for_nodes(monkeypatch):
    monkeypatch.setattr(server_app, "meet", lambda *_: pytest.fail("it waits"))
    context = Context(1, 0, {}, RecordDict(), run_config({"rho": -1.0}))
    with pytest.raises(RunError, match="rho must be"):
        server_app.app(InProcessGrid(small("fedpdm")), context)


@pytest.mark.parametrize(
    "told", ["DataError: mnist is not here", "<class 'twinflower.errors.DataError'>:<'mnist is not here'>"]
)
def test_nodes_that_cannot_start_are_named_at_once(told):
    class Broken(InProcessGrid):
        def answer(self, message):
            return Message(Error(3, told), reply_to=message)

    with pytest.raises(
        RunError,
        match="^8 of 8 nodes cannot take part: nodes 1, 2, 3, 4, 5, ...: DataError: mnist is not here$",
    ):
        meet(Broken(small("fedpdm")), 8, 30.0)


class Ill(InProcessGrid):
    """Node 3 raises, and for node 6, which is gone, Flower answers under an id of its own."""

    def answer(self, message):
        if message.metadata.dst_node_id == 3:
            return Message(Error(2, "<class 'twinflower.errors.DataError'>:<'no rows'>"), reply_to=message)
        reply = super().answer(message)
        if message.metadata.dst_node_id == 6:
            reply = Message(Error(5, "node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
        return reply


def test_nodes_that_cannot_take_part_are_named_with_the_partitions_that_are_missing():
    class Elsewhere(Ill):
        """Our nodes are 2 to 9: 1 is Flower's own."""

        def get_node_ids(self):
            return range(2, 10)

        def client(self, node):
            return super().client(node - 1)

    text = (
        "2 of 8 nodes cannot take part (nobody holds partition 1, 4): "
        "node 3: DataError: no rows; node 6: node unavailable"
    )
    with pytest.raises(RunError, match=f"^{re.escape(text)}$"):
        meet(Elsewhere(small("fedpdm")), 8, 30.0)


class Successor(InProcessGrid):
    """Node 1 was killed, and Flower still counts it as present; a node with its partition, 9, starts a little later."""

    asked = 0

    def get_node_ids(self):
        self.asked += 1
        return range(1, 9 if self.asked == 1 else 10)

    def client(self, node):
        return super().client(1 if node == 9 else node)

    def answer(self, message):
        if message.metadata.dst_node_id == 1:
            return Message(Error(5, "node unavailable"), reply_to=message)
        return super().answer(message)


def test_a_node_that_is_gone_does_not_matter_if_all_partitions_are_here(caplog):
    """A run that is resumed soon after a node was killed and restarted."""
    nodes = {0: 9} | {client: client + 1 for client in range(1, 8)}
    assert meet(Successor(small("fedpdm")), 8, 30.0) == nodes
    assert "node 1 is not needed: node unavailable" in caplog.text


def test_long_reasons_leave_room_for_the_other_nodes():
    class Verbose(InProcessGrid):
        def answer(self, message):
            node = message.metadata.dst_node_id
            return Message(Error(2, f"{node}" + "x" * 900), reply_to=message)

    with pytest.raises(RunError) as error:
        meet(Verbose(small("fedpdm")), 8, 30.0)
    assert all(f"node {node}: {node}xxx" in str(error.value) for node in range(1, 6))
    assert len(str(error.value)) < 5 * 320 + 100


def test_a_node_that_runs_something_else_is_named():
    class Stranger(InProcessGrid):
        def answer(self, message):
            return Message(RecordDict({"getpropertiesres.properties": ConfigRecord()}), reply_to=message)

    with pytest.raises(
        RunError, match="^node 1 did not report its partition: it does not run a Twinflower client"
    ):
        meet(Stranger(small("fedpdm")), 8, 30.0)


OTHER_APP = '[project]\nname = "meters"\n[tool.flwr.app]\npublisher = "someone"\n'


def test_a_superlink_of_another_app_is_named_as_the_cause(tmp_path, monkeypatch, capsys):
    """Its simulated nodes import that app's modules; a deployment's server may stand in any folder."""

    class Broken(InProcessGrid):
        def answer(self, message):
            return Message(Error(3, "cannot import name 'clients'"), reply_to=message)

    class Simulated(Broken):
        state = None

    def ends(kind, text):
        (tmp_path / "pyproject.toml").write_text(text)
        context = Context(1, 0, {}, RecordDict(), {"rounds": 1, "clients.count": 8})
        with pytest.raises(RunError) as error:
            server_app.app(kind(small("fedpdm")), context)
        assert f"twinflower: {error.value}\n" in capsys.readouterr().out
        return str(error.value)

    monkeypatch.chdir(tmp_path)
    cause = f"Flower's local SuperLink was started in {tmp_path}, the folder of another app"
    assert ends(Simulated, OTHER_APP).startswith(cause)
    assert ends(Simulated, OTHER_APP).endswith("cannot import name 'clients'")
    for kind, text in [
        (Broken, OTHER_APP),
        (Simulated, OTHER_APP.replace("meters", "twinflower")),
        (Simulated, "="),
    ]:
        assert ends(kind, text).startswith("8 of 8 nodes cannot take part: ")


@pytest.fixture
def heeded():
    """SIGINT has Python's own handler; a shell lets the commands that it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_server_that_flower_ends_notes_why(tmp_path, heeded):
    """Flower's processes get SIGINT when the SuperLink no longer accepts their token, or is gone."""

    class Ended(InProcessGrid):
        def push_messages(self, messages):
            if len(list((tmp_path / "checkpoints").glob("*.npz"))) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().push_messages(messages)

    keys = {"output.dir": str(tmp_path), "output.checkpoint-every": 1, "clients.count": 8, "rounds": 3}
    setup = small("fedpdm")
    with pytest.raises(KeyboardInterrupt):  # Python's own handler, in place of Flower's
        server_app.app(Ended(setup), Context(1, 0, {}, RecordDict(), keys))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert "; last checkpoint after round 1: Flower ended the server's process" in status(tmp_path).lines[0]


def test_nodes_that_do_not_run_the_bundle_are_mentioned(tmp_path, monkeypatch, capsys):
    """Simulated nodes import what is in the folder of the SuperLink, the server imports the bundle."""

    class Simulated(InProcessGrid):
        state = None

    def told(kind):
        context = Context(1, 0, {}, RecordDict(), {"rounds": 1, "clients.count": 8})
        server_app.app(kind(small("fedpdm", rounds=1)), context)
        said = f"warning: Flower's local SuperLink was started in {tmp_path}, so the nodes run"
        return said in capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    assert not told(Simulated)  # a folder without a Twinflower of its own
    for part in ("twinflower", "strategies", "clients", "simulation"):
        for file in (BUNDLE / part).rglob("*.py"):
            copy = tmp_path / file.relative_to(BUNDLE)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    assert not told(Simulated)  # the same source
    (tmp_path / "simulation/app/server_app.py").write_text("# another version\n")
    assert told(Simulated)
    assert not told(InProcessGrid)  # a deployment: every node is a machine of its own


def test_what_is_told_of_a_round_stands_in_the_order_of_the_clients():
    """Whatever numbers their nodes have."""
    setup = small("fedpdm", clients__per_round=0, void_rounds=1)
    grid, strategy = InProcessGrid(setup), strategy_of(setup)
    strategy.begin({client: 8 - client for client in range(8)}, setup.start)
    strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    strategy.aggregate_train(1, [])
    assert list(strategy.rounds[0].rejected) == list(range(8))


class Restarting(InProcessGrid):
    """Client 3's node 4 gets a successor, 54."""

    def __init__(self, setup):
        super().__init__(setup)
        self.present = set(range(1, 9))

    def get_node_ids(self):
        return self.present

    def client(self, node):
        return super().client(4 if node == 54 else node)


def test_a_node_that_is_back_before_it_was_missed_takes_its_place_later():
    """Flower counts a killed node as present until its heartbeat is overdue."""
    setup = small("fedpdm", clients__per_round=0)
    grid, strategy, asked = Restarting(setup), strategy_of(setup), []
    strategy.begin(meet(grid, 8, 10), setup.start)
    changes = [set(), {54}, set(), {4}, set()]
    for round_, change in enumerate(changes, 1):
        grid.present = grid.present ^ change
        messages = strategy.configure_train(round_, ArrayRecord(), ConfigRecord(), grid)
        strategy.aggregate_train(round_, grid.send_and_receive(messages))
        asked.append({4, 54} & {message.metadata.dst_node_id for message in messages})
    assert asked == [{4}, {4}, {4}, {54}, {54}]
    assert strategy.rounds[-1].accepted == 8
