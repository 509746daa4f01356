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

from ..arrays import Array, Mask
from ..errors import require
from ..settings import LARGEST, SMALLEST, moderate
from .interfaces import Batch
from .networks import Network
from .objectives import LinearModel

_FORM = re.compile(r"\s*(cost|class\s+(\d+)|feature\s+(\d+))\s*<=\s*(\S+)\s*")


@dataclass(frozen=True)
class Constraint:
    """The mean loss of a group is at most `limit`; kind is "cost", "class" or "feature", and number selects which."""

    kind: str
    number: int
    limit: float

    @property
    def name(self) -> str:
        """The group as the user writes it, such as "class 3", without the limit."""
        return self.kind if self.kind == "cost" else f"{self.kind} {self.number}"

    def members(self, rows: Batch) -> Mask:
        """Whether each row is in the group, (..., b); SettingError if the rows lack the feature."""
        if self.kind == "class":
            return np.asarray(rows.labels == self.number)
        if self.kind == "feature":
            width = rows.features.shape[-1]
            require(
                self.number < width,
                f"constraints: feature {self.number} must be below {width}, the rows' width",
            )
            return rows.features[..., self.number] > 0  # type: ignore[no-any-return]
        return np.ones(np.shape(rows.labels), dtype=bool)

    def excess(self, losses: Array, rows: Batch) -> float:
        """Mean loss of the group minus its limit, given the losses (b,) of all rows; -limit for an empty group."""
        members = self.members(rows)
        return float(losses[members].mean(dtype=np.float64) if members.any() else 0.0) - self.limit


def parse_constraints(text: str) -> tuple[Constraint, ...]:
    """Parse a setting such as "cost <= 0.3, class 3 <= 0.5" into at least one constraint; SettingError if malformed."""
    return tuple(map(_parse, text.split(",")))


def _parse(part: str) -> Constraint:
    found = _FORM.fullmatch(part)
    require(
        found is not None,
        f"constraints must be like 'cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4'; got '{part.strip()}'",
    )
    assert found is not None
    limit = _number(found[4])
    require(
        limit > 0 and moderate(limit),
        f"a bound on the loss must be a number from {SMALLEST:g} to {LARGEST:g}; got '{part.strip()}'",
    )
    return Constraint(found[1].split()[0], int(found[2] or found[3] or 0), limit)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def groups_of_a_record(constraints: Sequence[Constraint]) -> tuple[int, int, int]:
    """Number of bounds on the cost or a feature, and on the two classes with the most bounds, in descending order.

    A record can be in all cost and feature groups at once, but only in the groups of one class. The three numbers
    therefore determine how many groups one record, or its replacement, can affect.
    """
    classes = [c.number for c in constraints if c.kind == "class"]
    most = sorted((classes.count(number) for number in set(classes)), reverse=True)
    first, second, *_ = *most, 0, 0
    return len(constraints) - len(classes), first, second


def read_penalties(text: str) -> list[float]:
    """The numbers in a setting such as "10, 1e3"; SettingError unless they are positive and increasing."""
    try:
        costs = [float(word) for word in text.split(",")]
    except ValueError:
        costs = [0.0]
    require(
        all(c > 0 and moderate(c) for c in costs),
        f"penalties must be numbers from {SMALLEST:g} to {LARGEST:g}; got '{text}'",
    )
    require(all(a < b for a, b in pairwise(costs)), f"penalties must increase; got '{text}'")
    return costs


def check_classes(constraints: Sequence[Constraint], objective: Any) -> None:
    """SettingError for a class that no row can have: its bound would always be satisfied."""
    highest = max((c.number for c in constraints if c.kind == "class"), default=-1)
    if not isinstance(objective, LinearModel | Network) or highest < 0:
        return
    classes = max(2, objective.outputs) if objective.loss.classifies else 0
    require(highest < classes, f"constraints: class {highest} must be below {classes}, the number of classes")
