"""A client's own rows: their precision, the public bounds of private ones, and what an objective asks of them."""

from logging import WARNING
from typing import Any

import numpy as np
from flwr.common import log
from numpy.typing import NDArray

from twinflower.arrays import DOUBLE
from twinflower.errors import SettingError
from twinflower.privacy.guard import Guard
from twinflower.problems.batches import Shards
from twinflower.problems.interfaces import Batch, ChecksRows, Objective


def check_precision(start: NDArray[Any], rows: Batch | Shards, guard: Guard | None) -> None:
    """Raise SettingError unless a client with this start computes in one precision: double, if it is private."""
    if start.dtype == DOUBLE:
        return
    if guard is not None:
        raise SettingError(
            f"a private client computes in double precision: start must be float64; got {start.dtype}"
        )
    parts = (rows.features, rows.labels, rows.row_weights)
    real = [part.dtype for part in parts if part is not None and part.dtype.kind == "f"]
    if not all(dtype == start.dtype for dtype in real):
        raise SettingError(
            f"start is {start.dtype}, so features, real labels and weights must be, too; got "
            f"{', '.join(map(str, real))}"
        )


def admitted(rows: Batch | Shards, start: NDArray[Any], client: int, guard: Guard | None) -> Shards:
    """A client's rows as the bounds of a private one assume them (`Guard.admitted`); the site's own log says if rows
    were changed. Shards are copied only then."""
    shards = rows if isinstance(rows, Shards) else _shards(rows, start, client)
    if guard is None:
        return shards
    own = shards.rows(client)
    bounded = guard.admitted(own)
    if bounded is own:
        return shards
    log(WARNING, "client %s: rows outside their public bounds were scaled or clipped to them", client)
    return Shards.site(bounded, client)


def check_rows(objective: Objective, rows: Batch, guard: Guard | None) -> None:
    """Raise the error of an objective that does not accept these rows (`ChecksRows`).

    Of a private client it sees no labels that are real numbers: whether a loss accepts one would reveal something about
    it. Such a row's gradient counts as 0, or its loss as the bound.
    """
    if not isinstance(objective, ChecksRows):
        return
    if guard is not None and rows.labels.dtype.kind not in "iu":
        rows = rows._replace(labels=np.zeros_like(rows.labels))
    objective.check_rows(rows)


def _shards(rows: Batch, start: NDArray[Any], client: int) -> Shards:
    """A client's rows with features, weights, and labels that are not whole numbers, of the type of the start."""
    labels = rows.labels if rows.labels.dtype.kind in "iu" else rows.labels.astype(start.dtype, copy=False)
    weights = None if rows.row_weights is None else rows.row_weights.astype(start.dtype, copy=False)
    features = rows.features.astype(start.dtype, copy=False)
    return Shards.site(rows._replace(features=features, labels=labels, row_weights=weights), client)
