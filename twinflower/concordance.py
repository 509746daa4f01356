"""Whether persons with a higher risk have the event earlier: Harrell's concordance index."""

from typing import NamedTuple

import numpy as np

from .arrays import Array, Mask

_BLOCK = 2**22  # pairs that are compared at a time


class Concordance(NamedTuple):
    """Pairs of persons of whom it is known who had the event first: in so many, the one with the higher risk had it,
    and in so many others both have the same risk."""

    concordant: float
    tied: float
    pairs: float

    @property
    def share(self) -> float:
        """Harrell's C, in [0, 1]: the share of concordant pairs, where a tie counts one half; NaN without pairs."""
        return (self.concordant + self.tied / 2) / self.pairs if self.pairs else np.nan


def concordance(risk: Array, times: Array, events: Mask) -> Concordance:
    """The pairs among persons with these risks, times and events (rows,).

    A pair counts if the one with the shorter time had the event, or if times are equal and only one had it: who was
    censored at that time outlives it (Harrell et al., "Evaluating the yield of medical tests", JAMA 1982).
    """
    sums = np.zeros(3)
    had = np.flatnonzero(events)
    for part in np.array_split(had, -(-len(had) * len(risk) // _BLOCK) or 1):
        first = times[part, None]
        later = (first < times) | ((first == times) & ~events)
        event_risk = risk[part, None]
        sums += (later & (event_risk > risk)).sum(), (later & (event_risk == risk)).sum(), later.sum()
    return Concordance(*sums.tolist())
