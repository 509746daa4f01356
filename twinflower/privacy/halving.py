"""Successive halving within a privacy budget: how many candidates train for how long, and what each stage costs.

The candidates are trained together. After every stage each one is scored by noisy counts of correct predictions
(`counts`), and the better half goes on; the length of training doubles from stage to stage.

Every record pays for every candidate, whether that candidate is chosen or not: the server sees all of them. A record is
either trained on or counted, so these two costs do not add up (`counts`), and a stage costs the larger one; here both
are equal. A group of records can be partly trained on and partly counted, and pays for both.

Sources. Halving: Karnin, Koren and Somekh, "Almost optimal exploration in multi-armed bandits", ICML 2013; Jamieson and
Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS 2016. The smaller cost of
an attacker who sees only the winner (Liu and Talwar 2019; Papernot and Steinke 2022) is not claimed: it needs a random
number of candidates, and here the server sees all of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import SettingError
from .counts import paid_twice
from .unit import Unit


class Stage(NamedTuple):
    """A stage of the halving: so many candidates train up to this share of their rounds."""

    candidates: int
    share: float

    def rounds(self, all_rounds: int) -> int:
        """The round with which the stage ends, for a candidate of so many rounds."""
        return math.ceil(self.share * all_rounds)


def stages(candidates: int) -> list[Stage]:
    """The stages of the halving: ceil(n / 2^s) candidates in stage s, until two are left, which train to the end."""
    if not candidates >= 1:
        raise SettingError(f"there must be at least one candidate; got {candidates}")
    counts = [candidates]
    while counts[-1] > 2:
        counts.append(-(-counts[-1] // 2))
    return [Stage(n, 2.0 ** (place - len(counts) + 1)) for place, n in enumerate(counts)]


@dataclass(frozen=True)
class Halving:
    """The plan of a tuning. stages: in order. costs: what each candidate of a stage is charged, in mu^2. whole: the
    cost of training a candidate for all its rounds. unit: what is protected."""

    stages: list[Stage]
    costs: list[float]
    whole: float
    unit: Unit

    @classmethod
    def of(cls, fractions: Sequence[float], candidates: int, budget: float, unit: Unit) -> "Halving":
        """Divide a budget in mu^2 among the candidates.

        fractions: for each stage, the largest part of a client's training cost that lies in it, over all candidates
        and clients. Every round of every candidate gets the same part of the budget.
        """
        found = stages(candidates)
        runs = math.fsum(stage.candidates * part for stage, part in zip(found, fractions, strict=True))
        each = budget / runs
        return cls(found, [each * part for part in fractions], each / paid_twice(unit), unit)

    @property
    def total(self) -> float:
        """The cost of the whole tuning in mu^2."""
        return math.fsum(stage.candidates * cost for stage, cost in zip(self.stages, self.costs, strict=True))

    def multiplier(self, stage: int) -> float:
        """sigma / sensitivity of the counts of a stage."""
        return math.sqrt(paid_twice(self.unit) / self.costs[stage])
