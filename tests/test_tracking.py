"""Runs that are handed to an experiment tracker."""

import json
import sys
from pathlib import Path

import pytest

from twinflower.errors import SettingError
from twinflower.simulation.app.site import read_site
from twinflower.simulation.report.tracking import track, tracker
from twinflower.simulation.results.reading import read_rows, read_summary
from twinflower.simulation.running import new, run
from twinflower.simulation.runtimes.progress import Observer
from twinflower.simulation.settings import completed
from twinflower.simulation.settings.experiment import read_experiment

SMALL = 'title = "t"\nseeds = [0, 1]\n[run]\nrounds = 2\n[run.clients]\ncount = 3\n'
OWN = '''"""A tracker in ten lines."""
import json
from twinflower.simulation.results.reading import read_rows, read_summary
def note(folder):
    line = {"folder": str(folder), "rounds": len(read_rows(folder)), "accuracy": read_summary(folder)["test_accuracy"]}
    line["files"] = [path.name for path in folder.iterdir()]
    with open("noted.jsonl", "a") as file:
        file.write(json.dumps(line) + "\\n")
def fail(folder):
    raise OSError("no network")
'''


class Silent(Observer):
    def following(self, label, rounds):
        from contextlib import nullcontext

        return nullcontext()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's, and the command that runs an experiment with a tracker."""
    (tmp_path / "own_tracker.py").write_text(OWN)
    (tmp_path / "small.toml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def started(name, runtime="cohort"):
        plan = read_experiment(Path("small.toml"), {"output.tracker": name})
        folder = new(plan, runtime, "out")
        return folder, run(plan, folder, runtime, Silent())

    return started


@pytest.mark.parametrize("runtime", ["cohort", "inprocess"])
def test_every_run_is_handed_to_the_tracker_when_its_files_are_there(own, runtime):
    _, failures = own("own_tracker:note", runtime)
    lines = [json.loads(line) for line in Path("noted.jsonl").read_text().splitlines()]
    assert not failures and len({line["folder"] for line in lines}) == len(lines) == 2
    for line in lines:
        assert {"figure.png", "report.html"} <= set(line["files"])
        assert line["rounds"] == len(read_rows(Path(line["folder"])))
        assert line["accuracy"] == read_summary(Path(line["folder"]))["test_accuracy"]


def test_a_tracker_that_fails_is_named_and_the_run_is_complete(own):
    folder, failures = own("own_tracker:fail")
    assert len(failures) == 2 and all(
        line.endswith("the tracker own_tracker:fail: no network") for line in failures
    )
    assert all(read_summary(path)["finished"] for path in sorted(folder.rglob("seed-*")))


@pytest.mark.parametrize("name", ["own_tracker:notes", "missing:note", "own_tracker", ":note"])
def test_a_tracker_that_does_not_exist_is_refused_before_the_run(own, name):
    with pytest.raises(SettingError, match="output.tracker must be mlflow or MODULE:FUNCTION"):
        own(name)
    assert not Path("out").exists()


def test_a_node_imports_nothing_that_a_run_names(monkeypatch):
    """A run config comes from the server."""
    imported = []
    monkeypatch.setattr("twinflower.simulation.report.tracking.import_module", imported.append)
    site = read_site({"partition-id": 0, "num-partitions": 3, "lifetime-epsilon": 9.0})
    site.config(completed({"output.tracker": "os:system", "clients.count": 3}))
    assert not imported


def test_without_mlflow_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SettingError, match="needs MLflow: pip install mlflow-skinny"):
        tracker("mlflow")


def test_mlflow_gets_settings_metrics_privacy_and_files(own, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    _, failures = own("mlflow")
    if failures and "sqlalchemy" in failures[0].lower():
        pytest.skip("mlflow-skinny alone has no store")
    assert not failures
    runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert len(runs) == 2
    for found in runs:
        folder = Path(found.data.tags["folder"])
        assert found.data.params["rounds"] == "2"
        assert found.data.metrics["test_accuracy"] == pytest.approx(read_rows(folder)[-1]["test_accuracy"])


def test_a_run_without_a_tracker_is_handed_to_nobody(own):
    folder, failures = own("")
    assert not failures and track(next(folder.rglob("seed-0"))) == []
