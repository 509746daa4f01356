"""What the `privacy` command prints is what a run uses, in every number."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from problems import small

from twinflower.privacy.mechanism import GaussianNoise
from twinflower.privacy.unit import Unit
from twinflower.simulation.report.sections.privacy import statement
from twinflower.simulation.report.study import Case
from twinflower.simulation.runs.advice import outlook, warnings
from twinflower.simulation.runs.forecast import NOISE_HEADINGS, forecast, noise_rows, summary
from twinflower.simulation.runs.privacy import large_delta
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.runtimes import inprocess
from twinflower.simulation.settings import parse

SIZES = {"partition.name": "sizes", "partition.sizes": "400, 12, 90, 90, 90, 200, 30, 7", "rounds": 6}
RUNS = [
    ("fedpdm-private", SIZES | {"epsilon": 8.0, "step_decay": 0.5}),  # participation, rows, steps
    ("fedpdm-published", SIZES | {"local.max-steps": 0, "batch_size": 4, "stopping_tolerance": 0.0}),
    ("scaffold-gradient", SIZES | {"epsilon": 8.0, "noise_multiplier": 0.0}),
    ("ldp-private", {"rounds": 6}),  # weights
    (
        "zcdp-nfl-private",
        {"topology.name": "star", "budget_ratio": 0.5, "step_decay": 0.5},
    ),  # degrees and weights
    ("p-admm-private", {"topology.name": "star"}),
    (
        "networked-subgradient",
        {"privacy.mode": "public-state", "epsilon": 8.0, "clip_norm": 0.3, "budget_ratio": 0.9},
    ),
    ("ssca-groups-private", {}),
]


@pytest.fixture
def drawn(monkeypatch):
    """The standard deviations of all noise that is drawn."""
    sigmas = []
    plain = GaussianNoise.__call__

    def noting(self, value, draw=0, shrink=1.0):
        sigmas.append(float(self.sigma * shrink))
        return plain(self, value, draw, shrink)

    monkeypatch.setattr(GaussianNoise, "__call__", noting)
    return sigmas


@pytest.mark.parametrize(("variant", "keys"), RUNS)
def test_the_printed_numbers_multiply_to_the_sigmas_that_a_run_draws(drawn, variant, keys):
    setup = small(variant, **keys)
    rows = noise_rows(setup)
    assert [row[0] for row in rows] == ["first", "smallest", "largest"]
    printed = np.array([[float(word) for word in row[3:]] for row in rows])
    multiplier, sensitivity, weight, sigma = printed.T
    assert NOISE_HEADINGS[3:] == ("noise multiplier", "sensitivity", "weight", "sigma")
    assert_allclose(multiplier * sensitivity / np.sqrt(weight), sigma, rtol=2e-5)  # six digits each
    inprocess.train(setup)
    assert_allclose(sigma, [drawn[0], min(drawn), max(drawn)], rtol=1e-5)


def test_a_ring_is_told_with_its_own_degrees():
    """(11) with two neighbours, where the release is planned for none."""
    setup = small("zcdp-nfl-private", topology__name="ring", clip_norm=0.3)
    (first, *_), algorithm = noise_rows(setup), setup.algorithm
    rows = setup.schedule.workload(int(setup.partition.sizes[0])).rows
    assert_allclose(
        float(first[4]), 2 * 0.3 / (rows * (1 / algorithm.step(1) + 2 * algorithm.rho * 2)), rtol=1e-5
    )
    assert ("neighbours of a client", "2") in forecast(setup)


def test_a_summary_has_a_line_for_each_curve_and_says_everything_once():
    published = small("fedpdm-published", stopping_tolerance=0.0)
    curves = [(f"published {i}", published) for i in range(5)]
    curves += [("open", small("fedpdm")), ("private", small("fedpdm-private", epsilon=8.0))]
    rows, remarks = summary(curves)
    assert [row[0] for row in rows] == [label for label, _ in curves]
    assert rows[5][1:] == ("none", *["-"] * 6)
    assert rows[6][-2:] == ("8 (delta 0.0001)", "82.1%")
    remark = remarks[0]
    assert len({*remarks}) == len(remarks) == 4
    assert remark.startswith("published 0, published 1, published 2 and 2 more: the published dual carries")


def test_a_summary_has_the_noise_beside_the_weight_of_l1():
    setup = small(
        "fedpdm",
        epsilon=8.0,
        regulariser__name="l1",
        regulariser__weight=0.02,
        **{"privacy.mode": "public-state"},
    )
    told = dict(forecast(setup))
    noise = told["noise of the mean gradient, all rounds (sigma0) and one round"]
    _, remarks = summary([("one", setup), ("two", setup)])
    assert remarks[0] == (
        f"one, two: weight of l1 0.02; noise of the mean gradient, all rounds (sigma0) and one round {noise}"
    )
    assert remarks[1] == f"one, two: {told['what that means']}"


def test_a_run_without_a_guarantee_is_told_without_numbers_on_it():
    (row,), (remark,) = summary([("rule", small("fedpdm-published", stopping_tolerance=0.5))])
    assert row[-2:] == ("no guarantee", "-")
    assert "stopping rule" in remark
    told = dict(forecast(small("fedpdm-published", stopping_tolerance=0.5)))
    assert not any(key.startswith(("epsilon in total", "best attacker", "mu")) for key in told)


# --- a delta above 1/n ---


@pytest.mark.parametrize(
    ("delta", "rows", "unit", "said"),
    [(0.01, [15_000, 15_000], Unit(), "n = 30,000 records"), (1e-4, [6_000, 6_000], Unit(), "n = 12,000 records"),
     (0.1, [60, 60], Unit("group", 5), "n = 24 persons, at least"), (0.5, [9, 9, 9], Unit("site"), "n = 3 sites"),
     (0.01, [50, 50], Unit(), ""), (0.01, [60, 60], Unit("group", 5), ""), (0.1, [900, 900], Unit("site"), "")],
)  # fmt: skip
def test_a_delta_above_one_over_n_is_remarked(delta, rows, unit, said):
    found = large_delta(delta, rows, unit)
    assert bool(found) == bool(said) and said in "".join(found)


@given(st.floats(1e-9, 0.9), st.lists(st.integers(1, 10_000), min_size=1, max_size=5))
def test_the_remark_is_exactly_about_deltas_above_one_over_n(delta, rows):
    assert bool(large_delta(delta, rows, Unit())) == (delta * sum(rows) > 1)


def test_the_run_and_the_statement_say_that_delta_is_large():
    keys = {"data.name": "digits", "clients.count": 2, "privacy.mode": "public-state", "privacy.epsilon": 2.0}
    for delta, large in ((0.01, True), (1e-5, False)):
        setup = prepare(parse({**keys, "privacy.delta": delta}))
        assert any("is above 1/n" in text for text in warnings(setup)) == large
        assert any("is above 1/n" in text for _, text in outlook(setup)) == large
        told = [text for own in statement(Case.of_setup(setup)) for text in own.paragraphs]
        assert any("is above 1/n" in text for text in told) == large


def test_newtons_method_beside_gradients_is_that_of_the_documented_table():
    """For sites with at least 1,000 rows and for smaller ones, in runs whose loss has both."""
    text = (Path(__file__).parents[1] / "docs" / "choose.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| [^|]*?([\d,]+) at (\d+), \d+ \|(.*)\|$", text, re.MULTILINE)
    assert len(lines) == 6
    ratios = {True: [], False: []}
    for rows, sites, cells in lines:
        numbers = [float(number) for number in re.findall(r"\.\d+", cells)]
        many = int(rows.replace(",", "")) >= 1000 * int(sites)
        ratios[many] += [
            newton / gradients for newton, gradients in zip(numbers[::2], numbers[1::2], strict=True)
        ]
    for many, size in ((True, "1000"), (False, "999")):
        one = {"partition.name": "sizes", "partition.sizes": size, "clients.count": 1, "clients.per-round": 1}
        shown = dict(forecast(small("fedpdm-private", **one, epsilon=8.0)))
        low, high = re.search(
            r"it left (\S+) to (\S+) times", shown["Newton's method beside gradients"]
        ).groups()
        assert round(min(ratios[many]), 1 + (not many)) == float(low) and round(
            max(ratios[many]), 1
        ) == float(high)
