"""The discrete-time Cox model of survival, whose loss is a sum over persons (Andreux et al. 2020).

Public ends e_1 < ... < e_T divide the time after 0 into intervals; interval k holds the times from e_{k-1}, exclusive,
to e_k, with e_0 = 0. The hazard of a person with features a in interval k, the probability of the event there if it has
not happened before, follows from the score s_k = <beta, a> + alpha_k:

    link logit      h_k = 1 / (1 + exp(-s_k))        Cox 1972 (section 6), and the paper
    link cloglog    h_k = 1 - exp(-exp(s_k))         Prentice and Gloeckler 1978

The loss of a person is the cross-entropy of "event in interval k", summed over the intervals at risk:

    event in interval k           intervals 1 to k
    censored                      the completed intervals, those with an end of at most the time
    either after e_T              all intervals, without an event

Labels are signed times (`survival_labels`) in the unit of the ends. A flat point is beta (n), then alpha (T). With a
column of ones among the features, its weight is a level that all intervals share, and alpha_k is the deviation of
interval k from it. A penalty or a regulariser applies to all entries, alpha included.

With the link cloglog exp(beta) are the hazard ratios of Cox's model for any intervals. With logit they are ratios of
the odds of the hazards, which tend to hazard ratios as the intervals become short.

Bounds. Let J be the derivative of the scores of the m <= T intervals in which a person was at risk, so that row k is
a for beta and the k-th unit vector for alpha. Then J J^T = I + ||a||^2 1 1^T with 1 = (1, ..., 1), whose largest
eigenvalue is 1 + m ||a||^2. With the link logit each entry of the slopes g is a hazard, less 1 for an event, so it is
within (-1, 1) and ||g|| < sqrt(m). The gradient J^T g is therefore shorter than

    sqrt(m) sqrt(1 + m ||a||^2) <= sqrt(T + T^2 ||a||^2),

which it approaches for a person without an event whose hazards tend to 1, so there is no smaller bound. The sensitivity
is twice this bound. That is safe, but exact for T = 1 only: no two outcomes of T > 1 intervals have opposite slopes in
all entries. For ||a|| <= 1 replacing a person moves the gradient by at most 2 T, so the noise is larger than needed by
sqrt(1 + 1 / T), 22% at T = 2 and 5% at T = 10; for ||a|| = 1/2 by 18% to 45% at T = 2 to 10. The Hessian is
J^T H J with H diagonal and entries h (1 - h) <= 1/4, so its curvature is at most (1 + T ||a||^2) / 4; this is attained
where all hazards are 1/2. The slopes of the link cloglog have no bound; a private run clips the gradients. The
largest weight of a person is a factor of these bounds, as for every linear model (`objectives`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np

from .. import special
from ..arrays import Array, Labels, Mask
from ..concordance import concordance
from ..decimals import decimal, whole
from ..errors import SettingError, require
from ..settings import LARGEST, Rule, Setting, one_of
from ..survival_labels import comparable, unsigned
from .interfaces import Batch, Bounds, Part
from .losses import KAPPA, UNBOUNDED
from .objectives import LinearModel
from .penalised import Penalties

DISCRETE_COX = "discrete-cox"
MOST_INTERVALS = 1000


class Link(Protocol):
    """How the hazard of an interval follows from its score; all arrays have one shape."""

    ratio: str  # what exp(beta) is a ratio of
    slope_bound: float  # bound on the size of a slope
    curvature_bound: float

    def survived(self, scores: Array) -> Array:
        """Minus the logarithm of 1 - h."""

    def values(self, scores: Array, events: Mask) -> Array:
        """Minus the logarithm of h where the event happened, and of 1 - h elsewhere."""

    def slopes(self, scores: Array, events: Mask) -> Array:
        """The derivative of `values`."""

    def bends(self, scores: Array, events: Mask) -> Array:
        """The second derivative of `values`."""


class Logit:
    """h = 1 / (1 + exp(-s))."""

    ratio, slope_bound, curvature_bound = "hazard odds", 1.0, 0.25

    def survived(self, scores: Array) -> Array:
        return np.logaddexp(0.0, scores)

    def values(self, scores: Array, events: Mask) -> Array:
        return np.logaddexp(0.0, np.where(events, -scores, scores))

    def slopes(self, scores: Array, events: Mask) -> Array:
        return special.expit(scores) - events  # type: ignore[no-any-return]

    def bends(self, scores: Array, events: Mask) -> Array:
        return special.expit(scores) * special.expit(-scores)  # type: ignore[no-any-return]


class LogLog:
    """h = 1 - exp(-exp(s)). Above s = 20, where h is 1, minus the logarithm of 1 - h continues linearly, so that
    nothing overflows."""

    ratio, slope_bound, curvature_bound = "hazard", math.inf, math.inf
    _highest = 20.0

    def survived(self, scores: Array) -> Array:
        low = np.minimum(scores, self._highest)
        return np.exp(low) * (1.0 + scores - low)  # type: ignore[no-any-return]

    def values(self, scores: Array, events: Mask) -> Array:
        low = np.minimum(scores, self._highest)
        return np.where(events, -low - np.log(special.exprel(-np.exp(low))), self.survived(scores))

    def slopes(self, scores: Array, events: Mask) -> Array:
        rates = self._rates(scores)
        return np.where(events, -1.0 / special.exprel(rates), rates)

    def bends(self, scores: Array, events: Mask) -> Array:
        rates = self._rates(scores)
        shares = 1.0 / special.exprel(rates)
        return np.where(events, shares * (rates + shares - 1.0), rates)

    def _rates(self, scores: Array) -> Array:
        with np.errstate(over="ignore"):  # exprel is infinite for large rates
            return np.exp(np.minimum(scores, self._highest))  # type: ignore[no-any-return]


LINKS: dict[str, Link] = {"logit": Logit(), "cloglog": LogLog()}


class IntervalHazards:
    """The loss of the scores (..., b, T) of the intervals that end at ends (T,), against signed times (..., b).

    See the module's docstring.
    """

    classifies = False
    vector_slopes = True

    def __init__(self, ends: Sequence[float], link: Link) -> None:
        self.ends, self.link = np.array(ends, dtype=np.float64), link
        self.slope_bound = link.slope_bound * math.sqrt(len(self.ends))
        self.public_label = -2.0 * self.ends[-1]  # censored after the last interval
        self.curvature_bound = link.curvature_bound

    def outputs(self, num_classes: int) -> int:
        if num_classes != 0:
            raise SettingError(f"objective '{DISCRETE_COX}' needs times of events; this data set has classes")
        return len(self.ends)

    def histories(self, labels: Labels) -> tuple[Mask, Mask]:
        """In which intervals each person was at risk, and in which the event happened, both (..., b, T)."""
        (times, events), every = unsigned(labels), np.arange(len(self.ends))
        ends = comparable(self.ends, times)
        reached = np.searchsorted(ends, times)
        completed = np.searchsorted(ends, times, side="right")
        at_risk = every < np.where(events, reached + 1, completed)[..., None]
        return at_risk, every == np.where(events, reached, -1)[..., None]

    def values(self, scores: Array, labels: Labels) -> Array:
        at_risk, events = self.histories(labels)
        return np.where(at_risk, self.link.values(scores, events), np.zeros((), scores.dtype)).sum(-1)

    def slopes(self, scores: Array, labels: Labels) -> Array:
        at_risk, events = self.histories(labels)
        slopes = self.link.slopes(scores, events)
        slopes *= at_risk
        return slopes

    def bends(self, scores: Array, labels: Labels) -> Array:
        """Second derivatives of the loss in each score (..., b, T); the mixed ones are 0."""
        at_risk, events = self.histories(labels)
        return self.link.bends(scores, events) * at_risk  # type: ignore[no-any-return]

    def survival(self, scores: Array) -> Array:
        """The probabilities (..., b, T) that the event has not happened by the end of each interval."""
        return np.exp(-np.cumsum(self.link.survived(scores), axis=-1))  # type: ignore[no-any-return]

    def predict(self, scores: Array) -> Array:
        """The scores of the first interval (..., b): persons ordered by their risk."""
        return scores[..., 0]

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        """Risks and labels, which `concordance` compares."""
        return self.predict(scores), labels


@dataclass(frozen=True)
class DiscreteCox(LinearModel):
    """f_i of the discrete-time Cox model: the mean loss of persons plus the smooth penalty; outputs is T.

    A flat point is beta (num_features), then alpha (outputs).
    """

    loss: IntervalHazards

    @property
    def d(self) -> int:  # type: ignore[override]
        """Number of weights, num_features + outputs."""
        return self.num_features + self.outputs

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of a single row that holds beta and alpha."""
        return ((1, self.d),)

    def columns(self, bias: bool) -> list[Part]:
        """See `LinearModel.columns`."""
        return [Part((0, self.num_features - bias), 1)]

    def scores(self, x: Array, features: Array) -> Array:
        """<beta, a> + alpha_k for every row and interval, (..., b, outputs)."""
        beta, alpha = x[..., : self.num_features, None], x[..., None, self.num_features :]
        return features @ beta + alpha

    def parts(self, slopes: Array) -> list[Array]:
        """See `LinearModel.parts`: beta's, the sum of a row's slopes, and alpha's.

        The sum is clipped as a number of its own. A sum of clipped slopes that cancel would have a rounding error,
        which long rows multiply, so that their clipped gradients could be longer than the bound.
        """
        return [slopes.sum(-1, keepdims=True), slopes]

    def part_norms(self, rows: Batch) -> list[Array]:
        """See `LinearModel.part_norms`."""
        lengths = rows.norms()
        return [lengths, np.ones_like(lengths)]

    def summed(self, parts: Sequence[Array], features: Array) -> Array:
        """See `LinearModel.summed`."""
        beta = (parts[0].swapaxes(-1, -2) @ features)[..., 0, :]
        return np.concatenate([beta, parts[1].sum(-2)], axis=-1)

    def information(self, scores: Array, rows: Batch) -> Array:
        """See `LinearModel.information`."""
        bends, a = self.loss.bends(scores, rows.labels), rows.features
        if rows.row_weights is not None:
            bends = bends * rows.row_weights[:, None]
        cross = a.T @ bends
        return np.block([[a.T @ (bends.sum(-1)[:, None] * a), cross], [cross.T, np.diag(bends.sum(0))]])

    def information_bounds(self, row_norm: float) -> tuple[float, float]:
        """See `LinearModel.information_bounds`: the largest norm is that of J^T J / 4, with all intervals at risk."""
        require(math.isfinite(self.loss.curvature_bound), UNBOUNDED)
        stretch = self.stretch(row_norm**2)  # the largest eigenvalue of J J^T; the others are 1
        return self._most * self.loss.curvature_bound * math.hypot(
            stretch, math.sqrt(self.outputs - 1)
        ), KAPPA

    def stretch(self, squares: Any) -> Any:
        """See `LinearModel.stretch`: the bound for a person who is at risk in all intervals."""
        return 1.0 + self.outputs * squares

    def bounds(self, row_norm: float) -> Bounds:
        """See `LinearModel.bounds`."""
        require(
            bool(self.clip_norm) or math.isfinite(self.loss.slope_bound),
            "gradients of this objective.link have no public bound: set clip-norm above 0, or objective.link to logit",
        )
        return super().bounds(row_norm)

    def score(self, x: Array, rows: Batch) -> Array:
        """Harrell's concordance index (...,), see `concordance_of`."""
        return concordance_of(self.predict(x, rows.features), rows)


def concordance_of(risk: Array, rows: Batch) -> Array:
    """Harrell's concordance index (...,) of risks (..., b), of the rows with a weight above 0; NaN where no pair can be
    compared."""
    times, events = unsigned(np.broadcast_to(rows.labels, risk.shape))
    kept = np.broadcast_to(True if rows.weights is None else rows.weights > 0, risk.shape)
    shares = np.empty(risk.shape[:-1])
    for index in np.ndindex(shares.shape):
        used = kept[index]
        shares[index] = concordance(risk[index][used], times[index][used], events[index][used]).share
    return shares


# ------------------------------------------------------------------------------------------- settings


def interval_ends(text: str) -> list[float] | None:
    """The ends that a text such as "365, 730, 1460" or "12 x 30.5" gives; None for any other text."""
    try:
        count, times, length = text.partition(" x ")
        ends = _equal(whole(count), decimal(length)) if times else [decimal(word) for word in text.split(",")]
    except ValueError:
        return None
    fine = 0 < len(ends) <= MOST_INTERVALS and ends[-1] <= LARGEST
    return ends if fine and all(a < b for a, b in zip([0.0, *ends], ends, strict=False)) else None


def _equal(count: int, length: float) -> list[float]:
    return [length * (i + 1) for i in range(min(count, MOST_INTERVALS + 1))]


INTERVALS = Rule(
    f"1 to {MOST_INTERVALS} ascending numbers above 0, or number x length",
    lambda text: not text or interval_ends(text) is not None,
)


@dataclass(frozen=True)
class CoxObjective(Penalties):
    """The settings of the discrete-time Cox model."""

    name: str = DISCRETE_COX
    intervals: Annotated[
        str,
        Setting(
            "ends of the intervals of time, such as 365, 730, 1460, or number x length, such as 12 x 30.5",
            INTERVALS,
            "that of the times",
            numbers=True,
        ),
    ] = ""
    link: Annotated[
        str,
        Setting(
            "how hazards follow from scores: logit has a public bound on gradients, cloglog gives hazard ratios",
            one_of(LINKS),
        ),
    ] = "logit"

    @property
    def form(self) -> dict[str, Any]:
        """See `Penalties.form`."""
        return {"intervals": self.intervals, "link": self.link}

    def check(self) -> None:
        """SettingError for settings that are missing, out of range, or contradict each other."""
        super().check()
        if not self.intervals:
            raise SettingError(
                f"objective '{DISCRETE_COX}' needs objective.intervals, the ends of the intervals of time, such as "
                '"365, 730, 1460", or "12 x 30.5" for twelve of equal length'
            )

    def build(self, num_features: int, num_classes: int) -> DiscreteCox:
        """The objective for rows of num_features entries; SettingError for classes."""
        loss = IntervalHazards(interval_ends(self.intervals) or (), LINKS[self.link])
        return DiscreteCox(
            loss, loss.outputs(num_classes), num_features,
            l2=self.l2, nonconvex=self.nonconvex, clip_norm=self.clip_norm, clip=self.clip,
        )  # fmt: skip
