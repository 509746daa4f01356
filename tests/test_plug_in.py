"""A stranger's app (examples/meters) uses our wheel: in one process here, and under `flwr run` when asked to.

`python -m pytest -m deployment tests/test_plug_in.py` makes a virtual environment in which only the wheel is ours. The
dependencies are downloaded; without a network, those of the Python that runs the tests are lent by a .pth file, and
the test says so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from twinflower.algorithms import FedPDM
from twinflower.errors import SettingError
from twinflower.privacy import gdp_mu
from twinflower.privacy.charges import BudgetSpent
from twinflower.privacy.plan import Plan
from twinflower.privacy.target import Target
from twinflower.problems.batches import LocalSchedule
from twinflower.problems.central import minimise
from twinflower.problems.interfaces import Batch, Bounds
from twinflower.problems.regularisers import L1
from twinflower.simulation.runtimes.flower import (
    CONNECTION,
    configure_flower_env,
    start_superlink,
    write_connection,
)
from twinflower.simulation.runtimes.processes import free_ports, temporary_workspace

ROOT = Path(__file__).resolve().parent.parent
METERS = ROOT / "examples" / "meters"


def module(name):
    """A module of the example that needs nothing else of it."""
    spec = spec_from_file_location(f"meters_{name}", METERS / "meters" / f"{name}.py")
    sys.modules[spec.name] = found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


huber, data = module("objective"), module("data")
OBJECTIVE = huber.Huber(data.FEATURES)


class Convex(huber.Huber):
    """Huber's loss, as the central solver wants to be told."""

    convex = True


@pytest.fixture(scope="module")
def site(wheel_file, tmp_path_factory):
    """A folder with the wheel's contents."""
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel_file).extractall(folder)
    return folder


def drive(site, *words):
    """The example in one process, with the wheel and without this project; what it prints."""
    command = [sys.executable, str(ROOT / "tests" / "plug_in_driver.py"), "4", *words]
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=METERS, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def told(output):
    """Error and number of weights of the last line."""
    error, weights = re.findall(r"error ([\d.]+), (\d+) of 20 weights", output)[-1]
    return float(error), int(weights)


def test_the_strangers_app_runs_on_the_wheel_and_finds_the_optimum(site, tmp_path):
    out = tmp_path / "x.npy"
    error, weights = told(drive(site, f"out={str(out)!r}", "rounds=400"))
    works = [data.readings(i) for i in range(4)]
    together = Batch(*(np.concatenate([w[i] for w in works]) for i in (0, 1)))
    optimum = minimise(Convex(data.FEATURES), L1(0.002), together, np.zeros(data.FEATURES))
    assert_allclose(np.load(out), optimum, atol=2e-3)
    assert error < 0.1
    assert weights == np.count_nonzero(np.abs(optimum) > 1e-9) < 10


def test_its_other_method_and_its_private_run(site, tmp_path):
    assert told(drive(site, "method='drift'"))[0] < 0.1
    outs = [tmp_path / "first.npy", tmp_path / "second.npy"]
    for out in outs:
        error, _ = told(drive(site, "epsilon=6.0", f"out={str(out)!r}"))
        assert error < 0.2  # about 0.04; x = 0 has 0.48
    first, second = map(np.load, outs)
    assert not np.array_equal(first, second)  # the noise is secret


def test_its_objective_keeps_the_protocol():
    """Gradient against differences, weights, leading axes, and the bounds that privacy rests on."""
    rows, draw = data.readings(0), np.random.default_rng(0)
    points = draw.normal(size=(3, data.FEATURES))
    step = 1e-6
    for x, slope in zip(points, OBJECTIVE.grad(points, rows), strict=True):
        there, back = (OBJECTIVE.value(x + s * np.eye(len(x)), rows) for s in (step, -step))
        assert_allclose(slope, (there - back) / (2 * step), atol=1e-7)
    weights = np.where(np.arange(400) < 100, 1 / 100, 0.0)
    some = Batch(rows.features[:100], rows.labels[:100])
    for name in ("value", "grad", "score"):
        ask = getattr(OBJECTIVE, name)
        assert_allclose(ask(points, Batch(*rows[:2], weights)), ask(points, some))
    halved, whole = (OBJECTIVE.grad(points, Batch(*rows[:2], share * weights)) for share in (0.5, 1.0))
    assert_allclose(halved, whole / 2)  # weights may sum to less than 1, and are never normalised
    one_by_one = Batch(rows.features[:, None], rows.labels[:, None])
    each = OBJECTIVE.grad(points[0] * np.ones((400, 1)), one_by_one)
    bounds = OBJECTIVE.bounds(1.0)
    assert np.linalg.norm(rows.features, axis=1).max() <= 1 + 1e-12
    assert np.linalg.norm(each, axis=1).max() <= bounds.gradient + 1e-12


class Counting:
    """A ledger that keeps charges in a list."""

    def __init__(self):
        self.book = []

    def charge(self, charge, budget):
        for entry in self.book:
            budget = budget.spend(entry.cost)
        if not budget.fits(charge.cost):
            raise BudgetSpent("spent")
        self.book.append(charge)

    def charges(self):
        return self.book


def test_a_planned_guard_spends_its_budget_exactly():
    algorithm = FedPDM(regulariser=L1(0.1), rho=0.5, step_size=1.0, privacy="public-state")
    workload, ledger = LocalSchedule(0, 4).workload(50), Counting()
    guard = Plan.of(algorithm, Bounds(0.5, 1.0), [workload], [[0]] * 7, Target(3.0, 1e-5)).guard(0, ledger)
    for round_ in range(1, 8):
        guard.open(algorithm.release(guard.bounds, workload, round_), round_)
    assert sum(c.cost for c in ledger.charges()) == pytest.approx(gdp_mu(3.0, 1e-5) ** 2)
    with pytest.raises(BudgetSpent):
        guard.open(algorithm.release(guard.bounds, workload, 8), 8)


def test_a_plan_gives_every_sampled_client_its_own_noise():
    """Client 0 is asked in both rounds, 1 in one, 2 in none: there it has what a single round would need."""
    algorithm = FedPDM(regulariser=L1(0.1), rho=0.5, step_size=1.0, privacy="gradient")
    workloads = LocalSchedule(batch_size=10, max_local_steps=7).workloads(
        [20, 100, 20]
    )  # a record is in 4 batches of 7, or in 1
    plan = Plan.of(algorithm, Bounds(0.5, 1.0), workloads, [[0], [0, 1]], Target(3.0, 1e-5))
    assert_allclose(plan.multipliers**2 * gdp_mu(3.0, 1e-5) ** 2, [2 * 4, 1 * 1, 1 * 4], rtol=1e-12)
    assert_allclose(plan.mu, [plan.mu_limit, plan.mu_limit, 0.0], rtol=1e-12)
    same = Plan.of(algorithm, Bounds(0.5, 1.0), workloads, [[0], [0, 1]], Target(noise_multiplier=2.0))
    assert_allclose(same.mu, np.sqrt([8, 1, 0]) / 2.0, rtol=1e-12)
    guards = [plan.guard(client, Counting()) for client in range(3)]
    assert [guard.noise_multiplier for guard in guards] == plan.multipliers.tolist()


@pytest.mark.parametrize("privacy", ["none", "as-published"])
def test_a_guard_is_planned_for_true_guarantees_only(privacy):
    algorithm = FedPDM(regulariser=L1(0.1), rho=0.5, step_size=1.0, privacy=privacy)
    with pytest.raises(SettingError, match=f"no plan for privacy '{privacy}'"):
        Plan.of(algorithm, Bounds(0.5, 1.0), [LocalSchedule(0, 4).workload(50)], [[0]] * 7, Target(3.0, 1e-5))


def clean_environment(folder, wheel):
    """A virtual environment with the wheel and its dependencies; returns its Python, and how it got them."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    done = subprocess.run([*pip, wheel], capture_output=True, text=True)
    if done.returncode == 0:
        return python, "downloaded"
    subprocess.run([*pip, "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")  # behind its own
    for name in ("flwr", "flower-superlink", "flwr-serverapp", "flwr-clientapp", "flwr-simulation"):
        _lend(Path(sys.executable).parent / name, folder / "bin" / name, python)
    return python, "lent, because pip says: " + done.stderr.strip()[-200:]


def _lend(command, to, python):
    if command.exists():
        text = command.read_text().split("\n", 1)[1]
        to.write_text(f"#!{python}\n{text}")
        to.chmod(0o755)


def installed(python, name):
    """File of a package as this Python finds it, empty if it does not."""
    command = [python, "-I", "-c", f"import {name}; print({name}.__file__)"]
    return subprocess.run(command, capture_output=True, text=True).stdout


@pytest.mark.deployment
def test_flwr_run_in_a_clean_environment(wheel_file, tmp_path, capsys):
    python, dependencies = clean_environment(tmp_path / "venv", wheel_file)
    with capsys.disabled():
        print(f"\ndependencies {dependencies}")
    assert installed(python, "twinflower.clients").startswith(str(python.parent.parent))
    assert installed(python, "twinflower.strategies").startswith(str(python.parent.parent))
    for name in ("strategies", "clients", "simulation"):
        assert installed(python, name) == ""
    app = shutil.copytree(METERS, tmp_path / "meters", ignore=shutil.ignore_patterns("__pycache__"))
    with temporary_workspace() as place:
        configure_flower_env(place)
        home = place.home
        place.environment |= {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": ""}
        for name in ("PYTHONPATH", "PYTHONHOME"):
            place.environment.pop(name, None)
        port, control = free_ports(2)
        write_connection(home, f'address = "127.0.0.1:{port}"\ninsecure = true\n')
        words = ["--insecure", "--simulation", "--isolation", "subprocess"]
        words += ["--control-api-address", f"127.0.0.1:{control}"]
        start_superlink(place, port, words, python.parent)
        for method in ("sparse", "drift"):
            out = tmp_path / f"{method}.npy"
            output = flwr(python, place.environment, home, app, f"method='{method}' rounds=40 out='{out}'")
            assert told(output)[0] < 0.1, output
            assert np.load(out).shape == (data.FEATURES,)
    left = subprocess.run(["pgrep", "-f", str(home)], capture_output=True, text=True).stdout
    assert left == ""
    assert not home.exists()


def flwr(python, environment, home, app, config):
    """One `flwr run` that must be completed; its output."""
    words = ["run", app, CONNECTION, "--stream", "--run-config", config]
    words += ["--federation-config", "num-supernodes=4 client-resources-num-cpus=1"]
    command = [python.parent / "flwr"]
    ask = {"env": environment, "cwd": home, "capture_output": True, "text": True}
    done = subprocess.run([*command, *words], **ask)
    listing = subprocess.run([*command, "ls", CONNECTION, "--format", "json"], **ask)
    newest = max(json.loads(listing.stdout)["runs"], key=lambda run: run["pending-at"])
    assert newest["status"] == "finished:completed", done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout
