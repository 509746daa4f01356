"""Signed times: a time and whether the event happened, in one number."""

import numpy as np
from numpy.testing import assert_array_equal

from twinflower.survival_labels import signed, unsigned


def test_times_and_events_survive_the_round_trip() -> None:
    """Both come back exactly, also for the smallest and the largest numbers, with any leading axes."""
    times = np.array([[5e-324, 0.1, 1.0], [30.0, 5000.0, 1e308]])
    events = np.array([[True, False, True], [False, True, False]])
    found = unsigned(signed(times, events))
    assert_array_equal(found[0], times)
    assert_array_equal(found[1], events)
    assert_array_equal(signed(times, events.astype(int)), signed(times, events))


def test_labels_are_signed_times() -> None:
    """Events have positive labels and censored times negative ones, as in XGBoost's survival:cox."""
    assert_array_equal(signed(np.array([3, 4]), np.array([1, 0])), [3.0, -4.0])


def test_any_number_is_a_label() -> None:
    """Zero is censored at time 0."""
    times, events = unsigned(np.array([0.0, -0.0, -2.5]))
    assert_array_equal(times, [0.0, 0.0, 2.5])
    assert not events.any()
