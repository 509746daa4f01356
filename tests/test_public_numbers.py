"""Numbers that a server chooses are bounded before a site allocates or loops by them."""

import math
import sys
import tracemalloc

import pytest
from problems import VARIANTS

from twinflower.errors import SettingError
from twinflower.privacy import release
from twinflower.problems.batches import Workload
from twinflower.problems.interfaces import Bounds
from twinflower.problems.networks import NetworkObjective
from twinflower.simulation.runs.setup import prepare
from twinflower.simulation.settings import parse

HUGE = [
    (
        {"partition.name": "sizes", "partition.sizes": "20,100000000"},
        "at most 20,000,000 rows; got 100,000,020",
    ),
    ({"partition.name": "sizes", "partition.sizes": "20,900000000000000000"}, "at most 20,000,000 rows"),
    ({"rounds": 100_001}, "rounds must be from 1 to 100000"),
    ({"local.max-steps": 10_001}, "max-steps must be from 0 to 10000"),
    (
        {"objective.name": "sigmoid-network", "hidden-units": 50_000_000},
        "hidden-units must be from 1 to 100000",
    ),
]


@pytest.mark.parametrize(("keys", "why"), HUGE)
def test_a_huge_number_is_refused_when_the_settings_are_read(keys, why):
    with pytest.raises(SettingError, match=why):
        _ = parse(VARIANTS["fedpdm-private"] | keys).sizes


def test_a_network_is_bounded_by_its_weights():
    largest = NetworkObjective(hidden_units=100_000, clip_norm=1.0)
    assert largest.build(500, 2).d == 100_000 * 502
    with pytest.raises(SettingError, match="at most 50,000,000; got 100000 and 501"):
        largest.build(501, 2)


def test_a_plan_for_most_rounds_and_steps_takes_little_memory():
    keys = VARIANTS["fedpdm-private"] | {"rounds": 100_000, "local.max-steps": 10_000, "step-size": 0.001}
    config = parse(keys)
    tracemalloc.start()
    try:
        assert prepare(config).plan is not None
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()


def lines(act):
    """How many lines of `twinflower.privacy.release` run."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename == release.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("curvature", [0.25, 100.0])
@pytest.mark.parametrize("per_epoch", [1, 7])
def test_a_sensitivity_takes_few_operations_for_any_number_of_steps(per_epoch, curvature):
    """Both bounds, of which it is the smaller one, are computed again for every round of a step size that decays."""
    load = Workload(10_000, 40, per_epoch)
    assert lines(lambda: release.SENSITIVITIES["coupled"](Bounds(1.0, curvature), 0.1, 0.3, load)) < 500


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 20, 41])
@pytest.mark.parametrize("per_epoch", [1, 2, 7, 50])
@pytest.mark.parametrize("curvature", [0.25, 19.7, 30.0])
def test_the_sum_over_the_steps_is_that_of_the_worst_position_in_each_epoch(steps, per_epoch, curvature):
    """The steps to which a factor is applied after a record's batch, whose place in its epoch is the worst one."""
    bounds, kappa = Bounds(1.0, curvature), max(abs(1 - 0.1 * 0.3), abs(1 - 0.1 * (0.3 + curvature)))
    epochs = [range(e, min(e + per_epoch, steps)) for e in range(0, steps, per_epoch)]
    worst = sum(max(kappa ** (steps - 1 - step) for step in epoch) for epoch in epochs)
    assert math.isclose(
        release.coupled_sensitivity(bounds, 0.1, 0.3, Workload(steps, 40, per_epoch)),
        2 * 0.1 / 40 * worst,
        rel_tol=1e-12,
    )
    plain = sum(0.97**step for step in range(steps))
    norm = release.norm_sensitivity(bounds, 0.1, 0.3, Workload(steps, 40, per_epoch))
    assert math.isclose(norm, 2 * 0.1 * plain, rel_tol=1e-12)
