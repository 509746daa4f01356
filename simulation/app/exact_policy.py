"""A site's policy on what it sends about its rows without noise, in runs without privacy.

Whether an information matrix or the counts for a survival curve are refused depends on the site's rows, so the refusal
says something about them. It is therefore no part of a private run, which has none of these sums without noise.
"""

import math

import numpy as np

from twinflower.arrays import Array
from twinflower.errors import SettingError
from twinflower.models.survival import TimeGrid
from twinflower.models.time_scores import TimeBins
from twinflower.problems.discrete_cox import DiscreteCox
from twinflower.problems.interfaces import Batch
from twinflower.settings import snake

from ..runs.agreement import counts_of
from ..runs.rows import held_rows
from ..runs.score_bins import fineness, score_bins
from ..runs.setup import PreparedRun
from .site import Site

_ROWS_PER_PARAMETER = 3  # as DataSHIELD's nfilter.glm = 0.33


def check_exact(setup: PreparedRun, site: Site) -> None:
    """Raise SettingError for a run without privacy that asks for exact sums which the site's policy does not allow."""
    own = setup.config.evaluation
    if (own.bins or own.errors) and setup.held is not None:
        bins = score_bins(setup.config, setup.dataset.num_classes)
        _check_scores(site, fineness(bins), int(setup.held.sizes[site.partition_id]))
        held = held_rows(setup, site.partition_id)
        if isinstance(bins, TimeBins) and held is not None:
            _check_persons(site, TimeGrid(bins.times).counts(held.labels), "evaluation.auc-times")
    if setup.method.sends_sums:
        _check_information(setup, site, "newton-rows", "choose another algorithm, such as fedavg")
    elif own.standard_errors:
        _check_information(
            setup, site, "standard-error-rows", "evaluation.standard-errors = false trains without"
        )
    counts = counts_of(setup, site.partition_id)
    if counts and counts.persons:
        _check_persons(site, counts.persons.counts(), "evaluation.survival-curve")


def _check_scores(site: Site, bins: int, rows: int) -> None:
    least, most = site.score_rows, site.score_bins
    remedy = "(evaluation.bins = 0 and evaluation.errors = false train without)"
    if least is None:
        raise SettingError(f"this site counts no scores: its node config has no score-rows {remedy}")
    if not (rows >= least and bins <= most):
        raise SettingError(
            f"this site counts the scores of at least {least} held-out rows in at most {most} bins; the run has {rows} "
            f"rows in {bins} bins {remedy}"
        )


def _check_information(setup: PreparedRun, site: Site, key: str, remedy: str) -> None:
    """Check the number of rows, in all and by category, of which the key of the node config says the fewest."""
    least: int | None = getattr(site, snake(key))
    what, d, remedy = "this site sends no information matrix", setup.objective.d, f"({remedy})"
    if least is None:
        raise SettingError(f"{what}: its node config has no {key} {remedy}")
    each = site.newton_rows_per_parameter if key == "newton-rows" else _ROWS_PER_PARAMETER
    training = _counted(setup.shards.rows(site.partition_id))
    rows, needed = len(training.labels), max(least, math.ceil(each * d))
    if not rows >= needed:
        raise SettingError(
            f"{what} of fewer than {needed} rows, {each:g} for each of {d} parameters or its {key}; the run has "
            f"{rows} {remedy}"
        )
    if not smallest_cell(training, setup.dataset.num_classes) >= least:
        raise SettingError(f"{what}: a category or class has fewer rows than its {key} {remedy}")
    if isinstance(setup.objective, DiscreteCox):  # the gradient shows how many had the event in each interval
        cells = TimeGrid(tuple(setup.objective.loss.ends)).counts(training.labels)
        if not cells[cells > 0].min() >= site.survival_cell:
            raise SettingError(
                f"{what} unless there are {site.survival_cell} events or none, and {site.survival_cell} censored or "
                f"none, in every interval: choose longer intervals {remedy}"
            )


def _counted(rows: Batch) -> Batch:
    """The rows with a weight above 0: others say nothing, and hide nobody."""
    if rows.row_weights is None:
        return rows
    kept = rows.row_weights > 0
    return Batch(rows.features[kept], rows.labels[kept])


def _check_persons(site: Site, cells: Array, setting: str) -> None:
    what, remedy = f"this site counts no persons for {setting}", f"({setting} empty trains without)"
    least, smallest = site.survival_rows, site.survival_cell
    if least is None:
        raise SettingError(f"{what}: its node config has no survival-rows {remedy}")
    if not (cells.sum() >= least and cells[cells > 0].min(initial=np.inf) >= smallest):
        raise SettingError(
            f"{what} unless there are at least {least} in all, and {smallest} events or none, and {smallest} "
            f"censored or none, in every interval: choose longer intervals {remedy}"
        )


def smallest_cell(rows: Batch, classes: int) -> float:
    """The smallest number of rows, above 0, in which a feature with two values has one of them, or the label is one of
    so many classes; infinity without such features and classes."""
    low, high = rows.features.min(0), rows.features.max(0)
    ends = [(rows.features == own).sum(0) for own in (low, high)]
    binary = (ends[0] + ends[1] == len(rows.features)) & (low < high)
    counts = np.bincount(rows.labels) if classes else np.empty(0)
    cells = np.concatenate([*(own[binary] for own in ends), counts])
    return float(min(cells[cells > 0], default=np.inf))
