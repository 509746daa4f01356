"""A time and whether the event happened then as one number, so that a row has one label: the signed time.

As in XGBoost's survival:cox, the label of a person with the event at time t > 0 is t, and that of a person who was
censored at time t > 0, alive and in the study until then, is -t.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .arrays import Array, Mask


def signed(times: Array, events: NDArray[Any]) -> Array:
    """The labels (...) of times (...) above 0, where events (...) is true or 1 for an event, and false or 0 for
    censoring."""
    return np.where(events, times, np.negative(times)).astype(np.float64)


def unsigned(labels: Array) -> tuple[Array, Mask]:
    """The times and, as booleans, the events (...) of any labels (...); a label of 0 is censored at time 0."""
    return np.abs(labels), labels > 0


def comparable(edges: Array, times: Array) -> Array:
    """The edges (T,) of intervals in the precision of the times, so that a time on an edge stays on it."""
    return edges.astype(times.dtype) if times.dtype.kind == "f" else edges
