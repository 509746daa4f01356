"""The maintainers' record of results: repeatable, and it names what changes."""

import importlib.util
from pathlib import Path

import pytest

from twinflower.problems.regularisers import L1

VARIANT = "fedpdm-private | cohort"


@pytest.fixture(scope="module")
def record():
    """`benchmarks/record.py` as a module."""
    path = Path(__file__).resolve().parent.parent / "benchmarks" / "record.py"
    spec = importlib.util.spec_from_file_location("record", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_record_is_repeatable_and_a_change_is_named(record, monkeypatch):
    once, again = (record.collect(record.variants(), VARIANT, []) for _ in range(2))
    assert list(once) == [VARIANT, f"{VARIANT}, seeds stacked"]
    assert once[VARIANT]["privacy.epsilon"] == pytest.approx(30.0)
    assert record.compare(once, again) == []
    plain = L1.prox
    monkeypatch.setattr(L1, "prox", lambda self, u, step: plain(self, u, 1.0001 * step))
    line, _ = record.compare(once, record.collect(record.variants(), VARIANT, []))
    assert line.startswith(f"differs: {VARIANT}: model, ")
    assert "metrics.objective" in line
    assert "privacy" not in line


def test_runs_that_only_one_record_has_are_named(record):
    before, after = {"a": {"model": "1"}, "b": {}}, {"a": {"model": "1", "metrics.cost": "2"}, "c": {}}
    assert record.compare(before, after) == ["only before: b", "only after: c", "differs: a: metrics.cost"]


def test_every_curve_has_a_name_of_its_own(record):
    names = [name for name, _ in record.curves()]
    assert len(names) == len(set(names))
