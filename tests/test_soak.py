"""Faults drawn from a seed, on a real SuperLink with five private SuperNodes: `python -m pytest -m soak -n 0`.

A cycle has a seed, from which its runs and their faults are drawn. After it, every model has the bits of a run in one
process that lost the same replies, every ledger has one charge for each release, and nothing is left of the processes.
New cycles begin for TWINFLOWER_SOAK_MINUTES (60); TWINFLOWER_SOAK_SEED (1) is the seed of the first.
"""

import os
import random
import shutil
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import faulty_app
import numpy as np
import pytest
from deployed import Losing, await_, expected, rounds_in
from numpy.testing import assert_array_equal
from scenes import FAULTS, NODES, ON_SMALL_DISK, Proxy, Scene, small_disk

from twinflower.privacy.charges import total_cost
from twinflower.privacy.ledger import read_ledger
from twinflower.simulation.runs.client_factory import client_of, guard_of, ledger_of
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import janitor
from twinflower.simulation.runtimes.rehearsal import deployment
from twinflower.simulation.settings import parse

pytestmark = pytest.mark.soak
MINUTES = float(os.environ.get("TWINFLOWER_SOAK_MINUTES", "60"))
SEED = int(os.environ.get("TWINFLOWER_SOAK_SEED", "1"))

REPEAT = "TWINFLOWER_SOAK_SEED={} TWINFLOWER_SOAK_MINUTES=0 python -m pytest -m soak -n 0"

ROUNDS = 8
STEPS = {"batch-size": 20, "local.max-steps": 3, "step-size": 0.4, "rounds": ROUNDS, "clients.count": NODES}
PRIVATE = {"privacy.mode": "public-state", "epsilon": 8.0, "checkpoint-every": 1}
TOLERANT = {"round-timeout": 30.0, "void-rounds": ROUNDS, "node-timeout": 240.0}
METHODS = [
    {"algorithm": "fedpdm", "rho": 0.5},
    {"algorithm": "scaffold"},
    {"algorithm": "feddyn", "alpha": 0.5},
    {"algorithm": "fedprox", "mu": 0.5},
]


# --- what is true after a cycle


class OnGrid(Losing):
    """Nodes with the noise of sites, which is rounded to a grid."""

    def new_client(self, node, context):
        guard = guard_of(self.setup, node - 1, ledger_of(self.setup, node - 1, context), "")
        return client_of(self.setup, node - 1, context, replace(guard, secret=True))


def rounds_charged(ledger, session):
    return [charge.round for charge in ledger.charges if charge.run == session]


def check(run, ledgers):
    """Every release was charged once, and the model has the bits of the run that lost the same replies."""
    told, plan = rounds_in(run.folder), prepare(run.config).plan
    assert [done["round"] for done in told] == list(range(1, ROUNDS + 1))
    used = {(client, done["round"]) for done in told for client in done["asked"]}
    missed = {(int(client), done["round"]) for done in told for client in done["rejected"]}
    charged = {
        (number, round_) for number, own in enumerate(ledgers) for round_ in rounds_charged(own, run.session)
    }
    for number, own in enumerate(ledgers):
        rounds = rounds_charged(own, run.session)
        assert len(rounds) == len(set(rounds)), f"node {number} was charged twice for a round: {rounds}"
        spent = total_cost(charge for charge in own.charges if charge.run == run.session)
        assert spent <= plan.mu_limit**2 * (1 + 1e-9)
    assert used - missed <= charged <= used, (
        f"not charged: {used - missed - charged}, not asked: {charged - used}"
    )
    lost = (charged & missed) - run.unfinished
    calm = expected(run.config, lost, missed - lost, OnGrid)
    assert_array_equal(np.load(run.folder / "model.npz")["x"], calm.model)
    return "/".join(str(done["accepted"]) for done in told)


def nothing_is_left(members, port, temporary):
    await_(lambda: not janitor.alive(members), "all processes to end")
    assert not list(temporary.iterdir())
    with socket.create_server(("127.0.0.1", port)):
        pass


def drawn(draw):
    """The configs of one run or two, the faults that clients have in their node configs, and (round, fault)s."""
    methods = draw.sample(METHODS, draw.choice([1, 1, 2]))
    clients = [{"clients.per-round": draw.choice([0, NODES - 1])} for _ in methods]
    configs = [
        parse(PRIVATE | STEPS | TOLERANT | method | few) for method, few in zip(methods, clients, strict=True)
    ]
    odd = {
        draw.randrange(NODES): f"{draw.choice(['slow', 'asked-twice'])}@{draw.randint(2, ROUNDS)}"
        for _ in "12"
    }
    rounds = sorted(draw.sample(range(1, ROUNDS), draw.randint(2, 4)))
    return configs, odd, [(round_, draw.choice(FAULTS)) for round_ in rounds]


def settings_of_nodes(folder, disk, odd):
    """The node config of every node; one keeps its state on the small disk, if there is one."""
    homes = [folder / f"state-{number}" for number in range(NODES)]
    if disk:
        homes[ON_SMALL_DISK] = disk / "state"
    faults = {number: {"faults": fault, "ignore-keys": "faults"} for number, fault in odd.items()}
    return [
        {"state-dir": str(home), "lifetime-epsilon": 30.0} | faults.get(number, {})
        for number, home in enumerate(homes)
    ]


def cycle(seed, folder, app, temporary):
    """The line about it; AssertionError if something is wrong."""
    draw, began = random.Random(seed), time.monotonic()
    configs, odd, faults = drawn(draw)
    (folder / "logs").mkdir(parents=True)
    with small_disk(folder / "disk") as disk, deployment(logs=folder / "logs") as running:
        with Proxy(running.port) as proxy:
            scene = Scene(running, draw, app, settings_of_nodes(folder, disk, odd), proxy, disk)
            for number in range(NODES):
                scene.start_node(number)
            for number, config in enumerate(configs):
                scene.begin(config, folder / f"run-{number}")
            told = [f"round {r}: {fault(scene)}" for r, fault in faults if scene.reach(scene.runs[0], r)]
            for run in scene.runs:
                scene.reach(run, ROUNDS + 1)
            members = janitor.family(running.home)
        ledgers = [read_ledger(*scene.state(number).glob("*.ledger")) for number in range(NODES)]
    nothing_is_left(members, running.port, temporary)
    used = [check(run, ledgers) for run in scene.runs]
    assert {charge.run for own in ledgers for charge in own.charges} == {run.session for run in scene.runs}
    told += [f"node {number}: {fault}" for number, fault in odd.items()]
    told += [f"resumed {sum(run.resumed for run in scene.runs)}x", f"replies {', '.join(used)}"]
    names = " and ".join(config.algorithm for config in configs)
    return f"{names}: {'; '.join(told)}; {time.monotonic() - began:.0f} s: as it should be"


def test_runs_under_faults_are_as_without(tmp_path, monkeypatch, capsys):
    app = faulty_app.build(tmp_path / "twinflower-faulty")
    seed, end = SEED, time.monotonic() + 60 * MINUTES
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        while seed == SEED or time.monotonic() < end:
            folder = tmp_path / f"{seed}"
            try:
                line = cycle(seed, folder, app, Path(temporary))
            except BaseException:
                line = f"failed; its files are in {folder}; to repeat it: {REPEAT.format(seed)}"
                raise
            finally:
                with capsys.disabled():
                    print(f"\nseed {seed}: {line}", flush=True)
            shutil.rmtree(folder)
            seed += 1
