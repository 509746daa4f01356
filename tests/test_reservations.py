"""Budgets that do not suffice are found before the first round, and what a run has reserved is released."""

import logging
import re
from contextlib import contextmanager

import numpy as np
import pytest
from cuts import PowerCut
from flwr.app import Context, RecordDict
from grids import Deployed
from problems import run_config
from site_files import three_sites
from test_sites import SCHEMA, table

from twinflower.errors import AbsentError, ReplyError
from twinflower.privacy import Budget, gdp_mu
from twinflower.privacy.charges import Charge, total_cost
from twinflower.privacy.ledger import read_ledger
from twinflower.rounds import Round
from twinflower.simulation.app import client_app
from twinflower.simulation.app.client_app import ledger_of_site
from twinflower.simulation.app.node_check import check_node
from twinflower.simulation.app.site import read_site
from twinflower.simulation.cli import main
from twinflower.simulation.report.messages import guarantee
from twinflower.simulation.results.checkpoint import Checkpoints
from twinflower.simulation.runs.ended import left_out
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.rehearsal import at_sites
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import parse
from twinflower.strategies.messages import properties_request
from twinflower.strategies.nodes import meet

LIFETIME = 10.0


@pytest.fixture
def setup(tmp_path):
    """A private run of epsilon 7 in 5 rounds at three deployed sites, as the server prepares it."""
    keys = three_sites(tmp_path, SCHEMA, table, (40, 60, 50, 100))
    keys |= {"privacy.mode": "public-state", "privacy.epsilon": 7.0, "rounds": 5}
    config, _ = at_sites(prepare(parse(keys)))
    return prepare(config)


def node_config(tmp_path, setup, number):
    return {
        "partition-id": number,
        "num-partitions": 3,
        "data-file": str(tmp_path / f"site-{number}.csv"),
        "schema": setup.config.data.schema,
        "lifetime-epsilon": LIFETIME,
        "state-dir": str(tmp_path / f"state-{number}"),
    }


def ledger_at(tmp_path, setup, number):
    return ledger_of_site(read_site(node_config(tmp_path, setup, number)))


class Nodes(InProcessGrid):
    """The three sites. silent: (round, client) whose requests are lost."""

    def __init__(self, setup, folder, silent=()):
        super().__init__(setup)
        self.folder, self.silent = folder, silent

    def client(self, node):
        if node not in self._clients:
            config = node_config(self.folder, self.setup, node - 1)
            self._clients[node] = client_app.client_fn(
                Context(1, node, config, RecordDict(), run_config(self.setup.config.items()))
            ).numpy_client
        return self._clients[node]

    def push_messages(self, messages):
        kept = [
            m for m in messages
            if (int(m.metadata.group_id or 0), m.metadata.dst_node_id - 1) not in self.silent
        ]  # fmt: skip
        return super().push_messages(kept)


def run(setup, tmp_path, silent=(), runtime="deployment"):
    return run_strategy(setup, Nodes(setup, tmp_path, silent), runtime)


@contextmanager
def flower_log(caplog):
    logging.getLogger("flwr").addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "flwr"):
        yield
    logging.getLogger("flwr").removeHandler(caplog.handler)


def spend(ledger, epsilon):
    mu_squared = gdp_mu(epsilon, 1e-4) ** 2
    ledger.charge(Charge("earlier", 1, 1.0, 1.0, 1, mu_squared), Budget(mu_squared))


def test_a_site_whose_budget_does_not_suffice_stops_the_run_before_anybody_pays(setup, tmp_path, caplog):
    spend(ledger_at(tmp_path, setup, 2), 8.0)
    with flower_log(caplog):
        result = run(setup, tmp_path)
    assert "1 of 3 nodes cannot take part (nobody holds partition 2)" in result.failure
    assert (
        "it refuses: its privacy budget is spent, reserved by other runs, or too small for the run"
        in result.failure
    )
    assert "the run is refused: the run plans epsilon 7, and of the lifetime budget epsilon 10" in caplog.text
    assert [len(charges_at(tmp_path, setup, number)) for number in range(3)] == [0, 0, 1]


def test_so_does_one_whose_ledger_is_damaged(setup, tmp_path):
    ledger = ledger_at(tmp_path, setup, 1)
    spend(ledger, 1.0)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"earlier", b"Earlier"))
    result = run(setup, tmp_path)
    assert "1 of 3 nodes cannot take part" in result.failure and not charges_at(tmp_path, setup, 0)


def test_so_does_one_that_cannot_write_its_state_dir(setup, tmp_path, caplog):
    """Through the whole app, mods included: the server learns that, and the site's own log which folder and why."""
    (tmp_path / "full").touch()
    nodes = [node_config(tmp_path, setup, number) for number in range(3)]
    nodes[1]["state-dir"] = str(tmp_path / "full" / "state")
    keys = dict(setup.config.items())
    with flower_log(caplog), pytest.raises(AbsentError) as stopped:
        meet(Deployed(keys, *nodes), 3, 1.0, session="a run")
    sentence = "1 of 3 nodes cannot take part (nobody holds partition 1): node 2: this site cannot write its state-dir"
    assert str(stopped.value) == f"{sentence}; the site's own log says why"
    assert (
        f"twinflower: state-dir {tmp_path / 'full' / 'state'} cannot be written (Not a directory)"
        in caplog.text
    )
    assert not list(tmp_path.rglob("*.ledger"))
    nodes[1]["state-dir"] = str(tmp_path / "state-1")
    assert len(meet(Deployed(keys, *nodes), 3, 1.0, session="a run")) == 3


def test_a_site_logs_what_it_clips_when_a_run_begins_and_not_with_every_message(tmp_path, caplog):
    keys = three_sites(tmp_path, SCHEMA, lambda *_: table(*_).replace("\n2", "\n9"), (40, 60, 50, 100))
    config, _ = at_sites(prepare(parse(keys | {"privacy.mode": "public-state", "privacy.epsilon": 7.0})))
    nodes = [node_config(tmp_path, prepare(config), number) for number in range(3)]
    grid = Deployed(dict(config.items()), *nodes)
    with flower_log(caplog):
        replies = grid.send_and_receive([properties_request(node) for node in (1, 2, 3)])
        assert not any(reply.has_error() for reply in replies) and "clipped" not in caplog.text
        meet(grid, 3, 1.0, session="a run")
    said = {id(record): record.getMessage() for record in caplog.records if "clipped" in record.getMessage()}
    assert len(said) == 3  # a record may be captured twice, by two loggers
    assert all(
        "twinflower: values clipped to their range in" in line and "age: " in line for line in said.values()
    )
    text = " ".join(check_node(words(nodes[0]), dict(config.items()))[0])
    assert "values clipped to their range in" in text


NOTHING = ["privacy: nothing was released, and nothing is charged"]


@pytest.mark.parametrize("every", [0, 1], ids=["without checkpoints", "with checkpoints"])
@pytest.mark.parametrize("of_age", ["[20, 80]", '"private"'], ids=["rounds", "counts before them"])
def test_a_run_that_does_not_begin_says_that_nothing_was_released(tmp_path, of_age, every):
    """There is nothing to resume, and no site has reserved anything that it could give up."""
    own = SCHEMA.replace("[20, 80]", of_age)
    keys = three_sites(tmp_path, own, table, (40, 60, 50, 100))
    keys |= {"privacy.mode": "public-state", "privacy.epsilon": 7.0, "rounds": 5}
    config, _ = at_sites(prepare(parse(keys)))
    refused = prepare(config)
    spend(ledger_at(tmp_path, refused, 2), 8.0)
    checkpoints = Checkpoints(tmp_path / "server", every)
    result = run_strategy(refused, Nodes(refused, tmp_path), "deployment", checkpoints=checkpoints)
    summary = result.summary()
    assert "cannot take part" in summary["failure"] and guarantee([summary]) == NOTHING


class CutInCounts(Nodes):
    """The server dies when the last site has answered what is asked before round 1."""

    def answer(self, message):
        reply = super().answer(message)
        if message.metadata.message_type == "train" and message.metadata.dst_node_id == 3:
            raise PowerCut
        return reply


def test_a_run_that_was_cut_off_after_its_counts_does_not_end_as_one_that_cost_nothing(tmp_path):
    """It has no checkpoint yet, and the server that goes on does not know what the sites have charged."""
    keys = three_sites(tmp_path, SCHEMA.replace("[20, 80]", '"private"'), table, (40, 60, 50, 100))
    keys |= {"privacy.mode": "public-state", "privacy.epsilon": 7.0, "rounds": 5}
    config, _ = at_sites(prepare(parse(keys)))
    setup, checkpoints = prepare(config), Checkpoints(tmp_path / "server", 1)
    with pytest.raises(PowerCut):
        run_strategy(setup, CutInCounts(setup, tmp_path), "deployment", checkpoints=checkpoints)
    assert [len(charges_at(tmp_path, setup, number)) for number in range(3)] == [1, 1, 1]
    again = prepare(config.put({"output.resume-from": str(checkpoints.folder)}))
    with pytest.raises(AbsentError, match="cannot take part"):  # the rest of the first plan is still reserved
        run_strategy(again, Nodes(again, tmp_path), "deployment", checkpoints=checkpoints)


def test_a_site_that_refuses_a_round_released_nothing_in_it(setup, tmp_path):
    """Every lifetime is spent between the meeting and round 1, as when another run has begun."""

    class Spent(Nodes):
        def push_messages(self, messages):
            for number in range(3) if any(m.metadata.group_id == "1" for m in messages) else ():
                spend(ledger_at(tmp_path, setup, number), 8.0)
            return super().push_messages(messages)

    summary = run_strategy(setup, Spent(setup, tmp_path), "deployment").summary()
    assert "it refuses" in summary["failure"] and guarantee([summary]) == NOTHING


def charges_at(tmp_path, setup, number):
    path = ledger_at(tmp_path, setup, number).path
    return read_ledger(path).charges if path.exists() else []


def test_a_second_run_is_refused_while_the_first_goes_on_and_the_first_ends(setup, tmp_path, caplog):
    """The second server meets the sites after round 2 of the first."""
    second = []

    class Both(Nodes):
        def push_messages(self, messages):
            messages = list(messages)
            if not second and any(m.metadata.group_id == "3" for m in messages):
                second.append(run(setup, tmp_path))
            return super().push_messages(messages)

    with flower_log(caplog):
        first = run_strategy(setup, Both(setup, tmp_path), "deployment")
    assert "3 of 3 nodes cannot take part" in second[0].failure and not first.failure
    assert f"reserved by run {first.session}" in caplog.text and "--give-up" in caplog.text
    for number in range(3):
        charges = charges_at(tmp_path, setup, number)
        assert [(c.run, c.round) for c in charges] == [(first.session, t) for t in range(1, 6)]
        np.testing.assert_allclose(total_cost(charges), gdp_mu(7.0, 1e-4) ** 2)
        assert not read_ledger(ledger_at(tmp_path, setup, number).path).reserved
    for round_ in range(1, 6):
        assert f"round {round_} of run {first.session} is charged: mu^2" in caplog.text


def test_what_a_site_has_missed_is_released_at_the_end_and_named(setup, tmp_path):
    result = run(setup, tmp_path, silent={(2, 1), (5, 1)})
    found = read_ledger(ledger_at(tmp_path, setup, 1).path)
    assert [charge.round for charge in found.charges] == [1, 3, 4] and not found.reserved
    assert "warning: client 1 was left out of 2 of 5 rounds" in result.summary()["warnings"]


def test_a_site_that_is_away_at_the_end_is_named_with_the_command_that_gives_its_reserve_up(
    setup, tmp_path, monkeypatch, capsys
):
    class Leaving(Nodes):
        """Node 2 leaves after round 3."""

        def get_node_ids(self):
            return [1, 3] if self.left else [1, 2, 3]

        def push_messages(self, messages):
            self.left = self.left or any(m.metadata.group_id == "4" for m in messages)
            return super().push_messages(messages)

        left = False

    result = run_strategy(setup, Leaving(setup, tmp_path, {(4, 1), (5, 1)}), "deployment")
    (warning,) = (text for text in result.summary()["warnings"] if "reserved" in text)
    assert warning == (
        "warning: client 1 did not hear that the run has ended, and may keep the budget that it reserved; to give that "
        f"up, at the site: twinflower ledger STATE-DIR --give-up {result.session}"
    )
    command = warning.partition("twinflower ")[2].replace("STATE-DIR", str(tmp_path / "state-1")).split()
    assert f"which run {result.session} had reserved in" in told(monkeypatch, capsys, *command)
    assert not read_ledger(ledger_at(tmp_path, setup, 1).path).reserved


def test_a_client_that_never_took_part_is_named_with_its_share_of_the_rows(setup, tmp_path):
    silent = {(round_, 1) for round_ in range(1, 6)}
    result = run(setup, tmp_path, silent)
    sentence = "warning: no reply of client 1 was used: the model is without 40% of the rows"
    assert sentence in result.summary()["warnings"] and not result.failure


def test_many_clients_that_were_left_out_are_not_all_named():
    rounds = [Round(1, tuple(range(9)), 1, dict.fromkeys(range(8), "no reply"), 0, 0, 1.0, 0.0)]
    (text,) = left_out(rounds, np.ones(9, int), deployed=True)
    assert text == "no reply of clients 0, 1, 2, 3, 4, ... was used: the model is without 89% of the rows"


def interrupted(setup, tmp_path):
    """Node 0 after two rounds of a run; the run's session."""
    client = Nodes(setup, tmp_path).client(1)
    for round_ in (1, 2):
        client.fit([setup.start], {"round": round_, "session": "a run"})
    return client


def words(node):
    return " ".join(f"{key}={value!r}" for key, value in node.items())


def told(monkeypatch, capsys, *arguments):
    monkeypatch.setattr("sys.argv", ["twinflower", *map(str, arguments)])
    with pytest.raises(SystemExit):
        main()
    return " ".join(" ".join(capsys.readouterr()).split())


def test_an_interrupted_run_is_given_up_by_the_command(setup, tmp_path, monkeypatch, capsys):
    interrupted(setup, tmp_path)
    ledger, state = ledger_at(tmp_path, setup, 0), tmp_path / "state-0"
    assert "no run other has reserved anything" in told(
        monkeypatch, capsys, "ledger", state, "--give-up", "other"
    )
    charges = ledger.charges()
    assert "which run a run had reserved in" in told(
        monkeypatch, capsys, "ledger", state, "--give-up", "a run"
    )
    assert not read_ledger(ledger.path).reserved and ledger.charges() == charges
    ledger.check_plan("another", "", Budget(9.0, planned=gdp_mu(8.0, 1e-4) ** 2))
    assert "takes no other option" in told(
        monkeypatch, capsys, "ledger", state, "--give-up", "a run", "--openmetrics", tmp_path / "x.prom"
    )


def test_check_node_asks_for_the_rest_of_a_run_that_is_resumed(setup, tmp_path):
    """Three of five rounds are left, of which the lifetime has room; for a whole run it has none."""
    interrupted(setup, tmp_path)
    config, keys = words(node_config(tmp_path, setup, 0)), dict(setup.config.items())
    right, (wrong,) = check_node(config, keys)
    assert "reserved by run a run" in wrong
    assert re.search(
        r"budget: .*; epsilon 5\.\d+ is reserved for the rest of run a run; a run may plan", " ".join(right)
    )
    right, wrong = check_node(config, keys | {"output.resume-from": "/server/runs/1"})
    assert not wrong and "goes on with run a run, of which epsilon 5" in right[-1]


def test_a_question_that_is_repeated_changes_no_ledger(setup, tmp_path):
    """A server asks nodes again whose reply has not come, and these answer every request."""
    client, path = interrupted(setup, tmp_path), ledger_at(tmp_path, setup, 0).path
    before = path.read_bytes()
    places = {"partition-id": 0, "num-partitions": 3}
    assert [client.get_properties({"begins": "a run"}) for _ in range(3)] == [places] * 3
    assert path.read_bytes() == before


def test_the_end_of_a_session_is_its_own(setup, tmp_path):
    client = interrupted(setup, tmp_path)
    with pytest.raises(ReplyError, match="another session"):
        client.get_properties({"ends": "another"})
    client.get_properties({"ends": "a run"})
    assert not read_ledger(ledger_at(tmp_path, setup, 0).path).reserved


def test_a_run_that_fails_for_good_releases_its_rest(setup, tmp_path):
    """No site answers in round 3, and there are no checkpoints."""
    result = run(setup, tmp_path, silent={(3, number) for number in range(3)})
    assert "round 3" in result.failure
    for number in range(3):
        found = read_ledger(ledger_at(tmp_path, setup, number).path)
        assert [charge.round for charge in found.charges] == [1, 2] and not found.reserved
