"""The notebook-like example runs as it is, and finds what it says."""

import runpy
from pathlib import Path

import pytest

WALKTHROUGH = Path(__file__).resolve().parent.parent / "examples" / "scikit-learn" / "walkthrough.py"


@pytest.mark.slow
def test_the_walkthrough_of_the_scikit_learn_interface(capsys):
    scores = runpy.run_path(str(WALKTHROUGH))["scores"]
    assert "(8, 0.0001)-DP" in capsys.readouterr().out
    best_alone = max(score for name, score in scores.items() if name.endswith("alone"))
    assert scores["federated"] > scores["all rows in one place"] - 0.02
    assert scores["federated"] > scores["search"] > best_alone
    assert scores["epsilon 1"] < best_alone < scores["epsilon 4"] < scores["epsilon 8"] < scores["federated"]
