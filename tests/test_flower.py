"""On Flower itself: its simulation engine, its ClientApp, and the app's packaging."""

import json
import socket
import subprocess
import sys
import tomllib
import zipfile
from itertools import pairwise
from pathlib import Path

import faulty_app
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client import ClientApp
from numpy.testing import assert_array_equal
from problems import SMALL, VARIANTS, small
from site_files import two_classes

from twinflower.clients import BSDPFedPDMClient, FedPDMClient
from twinflower.clients.records import record_of
from twinflower.errors import RunError
from twinflower.flower_messages import PROPERTIES, SITE, reply_record
from twinflower.queries.held_out import HeldOut
from twinflower.simulation.app import server_app
from twinflower.simulation.report.messages import guarantee
from twinflower.simulation.results.reading import read_answers, read_rows
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.runtimes.flower import engine
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.settings import parse
from twinflower.strategies import FedPDM
from twinflower.strategies.messages import properties_request

ROOT = Path(__file__).resolve().parent.parent
PARTS = 4  # of the table of variants, which other processes run at the same time


COUNTED = {
    "privacy.mode": "public-state",
    "privacy.epsilon": 8.0,
    "privacy.evaluation-share": 0.8,
    "evaluation.held-out": 0.4,
    "evaluation.bins": 20,
}


def without_time(row):
    """A row of metrics without its time; a private run's nan, which no number equals, as None."""
    return {key: None if value != value else value for key, value in row.items() if key != "seconds"}


def require_equal(folder, config):
    """What a run on Flower's engine has left in its folder must be what the same run gives in process."""
    ours = inprocess.train(prepare(config))
    with np.load(folder / "model.npz") as models:
        assert_array_equal(models["x"], ours.model)
        assert ("points" in models) == (ours.points is not None)
        if ours.points is not None:
            assert_array_equal(models["points"], ours.points)
    if ours.information:
        with np.load(folder / "information.npz") as sums:
            assert_array_equal(sums["information"], ours.information.packed)
    assert list(map(without_time, read_rows(folder))) == list(map(without_time, ours.rows))
    scores, counted = read_answers(folder, HeldOut), ours.answers.get("evaluation")
    assert scores.keys() == (counted.scores.keys() if counted else set())
    for client, table in scores.items():
        assert_array_equal(table.cells, counted.scores[client].cells)
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["runtime"], summary["privacy"]) == ("flower", ours.summary()["privacy"])


def test_flower_gives_the_bits_of_inprocess_and_tells_failures(tmp_path):
    """40 clients, 12 sampled, on Ray; then a run that must fail."""
    large = parse(
        {"clients.count": 40, "clients.per-round": 12, "rounds": 3, "batch-size": 4, "local.max-steps": 3}
    )
    told = []
    with engine(told.append) as flower:
        flower.run(large, tmp_path / "flower")
        assert [line.split()[1] for line in told if line.startswith("round ")] == ["0", "1", "2", "3"]
        assert not [line for line in told if "INFO" in line or "Using SuperLink" in line or "Ray" in line], (
            told
        )
        assert flower.last_status() == "finished:completed"
        assert f"results: {tmp_path / 'flower'}" in flower.place.log("flwr-run").read_text()
        assert not [line for line in told if line.startswith("results: ")]  # the command says it, once
        with pytest.raises(RunError, match="no file nowhere"):
            flower.run(parse({"data.name": "libsvm:nowhere"}), tmp_path / "bad")
        assert flower.last_status() == "finished:failed"
    assert not (tmp_path / "bad" / "model.npz").exists()
    require_equal(tmp_path / "flower", large)
    done = subprocess.run(["pgrep", "-f", str(flower.home)], capture_output=True, text=True)
    assert done.stdout == ""
    assert not flower.home.exists()


@pytest.mark.slow
def test_flower_gives_the_bits_of_other_exchanges(tmp_path, monkeypatch):
    """A graph from a file beside the user, sums under masks, and runs whose clients count the scores of held-out rows
    or send information matrices."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "edges").write_text("0 1\n1 2\n2 3\n3 4\n4 5\n5 6\n6 7\n7 0\n0 4\n")
    graph = parse(SMALL, VARIANTS["zcdp-nfl-private"], {"topology.name": "file:edges"})
    rows = two_classes(tmp_path)
    sums = parse(SMALL, VARIANTS["fedpdm-sum"], {"privacy.masks": True})
    counted, inferred = parse(rows | COUNTED), parse(rows | {"evaluation.standard-errors": True})
    told = []
    with engine(told.append) as flower:
        for config, name in ((graph, "graph"), (sums, "sums"), (counted, "counted"), (inferred, "inferred")):
            flower.run(config, tmp_path / name)
    require_equal(
        tmp_path / "sums", sums.put({"privacy.masks": False})
    )  # with masks or without them, to the bit
    summary = json.loads((tmp_path / "graph" / "summary.json").read_text())
    assert all(line in told for line in guarantee([summary]))
    require_equal(tmp_path / "graph", graph)
    require_equal(tmp_path / "counted", counted)
    require_equal(tmp_path / "inferred", inferred)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_flower_gives_the_bits_of_inprocess_for_every_variant(tmp_path, part):
    """In parts, because most of a run's time is spent waiting for Flower and Ray to start and to stop."""
    with engine() as flower:
        for variant in list(VARIANTS)[part::PARTS]:
            config = small(variant).config
            flower.run(config, tmp_path / variant)
            require_equal(tmp_path / variant, config)


@pytest.mark.parametrize(
    ("variant", "client_class"), [("fedpdm", FedPDMClient), ("bsdp-top-k", BSDPFedPDMClient)]
)
def test_clients_work_in_a_plain_client_app(variant, client_class):
    setup = small(variant)
    InProcessGrid(setup)  # gives Flower's messages an identity

    def client_fn(context: Context):
        rows = setup.shards.rows(0)
        return client_class(
            context,
            setup.algorithm,
            setup.objective,
            rows,
            setup.start,
            client=0,
            num_clients=8,
            schedule=setup.schedule,
        ).to_client()

    app, context = ClientApp(client_fn), Context(1, 1, {}, RecordDict(), {})
    inbox = setup.algorithm.broadcast(
        setup.algorithm.init_server(setup.start, 8, np.array(0, np.uint64)), 1, np.array(0)
    )
    request = {
        "fitins.parameters": record_of(setup.algorithm.inbox.pack(inbox, setup.objective.d)),
        "fitins.config": ConfigRecord({"round": 1}),
    }
    reply = app(Message(RecordDict(request), 1, "train"), context).content
    assert reply["fitres.num_examples"]["num_examples"] == len(setup.shards.rows(0).labels)
    metrics = {"round": 1, "session": "1", "born": 1, "local-steps": 3, "stopped": False}
    assert dict(reply["fitres.metrics"]) == metrics
    arrays = [array.numpy() for array in reply["fitres.parameters"].values()]
    setup.algorithm.upload.unpack(arrays, setup.objective.d, inbox)
    question = Message(RecordDict({"getpropertiesins.config": ConfigRecord()}), 1, "get_properties")
    answer = app(question, context).content["getpropertiesres.properties"]
    assert dict(answer) == {"partition-id": 0, "num-partitions": 8}


def test_a_strategy_refuses_a_foreign_page():
    with pytest.raises(ValueError, match="FedPDM needs a FedPDM algorithm; got str"):
        FedPDM("fedpdm")  # type: ignore[arg-type]


def test_the_bundle_holds_the_four_packages_and_no_more(tmp_path):
    """What `flwr run` ships: everything the apps import, no tests, no results."""
    flwr_command = Path(sys.executable).parent / "flwr"
    subprocess.run([flwr_command, "build", "--app", str(ROOT)], cwd=tmp_path, check=True, capture_output=True)
    (bundle,) = tmp_path.glob("*.fab")
    names = zipfile.ZipFile(bundle).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        "pyproject.toml", "README.md", "LICENSE", ".info", "twinflower", "strategies", "clients", "simulation",
    }  # fmt: skip
    python = {str(p.relative_to(ROOT)) for top in tops for p in (ROOT / top).rglob("*.py")}
    assert python <= set(names)
    assert bundle.stat().st_size < 3 * 2**20  # Flower takes 10 MiB


def test_an_app_may_bring_its_own_twinflower(tmp_path):
    """`flwr run` looks the app's modules up in the app's folder, also where our command started it."""
    app = faulty_app.build(tmp_path / "twinflower-faulty")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        words = ["flwr", str(listening.getsockname()[1]), "build", "--app", str(app)]
        command = [sys.executable, "-P", "-m", "twinflower.simulation.runtimes.flower_commands", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.glob("*.fab"))


def test_no_federation_is_shipped():
    """`flwr run` would rewrite the user's own configuration."""
    app = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]
    assert set(app) == {"app"}


def test_a_nodes_process_imports_no_more_than_it_needs():
    """Every message to a deployed node is a new process: scikit-learn alone would take half of its time."""
    text = (
        "import sys, twinflower.simulation.app.client_app\n"
        "from twinflower.simulation.settings import parse\n"
        "from twinflower.simulation.runs.setup import prepare\n"
        "prepare(parse({'data.name': 'digits', 'clients.count': 3, 'privacy.mode': 'public-state', 'epsilon': 8.0}))\n"
        "print(*(name for name in ('sklearn', 'matplotlib', 'pandas', 'ray', 'torch') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("\n", "")


class Slow(InProcessGrid):
    """Replies come one at a time, each at a later look; the last never."""

    def push_messages(self, messages):
        self.there = [*super().push_messages(messages)]
        self.looks = 0
        return [*self.there, None]  # None: Flower could not send it

    def pull_messages(self, message_ids):
        self.looks += 1
        assert set(message_ids) <= set(self.there)
        return super().pull_messages(sorted(message_ids)[:1] if self.looks % 2 == 0 else [])

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("it waits 3 seconds between two looks")


@pytest.fixture
def no_sleep(monkeypatch):
    """Time that passes only where somebody sleeps; the sleeps."""
    slept = []
    monkeypatch.setattr(server_app.time, "sleep", slept.append)
    monkeypatch.setattr(server_app.time, "monotonic", lambda: sum(slept))
    return slept


def test_replies_are_looked_for_at_growing_intervals(no_sleep):
    setup = prepare(parse({"clients.count": 3}))
    grid = server_app.PollingGrid(Slow(setup))
    replies = grid.send_and_receive([properties_request(node) for node in (1, 2, 3)], timeout=3600.0)
    assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2, 3]
    assert len(no_sleep) == 6 and sum(no_sleep) < 3
    assert grid.send_and_receive([], timeout=3600.0) == []


def test_the_wait_for_replies_ends_at_the_timeout(no_sleep):
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    grid.grid.pull_messages = lambda ids: []
    assert grid.send_and_receive([properties_request(1)], timeout=100.0) == []
    assert 100 <= sum(no_sleep) <= 103  # the last wait is at most 3 s
    assert no_sleep == sorted(no_sleep) and no_sleep[0] == 0.2 and no_sleep[-1] == 3.0
    assert len(no_sleep) < 70


def test_a_wait_for_replies_names_the_partitions_every_ten_seconds(no_sleep, capsys):
    """No silence is longer than 10 s and the longest pause between two looks, 3 s."""
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    grid.send_and_receive([properties_request(node) for node in (1, 2, 3)], timeout=60.0)
    assert capsys.readouterr().out == ""
    grid.grid.pull_messages = lambda ids: []
    grid.send_and_receive([properties_request(node) for node in (1, 3)], timeout=60.0)
    lines = capsys.readouterr().out.splitlines()
    assert all(
        line.startswith("0 of 2 replies are here; waiting for partitions 0, 2, at most ") for line in lines
    )
    left = [60.0, *(float(line.split()[-3]) for line in lines)]
    assert len(lines) == 5 and all(9 <= a - b <= 14 for a, b in pairwise(left))


def test_the_clock_of_reminders_runs_through_all_exchanges_of_a_round(no_sleep, capsys):
    """Four exchanges of 6 s each, such as rounds and evaluations, and a line in between that counts as one."""
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    grid.grid.pull_messages = lambda ids: []
    spoken = []
    for place in range(4):
        grid.send_and_receive([properties_request(1)], timeout=6.0)
        spoken += [sum(no_sleep)] * len(capsys.readouterr().out.splitlines())
        if place == 2:
            grid.reminder.spoken()
    assert len(spoken) == 1 and 10 <= spoken[0] <= 14


def test_nodes_that_have_not_told_their_partition_are_counted(no_sleep, capsys):
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    grid.grid.pull_messages = lambda ids: []
    grid.send_and_receive([properties_request(node) for node in (1, 2, 3)], timeout=12.0)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0 of 3 replies are here; waiting for 3 nodes, at most ")
    grid.send_and_receive([properties_request(2)], timeout=12.0)
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("0 of 1 replies are here; waiting for 1 node, at most ")


def test_a_node_whose_late_reply_named_it_is_waited_for_by_its_name(no_sleep, capsys):
    """The reply to an earlier question comes by `pull_messages`; a later one says how the node is numbered."""
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    requests = [properties_request(node) for node in (1, 2)]
    grid.push_messages(requests)
    kind = reply_record(PROPERTIES, "properties")
    late = [
        Message(RecordDict({kind: ConfigRecord({SITE: name})}), reply_to=own)
        for name, own in zip(("jena", "ulm"), requests, strict=True)
    ]
    grid.grid.pull_messages = lambda ids: late
    grid.pull_messages(["earlier"])
    grid.grid.pull_messages = lambda ids: []
    grid.send_and_receive([properties_request(node) for node in (1, 2)], timeout=12.0)
    assert "waiting for sites jena, ulm, at most" in capsys.readouterr().out


def test_replies_that_are_errors_are_counted_apart(no_sleep, capsys):
    grid = server_app.PollingGrid(Slow(prepare(parse({"clients.count": 3}))))
    requests = [properties_request(node) for node in (1, 2, 3)]
    grid.grid.pull_messages = lambda ids: [Message(Error(2), reply_to=requests[0])] if len(ids) == 3 else []
    (failed,) = grid.send_and_receive(requests, timeout=12.0)
    assert failed.has_error()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("1 of 3 replies are here (1 failed); waiting for 2 nodes, at most ")
