"""The guard of a site whose server sees only sums."""

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import SettingError
from ..privacy.charges import Charge
from ..privacy.guard import Guard
from ..privacy.release import Release
from .discrete import Words
from .grid import SumNoise
from .noise import Sums, share_of


@dataclass(frozen=True, kw_only=True)
class SumGuard(Guard):
    """The guard of a site whose server sees only sums: it charges each round and returns the site's share of the noise.

    sums: those of the run. number: the number of the site. words(round): the source of random 64-bit words for a
    round. weight: the weight of the site's values in the sum.
    """

    sums: Sums
    number: int
    words: Callable[[int], Words]
    weight: float = 1.0

    def open(self, release: Release, round_: int, run: str = "") -> SumNoise:  # type: ignore[override]
        """Charge the round and return the function that encodes a value and adds noise; see `Guard.open`."""
        if not 1 <= round_ <= self.sums.rounds:
            raise SettingError(f"noise was planned for {self.sums.rounds} rounds; got round {round_}")
        place = round_ - 1, self.number
        sigma, cost, alone = (float(x) for x in (self.sums.sigmas[round_ - 1], self.sums.costs[place],
                                                 self.sums.costs_alone[place]))  # fmt: skip
        charge = Charge(
            run or self.run, round_, float(self.sums.moves[place]), sigma, 1, cost, self.config, alone=alone,
            split=self.split, flower_run=self.run if run else "",
        )  # fmt: skip
        self.ledger.charge(charge, self.budget)
        return SumNoise(self.sums.grid(round_), self.weight, [share_of(self.words(round_))])
