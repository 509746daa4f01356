"""The fault matrix, on real SuperLink and SuperNode processes: `python -m pytest -m deployment`.

Each run is compared with the in-process runtime under the same losses: the model must have the same bits. With the
environment variable TWINFLOWER_FAULT_TABLE set to a file, a table of all faults goes there.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import faulty_app
import numpy as np
import pytest
from deployed import (
    await_,
    expected,
    kill,
    kill_node,
    log_of,
    resume,
    rounds_in,
    start,
    status_of,
    stop_superlink,
    wait_for,
)
from documents import documented, run_documented
from numpy.testing import assert_array_equal
from problems import VARIANTS

import twinflower.simulation.runtimes.rehearsal
from twinflower.algorithms import ALGORITHMS
from twinflower.clients.sums import Masks
from twinflower.data.schema_file import read_schema
from twinflower.errors import RunError
from twinflower.privacy.ledger import FileLedger, read_ledger
from twinflower.simulation.report.messages import guarantee
from twinflower.simulation.results.reading import read_summary
from twinflower.simulation.runs.client_factory import store_of
from twinflower.simulation.runs.identity import read_identity
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess, janitor
from twinflower.simulation.runtimes.flower import SUPERLINK
from twinflower.simulation.runtimes.rehearsal import Deployment, deployment, exchange_keys, rehearse
from twinflower.simulation.settings import parse
from twinflower.sums.grid import add
from twinflower.sums.masks import roster_of

pytestmark = pytest.mark.deployment
PROJECT = Path(__file__).resolve().parent.parent

JOB = {"clients.count": 3, "batch-size": 20, "local.max-steps": 3, "round-timeout": 300.0}
ROWS: list[tuple[str, str, str]] = []


def note(fault, run, state):
    """A row of the table."""
    ROWS.append((fault, run, state))


SCHEMA = """
[label]
column = "ill"
classes = [0, 1]
[columns]
age = { range = [20, 80] }
"""
TABLE = "age,ill\n30,0\n40,1\n50,1\n"


@pytest.fixture(scope="module", autouse=True)
def table():
    yield
    if path := os.environ.get("TWINFLOWER_FAULT_TABLE"):
        lines = ["| fault | what the run did | duals, ledger, trajectory |", "|---|---|---|"]
        Path(path).write_text("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in ROWS)]) + "\n")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return faulty_app.build(tmp_path_factory.mktemp("app") / "twinflower-faulty")


def test_replies_that_are_wrong(tmp_path, app):
    """One run: client 1 does another thing wrong in every round; in the last but one nobody answers."""
    kinds = ["raises", "raises-late", *faulty_app.AFTER, "asked-twice"]
    plan = {kind: round_ for round_, kind in enumerate(kinds, 2)}
    silent = len(kinds) + 2
    keys = JOB | {
        "algorithm": "bsdp-fedpdm",
        "uplink-ratio": 0.3,
        "rho": 0.5,
        "step-size": 0.4,
        "void-rounds": 1,
    }
    config = parse(keys | {"rounds": silent + 1})
    everyone = f"raises@{silent}"
    words = {"n1": {"faults": " ".join(f"{kind}@{r}" for kind, r in plan.items()) + f" {everyone}"}}
    words |= {f"n{i}": {"faults": everyone} for i in (0, 2)}
    with deployment() as running:
        start(running, 3, **words)
        running.run(config, tmp_path / "run", app)
        assert running.last_status() == "finished:completed"
    told = rounds_in(tmp_path / "run")
    bad = {round_: kind for kind, round_ in plan.items() if kind != "asked-twice"}
    for done in told:
        wrong = ["0", "1", "2"] if done["round"] == silent else ["1"] if done["round"] in bad else []
        assert list(done["rejected"]) == wrong, done
        for reason in done["rejected"].values():
            assert reason
    lost = {(1, r) for r, kind in bad.items() if kind != "raises"}
    idle = {(1, plan["raises"]), *((i, silent) for i in range(3))}
    same = expected(config, lost, idle)
    assert_array_equal(np.load(tmp_path / "run" / "model.npz")["x"], same.model)
    for round_, kind in sorted(bad.items()):
        note(
            f"client: {kind}",
            f"left out: {told[round_ - 1]['rejected']['1'][:70]}",
            "same bits as in process",
        )
    note("request repeated", "the stored bytes again", "same bits; the dual moved once")
    note(
        "zero replies",
        "the round changes nothing (`void-rounds = 1`); without it the run stops",
        "same bits",
    )


def test_nodes_that_die(tmp_path, app):
    """SCAFFOLD: node 1 is killed and comes back with its state, node 2 without; both before Flower has missed them."""
    keys = JOB | {"algorithm": "scaffold", "step-size": 0.4, "checkpoint-every": 1, "rounds": 14}
    keys |= {"round-timeout": 25.0}
    config, folder = parse(keys), tmp_path / "run"
    with deployment() as running:
        own = {"n2": {"state-dir": ""}}
        start(running, 3, **own)
        process = running.begin(config, folder, app)
        wait_for(folder, 2, process)
        kill_node(running, 1)
        kill_node(running, 2)
        time.sleep(5)
        running.start_node(1, 3, {"state-dir": str(running.home / "state-1")})
        running.start_node(2, 3)
        process.wait(timeout=600)
        assert running.last_status() == "finished:completed", running.place.end_of("flwr-run")
    told = rounds_in(folder)
    absent = {
        (int(c), done["round"]) for done in told for c, why in done["rejected"].items() if why == "no reply"
    }
    refused = {
        (int(c), d["round"]) for d in told for c, why in d["rejected"].items() if "lost its state" in why
    }
    assert absent and {c for c, _ in absent} <= {1, 2}
    assert {c for c, _ in refused} == {2}
    back = [
        d["round"]
        for d in told
        if "1" not in d["rejected"] and d["round"] > max(r for c, r in absent if c == 1)
    ]
    assert back, "node 1 never came back"
    same = expected(config, idle=absent | refused)
    assert_array_equal(np.load(folder / "model.npz")["x"], same.model)
    missed = len({r for c, r in absent if c == 1})
    note(
        "kill -9 of a node, restart with state-dir",
        f"missing in {missed} round(s), then known by its partition",
        "same bits as in process with those rounds missed",
    )
    note(
        "kill -9 of a node, restart without state-dir",
        "SCAFFOLD refuses it: it has lost its state",
        "same bits; the mean of the c_i stays right",
    )


def test_a_client_that_is_too_late(tmp_path, app):
    """On a slow machine others may be too late as well; every late reply has been computed, and is ignored."""
    keys = JOB | {"algorithm": "feddyn", "alpha": 0.5, "step-size": 0.4, "rounds": 6, "round-timeout": 20.0}
    config = parse(keys | {"void-rounds": 6})
    with deployment() as running:
        start(running, 3, n1={"faults": "slow@2"})
        running.run(config, tmp_path / "run", app)
    told = rounds_in(tmp_path / "run")
    assert told[1]["rejected"]["1"] == "no reply"
    late = {int(d["round"]) for d in told if "1" in d["rejected"]}
    assert late < {1, 2, 3, 4, 5, 6}
    same = expected(config, lost={(int(client), d["round"]) for d in told for client in d["rejected"]})
    assert_array_equal(np.load(tmp_path / "run" / "model.npz")["x"], same.model)
    note(
        "slow client, past the deadline",
        f"left out of {len(late)} round(s), its late reply is ignored",
        "same bits; FedDyn's echo drops the step nobody counted",
    )


def documented_status(running):
    """Of the newest run, by the command of docs/deployment.md."""
    runs = json.loads(running.flwr("ls", "ours", "--format", "json"))["runs"]
    newest = max(runs, key=lambda run: run["pending-at"])
    one = running.flwr("ls", "ours", "--run-id", str(newest["run-id"]), "--format", "json")
    return json.loads(one)["runs"][0]["status"]


def test_the_server_is_killed_and_resumed(tmp_path, app):
    keys = JOB | {"algorithm": "scaffold", "step-size": 0.4, "checkpoint-every": 2, "rounds": 7}
    config, folder = parse(keys), tmp_path / "run"
    with deployment() as running:
        start(running, 3)
        process = running.begin(config, folder, app)
        wait_for(folder, 2, process)
        time.sleep(9)  # into the third or fourth round
        kill(running, "flwr-serverapp")
        assert (
            process.wait(timeout=300) == 0
        )  # Flower's exit status says nothing, as docs/deployment.md warns
        assert running.last_status() != "finished:completed"
        assert not (folder / "summary.json").exists()
        running.flwr("run", str(app), "ours", "--stream", "--run-config", str(folder / "resume.toml"))
        assert documented_status(running) == running.last_status() == "finished:completed"
        assert not (folder / "resume.toml").exists()
    assert_array_equal(np.load(folder / "model.npz")["x"], expected(config).model)
    assert [done["round"] for done in rounds_in(folder)] == list(range(1, 8))
    note(
        "kill -9 of the server app, `flwr run --run-config FOLDER/resume.toml`",
        "goes on behind the last checkpoint; rounds done again get the stored replies",
        "same bits as a run that was never cut off",
    )


def test_a_superlink_that_stands_still_for_more_than_a_minute(tmp_path, app):
    """Flower fails the run and tells nobody; `twinflower status` says why, and with which command it goes on."""
    keys = JOB | {"algorithm": "scaffold", "step-size": 0.4, "checkpoint-every": 1, "rounds": 4}
    config, folder = parse(keys), tmp_path / "run"
    with deployment() as running:
        start(running, 3)
        process = running.begin(config, folder, app)
        wait_for(folder, 1, process)
        stop_superlink(running, 62)
        process.wait(timeout=300)
        assert documented_status(running) == "finished:failed"
        await_(lambda: "one of the two stood still" in status_of(folder), "the cause")
        again = resume(running, folder, app)
        again.wait(timeout=600)
        assert documented_status(running) == "finished:completed"
    assert not (folder / "cut-off.txt").exists()
    assert_array_equal(np.load(folder / "model.npz")["x"], expected(config).model)
    note(
        "the SuperLink stands still for 62 s",
        "fails, and says nothing; `twinflower status FOLDER` says why and names the command that continues it",
        "same bits as a run that was never cut off",
    )


def test_a_superlink_that_is_stopped_while_its_log_is_read(tmp_path, app):
    """It refuses all requests, and waits for the log to end; `twinflower status` says so within some seconds."""
    config, folder = parse(JOB | {"algorithm": "fedavg", "step-size": 0.4, "rounds": 50}), tmp_path / "run"
    with deployment() as running:
        start(running, 3)
        process = running.begin(config, folder, app)
        await_(lambda: (folder / "config.toml").exists(), "the run")
        link = running.place.running.pop(SUPERLINK)
        link.send_signal(signal.SIGTERM)
        began = time.monotonic()
        await_(lambda: "the SuperLink has answered no request since" in status_of(folder), "the silence")
        assert time.monotonic() - began < 25 and link.poll() is None
        assert process.wait(timeout=300) == 0 and link.wait(timeout=300) in (0, -signal.SIGTERM)
    note(
        "SIGTERM to the SuperLink while `flwr run --stream` reads its log",
        "`twinflower status` says so after 10 s",
        "",
    )


def test_tls_and_registered_nodes_only(tmp_path):
    """A private run under TLS; a node with a key that nobody registered stays outside."""
    config = parse(
        {"privacy.mode": "public-state", "epsilon": 8.0, "clients.count": 3, "rounds": 3, "rho": 0.05}
    )
    setup = prepare(config)
    own = {"lifetime-epsilon": 8.1}
    told = []
    with deployment(secure=True, say=told.append) as running:
        for number in range(3):
            running.register(number)
            running.start_node(number, 3, own | {"state-dir": str(running.home / f"state-{number}")})
        from twinflower.simulation.runtimes.rehearsal import make_node_key

        make_node_key(running.home / "stranger")
        running.start_node(3, 4, own, key="stranger")
        running.run(config, tmp_path / "run")
        nodes = running.flwr("supernode", "ls", "ours", "--format", "json")
        assert nodes.count('"online"') == 3
        log = log_of(running, "node-3").lower()
        assert "unauthenticated" in log or "not registered" in log or "permission" in log or "305" in log, (
            log[-2000:]
        )
        for number in range(3):
            (path,) = (running.home / f"state-{number}").glob("*.ledger")
            ledger = FileLedger(path, path.read_text().split('"data": "')[1].split('"')[0], 8.1, 1e-4)
            costs = [charge.cost for charge in ledger.charges()]
            assert len(costs) == 3
            assert sum(costs) == pytest.approx(setup.plan.mu_limit**2)
    summary = read_summary(tmp_path / "run")
    assert summary["finished"]
    assert all(line in told for line in guarantee([summary]))
    assert "seeded" not in summary["privacy"]["guarantee"]
    note("unregistered node, TLS", "kept out by the SuperLink", "ledgers of the others hold the planned cost")


def test_the_documented_certificates_and_keys(tmp_path, monkeypatch):
    """The openssl and ssh-keygen lines of docs/deployment.md, in place of what the rehearsal makes itself."""

    def node_key(path):
        line = documented("ssh-keygen").split("#")[0].strip()
        assert line.endswith("-f node")
        subprocess.run(f"{line.removesuffix('node')}{path}", shell=True, check=True, capture_output=True)
        return path.with_name(f"{path.name}.pub")

    monkeypatch.setattr(
        twinflower.simulation.runtimes.rehearsal, "make_certificates", partial(run_documented, "openssl")
    )
    monkeypatch.setattr(twinflower.simulation.runtimes.rehearsal, "make_node_key", node_key)
    config = parse({"clients.count": 2, "rounds": 2})
    rehearse(config, tmp_path / "run", secure=True)
    assert_array_equal(np.load(tmp_path / "run" / "model.npz")["x"], inprocess.train(prepare(config)).model)


def test_a_rehearsal_leaves_nothing_running(tmp_path, short, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    config, told = parse({"clients.count": 2, "rounds": 2}), []
    rehearse(config, tmp_path / "run", say=told.append)
    assert_array_equal(np.load(tmp_path / "run" / "model.npz")["x"], inprocess.train(prepare(config)).model)
    assert "node-0: started" in told and "node-1: connected" in told
    assert [line.split()[1] for line in told if line.startswith("round ")] == ["0", "1", "2"]
    assert not [line for line in told if "INFO" in line], told
    assert {path.stem for path in (tmp_path / "run" / "logs").glob("*.log")} == {
        "superlink", "flwr-run", "node-0", "node-1",
    }  # fmt: skip
    assert not list(short.iterdir())


def test_the_reason_of_a_site_reaches_the_server_without_privacy_only(tmp_path):
    """Node 1 has a table with a value outside the schema. Its own log has file, row and column in both runs."""
    (tmp_path / "schema.toml").write_text(SCHEMA)
    (tmp_path / "0.csv").write_text(TABLE)
    (tmp_path / "1.csv").write_text(TABLE.replace("40", "forty"))
    schema = str(tmp_path / "schema.toml")
    keys = {
        "data.name": "own",
        "data.file": str(tmp_path / "0.csv"),
        "data.schema": schema,
        "clients.count": 2,
    }
    keys |= {"data.schema-digest": read_schema(schema).digest, "objective.name": "logistic", "rounds": 1}
    keys |= {"partition.name": "sizes", "partition.sizes": "3, 3", "regulariser.name": "none"}
    private = {"privacy.mode": "public-state", "privacy.epsilon": 8.0}
    with deployment() as running:
        for number in range(2):
            table = str(tmp_path / f"{number}.csv")
            running.start_node(number, 2, {"data-file": table, "schema": schema, "allow-non-private": True})
        with pytest.raises(RunError, match="because a value in its table does not fit the schema") as stopped:
            running.run(parse(keys), tmp_path / "open")
        assert "forty" not in str(stopped.value)
        with pytest.raises(RunError, match="nodes cannot take part") as stopped:
            running.run(parse(keys | private), tmp_path / "private")
        assert "because" not in str(stopped.value)
        said = [
            line
            for line in log_of(running, "node-1").splitlines()
            if "row 2, column 'age': 'forty' is not a number" in line
        ]
        assert len(said) >= 2


def a_command(folder, *words):
    """One of our commands in a temporary folder of its own; the process, and the file it prints to.

    Signals act as in a terminal, even if the tests themselves run in the background, where shells ignore them.
    """
    out = folder / "out"
    with out.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "twinflower", *words, "--out", str(folder / "run")], cwd=PROJECT, stdout=file,
            stderr=subprocess.STDOUT, env=os.environ | {"TMPDIR": str(folder)}, start_new_session=True,
            preexec_fn=_with_default_signals,
        )  # fmt: skip
    return process, out


def _with_default_signals():
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def everything_of(folder):
    """Live processes that have this temporary folder, with their descendants."""
    return {process for home in folder.glob("twinflower-*") for process in janitor.family(home)}


@pytest.fixture
def short():
    """A folder whose name is short enough for Ray's sockets."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp", ignore_cleanup_errors=True) as name:
        yield Path(name)


DEPLOY = ["deploy", "experiments/digits.toml", "--set", "clients.count=2", "--set", "rounds=20", "--secure"]
FLOWER = [
    "run",
    "experiments/digits.toml",
    "--set",
    "clients.count=2",
    "--set",
    "rounds=2000",
    "--runtime",
    "flower",
]
PHASES = {"starting": (DEPLOY, "starting a SuperLink"), "nodes": (DEPLOY, "node-0: registered")}
PHASES |= {"rounds": (DEPLOY, "round    1"), "flower": (FLOWER, "round    1")}
FATES = [
    ("starting", signal.SIGTERM), ("starting", signal.SIGKILL), ("nodes", signal.SIGHUP), ("nodes", signal.SIGKILL),
    ("rounds", signal.SIGTERM), ("rounds", signal.SIGINT), ("rounds", signal.SIGKILL), ("flower", signal.SIGTERM),
    ("flower", signal.SIGKILL),
]  # fmt: skip


@pytest.mark.parametrize(("phase", "number"), FATES, ids=[f"{p}-{n.name}" for p, n in FATES])
def test_nothing_is_left_of_a_command_that_is_ended(short, phase, number):
    """Neither a process, in whatever session, nor a key."""
    words, line = PHASES[phase]
    process, out = a_command(short, *words)
    deadline = time.monotonic() + 400
    while not any(told.startswith(line) for told in out.read_text().splitlines()):
        assert process.poll() is None and time.monotonic() < deadline, out.read_text()
        time.sleep(0.1)
    members = everything_of(short)
    assert members or phase == "starting"
    process.send_signal(number)
    status = process.wait(120)
    deadline = time.monotonic() + 60
    while (number == signal.SIGKILL) and time.monotonic() < deadline and [*short.glob("twinflower-*")]:
        time.sleep(0.1)
    assert not [*short.glob("twinflower-*")]
    assert not janitor.alive(members)
    if number != signal.SIGKILL:
        assert status == 128 + number
        assert out.read_text().splitlines()[-1].startswith("error: interrupted")
    else:
        assert status == -number


def test_a_node_that_ends_early_is_told_with_the_end_of_its_log(tmp_path, monkeypatch):
    """Without the files of their keys; either of the two nodes may end first."""
    monkeypatch.setattr(Deployment, "register", lambda running, number: None)
    with pytest.raises(RunError) as told:
        rehearse(parse({"clients.count": 2, "rounds": 2}), tmp_path / "run", secure=True)
    assert re.search(r"^(node-[01]) ended early with status(.|\n)*\1-key", str(told.value))


def one_variant_each():
    """The first variant of every algorithm, without privacy: nodes with no policy, and noise that can be compared."""
    chosen = {}
    for keys in VARIANTS.values():
        plain = {k: v for k, v in keys.items() if k not in ("privacy.mode", "epsilon", "noise-multiplier")}
        chosen.setdefault(keys["algorithm"], plain)
    return chosen


def test_every_algorithm_runs_on_the_same_nodes(tmp_path):
    """One after the other on three nodes that keep their state on the disk: the bits of the in-process runtime."""
    variants = one_variant_each()
    assert set(variants) == set(ALGORITHMS)
    with deployment() as running:
        policy = {"newton-rows": 1, "newton-rows-per-parameter": 1.0, "newton-folds": 2}
        start(running, 3, **{f"n{number}": policy for number in range(3)})
        for name, keys in variants.items():
            sampled = {} if keys.get("clients.per-round") == 0 else {"clients.per-round": 2}
            sampled |= {"topology.name": "path"} if ALGORITHMS[name].networked else {}
            common = {"batch-size": 20, "local.max-steps": 3}
            config = parse(common, keys, {"clients.count": 3, "rounds": 3} | sampled)
            running.run(config, tmp_path / name)
            same, models = inprocess.train(prepare(config)), np.load(tmp_path / name / "model.npz")
            assert_array_equal(models["x"], same.model, err_msg=name)
            assert ("points" in models) == (same.points is not None)
            if same.points is not None:
                assert_array_equal(models["points"], same.points, err_msg=name)
    note("none, every algorithm once", "finished:completed", "same bits as in process")


SUMS = JOB | {
    "local.max-steps": 1,
    "rounds": 3,
    "checkpoint-every": 1,
    "step-size": 5.0,
    "rho": 0.1,
    "privacy.mode": "public-state",
    "epsilon": 20.0,
    "trust": "sum",
    "honest-sites": 2,
}


def sites(folder, setup):
    """The node config of each site: identity, policy and a folder of its state."""
    own = exchange_keys(folder, setup)
    return [
        own[number] | {"state-dir": str(folder / f"state-{number}"), "lifetime-epsilon": 21.0}
        for number in own
    ]


def replies(store):
    """The stored reply files of a site, by name, with their bytes."""
    return {path.name: path.read_bytes() for path in store.folder.glob("*/*.round")}


def test_a_site_of_a_sum_is_killed_and_comes_back(tmp_path, app):
    """The round waits for it and asks again; every round has one sum, and the model has the bits of a run in which
    nothing was lost. Each site has charged each round once."""
    config, folder = parse(SUMS | {"node-timeout": 600.0}), tmp_path / "run"
    setup = prepare(config)
    own = sites(tmp_path, setup)
    with deployment() as running:
        for number, settings in enumerate(own):
            running.start_node(number, 3, settings)
        process = running.begin(config, folder, app)
        wait_for(folder, 1, process, 1200)
        kill_node(running, 1)
        time.sleep(5)
        running.start_node(1, 3, own[1])
        process.wait(timeout=1200)
        assert running.last_status() == "finished:completed", running.place.end_of("flwr-run")
        assert "asking client 1 again" in log_of(running, "flwr-run")
    assert all(done["rejected"] == {} and done["accepted"] == 3 for done in rounds_in(folder))
    assert_array_equal(np.load(folder / "model.npz")["x"], expected(config).model)
    for number in range(3):
        (book,) = (read_ledger(path) for path in (tmp_path / f"state-{number}").glob("*.ledger"))
        assert [charge.round for charge in book.charges] == [1, 2, 3]
    note(
        "kill -9 of a site in a run of sums, restart with state-dir",
        "the round waits, and asks again under the node's new id",
        "same bits; each round is charged once",
    )


def test_a_site_of_a_sum_stays_away_and_the_run_is_resumed(tmp_path, app):
    """The run stops in one sentence. When the site is back it goes on from the last checkpoint: the other sites answer
    what they had answered with the bytes they have stored, and the model has the bits of an undisturbed run."""
    config, folder = parse(SUMS | {"node-timeout": 90.0}), tmp_path / "run"
    setup = prepare(config)
    own = sites(tmp_path, setup)
    stores = [store_of(setup, number, str(tmp_path / f"state-{number}")) for number in range(3)]
    with deployment() as running:
        for number, settings in enumerate(own):
            running.start_node(number, 3, settings)
        process = running.begin(config, folder, app)
        wait_for(folder, 1, process, 1200)
        kill_node(running, 2)
        process.wait(timeout=1800)
        assert running.last_status() != "finished:completed"
        said = [line for line in log_of(running, "flwr-run").splitlines() if "needs all clients" in line]
        assert said and all("1 did not answer" in line and "client 2" in line for line in said)
        before = [replies(store) for store in stores]
        running.start_node(2, 3, own[2])
        running.flwr("run", str(app), "ours", "--stream", "--run-config", str(folder / "resume.toml"))
        assert running.last_status() == "finished:completed"
    for store, kept in zip(
        stores[:2], before[:2], strict=True
    ):  # these had answered the round that stopped the run
        after = replies(store)
        assert kept.keys() & after.keys()
        assert all(after[name] == kept[name] for name in kept.keys() & after.keys())
    assert_array_equal(np.load(folder / "model.npz")["x"], expected(config).model)
    note(
        "kill -9 of a site in a run of sums, which stays away",
        "the run stops in one sentence, and `flwr run --run-config FOLDER/resume.toml` goes on when the site is back",
        "same bits; rounds asked again get the stored bytes",
    )


def test_sums_survive_two_of_five_sites_that_are_killed_in_every_phase(tmp_path, app):
    """Killed before their message, when it is computed, when they are to open their shares, and when these are stored;
    each is started again at once. The model has the bits of a run without masks in which the same messages were not in
    the sums, and each site has charged each round at most once, those in whose sums it was among them."""
    keys = {"clients.count": 5, "honest-sites": 5, "lost-sites": 2, "rounds": 12}
    config = parse(SUMS | keys | {"round-timeout": 120.0, "node-timeout": 600.0})
    folder, setup = tmp_path / "run", prepare(config)
    faults = {
        1: "dies@2 dies-open@8",
        2: "dies@2 dies-open-late@11",
        3: "dies-late@5 dies-open@8",
        4: "dies-late@5 dies-open-late@11",
    }
    own, left = sites(tmp_path, setup), {number: text.split() for number, text in faults.items()}

    def start_node(running, number):
        words = {"faults": " ".join(left[number]), "ignore-keys": "faults"} if left.get(number) else {}
        running.start_node(number, 5, own[number] | words)

    with deployment() as running:
        for number in range(5):
            start_node(running, number)
        process, killed = running.begin(config, folder, app), []
        while process.poll() is None:
            for number in [n for n, node in running.nodes.items() if node.poll() is not None]:
                running.nodes.pop(number)
                killed.append((number, left[number].pop(0)))
                start_node(running, number)
            time.sleep(0.5)
        assert running.last_status() == "finished:completed", running.place.end_of("flwr-run")
    assert sorted(killed) == sorted(
        (number, text) for number, list_ in faults.items() for text in list_.split()
    )
    lost = {(int(client), done["round"]) for done in rounds_in(folder) for client in done["rejected"]}
    assert {(1, 2), (2, 2)} <= lost  # if these are away until round 5, that round waits for 3 and 4
    assert not lost & {(1, 8), (3, 8), (2, 11), (4, 11)}  # their messages are in the sum
    assert_array_equal(np.load(folder / "model.npz")["x"], expected(config, idle=lost).model)
    for number in range(5):
        (book,) = (read_ledger(path) for path in (tmp_path / f"state-{number}").glob("*.ledger"))
        charged = [charge.round for charge in book.charges]
        assert len({*charged}) == len(charged)
        assert {*charged} >= {*range(1, 13)}.difference(round_ for client, round_ in lost if client == number)
    note(
        "kill -9 of two of five sites in every phase of a round, with `privacy.lost-sites = 2`",
        "goes on with the sums of the others; the two are in the sums again when they are back",
        "same bits as without masks with those messages missed; each round is charged once",
    )


def test_real_nodes_add_up_to_the_unmasked_sums(tmp_path):
    """Secret noise and masks: what the nodes sent is uniform for the server, what is under the masks is small, both
    have the same sums to the bit, and the model follows from these."""
    keys = JOB | {"local.max-steps": 1, "rounds": 3, "checkpoint-every": 100, "step-size": 5.0, "rho": 0.1}
    sums = {"privacy.mode": "public-state", "epsilon": 20.0, "trust": "sum", "honest-sites": 2}
    config, folder, count = parse(keys | sums), tmp_path / "run", 3
    setup = prepare(config)
    own = exchange_keys(tmp_path, setup)
    with deployment() as running:
        for number in range(count):
            state = {"state-dir": str(tmp_path / f"state-{number}"), "lifetime-epsilon": 21.0}
            running.start_node(number, count, own[number] | state)
        running.run(config, folder)
    stores = [store_of(setup, number, str(tmp_path / f"state-{number}")) for number in range(count)]
    last = stores[0]._read(next(stores[0].folder.glob("*/3.round")))
    session = last.metrics["session"]
    masks = [
        Masks(
            read_identity(number, Path(own[number]["identity-key"]), Path(own[number]["peers-file"])),
            stores[number],
            config.result_digest,
        )
        for number in range(count)
    ]
    roster = roster_of([mask.announce(session) for mask in masks])
    joined = [mask.join(session, roster) for mask in masks]
    server = setup.algorithm.init_server(setup.start, count, np.array(0, np.uint64))
    for round_ in (1, 2, 3):
        kept = [store.at(session, round_) for store in stores]
        sent = np.array([k.arrays["reply.0"] for k in kept])
        (point,) = {k.metrics["inbox"] for k in kept}
        bare = sent - [j.mask(sent.shape[1], round_, bytes.fromhex(point)) for j in joined]
        assert (abs(bare.view(np.int64)) < 2**48).all()
        assert (abs(sent.view(np.int64)) > 2**60).mean() > 0.8  # 7/8 of uniform words
        assert_array_equal(add(sent), add(bare))
        server = setup.algorithm.advance(server, add(bare), np.arange(count), round_)
    assert_array_equal(np.load(folder / "model.npz")["x"], setup.algorithm.model(server))
    told = read_summary(folder)["privacy"]
    assert told["epsilon"] == pytest.approx(20.0)
    assert told["epsilon_alone"] > told["epsilon"]
    for number in range(count):
        (book,) = (read_ledger(path) for path in (tmp_path / f"state-{number}").glob("*.ledger"))
        assert len(book.charges) == 3
        assert sum(c.cost_alone for c in book.charges) == pytest.approx(
            2 * sum(c.cost for c in book.charges), rel=1e-6
        )
    note("none, with sums under masks", "the sums of the unmasked numbers, to the bit", "both costs charged")
