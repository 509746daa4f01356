"""Noisy counts of correct predictions, by which a client says how good a model is on rows of its own.

A row that is predicted correctly counts 1, any other row 0. Replacing a record therefore changes a client's count by at
most 1, and replacing k records by at most k. With Gaussian noise of deviation sigma, the count costs (k / sigma)^2 in
mu^2. The numbers of rows are public, so the accuracy on all clients' rows follows from the counts without further cost.
"""

import math
from typing import NamedTuple

import numpy as np

from ..arrays import Array, Index
from ..objectives import Batch, Objective
from .release import Release


def correct(objective: Objective, x: Array, rows: Batch) -> Array:
    """How many rows the model x predicts correctly, (1,)."""
    return np.array([float((objective.predict(x, rows.features) == rows.labels).sum())])


def count_release(replaced: int, touched: int = 1) -> Release:
    """The release of a client's count of which so many rows are replaced together."""
    return Release(float(replaced), touched)


class Accuracy(NamedTuple):
    """An estimated accuracy and the standard deviation of its noise; the rows themselves are not sampled anew."""

    value: float
    deviation: float

    @classmethod
    def of(cls, counts: Array, sigmas: Array, rows: Index) -> "Accuracy":
        """The accuracy from the noisy counts (N,) with deviations sigmas (N,) of clients with these numbers of rows."""
        total = int(rows.sum())
        return cls(float(counts.sum()) / total, math.sqrt(float((sigmas**2).sum())) / total)
