"""The settings of every regulariser h, and the table of their names."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

from ..settings import Rule, Setting, above, at_least, check_settings, make
from .regularisers import L1, Ball, Box, ElasticNet, GroupL1, Regulariser, Support, WeightedL1Box, Zero

Weight = Annotated[float, Setting("weight of the l1 norm, or of the sum of the groups' norms", at_least(0))]
Bound = Annotated[float, Setting("the box is [-bound, bound] in every entry", above(0))]


@dataclass(frozen=True)
class Penalty(ABC):
    """The settings of a regulariser; `build` returns the regulariser h itself."""

    name: str = ""
    parameters: Annotated[
        str, Setting("parameters of a PyTorch module that h sees, such as '*.weight, head.bias'; empty: all")
    ] = ""
    intercept: Annotated[
        bool,
        Setting(
            "of a linear model, whether h sees the weight of the column of ones and the baseline of survival like the "
            "weights of the columns"
        ),
    ] = True

    @abstractmethod
    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""


@dataclass(frozen=True)
class NoRegulariser(Penalty):
    """Settings of h = 0."""

    name: str = "none"

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return Zero()


@dataclass(frozen=True)
class L1Norm(Penalty):
    """Settings of h(x) = weight * ||x||_1."""

    name: str = "l1"
    weight: Weight = 3e-3

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return L1(self.weight)


@dataclass(frozen=True)
class L1NormInBox(Penalty):
    """Settings of h(x) = weight * ||x||_1 on the box [-bound, bound]^d."""

    name: str = "l1-box"
    weight: Weight = 3e-3
    bound: Bound = 1.0

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return WeightedL1Box(self.weight, -self.bound, self.bound)


@dataclass(frozen=True)
class L1AndL2(Penalty):
    """Settings of h(x) = l1 * ||x||_1 + l2/2 * ||x||^2."""

    name: str = "elastic-net"
    l1: Annotated[float, Setting("weight of ||x||_1", at_least(0))] = 3e-3
    l2: Annotated[float, Setting("weight of ||x||^2 / 2", at_least(0))] = 0.0

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return ElasticNet(self.l1, self.l2)


@dataclass(frozen=True)
class GroupNorms(Penalty):
    """Settings of h(X) = weight * sum of the norms of the columns of X."""

    name: str = "group-l1"
    weight: Weight = 3e-3

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return GroupL1(self.weight, rows)


@dataclass(frozen=True)
class InBox(Penalty):
    """Settings of the indicator of the box [-bound, bound]^d."""

    name: str = "box"
    bound: Bound = 1.0

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return Box(-self.bound, self.bound)


@dataclass(frozen=True)
class InBall(Penalty):
    """Settings of the indicator of the ball ||x|| <= radius."""

    name: str = "ball"
    radius: Annotated[float, Setting("radius of the ball around 0", above(0))] = 1.0

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return Ball(self.radius)


def _entries(text: str) -> tuple[int, ...]:
    """The numbers that a text such as "0, 3, 7" lists, ascending; none for any other text."""
    words = [word.strip() for word in text.split(",")]
    fine = all(word.isascii() and word.isdecimal() for word in words)
    return tuple(sorted(set(map(int, words)))) if fine else ()


@dataclass(frozen=True)
class Selected(Penalty):
    """Settings of the indicator of the points whose entries are 0 but for some."""

    name: str = "selected"
    entries: Annotated[
        str,
        Setting(
            "entries of the model that may differ from 0, counted from 0, such as 0, 3, 7; see twinflower refit",
            Rule("whole numbers, separated by commas", lambda text: bool(_entries(text))),
        ),
    ] = "0"

    @property
    def chosen(self) -> tuple[int, ...]:
        """The entries, as numbers."""
        return _entries(self.entries)

    def build(self, rows: int) -> Regulariser:
        """The regulariser h for points that are matrices with `rows` rows."""
        return Support(self.chosen)


REGULARISERS: dict[str, type[Penalty]] = {
    entry.name: entry
    for entry in (NoRegulariser, L1Norm, L1NormInBox, L1AndL2, GroupNorms, InBox, InBall, Selected)
}


def make_regulariser(name: str, rows: int = 1, **settings: float) -> Regulariser:
    """The regulariser called `name` (one of REGULARISERS) with its settings.

    rows is the number of rows of the matrix that a flat point represents. Raises SettingError for an unknown name or
    setting, or a value out of range.
    """
    entry: Penalty = make(REGULARISERS, "regulariser", name, settings)
    check_settings(entry)
    return entry.build(rows)
