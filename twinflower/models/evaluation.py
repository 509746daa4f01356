"""Evaluation of a model at the sites, on rows that never enter training, and the weighted mean over the sites."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..arrays import Array
from ..problems.interfaces import Batch, Objective
from .intervals import share_interval

COLUMNS = ("held_out_loss", "held_out_accuracy", "held_out_rows")
INTERVAL = ("held_out_low", "held_out_high")


class Evaluation(NamedTuple):
    """What a site reports about a model on its m held-out rows.

    rows: m. loss: the mean loss, f_i of these rows. correct: for a classification, the number of correctly predicted
    rows, from 0 to m; replacing a record changes it by at most 1. For a regression it is m R^2, NaN where the labels
    do not vary.
    """

    rows: int
    loss: float
    correct: float


class Released(NamedTuple):
    """What a private site reports: the sum of a number from 0 to 1 for each of m held-out rows, with noise.

    rows: m. value: the noisy sum. sigma: the standard deviation of its noise, which is public.
    """

    rows: int
    value: float
    sigma: float


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


def private_columns(bound: float = 0.0) -> tuple[str, ...]:
    """The columns of `estimated`."""
    return ("held_out_loss" if bound else "held_out_accuracy", *INTERVAL, "held_out_rows")


def estimated(sites: Sequence[Released], bound: float = 0.0) -> dict[str, float]:
    """The estimate from the noisy sums of the sites, and its interval at 95% (`share_interval`).

    Without a bound a row counts 1 if it is predicted correctly, and the result is an accuracy. With one it counts
    loss / bound, at most 1, and the result is the mean of these clipped losses; NaN without any site. The estimate is
    for new rows of the sites, in the proportions of their held-out rows. The interval's level is proven for independent
    rows that are all predicted correctly with the same probability. Where sites differ, and for clipped losses, the sum
    varies less than a binomial number; then simulations support it (docs/guarantee.md), but no proof.
    """
    if not sites:
        return dict(zip(private_columns(bound), (np.nan, np.nan, np.nan, 0), strict=True))
    rows = sum(site.rows for site in sites)
    value, sigma = sum(site.value for site in sites), float(np.hypot.reduce([s.sigma for s in sites]))
    numbers = np.clip([value / rows, *share_interval(value, rows, sigma)], 0.0, 1.0) * (bound or 1.0)
    return dict(zip(private_columns(bound), (*map(float, numbers), rows), strict=True))
