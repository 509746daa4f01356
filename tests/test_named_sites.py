"""Nodes without a partition: the server numbers them in the order of their names, keeps that with the run, and says
so."""

import logging
import math

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from grids import Deployed
from numpy.testing import assert_array_equal
from problems import run_config, small
from test_site import NODE, guard
from test_strategy_parts import Nodes, holding

from twinflower.errors import AbsentError, RunError, SettingError
from twinflower.flower_messages import PLACES
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.release import Release
from twinflower.problems.turns import Span
from twinflower.simulation.app import client_app, server_app
from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.app.site import read_site
from twinflower.simulation.results.checkpoint import Checkpoints, restore
from twinflower.simulation.runs.ended import left_out
from twinflower.simulation.runs.run import Run
from twinflower.simulation.runtimes import flower_internals, inprocess
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.strategies import nodes as nodes_module
from twinflower.strategies.messages import fit_request, properties_request
from twinflower.strategies.nodes import Roster, meet

NAMES = ["ulm", "aachen", "jena", "bonn"]
KEYS = {"clients.count": len(NAMES), "rounds": 3, "server.node-timeout": 1.0}


@pytest.fixture(autouse=True)
def identity():
    """Without it no message can be made."""
    flower_internals.begin_run(1)


class Named(Deployed):
    """Real client apps at nodes 1, 2, ... whose configs hold no partition, but what is given."""

    def context(self, node):
        if node not in self.contexts:
            config = dict(self.nodes[node - 1])
            self.contexts[node] = Context(1, node, config, RecordDict(), dict(self.run_config))
        return self.contexts[node]


def setup_of(**keys):
    return small("fedpdm", clients__count=len(NAMES), rounds=3, clients__per_round=0, **keys)


def trained(grid, setup, checkpoints=None):
    return run_strategy(setup, grid, "deployment", checkpoints=checkpoints)


def named(setup, names=NAMES):
    return Named(setup.config.items(), *({"site": name} for name in names))


def naming(names):
    """Nodes that report these names until they are numbered, node -> name."""

    def answer(message):
        config, name = message.content["getpropertiesins.config"], names[message.metadata.dst_node_id]
        places = {key: config[key] for key in PLACES if key in config}
        properties = ConfigRecord(places or {"site": name})
        return Message(RecordDict({"getpropertiesres.properties": properties}), reply_to=message)

    return Nodes(answer, names)


# ------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("names", [NAMES, NAMES[::-1]])
def test_a_run_of_named_sites_is_that_of_clients_in_the_order_of_their_names(names, caplog):
    """With the same bits: rows, batches and sums follow the numbers, not the order in which the nodes came."""
    setup = setup_of()
    with caplog.at_level(logging.WARNING, "flwr"):
        run = trained(named(setup, names), setup)
    assert_array_equal(run.x, inprocess.train(setup).x)
    assert np.any(run.x != setup.start)
    assert run.summary()["sites"] == sorted(NAMES)
    assert "0 aachen, 1 bonn, 2 jena, 3 ulm" in caplog.text


def test_a_run_of_numbered_clients_has_no_names():
    assert inprocess.train(setup_of()).summary()["sites"] is None


def test_without_a_name_the_id_of_a_node_is_its_name():
    setup = setup_of()
    run = trained(Named(setup.config.items(), *[{}] * len(NAMES)), setup)
    assert_array_equal(run.x, inprocess.train(setup).x)
    assert run.summary()["sites"] == ["node-1", "node-2", "node-3", "node-4"]


@pytest.mark.parametrize(
    ("names", "count", "sentence"),
    [
        (["a", "b", "b"], 3, "two nodes claim to be site b: give every node its own name"),
        (["a", "b", "c"], 2, "site c is not one of the 2 sites of this run, a, b"),
        (["a", "b", "c"], 0, "site a has no partition-id, so set clients.count"),
        (["a", "b c", "d"], 3, "node 2: the name of a site is 1 to 64 letters"),
        (["a", "", "d"], 3, "node 2: the name of a site is 1 to 64 letters"),
        (["a", 7, "d"], 3, "node 2: the name of a site is 1 to 64 letters"),
    ],
)
def test_names_that_do_not_fit_are_refused_in_a_sentence(names, count, sentence):
    with pytest.raises(RunError, match=sentence):
        meet(naming(dict(enumerate(names, 1))), count, 1.0)


@pytest.mark.parametrize("first", [1, 2])
def test_names_and_partitions_do_not_mix(first):
    numbers, names = holding({first: 0}), naming({3 - first: "a"})

    def answer(message):
        return (numbers if message.metadata.dst_node_id == first else names).answer(message)

    with pytest.raises(RunError, match="give (it to all of them|all of them a partition-id), or (to )?none"):
        meet(Nodes(answer, [1, 2]), 2, 1.0)


def test_a_site_that_is_missing_is_named_once_the_names_are_known():
    with pytest.raises(RunError, match=r"only 1 reported their names: start"):
        meet(naming({1: "a"}), 2, 0.1)
    with pytest.raises(RunError, match=r"only 1 reported their names \(nobody is site b\): start"):
        meet(naming({1: "a"}), 2, 0.1, sites=["a", "b"])


def test_a_site_that_refuses_when_it_is_numbered_stops_the_run_before_round_1():
    setup = setup_of()
    grid = Named(
        setup.config.items(), *({"site": name} for name in NAMES[1:]), {"site": "ulm", "max-epsilon": 1.0}
    )
    with pytest.raises(AbsentError, match="1 of 4 sites cannot take part: site ulm: .*private runs only"):
        meet(grid, len(NAMES), 1.0)


class Forgetful(Nodes):
    """Sites a and b; b does not hear the first `lost` times that it is told its number. Time passes in `clock` only."""

    def __init__(self, lost, clock):
        super().__init__(naming({1: "a", 2: "b"}).answer, [1, 2])
        self.lost, self.clock, self.told = lost, clock, []

    def send_and_receive(self, messages, *, timeout=None):
        for place, message in enumerate(messages):
            flower_internals.number(message, place)
        replies = super().send_and_receive(messages, timeout=timeout)
        if any(PLACES[0] in message.content["getpropertiesins.config"] for message in messages):
            self.told.append(len(messages))
            if len(self.told) <= self.lost:
                self.clock.append(timeout)
                return replies[:-1]
        return replies

    def pull_messages(self, message_ids):
        return []


@pytest.fixture
def clock(monkeypatch):
    slept = []
    monkeypatch.setattr(nodes_module.time, "sleep", slept.append)
    monkeypatch.setattr(nodes_module.time, "monotonic", lambda: math.fsum(slept))
    return slept


def test_a_site_that_does_not_hear_its_number_is_told_again(clock):
    grid = Forgetful(1, clock)
    assert meet(grid, 2, 60.0) == {0: 1, 1: 2}
    assert grid.told == [2, 1] and 20 <= math.fsum(clock) < 21


def test_a_site_that_never_hears_its_number_is_named(clock):
    with pytest.raises(AbsentError, match="^1 of 2 sites cannot take part: site b: no reply$"):
        meet(Forgetful(9, clock), 2, 60.0)


# ------------------------------------------------------------------------------------- later in the run


def test_a_site_that_returns_under_a_new_id_takes_its_place_and_a_stranger_does_not(caplog):
    grid = naming({1: "a", 54: "b", 7: "c"})
    roster = Roster({0: 1, 1: 2}, ["a", "b"])
    with caplog.at_level(logging.WARNING, "flwr"):
        roster.update(grid)
    assert roster.nodes == {0: 1, 1: 54}
    assert "ignored: site c is not one of the 2 sites of this run, a, b" in caplog.text


def test_a_second_node_with_the_name_of_a_site_gets_nothing_while_the_first_is_there(caplog):
    grid = naming({1: "a", 2: "b", 54: "b"})
    roster = Roster({0: 1, 1: 2}, ["a", "b"])
    with caplog.at_level(logging.WARNING, "flwr"):
        roster.update(grid)
    assert roster.nodes == {0: 1, 1: 2}
    assert "a second node for site b waits until the first is gone" in caplog.text


def test_a_run_that_goes_on_keeps_its_numbers(tmp_path):
    """The sites come in another order; one of them under another name would be another client."""
    setup = setup_of()
    whole = trained(named(setup), setup)

    class Cut(Named):
        def answer(self, message):
            if message.metadata.group_id == "3":
                raise KeyboardInterrupt
            return super().answer(message)

    grid = Cut(setup.config.items(), *({"site": name} for name in NAMES))
    with pytest.raises(KeyboardInterrupt):
        trained(grid, setup, Checkpoints(tmp_path, 1))
    saved, _ = Checkpoints(tmp_path, 1).newest()
    run = Run(setup=setup, runtime="deployment", server=whole.server)
    restore(saved, [run], None)
    assert run.sites == sorted(NAMES)
    back = named(setup)
    back.contexts = {node: grid.context(node) for node in grid.get_node_ids()}
    assert_array_equal(trained(back, setup, Checkpoints(tmp_path, 1)).x, whole.x)
    stranger = trained(named(setup, ["trier", *NAMES[1:]]), setup, Checkpoints(tmp_path, 1))
    assert "site trier is not one of the 4 sites of this run" in stranger.failure


def test_messages_about_a_site_give_its_name(caplog, monkeypatch, capsys):
    setup = setup_of()

    class Losing(Named):
        """The replies of jena are lost, in round 2 those of all sites."""

        def push_messages(self, messages):
            ids = super().push_messages(messages)
            for id_, message in zip(ids, messages, strict=True):
                jena = self.context(message.metadata.dst_node_id).node_config["site"] == "jena"
                if message.metadata.group_id == "2" or (jena and message.metadata.group_id):
                    del self._replies[id_]
            return ids

    grid = Losing(setup.config.items(), *({"site": name} for name in NAMES))
    with caplog.at_level(logging.WARNING, "flwr"):
        run = trained(grid, setup)
    assert "round 1: site jena left out: no reply" in caplog.text
    assert (
        run.failure == "round 2: none of the 4 replies could be used, the run stops (site aachen: no reply)"
    )
    (warning,) = left_out(run.rounds, setup.partition.sizes, True, run.sites)[-1:]
    assert warning.startswith("no reply of site jena was used")
    slept = []
    monkeypatch.setattr(server_app.time, "sleep", slept.append)
    monkeypatch.setattr(server_app.time, "monotonic", lambda: math.fsum(slept))
    polling = server_app.PollingGrid(Named(setup.config.items(), *({"site": name} for name in NAMES)))
    meet(polling, len(NAMES), 30.0)
    polling.grid.pull_messages = lambda ids: []
    polling.send_and_receive([properties_request(node) for node in (1, 3)], timeout=12.0)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0 of 2 replies are here; waiting for sites jena, ulm, at most ")


# ------------------------------------------------------------------------------------- at the node


def reply_of(node, message):
    return client_app.app(message, Context(1, 77, node, RecordDict(), run_config(setup_of().config.items())))


def test_a_node_asked_for_its_partition_gives_its_name_and_nothing_else_without_a_number():
    (record,) = reply_of({"site": "ulm"}, properties_request(77)).content.config_records.values()
    assert dict(record) == {"site": "ulm"}
    (record,) = reply_of({}, properties_request(77)).content.config_records.values()
    assert dict(record) == {"site": "node-77"}
    refused = reply_of({"site": "ulm"}, fit_request(77, ArrayRecord(), {"round": 1}))
    assert "this node has no partition-id" in refused.error.reason


@pytest.mark.parametrize("places", [(2, 2), (-1, 2), (True, 2), (0.0, 2), ("0", 2), (0, None)])
def test_a_number_that_is_none_is_no_number(places):
    config = {"round": 1} | {key: own for key, own in zip(PLACES, places, strict=True) if own is not None}
    assert "no partition-id" in reply_of({}, fit_request(77, ArrayRecord(), config)).error.reason


def test_a_node_with_a_partition_takes_no_other():
    message = fit_request(77, ArrayRecord(), {"round": 1, "partition-id": 1, "num-partitions": 4})
    assert (
        "did not accept the request"
        in reply_of({"partition-id": 0, "num-partitions": 4}, message).error.reason
    )
    half = reply_of({"partition-id": 0}, message)
    assert "cannot answer" in half.error.reason


def test_a_site_takes_no_second_number_in_a_run(tmp_path):
    """Rounds under two numbers are about two permutations of the rows, so a record would be in more of them."""
    node = NODE | {"state-dir": str(tmp_path), "lifetime-epsilon": 100.0, "site": "ulm"}
    guard(node).open(Release(1.0), 1, "session", Span(1, 0, 1, 4))
    guard(node).open(Release(1.0), 2, "session", Span(1, 1, 1, 4))
    with pytest.raises(BudgetSpent, match="this session was charged for a run with other settings"):
        guard(node | {"partition-id": 1}).open(Release(1.0), 3, "session", Span(1, 2, 1, 4))
    assert [path.name for path in tmp_path.glob("*.ledger")] == ["node-ulm.ledger"]


def test_names_in_the_node_config_have_a_rule():
    with pytest.raises(SettingError, match="site must be 1 to 64 letters"):
        read_site({"site": "hospital b", "partition-id": 0, "num-partitions": 2})
    with pytest.raises(SettingError, match='or a name, "site=NAME"'):
        read_site({"site": "hospital-b"})


def test_a_named_node_is_checked_with_the_number_that_it_will_have(tmp_path):
    run = dict(setup_of().config.items())
    right, wrong = check_node("site='ulm'")
    assert right[0].startswith("config: site ulm; takes part") and not wrong
    with pytest.raises(SettingError, match="give it with --number I/N"):
        check_node("site='ulm'", run)
    right, wrong = check_node("site='ulm'", run, "3/4")
    assert right[-1] == "run: the site takes part; it is without privacy"
    _, (refused,) = check_node("site='ulm'", run, "3/5")
    assert "clients.count is 4, but there are 5 nodes" in refused
    for number in ("4/4", "three", "1"):
        with pytest.raises(SettingError, match="--number is|partition-id must be below"):
            check_node("site='ulm'", run, number)
    with pytest.raises(SettingError, match="the node config has a partition, so leave out --number 0/4"):
        check_node("partition-id=0 num-partitions=4", run, "0/4")
