"""Evaluation of a model at the sites, on rows that never enter training, and the weighted mean over the sites."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .arrays import Array
from .objectives import Batch, Objective

COLUMNS = ("held_out_loss", "held_out_accuracy", "held_out_rows")


class Evaluation(NamedTuple):
    """What a site reports about a model on its m held-out rows.

    rows: m. loss: the mean loss, f_i of these rows. correct: for a classification, the number of correctly predicted
    rows, from 0 to m; replacing a record changes it by at most 1. For a regression it is m R^2, NaN where the labels
    do not vary.
    """

    rows: int
    loss: float
    correct: float


def evaluate(objective: Objective, x: Array, rows: Batch) -> Evaluation:
    """Evaluate the model x (d,) on a site's held-out rows, which may be none."""
    size = len(rows.labels)
    if not size:
        return Evaluation(0, 0.0, 0.0)
    with np.errstate(all="ignore"):  # a diverging model has an infinite loss
        return Evaluation(size, float(objective.value(x, rows)), size * float(objective.score(x, rows)))


def pooled(sites: Sequence[Evaluation]) -> dict[str, float]:
    """The `COLUMNS` of a round: means over the sites, weighted by their numbers of held-out rows, and all these rows.

    The accuracy leaves out sites where it is NaN; a mean over no rows is NaN. Sums run in the order of the sites.
    """
    rows, loss, correct = np.array(sites, dtype=float).reshape(-1, 3).T
    scored = ~np.isnan(correct)
    with np.errstate(invalid="ignore"):
        means = (rows @ loss) / rows.sum(), correct[scored].sum() / rows[scored].sum()
    return dict(zip(COLUMNS, (*map(float, means), int(rows.sum())), strict=True))
