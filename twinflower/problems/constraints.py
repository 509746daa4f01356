"""Upper bounds on the mean loss of groups of rows: "cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4".

    cost         all rows
    class C      rows of class C
    feature J    rows whose feature J (from 0) is above 0, such as those of a subgroup

A bound U on a group's mean loss is (1/m) sum over all m rows of [row in group] (loss - U) <= 0. This is a mean over
all rows, like the cost itself, so the size of the group need not be known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..arrays import Array, Mask
from ..decimals import decimal
from ..errors import SettingError
from ..settings import LARGEST, SMALLEST, moderate
from .interfaces import Batch
from .networks import Network
from .objectives import LinearModel

_FORM = re.compile(r"\s*(cost|class\s+([0-9]+)|feature\s+([0-9]+))\s*<=\s*(\S+)\s*")
_GROUP = re.compile(r"\s*(cost|none|class\s+([0-9]+)|feature\s+([0-9]+))\s*")


@dataclass(frozen=True)
class Group:
    """A group of rows; kind is "cost" (all rows), "class", "feature" or "none", and index selects which."""

    kind: str
    index: int

    @property
    def name(self) -> str:
        """The group as the user writes it, such as "class 3"."""
        return f"{self.kind} {self.index}" if self.kind in ("class", "feature") else self.kind

    def members(self, rows: Batch) -> Mask:
        """Whether each row is in the group, (..., b); SettingError if the rows lack the feature."""
        if self.kind == "class":
            return np.asarray(rows.labels == self.index)
        if self.kind == "feature":
            width = rows.features.shape[-1]
            if not self.index < width:
                raise SettingError(
                    f"groups of rows: feature {self.index} must be below {width}, the rows' width"
                )
            return rows.features[..., self.index] > 0  # type: ignore[no-any-return]
        return np.full(np.shape(rows.labels), self.kind == "cost")

    def mean_loss(self, losses: Array, rows: Batch) -> float:
        """Mean loss of the group, given the losses (b,) of all rows, weighted as the rows are; 0 for an empty group."""
        members = self.members(rows)
        if not members.any():
            return 0.0
        if rows.weights is None:
            return float(losses[members].mean(dtype=np.float64))
        return float(np.average(losses[members], weights=rows.weights[members]))


@dataclass(frozen=True)
class Constraint(Group):
    """The mean loss of a group is at most `limit`."""

    limit: float

    def excess(self, losses: Array, rows: Batch) -> float:
        """Mean loss of the group minus its limit, given the losses (b,) of all rows; -limit for an empty group."""
        return self.mean_loss(losses, rows) - self.limit


def parse_group(text: str, key: str) -> Group:
    """Parse a group such as "class 3", or "none"; SettingError, naming the setting `key`, if malformed."""
    match = _GROUP.fullmatch(text)
    if match is None:
        raise SettingError(
            f"{key} must be cost (all rows), class C, feature J or none (no rows); got '{text}'"
        )
    return Group(match[1].split()[0], int(match[2] or match[3] or 0))


def parse_constraints(text: str) -> tuple[Constraint, ...]:
    """Parse a setting such as "cost <= 0.3, class 3 <= 0.5" into at least one constraint; SettingError if malformed."""
    return tuple(map(_parse, text.split(",")))


def _parse(part: str) -> Constraint:
    match = _FORM.fullmatch(part)
    if match is None:
        raise SettingError(
            f"constraints must be like 'cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4'; got '{part.strip()}'"
        )
    limit = _number(match[4])
    if not (limit > 0 and moderate(limit)):
        raise SettingError(
            f"a bound on the loss must be a number from {SMALLEST:g} to {LARGEST:g}; got '{part.strip()}'"
        )
    return Constraint(match[1].split()[0], int(match[2] or match[3] or 0), limit)


def _number(text: str) -> float:
    try:
        return decimal(text)
    except ValueError:
        return np.nan


def shares(group: Group, rows: Batch, dtype: DTypeLike) -> Array:
    """The rows' weights (..., b) in a client's mean over all its rows, 0 for those that are not in the group."""
    share = 1.0 / rows.labels.shape[-1] if rows.weights is None else rows.weights
    return (share * group.members(rows)).astype(dtype, copy=False)  # type: ignore[no-any-return]


def groups_of_a_record(constraints: Sequence[Constraint]) -> tuple[int, int, int]:
    """Number of bounds on the cost or a feature, and on the two classes with the most bounds, in descending order.

    A record can be in all cost and feature groups at once, but only in the groups of one class. The three numbers
    therefore determine how many groups one record, or its replacement, can affect.
    """
    classes = [c.index for c in constraints if c.kind == "class"]
    most = sorted((classes.count(index) for index in set(classes)), reverse=True)
    first, second, *_ = *most, 0, 0
    return len(constraints) - len(classes), first, second


def read_penalties(text: str) -> list[float]:
    """The numbers in a setting such as "10, 1e3"; SettingError unless they are positive and increasing."""
    try:
        costs = [decimal(word) for word in text.split(",")]
    except ValueError:
        costs = [0.0]
    if not all(c > 0 and moderate(c) for c in costs):
        raise SettingError(f"penalties must be numbers from {SMALLEST:g} to {LARGEST:g}; got '{text}'")
    if not all(a < b for a, b in pairwise(costs)):
        raise SettingError(f"penalties must increase; got '{text}'")
    return costs


def check_classes(groups: Sequence[Group], objective: Any) -> None:
    """SettingError for a class that no row can have: its bound would always be satisfied."""
    highest = max((group.index for group in groups if group.kind == "class"), default=-1)
    if not isinstance(objective, LinearModel | Network) or highest < 0:
        return
    classes = max(2, objective.outputs) if objective.loss.classifies else 0
    if not highest < classes:
        raise SettingError(f"groups of rows: class {highest} must be below {classes}, the number of classes")
