"""A count and its offset as one number, so that a row has one label: the count, plus a fraction that holds the offset.

The offset is the logarithm of a row's exposure, by which its expected count is multiplied. An offset o from above -16
to below 16 is stored as (o / 64) modulo 1/2. A whole number is thus a count with offset 0. Counts below 2^16 leave the
offset an absolute error of at most 2^-31.
"""

import numpy as np

from .arrays import Array

FARTHEST = 16.0  # bound on the size of an offset
_STEP = 64.0


def packed(counts: Array, offsets: Array) -> Array:
    """The labels (...) of counts (...), whole numbers from 0 on, with offsets (...) within (-16, 16)."""
    return counts + (offsets / _STEP) % 0.5


def unpacked(labels: Array) -> tuple[Array, Array]:
    """The counts and the offsets (...) of any labels (...): a negative one is a count of 0 with offset 0, and an offset
    beyond `FARTHEST` is clipped to it."""
    labels = np.maximum(labels, 0.0)
    counts = np.floor(labels)
    shares = labels - counts
    return counts, np.clip(_STEP * np.where(shares > 0.25, shares - 0.5, shares), -FARTHEST, FARTHEST)
