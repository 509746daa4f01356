"""Synthetic readings of water utilities: 3 of 20 sensors matter, and every tenth meter is stuck."""

import numpy as np

from twinflower.problems.interfaces import Batch

FEATURES = 20
TRUTH = np.zeros(FEATURES)
TRUTH[[2, 7, 11]] = 2.0, -1.5, 1.0


def readings(utility: int, rows: int = 400) -> Batch:
    """The rows of one water utility: features of norm at most 1, and the demand."""
    draw = np.random.default_rng([2026, utility])
    features = draw.normal(size=(rows, FEATURES))
    features[:, utility % FEATURES] += 1.0  # no two utilities are alike
    features /= np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1.0)
    demand = features @ TRUTH + 0.05 * draw.normal(size=rows)
    demand[::10] += 25.0
    return Batch(features, demand)


def tomorrow(rows: int = 2000) -> Batch:
    """Rows nobody trains on, with meters that work."""
    draw = np.random.default_rng(2026)
    features = draw.normal(size=(rows, FEATURES))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    return Batch(features, features @ TRUTH)
