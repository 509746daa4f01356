"""Survival curves of persons of whom only counts over a public grid of times are known.

The grid has ascending edges g_1 < ... < g_T above g_0 = 0, and interval k holds the times from g_{k-1}, exclusive, to
g_k. A person is in one of 2 T + 1 cells: the event in one of the intervals, censored in one of them, or beyond g_T
without either. With d_k events in interval k and n_k persons at risk, those whose time is above g_{k-1}, follow

    Kaplan-Meier    S(g_j) = prod_{k <= j} (1 - d_k / n_k),    variance S^2 sum_{k <= j} d_k / (n_k (n_k - d_k))
    Nelson-Aalen    H(g_j) = sum_{k <= j} d_k / n_k,           variance sum_{k <= j} d_k / n_k^2

with the variances of Greenwood and of Aalen (Klein and Moeschberger, "Survival Analysis", 2003, (4.2.1) to (4.2.4)).
If the grid contains all times, these are the estimates from the times themselves. In a coarser grid a person who is
censored within an interval would count as at risk up to its end, and the curve would lie too high. The actuarial
estimate of the life table (Cutler and Ederer, Journal of Chronic Diseases 1958; Klein and Moeschberger, section 5.4)
counts the c_k persons censored in interval k for half of it, as if they were censored evenly over it: n_k - c_k / 2 is
in the place of n_k, in the variances, too, because given the persons exposed d_k is binomial in both.

Sites count without noise, or with Gaussian noise of a known deviation in every cell. The number of all persons is
public, so the noise in the sum of all cells is known and subtracted. The variances then include the noise, to first
order in it (delta method). A curve ends where the persons at risk no longer stand out from the noise.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .. import special
from ..arrays import Array, Index, Labels, Mask
from ..errors import SettingError
from ..survival_labels import comparable, unsigned
from .intervals import CANDIDATES, DEVIATIONS, Share, accepted

MOST_INTERVALS = 1000
ACTUARIAL, KAPLAN_MEIER = "actuarial", "kaplan-meier"  # the estimates of a survival curve
_ROUNDING = 1e-9
_CLEAR = 5.0  # persons at risk, in deviations of their noise, below which a curve ends


@dataclass(frozen=True)
class TimeGrid:
    """A public grid of times: its edges (T,), ascending and above 0, in the unit of the times."""

    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (
            0 < len(self.edges) <= MOST_INTERVALS
            and bool(np.isfinite(self.edges).all() and (np.diff([0.0, *self.edges]) > 0).all())
        ):
            raise SettingError(
                f"the edges of a survival curve must be 1 to {MOST_INTERVALS} ascending numbers above 0; got "
                f"{', '.join(f'{edge:g}' for edge in self.edges[:5])}"
            )

    @property
    def cells(self) -> int:
        """The number of cells, 2 T + 1."""
        return 2 * len(self.edges) + 1

    def cells_of(self, labels: Labels) -> Index:
        """The cells, from 0, of persons with these signed times (rows,): events by interval, censored ones by interval,
        and those beyond. Any number is in one cell."""
        times, events = unsigned(labels)
        intervals = len(self.edges)
        interval = np.searchsorted(comparable(np.array(self.edges), times), times)
        return np.where(interval < intervals, interval + intervals * ~events, 2 * intervals)

    def counts(self, labels: Labels) -> Array:
        """The numbers of persons (cells,) in each cell, given their signed times (rows,); see `cells_of`."""
        return np.bincount(self.cells_of(labels), minlength=self.cells).astype(np.float64)


class Curve(NamedTuple):
    """A survival curve at the edges of its grid, arrays (T,); NaN where it is not known.

    time: the edge. at_risk: at the beginning of the interval; events, censored: within it. survival: Kaplan-Meier, with
    the ends of the 95% interval and its standard deviation. hazard: Nelson-Aalen, with its standard deviation.
    """

    time: Array
    at_risk: Array
    events: Array
    censored: Array
    survival: Array
    low: Array
    high: Array
    deviation: Array
    hazard: Array
    hazard_deviation: Array

    def median(self) -> Share:
        """The first edge at which at most half survive, infinity if there is none, and those at which the ends of the
        interval do (Brookmeyer and Crowley, Biometrics 1982)."""
        return Share(*(_first(self.time, curve <= 0.5) for curve in (self.survival, self.low, self.high)))


class SurvivalTable(NamedTuple):
    """Persons counted by the cells of a grid.

    cells (2 T + 1,): as in `TimeGrid.counts`. edges (T,): of the grid. rows: the number of persons, which is public.
    sigma: the standard deviation of the noise in every cell, 0 without noise. actuarial: whether those who are censored
    within an interval count as at risk for half of it, as they should unless every time is an edge. groups: names of
    groups, such as the arms of a trial, and the cells of each, with equal noise; they add up to `cells`. summed: the
    number of cells whose noise adds up to what is known, if these are not all of them.
    """

    cells: Array
    edges: Array
    rows: int
    sigma: float = 0.0
    actuarial: bool = False
    groups: Mapping[str, Array] = {}
    summed: int = 0

    @classmethod
    def of_groups(
        cls, groups: Mapping[str, Array], edges: Array, rows: int, sigma: float, actuarial: bool
    ) -> "SurvivalTable":
        """The table of one group or more, with noise of this deviation in every cell of each."""
        cells, noise = np.sum(list(groups.values()), axis=0), sigma * float(np.sqrt(len(groups)))
        return cls(cells, edges, rows, noise, actuarial, groups if len(groups) > 1 else {})

    @classmethod
    def together(cls, tables: Iterable["SurvivalTable"]) -> "SurvivalTable":
        """The persons of all of these tables, at least one, with the same edges, estimate and groups; sums run in
        order."""
        cells, edges, rows, sigmas, actuarial, groups, _ = zip(*tables, strict=True)
        return cls(
            np.sum(cells, axis=0), edges[0], sum(rows), float(np.hypot.reduce(sigmas)), actuarial[0],
            {name: np.sum([cells_of[name] for cells_of in groups], axis=0) for name in groups[0]},
        )  # fmt: skip

    @property
    def by_group(self) -> dict[str, "SurvivalTable"]:
        """The table of each group, whose number of persons is counted, with the noise that counts have."""
        size = max(len(self.groups), 1)
        spare = (self.rows - self.cells.sum()) / (size * self.cells.size)
        return {
            name: self._replace(
                cells=cells + spare, rows=round(float((cells + spare).sum())), sigma=self.sigma / float(np.sqrt(size)),
                groups={}, summed=size * cells.size,
            )
            for name, cells in self.groups.items()
        }  # fmt: skip

    def curve(self) -> Curve:
        """The curve with its intervals.

        Without noise an interval is symmetric in log(-log S), and where S is 0 or 1, and with noise, it is that of
        Wilson: it holds every S within 1.96 standard deviations of the estimate, whose variance is S (1 - S) / m plus
        that of the noise. m is the number of persons that have Greenwood's variance without censoring (Rothman,
        Journal of Chronic Diseases 1978); with noise it is at least n S, that of Peto (British Journal of Cancer 1977).
        With noise the estimate is the decreasing curve that is nearest to the product.
        """
        return _Estimate(self).curve()


class LogRank(NamedTuple):
    """A log-rank test of equal hazards in all groups: chi-squared on so many degrees of freedom."""

    statistic: float
    freedom: int
    p_value: float


def log_rank(strata: Iterable[SurvivalTable]) -> LogRank | None:
    """The log-rank test of the groups of these tables, one table for each stratum, such as a site.

    In an interval with n persons at risk, n_g of them in group g, and d events, group g expects d n_g / n events, with
    the hypergeometric covariance d (n - d) / (n - 1) (n_g / n) (1{g = h} - n_h / n). Observed less expected numbers and
    covariances are summed over intervals and strata (Mantel, Cancer Chemotherapy Reports 1966; Klein and Moeschberger,
    sections 7.3 and 7.5). Whoever enters an interval counts as at risk in it. None if nothing can be compared, and with
    noise, under which the statistic does not have this distribution.
    """
    tables = list(strata)
    if not (tables and all(table.groups and not table.sigma for table in tables)):
        return None
    parts = [_differences(np.array(list(table.groups.values()))) for table in tables]
    gap, covariance = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    sizes, axes = np.linalg.eigh(covariance)
    varies = sizes > _ROUNDING * max(sizes.max(), 1.0)
    freedom = int(varies.sum())
    if not freedom:
        return None
    statistic = float(((gap @ axes[:, varies]) ** 2 / sizes[varies]).sum())
    return LogRank(statistic, freedom, float(special.chdtrc(freedom, statistic)))


def _differences(cells: Array) -> tuple[Array, Array]:
    """Observed less expected events (groups,) of persons counted by cells (groups, 2 T + 1), and their covariance."""
    intervals = cells.shape[1] // 2
    events, censored, beyond = np.split(cells, [intervals, 2 * intervals], axis=1)
    at_risk = np.cumsum((events + censored)[:, ::-1], axis=1)[:, ::-1] + beyond
    n, d = at_risk.sum(0), events.sum(0)
    shares = at_risk / np.maximum(n, 1.0)
    weighted = shares * d * (n - d) / np.maximum(n - 1, 1.0)
    return (events - shares * d).sum(1), np.diag(weighted.sum(1)) - weighted @ shares.T


class _Estimate:
    """The numbers of a table from which its curve follows; all arrays are (T,) by interval."""

    def __init__(self, table: SurvivalTable) -> None:
        intervals = len(table.edges)
        cells = table.cells + (table.rows - table.cells.sum()) / len(table.cells)
        self.table, self.balanced = table, table.summed or table.cells.size
        self.events, self.censored = cells[:intervals], cells[intervals:-1]
        self.half = (
            0.5 * table.actuarial
        )  # of an interval, in which those who are censored in it are not at risk
        self.entering = np.cumsum((self.events + self.censored)[::-1])[::-1] + cells[-1]
        self.at_risk = self.entering - self.half * self.censored
        self.left = self.at_risk - self.events

    @cached_property
    def known(self) -> Mask:
        """Whether there are persons at risk, more than noise could be."""
        sigma, intervals = self.table.sigma, len(self.events)
        if not sigma:
            return self.at_risk > 0
        summed = 2 * (intervals - np.arange(intervals)) + 1.0  # cells in at_risk
        noise = sigma * np.sqrt(summed * (1 - summed / self.balanced) + 1)
        clear = np.minimum(self.at_risk, self.left) > _CLEAR * noise
        return np.array(np.logical_and.accumulate(clear), dtype=bool)

    @cached_property
    def shares(self) -> Array:
        """d / n; 0 where it is not known."""
        return np.divide(self.events, self.at_risk, out=np.zeros_like(self.events), where=self.known)

    @cached_property
    def survival(self) -> Array:
        """The product; with noise it can be above 1 or rise."""
        return (1 - self.shares).cumprod()

    def _inverse(self, numbers: Array) -> Array:
        return np.divide(1.0, numbers, out=np.zeros_like(numbers), where=self.known & (numbers > 0))

    @cached_property
    def greenwood(self) -> Array:
        """The sum of Greenwood's variance, that of log S."""
        return np.cumsum(self.shares * self._inverse(self.left))  # type: ignore[no-any-return]

    def _noise(self, slopes: Array) -> Array:
        """The variance of the noise in numbers with these derivatives (T, 2 T + 1) by the cells."""
        centred = (slopes**2).sum(1) - slopes.sum(1) ** 2 / self.balanced
        return self.table.sigma**2 * np.maximum(centred, 0.0)  # type: ignore[no-any-return]

    def _by_cells(self, by_left: Array, by_risk: Array) -> Array:
        """The derivatives (T, 2 T + 1) of sums up to every interval, of terms that have these derivatives by the
        persons left after the events and by those at risk."""
        later, same = np.triu(np.ones((len(by_left),) * 2), 1), np.eye(len(by_left))
        both = (by_left + by_risk)[:, None]
        parts = [both * later + by_risk[:, None] * same, both * (later + (1 - self.half) * same), both]
        return np.cumsum(np.hstack(parts), axis=0)  # type: ignore[no-any-return]

    def curve(self) -> Curve:
        s, known, table = self.survival, self.known, self.table
        by_risk, by_left = self._inverse(self.at_risk), self._inverse(self.left)
        noise, hazard_noise = np.zeros((2, len(s)))
        if table.sigma:
            noise = self._noise(self._by_cells(by_left, -by_risk))
            hazard_noise = self._noise(self._by_cells(-by_risk, (1 - self.shares) * by_risk))
        last = np.maximum.accumulate(np.where(known, np.arange(len(s)), 0))  # nobody is left after it
        low, high = (bound[last] for bound in self._intervals(noise))
        sampling = np.maximum(np.cumsum(self.shares * by_risk), 0.0)
        curves = (
            self._decreasing(), low, high, s * np.sqrt(np.maximum(self.greenwood, 0.0) + noise),
            np.cumsum(self.shares), np.sqrt(sampling + hazard_noise),
        )  # fmt: skip
        over = known | (s == 0)
        return Curve(
            table.edges,
            self.entering,
            self.events,
            self.censored,
            *(np.where(over, curve, np.nan) for curve in curves),
        )

    def _decreasing(self) -> Array:
        """The survival, and with noise the decreasing curve in [0, 1] that is nearest to it."""
        survival, known = self.survival, self.known
        if not self.table.sigma or not known.any():
            return survival
        from scipy.optimize import isotonic_regression  # slow to import

        nearest = isotonic_regression(survival[known], increasing=False).x
        return np.append(np.clip(nearest, 0.0, 1.0), np.zeros((~known).sum()))

    def _intervals(self, noise: Array) -> tuple[Array, Array]:
        """The ends of the intervals (T,), given the variance of the noise in log S."""
        s, sizes = np.clip(self.survival, 0.0, 1.0), self._sizes()
        p = CANDIDATES
        parts = zip(s, sizes, s**2 * noise, strict=True)
        wilson = [accepted(share, p * (1 - p) / size + extra) for share, size, extra in parts]
        low, high = (np.array([interval[end] for interval in wilson]) for end in (1, 2))
        if self.table.sigma:
            return low, high
        inner = (s > 0) & (s < 1)
        logs = np.log(s, out=np.full_like(s, -1.0), where=inner)
        reach = np.exp(DEVIATIONS * np.sqrt(self.greenwood) / -logs)
        return np.where(inner, np.exp(logs * reach), low), np.where(inner, np.exp(logs / reach), high)

    def _sizes(self) -> Array:
        """The numbers of persons (T,) that have the same sampling variance without censoring."""
        s = self.survival
        least = np.maximum(
            np.where(s > 0, self.left / np.maximum(s, 1.0 / len(CANDIDATES)), self.at_risk), 1.0
        )
        fits = (self.greenwood > 0) & (s > 0) & (s < 1)
        sizes = np.divide(1 - s, s * self.greenwood, out=least.copy(), where=fits)
        return np.clip(sizes, least, max(self.table.rows, 1))


def _first(times: Array, reached: Mask) -> float:
    """The first of these times at which something is reached, infinity if it never is."""
    return float(times[reached.argmax()]) if reached.any() else np.inf
