"""How well predictions of survival agree with what was observed: Harrell's concordance index, that is, whether persons
with a higher risk have the event earlier; and the Brier score of predicted survival under censoring (Graf et al.,
Statistics in Medicine 1999).

The Brier score. At a time t it is the mean of (1(T > t) - S(t))^2 over persons of whom it is known whether the event
happened by then, weighted by the inverse of the probability G of not having been censored before that was known: just
before the time of the event (Gerds and Schumacher, Biometrical Journal 2006), or at t. Who is censored by t has weight
0. G is the Kaplan-Meier curve of the censoring of the same persons, where who had the event at a time is not at risk of
being censored then.
"""

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


def brier(survival: Array, at: Array, times: Array, events: Mask) -> Array:
    """The Brier score (T,) at the times `at` (T,), ascending, given the probabilities (rows, T) to survive them, and
    the times and events (rows,) of the persons; NaN from the time on where nobody is observed any more."""
    jumps, steps = _uncensored(times, events)
    before = np.append(1.0, steps)[np.searchsorted(jumps, times)]  # G just before the time of each person
    now = np.append(1.0, steps)[np.searchsorted(jumps, at, side="right")]
    died, alive = events[:, None] & (times[:, None] <= at), times[:, None] > at
    with np.errstate(divide="ignore", invalid="ignore"):
        lost = np.where(died, survival**2 / before[:, None], 0.0)
        kept = np.where(alive, (1 - survival) ** 2 / now, 0.0)
    return np.where(at < times.max(initial=0.0), (lost + kept).mean(0), np.nan)


def integrated_brier(survival: Array, at: Array, times: Array, events: Mask) -> float:
    """The mean of `brier` over the time between the first and the last of the times at which it is known, by
    trapezoids; NaN without one."""
    scores = brier(survival, at, times, events)
    known = ~np.isnan(scores)
    if known.sum() < 2:
        return float(scores[known][0]) if known.any() else np.nan
    return float(np.trapezoid(scores[known], at[known]) / np.ptp(at[known]))


def _uncensored(times: Array, events: Mask) -> tuple[Array, Array]:
    """The distinct times, and the probabilities of not having been censored until then and at them."""
    jumps, index = np.unique(times, return_inverse=True)
    all_, had = np.bincount(index), np.bincount(index, events)
    at_risk = np.cumsum(all_[::-1])[::-1] - had
    shares = np.divide(all_ - had, at_risk, out=np.zeros(len(jumps)), where=at_risk > 0)
    return jumps, np.cumprod(1 - shares)
