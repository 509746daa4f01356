"""Bounds on the loss of groups of rows: "cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4".

    cost         all rows
    class C      rows of class C
    feature J    rows whose feature J (from 0) is above 0, such as those of a subgroup

A bound U on a group's mean loss is (1/m) sum over all m rows of [row in group] (loss - U) <= 0: a mean over rows like
any cost, for which nobody needs to know how large the group is.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Any

import numpy as np

from .arrays import Array, Mask
from .errors import require
from .networks import Network
from .objectives import Batch, LinearModel

_FORM = re.compile(r"\s*(cost|class\s+(\d+)|feature\s+(\d+))\s*<=\s*(\S+)\s*")


@dataclass(frozen=True)
class Constraint:
    """The mean loss of a group is at most `limit`; kind is "cost", "class" or "feature", number which one."""

    kind: str
    number: int
    limit: float

    @property
    def name(self) -> str:
        """As a user types it, without the limit."""
        return self.kind if self.kind == "cost" else f"{self.kind} {self.number}"

    def members(self, rows: Batch) -> Mask:
        """Which rows are in the group, (..., b)."""
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
        """Mean loss of the group less its limit, from losses (b,) of all rows; -limit for an empty group."""
        members = self.members(rows)
        return float(losses[members].mean() if members.any() else 0.0) - self.limit


def parse_constraints(text: str) -> tuple[Constraint, ...]:
    """The constraints of a setting, at least one; SettingError for anything else."""
    return tuple(map(_parse, text.split(",")))


def _parse(part: str) -> Constraint:
    found = _FORM.fullmatch(part)
    require(
        found is not None,
        f"constraints must be like 'cost <= 0.3, class 3 <= 0.5, feature 12 <= 0.4'; got '{part.strip()}'",
    )
    assert found is not None
    limit = _number(found[4])
    require(0 < limit < np.inf, f"a bound on the loss must be a number above 0; got '{part.strip()}'")
    return Constraint(found[1].split()[0], int(found[2] or found[3] or 0), limit)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def groups_of_a_record(constraints: Sequence[Constraint]) -> tuple[int, int, int]:
    """How many bounds are on the cost or a feature, on the class that has most, and on the class next to it.

    A record is in every group of the first kind that its features say, and in the groups of one class.
    """
    classes = [c.number for c in constraints if c.kind == "class"]
    most = sorted((classes.count(number) for number in set(classes)), reverse=True)
    first, second, *_ = *most, 0, 0
    return len(constraints) - len(classes), first, second


def read_penalties(text: str) -> list[float]:
    """The numbers of a setting such as "10, 1e3": SettingError unless they are above 0 and increase."""
    try:
        costs = [float(word) for word in text.split(",")]
    except ValueError:
        costs = [0.0]
    require(all(0 < c < inf for c in costs), f"penalties must be numbers above 0; got '{text}'")
    require(all(a < b for a, b in pairwise(costs)), f"penalties must increase; got '{text}'")
    return costs


def check_classes(constraints: Sequence[Constraint], objective: Any) -> None:
    """SettingError for a class that no row can have: it would keep any bound."""
    highest = max((c.number for c in constraints if c.kind == "class"), default=-1)
    if not isinstance(objective, LinearModel | Network) or highest < 0:
        return
    classes = max(2, objective.outputs) if objective.loss.classifies else 0
    require(highest < classes, f"constraints: class {highest} must be below {classes}, the number of classes")
