"""The benchmarks run: their settings exist, and their loops by hand end where ours do."""

import importlib.util
import struct
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.io import savemat

from twinflower.problems.topologies import TOPOLOGIES
from twinflower.simulation.runtimes.cohort import Cohort

FOLDER = Path(__file__).parent.parent / "benchmarks"
PARTS = ("by_hand", "flamby_tasks", "kept")  # of other benchmarks


def benchmark(name: str) -> ModuleType:
    """The benchmark of this name, loaded from its file."""
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_every_benchmark_can_be_imported(path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)  # as in a run from the command line
    if path.stem == "torch_opacus":
        pytest.importorskip("torch")
        pytest.importorskip("opacus")
    module = benchmark(path.stem)
    assert path.stem in PARTS or callable(module.main)


def test_schools_are_prepared_and_scored_as_in_the_published_program(tmp_path, monkeypatch):
    """An epoch has all whole batches; one school alone is FedAvg; a model of zeros predicts the lowest mark."""
    monkeypatch.syspath_prepend(FOLDER)
    school, rng = benchmark("school"), np.random.default_rng(0)
    columns, marks = rng.normal(size=(50, 28)), rng.integers(1, 71, (50, 1)).astype(float)
    (tmp_path / "school").mkdir()
    cells = {name: np.empty((1, 1), object) for name in "XY"}
    cells["X"][0, 0], cells["Y"][0, 0] = columns, marks
    savemat(tmp_path / "school" / "school.mat", cells)
    data, schedule = school.school(tmp_path, 3), school.Epochs(16)
    rows = data.shards.rows(0)
    assert_allclose(rows.features.mean(0), [0] * 28 + [1], atol=1e-12)
    assert (len(rows.labels), len(data.test.labels), int(schedule.steps(data.shards.sizes)[0])) == (40, 10, 2)
    alone, shared = (school.error(name, {}, data, schedule, 5, None, 0) for name in ("local", "FedAvg"))
    assert alone == pytest.approx(shared, rel=1e-12)
    none = school.error("MR-MTL", {"step_size": 1e-12}, data, schedule, 1, None, 0)
    assert none == pytest.approx(float((data.test.labels**2).mean()), rel=1e-9)


def test_every_method_of_the_table_of_rounds_has_a_configuration():
    rounds = benchmark("rounds")
    for method in rounds.METHODS.values():
        assert rounds.settings(method).clients.count == rounds.CLIENTS


def test_the_yardstick_races_every_method_against_loops_by_hand(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    yardstick = benchmark("yardstick")
    for name, small in {"CLIENTS": 4, "SAMPLED": 2, "ROWS": 120, "FEATURES": 5}.items():
        monkeypatch.setattr(yardstick, name, small)
    monkeypatch.setattr(sys.modules["rounds"], "CLIENTS", 4)
    lines = yardstick.table(1)
    private = sum("privacy.mode" in keys for keys in yardstick.METHODS.values())
    assert len(lines) == 2 + 2 * 4 * (len(yardstick.METHODS) - private) + 2 * private


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-9), (np.float32, 1e-3)])
@pytest.mark.parametrize("method", ["fedavg", "fedpdm", "scaffold", "feddyn"])
def test_rounds_by_hand_are_rounds_of_the_method(monkeypatch, method, dtype, rtol):
    """All clients, and steps on all their rows: the order of the rows does not matter."""
    monkeypatch.syspath_prepend(FOLDER)
    yardstick = benchmark("yardstick")
    small = {"CLIENTS": 3, "SAMPLED": 3, "ROWS": 20, "FEATURES": 5, "STEPS": 2, "BATCH": 20}
    for name, value in small.items():
        monkeypatch.setattr(yardstick, name, value)
    features, labels = yardstick.rows()
    features = features.astype(dtype)
    setup = yardstick.setup(yardstick.METHODS[method], features, labels)
    *_, outcome = Cohort([setup]).rounds(3)
    assert outcome.server.x0.dtype == dtype
    ours = outcome.server.x0.reshape(yardstick.CLASSES, yardstick.FEATURES)
    for way in ("client_by_client", "stacked"):
        loops = yardstick.by_hand(method, features, labels)
        loops.order = lambda k: 20 * k + np.tile(np.arange(20), (2, 1))
        *_, theirs = (getattr(loops, way)() for _ in range(3))
        np.testing.assert_allclose(theirs, ours, rtol=rtol, atol=rtol * abs(ours).max())


def test_registered_clients_beyond_those_with_rows_of_their_own(monkeypatch):
    rounds = benchmark("rounds")
    for name, small in {"ROWS": 100, "FEATURES": 4}.items():
        monkeypatch.setattr(rounds, name, small)
    assert rounds.registered(1000, rounds=1, sampled=10)["ms"] > 0


def test_every_generated_topology_has_a_job():
    faults = benchmark("networked_faults")
    assert len(faults.GRAPHS) == len(TOPOLOGIES) - 1  # all but a file of edges
    setups = [faults.job(**faults.on(name)) for name in faults.GRAPHS]
    assert [setup.config.topology.name for setup in setups] == faults.GRAPHS
    assert all(setup.algorithm.info.neighbours for setup in setups)


@pytest.mark.parametrize("seeds", [1, 2])
def test_small_rounds_by_hand_end_at_the_same_point(seeds):
    small = benchmark("small_rounds")
    assert "ldp" in small.duel("ldp", small.ldp(seeds, 5), small.ldp_by_hand, rounds=5, turns=1)
    assert "nfl" in small.duel("nfl", small.nfl(seeds), small.nfl_by_hand, rounds=5, turns=1)


@pytest.mark.parametrize("method", ["ssca", "ssca-constrained"])
def test_ssca_by_hand_ends_at_the_same_point(method, monkeypatch):
    ssca = benchmark("ssca")
    for name, small in {"ROWS": 20, "FEATURES": 6, "HIDDEN": 5}.items():
        monkeypatch.setattr(ssca, name, small)
    assert method in ssca.duel(method, batch=10, rounds=3, turns=1)


NUMPY_LOOP = """
from by_hand import FedAvg
from job import read

def train(path, tick):
    job = read(path)
    loop = FedAvg(job.features, job.labels, job.classes, job.sampled, job.steps, job.batch, STEP * job.step)
    for _ in range(job.rounds):
        loop.client_by_client()
        tick()
    return loop.x0
"""


@pytest.fixture
def peers(monkeypatch, tmp_path):
    """The benchmark of other libraries on a small job; NumPy, in a loop by hand, is the only other library."""
    monkeypatch.syspath_prepend(FOLDER)
    peers = benchmark("peers")
    for name, small in {"CLIENTS": 4, "SAMPLED": 2, "ROWS": 120, "FEATURES": 5}.items():
        monkeypatch.setattr(peers.yardstick, name, small)
    monkeypatch.setattr(sys.modules["rounds"], "CLIENTS", 4)
    monkeypatch.setattr(peers, "PEERS", {"numpy": "NumPy"})
    monkeypatch.setenv("PYTHONPATH", f"{FOLDER}:{tmp_path}")
    return peers


def test_other_libraries_are_in_one_table_with_ours(peers, tmp_path):
    (tmp_path / "numpy_loop.py").write_text(NUMPY_LOOP.replace("STEP", "1"))
    lines = peers.table(Path(sys.prefix), rounds=2, turns=2)
    assert len(lines) == 2 + 4 + 1
    assert lines[2].endswith("| 1.00 |") and f"| NumPy {np.__version__} |" in lines[-1]


@pytest.mark.parametrize(("step", "error"), [("0.5", "numpy did another job"), ("no", "NameError")])
def test_another_library_that_does_not_do_the_job_ends_the_race(peers, tmp_path, step, error):
    (tmp_path / "numpy_loop.py").write_text(NUMPY_LOOP.replace("STEP", step))
    with pytest.raises(SystemExit, match=error):
        peers.table(Path(sys.prefix), rounds=2, turns=1)


def test_without_the_other_libraries_the_command_says_how_to_install_them(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr(sys, "argv", ["peers.py", str(tmp_path)])
    with pytest.raises(SystemExit, match="add --install"):
        benchmark("peers").main()


def test_times_of_requests_are_read_from_a_superlinks_log():
    line = '2026-01-02T03:04:{:06.3f}Z INFO [uvicorn.access] 127.0.0.1:1 - "POST /v1/{} HTTP/1.1" 200'
    paths = "control/start-run", "runtime/pull-task-input", "control/list-runs", "runtime/push-task-output"
    log = "\n".join(line.format(second, path) for second, path in enumerate(paths * 2))
    times = benchmark("engine").requests(log)
    assert list(times) == ["start-run", "pull-task-input", "push-task-output"]
    assert times["push-task-output"] - times["start-run"] == 3
    assert times["start-run"] % 60 == 4  # of the last run


@pytest.mark.slow
def test_the_stages_of_runs_on_flowers_engine_add_up(tmp_path):
    draw = np.random.default_rng(0)
    for part, rows in (("train", 40), ("t10k", 10)):
        images, labels = draw.integers(256, size=(rows, 28, 28)), np.arange(rows) % 10
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            head = struct.pack(f">{1 + array.ndim}I", 0x0800 + array.ndim, *array.shape)
            (tmp_path / f"{part}-{kind}-ubyte").write_bytes(head + array.astype(np.uint8).tobytes())
    engine = benchmark("engine")
    small = {"clients.count": 4, "clients.per-round": 2, "batch-size": 5, "rounds": 3, "local.max-steps": 2}
    runs = engine.race(engine.parse(engine.JOB, small, {"data.dir": str(tmp_path)}), 1)
    for run in runs.values():
        assert len(run.stages) == len(engine.STAGES)
        assert min(run.stages) >= 0
        assert sum(run.stages) == pytest.approx(run.whole)
    assert len(engine.table(runs)) == 2 + len(engine.STAGES) + 3


# -------------------------------------------------------------------------------------------------------- FLamby


@pytest.fixture
def flamby(monkeypatch):
    """The benchmark on FLamby's tasks."""
    monkeypatch.syspath_prepend(FOLDER)
    return benchmark("flamby")


def test_the_page_has_the_stored_results(flamby):
    page = (FOLDER.parent / "docs" / "experiments-flamby.md").read_text()
    assert page.count("<!-- flamby ") == 5
    assert flamby.filled(page, flamby.stored(flamby.STORE)) == page, (
        "run python benchmarks/flamby.py --page ..."
    )


@pytest.mark.slow
def test_flamby_claims_less_than_its_noise_gives(flamby):
    *_, line = flamby.corrected([1.0])
    assert line in (FOLDER.parent / "docs" / "experiments-flamby.md").read_text()


class Larger:
    """Names the more frequent label of all sites; of survival, the first feature."""

    def fit(self, X, y, sites):
        self.most = round(float(np.mean(y)))
        return self

    def predict(self, X):
        return np.full(len(X), self.most) if self.most in (0, 1) else X[:, 0]


def small_tables(folder: Path) -> Path:
    """Tables with the columns of FLamby's, of 10 patients per site."""
    draw = np.random.default_rng(0)
    (folder / "heart").mkdir()
    (folder / "flamby").mkdir()
    columns = [
        "age",
        "sex",
        "cp",
        "trestbps",
        "chol",
        "fbs",
        "restecg",
        "thalach",
        "exang",
        "oldpeak",
        "slope",
        "ca",
        "thal",
        "num",
    ]
    for name in ("cleveland", "hungary", "switzerland", "long-beach"):
        rows = [
            [50, 1, 2, 120, draw.integers(200, 300), 0, 1, 150, 0, 1, "", "", "", k % 2] for k in range(10)
        ]
        write(folder / "heart" / f"{name}.csv", columns, [*rows, [""] * 14])
    persons = [(f"p{k}", k % 6, "train" if k < 36 else "test") for k in range(60)]
    write(
        folder / "flamby" / "brca.csv",
        ["pid", "age_at_index", "stage", "E", "T"],
        [
            [pid, draw.integers(30, 90), k % 2, int(k % 3 > 0), 100 * k]
            for k, (pid, _, _) in enumerate(persons)
        ],
    )
    write(
        folder / "flamby" / "train_test_split.csv", ["pid", "fold2"], [[p, f"{f}_{s}"] for p, s, f in persons]
    )
    write(
        folder / "flamby" / "heart_seed42.csv",
        ["Method", "Test", "seed", "Metric"],
        [["FedAvg100", f"client_test_{k}", 42, 0.5 + k / 10] for k in range(4)],
    )
    write(
        folder / "flamby" / "results_fed_heart_disease.csv",
        ["perf", "e", "d", "seed"],
        [[0.6, 1.0, 1e-4, 42]],
    )
    return folder


def write(path: Path, columns: list[str], rows: list[list[object]]) -> None:
    """A CSV file with a header."""
    path.write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]) + "\n")


def test_flamby_takes_other_methods_and_goes_on_where_it_stopped(flamby, tmp_path):
    """Half of each hospital's test rows have each label; published scores are means over sites."""
    data, path = small_tables(tmp_path), tmp_path / "found.csv"
    methods = {("mine", flamby.LOCAL): lambda task, epsilon, seed: Larger() if epsilon > 8 else None}
    flamby.complete(path, methods, data, 2)
    found = flamby.stored(path)
    assert {len(own) for case, own in found.items() if case.method == "mine"} == {2}
    heart = [own for case, own in found.items() if case[:3] == ("Fed-Heart-Disease", flamby.FIXED, "mine")]
    assert len(heart) == 2 and heart[0] == heart[1] == {0: 0.5, 1: 0.5}
    assert [own for case, own in found.items() if "FLamby)" in case.method] == [{42: 0.65}, {42: 0.6}]
    before = path.read_text()
    flamby.complete(path, methods, data, 2)
    assert path.read_text() == before
    flamby.complete(path, methods, data, 3)
    assert len(flamby.stored(path)[next(iter(found))]) in (1, 3) and path.read_text().startswith(before)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["logistic", "multinomial", "discrete-cox"])
@pytest.mark.parametrize(
    ("design", "rows", "epsilon"), [("numbers", 500, 0.0), ("numbers", 5000, 4.0), ("rare", 5000, 4.0)]
)
def test_intervals_hold_the_truth(model, design, rows, epsilon):
    """1,000 data sets; the standard error of the share over all coefficients is at least .003."""
    coverage = benchmark("coverage")
    found = coverage.measured(model, coverage.DESIGNS[design], rows, epsilon, 1000, 20)
    assert found.share > 0.3 or not epsilon
    assert 0.94 <= coverage.coverage(found.private or found.wald, found.truth).mean() <= 0.98


def test_private_intervals_hold_the_truth_quickly():
    """100 data sets; the standard error of the share is at most that of one coefficient, .022."""
    coverage = benchmark("coverage")
    found = coverage.measured("logistic", coverage.DESIGNS["numbers"], 2000, 4.0, 100, 20)
    assert found.share > 0.95
    assert abs(coverage.coverage(found.private, found.truth).mean() - 0.955) < 4 * 0.022
    assert 1.2 < float(coverage.cells(found)[-1]) < 1.8
    none = coverage.measured("logistic", coverage.DESIGNS["rare"], 500, 1.0, 50, 20)
    assert none.private is None and none.share == 0.0
