"""What a site's policy asks of exact sums over its training rows, such as information matrices: at the end of a run, or
in every round of Newton's method."""

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingError
from ..models.survival import TimeGrid
from ..problems.discrete_cox import DiscreteCox
from ..problems.interfaces import Batch
from ..settings import Setting, at_least, one_of, snake

_ROWS_PER_PARAMETER = 3  # as DataSHIELD's nfilter.glm = 0.33


@dataclass(frozen=True)
class SumsPolicy:
    """Keys of a site's node config."""

    standard_error_rows: Annotated[
        int | None,
        Setting(
            "fewest rows, in all and in every category, of which it sends an information matrix; else it sends none",
            at_least(1),
        ),
    ] = None
    newton_rows: Annotated[
        int | None,
        Setting(
            "the same for runs of newton, which send such a matrix in every round; else it takes no part in them",
            at_least(1),
        ),
    ] = None
    newton_rows_per_parameter: Annotated[
        float, Setting("fewest rows for each parameter of a run of newton", at_least(1), needs="newton-rows")
    ] = 3.0
    newton_folds: Annotated[
        int | None,
        Setting(
            "folds of its rows in runs of newton-path, each with the rows that newton-rows asks for; else it takes no "
            "part in them",
            at_least(2),
            needs="newton-rows",
        ),
    ] = None
    newton_trust: Annotated[
        str,
        Setting(
            "with sum, takes part in runs of newton only if they have privacy.trust = sum, so that the server sees no "
            "more than sums over all sites",
            one_of(("local", "sum")),
            needs="newton-rows",
        ),
    ] = "local"
    newton_rounds: Annotated[
        int,
        Setting(
            "most answers to all runs of newton on these rows, one a round, counted beside the ledger",
            at_least(1),
            needs="newton-rows",
        ),
    ] = 50


def check_exact_sums(run: Any, site: Any, client: int, key: str, remedy: str) -> None:
    """Raise SettingError unless a site's policy allows exact sums over its training rows: its key of this name says of
    how many rows at least, in all and by category."""
    least: int | None = getattr(site, snake(key))
    what, remedy = "this site sends no information matrix", f"({remedy})"
    if least is None:
        raise SettingError(f"{what}: its node config has no {key} {remedy}")
    if run.method.num_folds not in (0, site.newton_folds):
        raise SettingError(
            f"{what} about {run.method.num_folds} folds of its rows: its node config has newton-folds = "
            f"{site.newton_folds or 'none'} {remedy}"
        )
    if key == "newton-rows" and site.newton_trust == "sum" and not run.pooled:
        raise SettingError(
            f"{what} of its own: its node config has newton-trust = sum, so set privacy.trust to sum"
        )
    each = site.newton_rows_per_parameter if key == "newton-rows" else _ROWS_PER_PARAMETER
    training = _counted(run.shards.rows(client))
    _check_part(run, site, training, key, each, what, remedy)
    for fold in range(run.method.num_folds):  # sums over all rows less those without a fold are those over it
        part = training.kept(training.folds == fold)
        _check_part(run, site, part, key, each, f"{what} for a fold", remedy)


def allowing(objective: Any, key: str) -> dict[str, Any]:
    """The entries of a node config that allow these sums with the key `key`, of however few rows and events."""
    return {
        key: 1,
        **({"survival-rows": 1, "survival-cell": 1} if isinstance(objective, DiscreteCox) else {}),
    }


def _check_part(run: Any, site: Any, training: Batch, key: str, each: float, what: str, remedy: str) -> None:
    """Raise SettingError unless exact sums over these rows are allowed."""
    least, d = getattr(site, snake(key)), run.objective.d
    persons, needed = _persons(training, np.ones(len(training.labels), bool)), max(least, math.ceil(each * d))
    rows = "rows" if training.groups is None else "groups of rows"
    if not persons >= needed:
        raise SettingError(
            f"{what} of fewer than {needed} {rows}, {each:g} for each of {d} parameters or its {key}; the run has "
            f"{persons} {remedy}"
        )
    if not smallest_cell(training, run.dataset.num_classes) >= least:
        raise SettingError(f"{what}: a category or class has fewer {rows} than its {key} {remedy}")
    if isinstance(run.objective, DiscreteCox):  # the gradient shows how many had the event in each interval
        cells = TimeGrid(tuple(run.objective.loss.ends)).counts(training.labels)
        if not cells[cells > 0].min() >= site.survival_cell:
            raise SettingError(
                f"{what} unless there are {site.survival_cell} events or none, and {site.survival_cell} censored or "
                f"none, in every interval: choose longer intervals {remedy}"
            )


def _counted(rows: Batch) -> Batch:
    """The rows with a weight above 0: others say nothing, and hide nobody."""
    return rows if rows.row_weights is None else rows.kept(rows.row_weights > 0)


def _persons(rows: Batch, which: NDArray[np.bool_]) -> int:
    """The number of these rows (rows,), or of their groups."""
    return int(which.sum()) if rows.groups is None else len(np.unique(rows.groups[which]))


def smallest_cell(rows: Batch, classes: int) -> float:
    """The smallest number of rows, or of their groups, above 0, in which a feature with two values has one of them, or
    the label is one of so many classes; infinity without such features and classes."""
    low, high = rows.features.min(0), rows.features.max(0)
    ends = rows.features == low, rows.features == high
    binary = (ends[0] | ends[1]).all(0) & (low < high)
    masks = [*ends[0].T[binary], *ends[1].T[binary], *(rows.labels == code for code in range(classes))]
    return min(filter(None, (_persons(rows, which) for which in masks)), default=np.inf)
