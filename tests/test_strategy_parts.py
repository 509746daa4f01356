"""The parts of a strategy, each alone, without Flower's processes."""

import logging
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from grids import Lossy
from numpy.testing import assert_array_equal
from problems import small

from twinflower.algorithms import FedAvg, FedPDM, LDPPrimalDual
from twinflower.algorithms.algorithm import RunInfo, unstack
from twinflower.clients.records import record_of
from twinflower.errors import AbsentError, ReplyError, RunError, SettingError
from twinflower.queries.held_out_question import HeldOutQuestion
from twinflower.randomness import participants
from twinflower.rounds import Round, Training
from twinflower.simulation.runtimes import flower_internals
from twinflower.strategies import nodes as nodes_module
from twinflower.strategies.messages import Inspector, Quorum, Requests, fit_request, sort_replies
from twinflower.strategies.nodes import Roster, meet
from twinflower.strategies.questions import Agreement, Exchange, SiteEvaluation
from twinflower.strategies.star import Sampling

D = 5
Y = np.arange(D, dtype=np.float64)


@pytest.fixture(autouse=True)
def identity():
    """Without it no message can be made."""
    flower_internals.begin_run(1)


class Nodes:
    """What a strategy uses of Flower's grid. answer(message): the reply, None for silence. sent: all messages."""

    def __init__(self, answer, present=()):
        self.answer, self.present, self.sent = answer, list(present), []

    def get_node_ids(self):
        return self.present

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.sent += messages
        return [reply for reply in map(self.answer, messages) if reply is not None]

    def asked(self):
        return [message.metadata.dst_node_id for message in self.sent]


def holding(partitions, count=2):
    """Nodes that report these partitions, node -> partition."""

    def answer(message):
        partition = partitions[message.metadata.dst_node_id]
        properties = ConfigRecord({"partition-id": partition, "num-partitions": count})
        return Message(RecordDict({"getpropertiesres.properties": properties}), reply_to=message)

    return Nodes(answer, partitions)


def fitted(message, arrays=(Y,), **metrics):
    """A reply to a request to train."""
    content = {"fitres.parameters": record_of(arrays), "fitres.metrics": ConfigRecord({"round": 1} | metrics)}
    return Message(RecordDict(content), reply_to=message)


def request(node=1):
    return fit_request(node, ArrayRecord(), {"round": 1})


# ------------------------------------------------------------------------------------- sampling


def test_samples_are_those_of_the_seed_and_all_clients_where_none_are_sampled():
    assert_array_equal(Sampling(8, 3, seed=4).clients(2), participants(4, 2, 8, 3))
    assert_array_equal(Sampling(8).clients(2), range(8))
    assert_array_equal(Sampling(8, 3, first_round="all").clients(1), range(8))
    assert len(Sampling(8, 3, first_round="all").clients(2)) == 3


def test_no_more_clients_are_sampled_than_there_are():
    assert Sampling(0, 3).among(5) == Sampling(5, 3)
    with pytest.raises(SettingError, match="at most the number of clients, 2; got 3"):
        Sampling(0, 3).among(2)
    with pytest.raises(SettingError, match="first-round must be one of"):
        Sampling(first_round="none")


# ------------------------------------------------------------------------------------- roster


def test_a_node_that_returns_under_a_new_id_takes_its_place():
    roster, grid = Roster({0: 1, 1: 2}), holding({1: 0, 54: 1})
    assert roster.update(grid) == {1, 54}
    assert roster.nodes == {0: 1, 1: 54}
    assert roster.clients([1]) == {54: 1}


def test_a_second_node_of_a_partition_waits_until_the_first_is_gone(caplog):
    roster, grid = Roster({0: 1, 1: 2}), holding({1: 0, 2: 1, 54: 1})
    with caplog.at_level(logging.WARNING):
        roster.update(grid)
    assert roster.nodes[1] == 2
    assert "a second node for client 1 waits until the first is gone" in caplog.text
    grid.present = [1, 54]
    roster.update(grid)
    assert roster.nodes[1] == 54
    assert grid.asked() == [54]  # once


def test_a_second_node_takes_over_from_one_that_does_not_reply():
    roster, grid = Roster({0: 1, 1: 2}), holding({1: 0, 2: 1, 54: 1})
    roster.update(grid, silent={1})
    assert roster.nodes == {0: 1, 1: 54}


def test_a_second_node_that_has_gone_again_takes_no_place():
    roster, grid = Roster({0: 1, 1: 2}), holding({1: 0, 2: 1, 54: 1})
    roster.update(grid)
    for present in ([1, 2], [1]):
        grid.present = present
        roster.update(grid)
    assert roster.nodes[1] == 2


@pytest.mark.parametrize(("partition", "count"), [(1, 3), (7, 2), (-1, 2)])
def test_a_new_node_that_does_not_fit_is_ignored(partition, count, caplog):
    roster, grid = Roster({0: 1, 1: 2}), holding({54: partition}, count)
    with caplog.at_level(logging.WARNING):
        roster.update(grid)
    assert roster.nodes == {0: 1, 1: 2}
    assert "ignored: clients.count is 2, but a node holds partition" in caplog.text


def test_missing_nodes_are_waited_for_until_they_are_back_or_the_time_is_up(monkeypatch):
    slept = []
    monkeypatch.setattr(nodes_module.time, "monotonic", lambda: math.fsum(slept))

    def sleep(seconds):
        slept.append(seconds)
        if len(slept) == 3:
            grid.present = [1, 54]

    monkeypatch.setattr(nodes_module.time, "sleep", sleep)
    roster, grid = Roster({0: 1, 1: 2}), holding({1: 0, 54: 1})
    grid.present = [1]
    roster.find(grid, {1}, timeout=60.0)
    assert (roster.nodes[1], len(slept)) == (54, 3)
    grid.present = [1]
    roster.find(grid, {1}, timeout=5.0)
    assert roster.nodes[1] == 54 and 5.0 < sum(slept[3:]) < 6.0
    roster.find(grid, set(), timeout=5.0)  # nobody is silent: it does not look


def test_at_the_start_a_partition_is_held_by_one_node_only():
    assert meet(holding({7: 1, 9: 0}), 2, 1.0) == {0: 9, 1: 7}
    with pytest.raises(RunError, match="two nodes hold partition 0: give every node its own partition-id"):
        meet(holding({7: 0, 9: 0}), 2, 1.0)


# ------------------------------------------------------------------------------------- exchange


def losing(node, losses):
    """Nodes that reply their number; that of one node is lost so many times."""
    left = {node: losses}

    def answer(message):
        own = message.metadata.dst_node_id
        left[own] = left.get(own, 0) - 1
        return fitted(message, number=own) if left[own] < 0 else None

    return Nodes(answer, (11, 12, 13))


def number(client, reply):
    return reply.content["fitres.metrics"]["number"]


def exchange(grid, retries=3):
    return Exchange(Roster({0: 11, 1: 12, 2: 13}), grid, timeout=1.0, patience=0.0, retries=retries)


def ask(client, node):
    return request(node)


def test_a_request_is_repeated_only_to_clients_without_a_reply():
    grid = losing(12, 2)
    assert exchange(grid).ask_all(ask, number, 1) == ({0: 11, 1: 12, 2: 13}, {})
    assert grid.asked() == [11, 12, 13, 12, 12]


def test_a_request_is_repeated_so_many_times_and_not_more():
    grid = losing(12, 9)
    assert exchange(grid, retries=2).ask_all(ask, number, 1) == ({0: 11, 2: 13}, {1: "no reply"})
    assert grid.asked() == [11, 12, 13, 12, 12]
    assert exchange(losing(12, 1), retries=0).ask([1], ask, number, 1) == ({}, {1: "no reply"})


def test_an_invalid_reply_is_repeated_like_a_missing_one_and_a_good_one_is_kept():
    found = iter(["bad", "good", "better"])

    def read(client, reply):
        word = next(found)
        if word == "bad":
            raise ReplyError("it is bad")
        return word

    grid = losing(0, 0)
    assert exchange(grid).ask([0], ask, read, 1) == ({}, {0: "it is bad"})
    assert exchange(grid).ask_again({}, {0: "it is bad"}, ask, read, 1) == ({0: "good"}, {})


def test_a_repeated_request_has_the_bytes_of_the_first():
    grid, requests = losing(12, 1), make_requests(inboxes(2))
    exchange(grid).ask_again({}, {1: "no reply"}, requests.message, number, 1)
    first, second = (message.content for message in grid.sent)
    assert first == second
    assert first["fitins.parameters"]["0"].data == record_of([Y])["0"].data


@pytest.mark.parametrize("variant", ["fedpdm", "fedpdm-private"])
def test_a_client_that_is_asked_again_repeats_its_stored_bytes(variant):
    setup = small(variant)
    grid = Lossy(setup, [(2, 1)], losses=1)
    made, fit = [], grid.client(2).fit
    grid.client(2).fit = lambda *request: made.append(fit(*request)) or made[-1]
    start = record_of([setup.start])
    asking = Exchange(Roster({1: 2}), grid, timeout=1.0, patience=0.0, retries=1)
    good, _ = asking.ask_all(lambda client, node: fit_request(node, start, {"round": 1}), arrays, 1)
    (first, *_), (second, *_) = made
    assert [a.tobytes() for a in first] == [a.tobytes() for a in second] == good[1]


def arrays(client, reply):
    return [array.numpy().tobytes() for array in reply.content["fitres.parameters"].values()]


def test_the_first_reply_of_a_client_counts_and_those_of_strangers_do_not(caplog):
    replies = [fitted(request(node), number=place) for place, node in enumerate((11, 11, 99))]
    with caplog.at_level(logging.WARNING):
        good, rejected = sort_replies(replies, {11: 0, 12: 1}, number, 1)
    assert (good, rejected) == ({0: 0}, {1: "no reply"})
    assert caplog.text.count("a second reply, or one that was not requested") == 2


def test_an_error_is_shown_with_its_code_in_one_printable_line():
    error = Message(Error(2, "no\nrows\x1b[31m"), reply_to=request(11))
    _, rejected = sort_replies([error], {11: 0}, number, 1)
    assert rejected == {0: "error 2: no rows[31m"}


# ------------------------------------------------------------------------------------- requests


def inspector(algorithm=None, **keys):
    return Inspector(algorithm or FedPDM(), D, np.dtype(np.float64), "s", **keys)


def inboxes(count, start=Y):
    """The inboxes of all clients in round 1."""
    algorithm = FedPDM()
    server = algorithm.init_server(start, count, np.array(0, np.uint64))
    return dict(enumerate(unstack(algorithm.broadcast(server, 1, np.arange(count)), count)))


def make_requests(inboxes):
    return Requests(inspector(), 1, {"round": 1, "session": "s", "settled": 0}, inboxes)


def test_a_request_holds_the_inbox_and_the_fields_of_the_round():
    message = make_requests(inboxes(1)).message(0, 11)
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (11, "train")
    assert message.metadata.group_id == "1"
    assert dict(message.content["fitins.config"]) == {"round": 1, "session": "s", "settled": 0}
    assert_array_equal(message.content["fitins.parameters"]["0"].numpy(), Y)


def test_an_inbox_of_several_clients_is_encoded_once():
    requests = make_requests(inboxes(2) | {2: inboxes(1, Y + 1)[0]})
    records = [requests.message(client, 11).content["fitins.parameters"] for client in range(3)]
    assert records[0]["0"].data is records[1]["0"].data
    assert records[0]["0"].data != records[2]["0"].data


def test_the_statistics_of_a_round_count_bits_both_ways_and_name_the_rejected():
    requests = make_requests(inboxes(3))
    replies = [fitted(request(), **{"local-steps": steps, "stopped": True}) for steps in (2, 4)]
    uploads = [requests.read(client, reply) for client, reply in enumerate(replies)]
    found = requests.statistics(uploads, {2: "no reply"})
    assert found == Round(1, (0, 1, 2), 2, {2: "no reply"}, 2 * 64 * D, 3 * 64 * D, 3.0, 1.0)


@pytest.mark.parametrize("steps", [-1, 2**50, "2", 2.5])
def test_metrics_that_are_no_counts_are_not_in_the_means(steps):
    requests = make_requests(inboxes(1))
    upload = requests.read(0, fitted(request(), **{"local-steps": steps}))
    assert math.isnan(requests.statistics([upload], {}).local_steps)


# ------------------------------------------------------------------------------------- inspector


def inspect(reply, **keys):
    return inspector(**keys).read(0, inboxes(1)[0], reply, 1)


def test_a_valid_reply_is_read():
    upload = inspect(fitted(request(), session="s", born=1))
    assert_array_equal(upload.values.y, Y)
    assert upload.metrics["born"] == 1


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ([Y[:-1]], r"y must have shape \(5,\), got \(4,\)"),
        ([Y[None]], r"y must have shape \(5,\), got \(1, 5\)"),
        ([Y.astype(np.float32)], "y must be float64, got float32"),
        ([Y.astype(np.int64)], "y must be float64, got int64"),
        ([Y * np.nan], "y must be finite"),
        ([Y, Y], "expected 1 arrays, got 2"),
        ([], "expected 1 arrays, got 0"),
    ],
)
def test_arrays_of_other_shapes_and_types_are_rejected(arrays, reason):
    with pytest.raises(ReplyError, match=reason):
        inspect(fitted(request(), arrays))


def test_an_array_is_rejected_from_the_norm_limit_on():
    norm = float(np.linalg.norm(Y))
    assert_array_equal(inspect(fitted(request()), max_norm=norm).values.y, Y)
    with pytest.raises(ReplyError, match=r"longer than server\.max-norm"):
        inspect(fitted(request()), max_norm=np.nextafter(norm, 0))


@pytest.mark.parametrize("round_", [0, 2, True, "1", 1.0])
def test_a_reply_of_another_round_is_rejected(round_):
    with pytest.raises(ReplyError, match="the reply belongs to round .*, not 1"):
        inspect(fitted(request(), round=round_))


def test_a_reply_of_another_session_is_rejected_and_one_without_is_not():
    """Clients that are no `AlgorithmClient`s need not repeat the session."""
    inspect(fitted(request()))
    with pytest.raises(ReplyError, match="the reply belongs to another run"):
        inspect(fitted(request(), session="t"))


def test_a_refusal_and_a_reply_without_records_are_rejected():
    with pytest.raises(ReplyError, match="it refuses: its privacy budget is spent"):
        inspect(fitted(request(), refused=True))
    with pytest.raises(ReplyError, match=r"record 'fitres\.parameters' is missing"):
        inspect(Message(RecordDict(), reply_to=request()))
    wrong = RecordDict({"fitres.parameters": MetricRecord({"a": 1.0}), "fitres.metrics": ConfigRecord()})
    with pytest.raises(ReplyError, match="records have the wrong kind"):
        inspect(Message(wrong, reply_to=request()))


def test_a_client_that_has_lost_its_state_is_noted_or_rejected_if_the_method_needs_it(caplog):
    found = inspector(FedAvg(), born={0: 1})
    with caplog.at_level(logging.WARNING):
        found._check_birth(0, 4)
    assert found.born == {0: 4}
    assert "client 0 has lost its state and starts afresh in round 4" in caplog.text
    needs = inspector(LDPPrimalDual(info=RunInfo(2, 3)), born={0: 1})
    needs._check_birth(0, 1)
    with pytest.raises(
        ReplyError, match="lost its state: what it sends begins in round 4, and 1 was expected"
    ):
        needs._check_birth(0, 4)
    assert needs.born == {0: 1}


# ------------------------------------------------------------------------------------- quorum


def test_a_round_counts_from_min_replies_on():
    quorum = Quorum(min_replies=2, void_rounds=9)
    assert [quorum.reached(1, good, {}) for good in (3, 2, 1, 0)] == [True, True, False, False]


def test_so_many_void_rounds_may_follow_each_other():
    quorum = Quorum(min_replies=2, void_rounds=2)
    for good in (1, 1, 2, 1, 1):  # a good round between them starts the count again
        quorum.reached(1, good, {0: "no reply"})
    with pytest.raises(
        RunError, match=r"^round 7: 1 good replies, fewer than server\.min-replies = 2, the run stops"
    ):
        quorum.reached(7, 1, {0: "no reply"})


def test_a_run_without_any_reply_stops_with_a_reason():
    with pytest.raises(RunError, match=r"^round 3: none of the 2 .* stops \(client 4: it is ill\)$"):
        Quorum(1, 0).reached(3, 0, {9: "no reply", 4: "it is ill"})


def test_a_run_in_which_every_round_was_void_has_failed():
    void = Round(1, (0, 1), 1, {1: "its privacy budget is spent"}, 0, 0, 0.0, 0.0)
    quorum = Quorum(min_replies=2, void_rounds=9)
    quorum.require_one([])
    quorum.require_one([void, void._replace(round=2, accepted=2)])
    with pytest.raises(
        RunError, match="^no round changed the model: round 2: 1 good replies.*budget is spent"
    ):
        quorum.require_one([void, void._replace(round=2)])


# ------------------------------------------------------------------------------------- training


def test_every_training_has_a_session_and_counts_rounds_from_its_start():
    training = Training()
    assert (training.round, training.number(1)) == (0, 1)
    training.rounds.append(Round(1, (0,), 1, {}, 0, 0, 1.0, 0.0))
    training.first = 1
    assert (training.round, training.number(1)) == (1, 2)
    assert Training().session != training.session


def test_without_checkpoints_a_round_is_settled_when_the_next_begins():
    training = Training(session="s")
    assert training.stamp(5) == {"round": 5, "session": "s", "settled": 4}
    training.settled, training.ranges = 2, b"r"
    assert training.stamp(5) == {"round": 5, "session": "s", "settled": 2, "ranges": b"r"}


# ------------------------------------------------------------------------------------- private ranges


def counting(node, losses=0, **metrics):
    """Nodes that send their number three times as counts; the replies of one of them are lost."""
    left = {node: losses}

    def answer(message):
        own = message.metadata.dst_node_id
        left[own] = left.get(own, 0) - 1
        counts = np.full(3, float(own))
        return fitted(message, [counts], **{"round": 0, "session": "s"} | metrics) if left[own] < 0 else None

    return Nodes(answer, (11, 12, 13))


def agree(grid, least=1, entries=3):
    """The counts and clients from which the ranges would be found."""
    heard = []
    agreement = Agreement(entries, lambda counts, clients: heard.append((counts, clients)) or b"ranges")
    assert agreement.reach(exchange(grid, retries=1), "s", least) == b"ranges"
    return heard[0]


def test_ranges_come_from_the_counts_of_all_clients_in_their_order():
    grid = counting(12, losses=1)
    counts, clients = agree(grid)
    assert_array_equal(clients, [0, 1, 2])
    assert_array_equal(counts, np.repeat([[11.0], [12.0], [13.0]], 3, axis=1))
    assert dict(grid.sent[0].content["fitins.config"]) == {"round": 0, "session": "s", "settled": 0}


def test_a_client_without_counts_is_left_out_if_enough_remain(caplog):
    with caplog.at_level(logging.WARNING):
        _, clients = agree(counting(12, losses=9), least=2)
    assert_array_equal(clients, [0, 2])
    assert "client 1 sent no counts before round 1: no reply" in caplog.text
    with pytest.raises(RunError, match=r"^2 clients sent counts .* 3 are needed, .* \(client 1: no reply\)$"):
        agree(counting(12, losses=9), least=3)


@pytest.mark.parametrize(
    ("metrics", "entries", "reason"),
    [({"session": "t"}, 3, "another run"), ({"round": 1}, 3, "round 1, not 0"), ({}, 4, "must have shape")],
)
def test_counts_of_another_run_or_of_other_columns_are_not_used(metrics, entries, reason):
    with pytest.raises(RunError, match=reason):
        agree(counting(0, **metrics), entries=entries)


# ------------------------------------------------------------------------------------- evaluation at the sites


def evaluated(node, rows, loss, correct):
    content = {
        "evaluateres.loss": MetricRecord({"loss": loss}),
        "evaluateres.num_examples": MetricRecord({"num_examples": rows}),
        "evaluateres.metrics": ConfigRecord({"round": 2, "correct": correct}),
    }
    return Message(RecordDict(content), reply_to=Message(RecordDict(), node, "evaluate"))


def test_sites_are_asked_in_the_rounds_that_are_evaluated_only():
    evaluation = SiteEvaluation(lambda round_: round_ == 2)
    (message,) = evaluation.requests({5: 11}, record_of([Y]), 2, "s")
    assert (message.metadata.dst_node_id, message.metadata.message_type) == (11, "evaluate")
    assert dict(message.content["evaluateins.config"]) == {"round": 2, "session": "s"}
    assert evaluation.requests({5: 11}, record_of([Y]), 3, "s") == []
    assert evaluation.read([], {0: 11}, 3, private=False) is None
    assert SiteEvaluation().requests({5: 11}, record_of([Y]), 0, "s") == []


def test_what_the_sites_found_is_weighted_by_their_rows(caplog):
    evaluation = SiteEvaluation(lambda round_: True, HeldOutQuestion(sizes=[10, 30, 5]))
    replies = [evaluated(11, 10, 1.0, 5.0), evaluated(12, 30, 3.0, 30.0), evaluated(13, 6, 9.0, 0.0)]
    with caplog.at_level(logging.WARNING):
        found = evaluation.read(replies, {0: 11, 1: 12, 2: 13}, 2, private=False)
    expected = {"held_out_loss": 2.5, "held_out_accuracy": 35 / 40, "held_out_rows": 40}
    assert dict(found) == evaluation.metrics == expected
    assert "client 2 is not in the evaluation: the client must hold out 5 rows; it reports 6" in caplog.text


# ------------------------------------------------------------------------------------- waiting


@pytest.fixture
def clock(monkeypatch):
    """Time that passes only where somebody sleeps."""
    slept = []
    monkeypatch.setattr(nodes_module.time, "sleep", slept.append)
    monkeypatch.setattr(nodes_module.time, "monotonic", lambda: math.fsum(slept))
    return slept


def test_whoever_waits_for_sites_says_so_every_ten_seconds(clock, caplog):
    with pytest.raises(AbsentError, match="waited 35 s for 3 nodes"):
        meet(holding({1: 0, 2: 2}, 3), 3, timeout=35.0)
    left = [f"2 of 3 sites are here; waiting for partition 1, at most {s} s more" for s in (25, 15, 5)]
    assert caplog.messages == left


class Losing(Nodes):
    """Nodes that never get the first `lost` messages to node 2; whoever asks them waits for replies in vain."""

    def __init__(self, nodes, lost, clock):
        super().__init__(nodes.answer, nodes.present)
        self.lost, self.clock, self.asked_at = lost, clock, []

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages, timeout=timeout)
        if 2 not in {reply.metadata.src_node_id for reply in replies}:
            return replies
        self.asked_at.append(math.fsum(self.clock))
        if len(self.asked_at) <= self.lost:
            self.clock.append(timeout)
            return [reply for reply in replies if reply.metadata.src_node_id != 2]
        return replies


def test_a_node_whose_first_message_is_lost_is_asked_again_and_the_others_are_not(clock):
    grid = Losing(holding({1: 0, 2: 1}), 2, clock)
    assert meet(grid, 2, timeout=120.0) == {0: 1, 1: 2}
    np.testing.assert_allclose(grid.asked_at, [0, 20, 60], atol=0.5)
    assert grid.asked() == [1, 2, 2, 2]


class Slow(Nodes):
    """Nodes of which node 2 takes `each` seconds for one answer after the other, however long the server waits."""

    def __init__(self, nodes, each, clock):
        super().__init__(nodes.answer, nodes.present)
        self.each, self.clock, self.free, self.due = each, clock, 0.0, {}

    def send_and_receive(self, messages, *, timeout=None):
        for message in messages:
            flower_internals.number(message, len(self.sent) + message.metadata.dst_node_id)
        replies = super().send_and_receive(messages, timeout=timeout)
        for reply in (own for own in replies if own.metadata.src_node_id == 2):
            self.free = max(self.free, math.fsum(self.clock)) + self.each
            self.due[reply.metadata.reply_to_message_id] = self.free, reply
            self.clock.append(timeout)
        return [reply for reply in replies if reply.metadata.src_node_id != 2]

    def pull_messages(self, message_ids):
        ready = {id_ for id_ in message_ids if self.due[id_][0] <= math.fsum(self.clock)}
        return [self.due.pop(id_)[1] for id_ in ready]


@pytest.mark.parametrize("each", [15, 50, 110])
def test_a_slow_node_may_answer_an_earlier_question(each, clock):
    grid = Slow(holding({1: 0, 2: 1}), each, clock)
    assert meet(grid, 2, timeout=120.0) == {0: 1, 1: 2}
    assert math.fsum(clock) <= 121


def test_a_node_is_not_asked_again_shortly_before_the_end(clock):
    """A slow node that begins with a repeated request could not reply in time."""
    grid = Losing(holding({1: 0, 2: 1}), 9, clock)
    with pytest.raises(AbsentError, match="waited 39 s"):
        meet(grid, 2, timeout=39.0)
    assert 20 not in np.round(grid.asked_at)


def test_whoever_waits_for_a_node_to_return_says_so(clock, caplog):
    roster = Roster({0: 1, 1: 2})
    roster.find(holding({1: 0}), {1}, timeout=25.0)
    assert caplog.messages == ["waiting for partition 1 to return"] * 2


def test_an_absence_is_logged_once_and_then_counted(caplog):
    absences = nodes_module.Absences()
    for round_ in range(1, 22):
        absences.note(round_, [0, 1], {1: "no reply"})
    absences.note(22, [0], {})  # client 1 is not asked
    absences.note(23, [0, 1], {1: "it has lost its state"})
    absences.note(24, [1, 0], {0: "no reply"})
    absences.note(25, [1, 0], {})
    assert caplog.messages == [
        "round 1: client 1 left out: no reply",
        "round 10: client 1 left out for the 10th round in a row: no reply",
        "round 20: client 1 left out for the 20th round in a row: no reply",
        "round 23: client 1 left out: it has lost its state",
        "round 24: client 0 left out: no reply",
        "round 24: client 1 is back after 22 missed rounds",
    ]
