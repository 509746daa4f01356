"""A site's ledgers as metrics for Prometheus."""

import sys

import pytest
from prometheus_client.parser import text_string_to_metric_families

from twinflower.privacy import gdp_epsilon, gdp_mu
from twinflower.privacy.accountant import Budget
from twinflower.privacy.charges import Charge
from twinflower.privacy.ledger import FileLedger
from twinflower.simulation.cli import main


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


def test_a_missing_library_is_named(tmp_path, monkeypatch, capsys):
    FileLedger(tmp_path / "node-0.ledger", "data", 1.0, 1e-4).charge(
        Charge("a", 1, 1.0, 9.0, 1, 0.001), Budget.for_target(1.0, 1e-4)
    )
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert exported(tmp_path, tmp_path / "out.prom", monkeypatch) == 2
    assert "pip install 'twinflower[monitoring]'" in capsys.readouterr().err
    assert not (tmp_path / "out.prom").exists()
