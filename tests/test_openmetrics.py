"""A site's ledgers as metrics for Prometheus."""

import sys
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.accountant import Budget
from twinflower.privacy.charges import Charge
from twinflower.privacy.ledger import FileLedger
from twinflower.simulation.app.server_app import _export
from twinflower.simulation.app.site import read_site
from twinflower.simulation.cli import main
from twinflower.simulation.report.openmetrics import of_run
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes.inprocess import InProcessGrid
from twinflower.simulation.runtimes.strategy import run_strategy
from twinflower.simulation.settings import completed, parse


def exported(folder, file, monkeypatch):
    monkeypatch.setattr("sys.argv", ["twinflower", "ledger", str(folder), "--openmetrics", str(file)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_the_metrics_are_what_was_charged(tmp_path, monkeypatch, capsys):
    ledger = FileLedger(tmp_path / "node-0.ledger", "known data sets, node 0", 10.0, 1e-4)
    for round_, run in ((1, "a"), (2, "a"), (1, "b")):
        ledger.charge(
            Charge(run, round_, 1.0, 2.0, 1, 0.25, time=100.0 + round_), Budget.for_target(10.0, 1e-4)
        )
    file = tmp_path / "twinflower.prom"
    assert exported(tmp_path, file, monkeypatch) == 0 and capsys.readouterr().out == ""
    (samples,) = zip(
        *(family.samples for family in text_string_to_metric_families(file.read_text())), strict=True
    )
    values = {sample.name.removeprefix("twinflower_ledger_"): sample.value for sample in samples}
    left = (gdp_mu(10.0, 1e-4) ** 2 - 0.75) ** 0.5
    assert values == pytest.approx({
        "lifetime_epsilon": 10.0, "spent_epsilon": gdp_epsilon(0.75**0.5, 1e-4),
        "left_epsilon": gdp_epsilon(left, 1e-4), "runs": 2, "releases": 3, "last_release_timestamp_seconds": 102.0,
    })  # fmt: skip
    assert {sample.labels["ledger"] for sample in samples} == {"node-0.ledger"}


def run_values(text):
    """The values of a run's metrics, read by Prometheus' own parser."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["run"] for sample in samples} == {"mine"}
    return {sample.name.removeprefix("twinflower_run_"): sample.value for sample in samples}


def watched(**settings):
    """The metrics before the first round and after each one of a small run, and its result."""
    setup = prepare(parse({"rounds": 3, "clients.count": 4, "evaluation.every": 3} | settings))
    seen = []
    result = run_strategy(
        setup,
        InProcessGrid(setup),
        "inprocess",
        watch=lambda so_far: seen.append(run_values(of_run("mine", so_far))),
    )
    return seen, result


def test_a_run_is_shown_after_every_round():
    seen, result = watched()
    assert [values["rounds"] for values in seen] == [0, 1, 2, 3]
    for values, known in zip(seen, range(4), strict=True):
        done = result.rounds[:known]
        assert values["replies"] == sum(one.accepted for one in done) and values["rejected"] == 0
        assert values["uplink_bits"] == sum(one.uplink_bits for one in done)
        assert values["downlink_bits"] == sum(one.downlink_bits for one in done)
        assert (values["running"], values["failed"], values["planned_rounds"]) == (1, 0, 3)
        assert "spent_epsilon" not in values
    last = run_values(of_run("mine", result))
    assert (last["running"], last["failed"]) == (0, 0) and last["seconds"] >= seen[-1]["seconds"]
    assert run_values(of_run("mine", replace(result, model=None, failure="no")))["failed"] == 1


def test_what_a_run_has_spent_and_left_adds_up():
    seen, result = watched(**{"privacy.mode": "public-state", "privacy.epsilon": 4.0})
    budget = gdp_mu(4.0, 1e-4)
    for rounds, values in enumerate(seen):
        assert values["spent_epsilon"] == pytest.approx(gdp_epsilon(budget * (rounds / 3) ** 0.5, 1e-4))
        assert values["left_epsilon"] == pytest.approx(
            gdp_epsilon(budget * (1 - rounds / 3) ** 0.5, 1e-4), abs=1e-6
        )
        assert values["budget_epsilon"] == pytest.approx(4.0)
    assert seen[-1]["spent_epsilon"] == result.privacy()["epsilon"]


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path, capsys):
    _, result = watched()
    _export(str(tmp_path / "missing" / "run.prom"), "mine", result)
    assert "run.prom cannot be written" in capsys.readouterr().out
    _export(str(tmp_path / "run.prom"), "mine", result)
    assert run_values((tmp_path / "run.prom").read_text())["rounds"] == 3


def test_only_a_server_on_flower_writes_the_metrics_of_a_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "small.toml").write_text('title = "t"\n[run]\nrounds = 2\n')
    words = [
        "twinflower",
        "run",
        str(tmp_path / "small.toml"),
        "--set",
        f"output.openmetrics={tmp_path / 'a.prom'}",
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "flwr run" in capsys.readouterr().err
    site = read_site({"partition-id": 0, "num-partitions": 3})
    assert not site.config(
        completed({"output.openmetrics": "/tmp/a.prom", "clients.count": 3})
    ).output.openmetrics


def test_a_missing_library_is_named(tmp_path, monkeypatch, capsys):
    FileLedger(tmp_path / "node-0.ledger", "data", 1.0, 1e-4).charge(
        Charge("a", 1, 1.0, 9.0, 1, 0.001), Budget.for_target(1.0, 1e-4)
    )
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert exported(tmp_path, tmp_path / "out.prom", monkeypatch) == 2
    assert "pip install prometheus-client" in capsys.readouterr().err
    assert not (tmp_path / "out.prom").exists()
