"""Cox's partial likelihood, every site a stratum of its own (Cox 1972; Kalbfleisch and Prentice 2002, section 4.4).

A person with features a has the hazard exp(<beta, a>) times a baseline that is the site's own and stays unknown. At a
time t with the events of the persons D, d in number, and with the persons R whose time is at least t, a site's negative
log likelihood has for every event one term, log of a denominator, less <beta, a>:

    ties breslow    sum_R exp(s)                                       Breslow, Biometrics 1974
    ties efron      sum_R exp(s) - (l / d) sum_D exp(s), l = 0 .. d-1   Efron, JASA 1977

f_i is its sum over the events of site i, divided by the site's number of rows. Labels are signed times
(`survival_labels`). Risk sets are those of one site, so the sites' baselines may differ, and no time leaves a site.

It is not a sum over persons: a person's term depends on all others who are at risk. So a batch must be all rows of a
site, and what one person changes has no bound, which is why no private run has this objective.
"""

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from ..arrays import Array, Index, Labels
from ..errors import SettingError
from ..settings import Setting, one_of
from ..survival_labels import unsigned
from .discrete_cox import concordance_of
from .interfaces import Batch, Bounds
from .objectives import LinearModel
from .penalised import Penalties

STRATIFIED_COX = "stratified-cox"
TIES = ("efron", "breslow")
_SMALLEST = 1e-300  # of a denominator, relative to the largest rate: below it numbers underflow
NOT_SEPARABLE = (
    f"objective '{STRATIFIED_COX}' is not a sum over records, because a person's term depends on all others who are at "
    "risk, so a batch must be all rows of a site, and no bound on what one record changes is known"
)


class _Sorted(NamedTuple):
    """Rows (..., b) by ascending time. order: the indices of the rows. events: as 0 or 1. first, last: the ends of the
    rows with the same time."""

    order: Index
    events: Array
    first: Index
    last: Index

    @classmethod
    def of(cls, labels: Labels) -> "_Sorted":
        unsorted, happened = unsigned(labels)
        order = np.argsort(unsorted, axis=-1, kind="stable")
        times, events = (np.take_along_axis(values, order, -1) for values in (unsorted, happened))
        every, most = np.arange(times.shape[-1]), times.shape[-1] - 1
        begins = np.ones(times.shape, dtype=bool)
        begins[..., 1:] = times[..., 1:] != times[..., :-1]
        ends = np.roll(begins, -1, axis=-1)
        first = np.maximum.accumulate(np.where(begins, every, 0), axis=-1)
        last = np.minimum.accumulate(np.where(ends, every, most)[..., ::-1], axis=-1)[..., ::-1]
        return cls(order, events.astype(np.float64), first, last)

    def sort(self, values: Array) -> Array:
        """Values (..., b) in the order of the times."""
        return np.take_along_axis(values, self.order, -1)

    def unsort(self, values: Array) -> Array:
        """Inverse of `sort`."""
        unsorted = np.empty_like(values)
        np.put_along_axis(unsorted, self.order, values, -1)
        return unsorted

    def later(self, values: Array) -> Array:
        """Sums over the rows with the same time or a later one."""
        sums = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
        return np.take_along_axis(sums, self.first, -1)

    def earlier(self, values: Array) -> Array:
        """Sums over the rows with the same time or an earlier one."""
        return np.take_along_axis(np.cumsum(values, axis=-1), self.last, -1)

    def tied(self, values: Array) -> Array:
        """Sums over the rows with the same time, every group by itself: differences of cumulative sums would lose the
        digits of a group whose rates are much smaller than those before it."""
        first = self.first.reshape(-1, values.shape[-1])
        groups = (first + first.shape[-1] * np.arange(len(first))[:, None]).ravel()
        return np.bincount(groups, values.ravel(), groups.size)[groups].reshape(values.shape)


class _Terms(NamedTuple):
    """The terms of the likelihood for rows by ascending time, all (..., b). rates: exp(s) up to a factor for all rows.
    shares: l / d of every event, 0 for ties breslow. denominators: of every event, in the unit of rates, 1 elsewhere.
    """

    rows: _Sorted
    rates: Array
    shares: Array
    denominators: Array

    @classmethod
    def of(cls, scores: Array, labels: Labels, ties: str) -> tuple["_Terms", Array]:
        """The terms, and the logarithms (..., 1) of the factors of the rates."""
        rows = _Sorted.of(np.broadcast_to(labels, scores.shape))
        ordered = rows.sort(scores.astype(np.float64))
        highest = ordered.max(-1, keepdims=True)
        rates, events = np.exp(ordered - highest), rows.events
        shares = np.zeros_like(rates)
        if ties == "efron":
            rank = np.cumsum(events, axis=-1) - np.take_along_axis(
                np.cumsum(events, axis=-1) - events, rows.first, -1
            )
            shares = events * (rank - 1) / np.maximum(rows.tied(events), 1)
        denominators = rows.later(rates) - shares * rows.tied(events * rates)
        return cls(
            rows, rates, shares, np.where(events > 0, np.maximum(denominators, _SMALLEST), 1.0)
        ), highest

    def weights(self, values: Array | float = 1.0) -> Array:
        """By how much exp(s) of every row enters the derivatives, the sum of its shares in all denominators; values
        (..., b): with the terms of the events multiplied by these."""
        inverse = self.rows.events / self.denominators * values
        tied = self.rows.events * self.rows.tied(self.shares * inverse)
        return self.rates * (self.rows.earlier(inverse) - tied)

    def mean(self, values: Array) -> Array:
        """The means of values (..., b) over those at risk at every event."""
        tied = self.rows.tied(self.rows.events * self.rates * values)
        return (self.rows.later(self.rates * values) - self.shares * tied) / self.denominators

    def residuals(self, values: Array) -> Array:
        """Minus the score residuals of rows with these values (..., b) of a column; tied events share their means."""
        events, means = self.rows.events, self.mean(values)
        shared = self.rows.tied(events * means) / np.maximum(self.rows.tied(events), 1)
        return self.weights() * values - self.weights(means) - events * (values - shared)


@dataclass(frozen=True)
class PartialLikelihood:
    """The terms of the rows (..., b) of one site each, given their scores (..., b, 1) and signed times (..., b); a row
    with the label 0 is in no risk set and has no term."""

    ties: str
    classifies = False
    vector_slopes = True
    slope_bound = curvature_bound = np.inf

    def outputs(self, num_classes: int) -> int:
        if num_classes != 0:
            raise SettingError(
                f"objective '{STRATIFIED_COX}' needs times of events; this data set has classes"
            )
        return 1

    def values(self, scores: Array, labels: Labels) -> Array:
        """The term of every event, (..., b), 0 for the censored."""
        terms, highest = _Terms.of(scores[..., 0], labels, self.ties)
        ordered = terms.rows.sort(scores[..., 0])
        return terms.rows.unsort(terms.rows.events * (np.log(terms.denominators) + highest - ordered))

    def slopes(self, scores: Array, labels: Labels) -> Array:
        """The derivatives (..., b, 1) of the sum of `values` by the scores."""
        terms, _ = _Terms.of(scores[..., 0], labels, self.ties)
        slopes = terms.rows.unsort(terms.weights() - terms.rows.events)
        return slopes[..., None].astype(scores.dtype, copy=False)

    def predict(self, scores: Array) -> Array:
        """The logarithms of the hazard ratios (..., b) against a row of zeros."""
        return scores[..., 0]

    def compared(self, scores: Array, labels: Labels) -> tuple[Array, Labels]:
        """Risks and labels, which `concordance` compares."""
        return self.predict(scores), labels


@dataclass(frozen=True)
class StratifiedCox(LinearModel):
    """f_i of Cox's model at site i plus the smooth penalty; outputs is 1. Rows with weight 0 are left out of all risk
    sets, and the others must have one weight."""

    loss: PartialLikelihood

    def losses(self, x: Array, rows: Batch) -> Array:
        """The terms of the rows (..., b), whose mean over all rows of a site is its f_i without the penalty."""
        return super().losses(x, _kept(rows))

    def grad(self, x: Array, rows: Batch, scale: float = 1.0) -> Array:
        """scale times the gradient of `value`, (..., d)."""
        return super().grad(x, _kept(rows), scale)

    def bounds(self, row_norm: float) -> Bounds:
        """SettingError: there are no bounds."""
        raise SettingError(NOT_SEPARABLE)

    def score(self, x: Array, rows: Batch) -> Array:
        """Harrell's concordance index (...,), see `concordance_of`."""
        return concordance_of(self.predict(x, rows.features), rows)

    def information(self, scores: Array, rows: Batch) -> Array:
        """The Hessian of the sum of the terms of one site, (d, d), given the scores (b, 1)."""
        terms, _ = _Terms.of(scores[:, 0], rows.labels, self.loss.ties)
        a = rows.features[terms.rows.order]
        centres = np.stack([terms.mean(column) for column in a.T], axis=1)
        return (a.T * terms.weights()) @ a - (centres.T * terms.rows.events) @ centres

    def gradients(self, x: Array, rows: Batch) -> Array:
        """Minus the score residual of each person (Lin and Wei 1989), (b, d): what the person changes in all terms of
        the site, to first order. They add up to the gradient."""
        terms, _ = _Terms.of(self.scores(x, rows.features)[:, 0], rows.labels, self.loss.ties)
        return np.stack(
            [terms.rows.unsort(terms.residuals(terms.rows.sort(column))) for column in rows.features.T], 1
        )


def _kept(rows: Batch) -> Batch:
    """The rows, with the label 0 for those of weight 0."""
    if rows.weights is None:
        return rows
    return rows._replace(labels=np.where(rows.weights > 0, rows.labels, 0))


@dataclass(frozen=True)
class StratifiedCoxObjective(Penalties):
    """The settings of Cox's model stratified by site."""

    name: str = STRATIFIED_COX
    ties: Annotated[str, Setting("how events at the same time are counted", one_of(TIES))] = "efron"

    @property
    def form(self) -> dict[str, Any]:
        """See `Penalties.form`."""
        return {"ties": self.ties}

    def check(self) -> None:
        """SettingError for settings that are out of range or contradict each other."""
        super().check()
        if self.clip_norm:
            raise SettingError(f"{NOT_SEPARABLE}: set objective.clip-norm to 0; got {self.clip_norm:g}")

    def build(self, num_features: int, num_classes: int) -> StratifiedCox:
        """The objective for rows of num_features entries; SettingError for classes."""
        loss = PartialLikelihood(self.ties)
        outputs = loss.outputs(num_classes)
        return StratifiedCox(loss, outputs, num_features, l2=self.l2, nonconvex=self.nonconvex)
