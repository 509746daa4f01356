"""The notebook-like example runs as it is, and finds what it says."""

import runpy
import tomllib
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
WALKTHROUGH = EXAMPLES / "scikit-learn" / "walkthrough.py"


def test_the_app_with_a_module_says_that_its_default_is_not_private():
    app = EXAMPLES / "torch-app"
    run = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert run["epsilon"] == 0
    assert "**By default it is not\nprivate**" in (app / "README.md").read_text()


@pytest.mark.slow
def test_the_walkthrough_of_the_scikit_learn_interface(capsys):
    scores = runpy.run_path(str(WALKTHROUGH))["scores"]
    assert "(8, 0.0001)-DP" in capsys.readouterr().out
    best_alone = max(score for name, score in scores.items() if name.endswith("alone"))
    assert scores["federated"] > scores["all rows in one place"] - 0.02
    assert scores["federated"] > scores["search"] > best_alone
    assert scores["epsilon 1"] < scores["epsilon 4"] < scores["epsilon 8"] < scores["federated"]
    assert best_alone < scores["epsilon 8"]
