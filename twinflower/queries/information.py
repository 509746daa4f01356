"""The question for standard errors: after the last round, clients send sums over their training rows at the final
model.

Without privacy these are gradient, information matrix and outer products (`models.information`); with privacy gradient
and information matrix with noise (`models.released`), once in a run.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from ..arrays import Array, Index
from ..data.columns import Number
from ..errors import ReplyError, SettingError, require
from ..models.information import MOST_PARAMETERS, Information, packed_size
from ..models.newton import LEAST_CLEAR, Reference
from ..models.released import Released, Units, released_size
from ..models.survival import TimeGrid
from ..privacy.guard import Guard
from ..privacy.mechanism import Draws, seeded
from ..privacy.release import Release
from ..problems.discrete_cox import DiscreteCox
from ..problems.interfaces import Batch
from ..problems.objectives import LinearModel
from ..settings import snake
from ..wire import doubles, packed
from .first import noisiest
from .query import ModelQuery, ModelQuestion, Run, Sent, SiteAnswer

Sums = Information | Released
_ROUNDING = 1e-9
_ROWS_PER_PARAMETER = 3  # as DataSHIELD's nfilter.glm = 0.33


@dataclass(frozen=True)
class InformationQuestion(ModelQuestion):
    """The sums over the training rows. units: of the sums with noise. sizes, sigma: the numbers of rows of the clients,
    and the standard deviation of the noise of each, as the server knows them."""

    name = "information"
    store = "intervals"
    what = "information matrix"
    absent = "this client sends no information matrix"

    units: Units | None = None
    sizes: Sequence[int] | Index = ()
    sigma: Callable[[int], float] = lambda client: 0.0
    d: int = 0

    def check(self, objective: Any) -> None:
        """See `ModelQuestion`."""
        if not isinstance(objective, LinearModel):
            raise ReplyError(self.absent)

    def read(self, client: int, sent: Sent, private: bool) -> Sums:
        """See `ModelQuestion`."""
        numbers = released_size(self.d) if private else packed_size(self.d)
        values = doubles(sent.metrics.get(self.name), (numbers,), "the information matrix")
        if private:
            return self.noisy(values, 0, self.sigma(client))
        return exact_sums(values, self.d, int(self.sizes[client]))

    def found(self, answers: Mapping[int, Any], private: bool) -> Sums | None:
        """The sums of all of these sites; None without any."""
        sites = list(answers.values())
        return type(sites[0]).together(sites) if sites else None

    def exact(self, objective: Any, x: Array, rows: Batch) -> Information:
        """See `ModelQuestion`."""
        return Information.of(objective, x, rows)

    def packed(self, answer: Information) -> tuple[float, dict[str, Any]]:
        """See `ModelQuestion`."""
        return 0.0, {self.name: packed(answer.packed)}

    def released(self, objective: Any, x: Array, rows: Batch) -> Array:
        """See `ModelQuestion`; moves by at most 1 with a row."""
        assert self.units
        return self.units.released(objective, x, rows)

    def noisy(self, values: Array, rows: int, sigma: float) -> Released:
        """See `ModelQuestion`."""
        assert self.units
        return self.units.unpacked(values, self.d, sigma)

    def packed_noisy(self, values: Array, rows: int, sigma: float) -> tuple[float, dict[str, Any]]:
        """See `ModelQuestion`."""
        return 0.0, {self.name: packed(values)}

    def size(self, d: int) -> int:
        """See `ModelQuestion`."""
        return released_size(d)


def exact_sums(numbers: Array, d: int, rows: int) -> Information:
    """The sums over so many rows in a reply about a model of d entries; ReplyError for impossible ones."""
    found = Information.unpacked(numbers, d)
    if found.rows != rows:
        raise ReplyError(f"the information matrix must be that of {rows} rows; it says {found.rows:g}")
    if not (_symmetric(found.matrix) and _symmetric(found.outer)):
        raise ReplyError("the information matrix and the outer products must be symmetric")
    return found


def _symmetric(matrix: Array) -> bool:
    """Whether a matrix (d, d) is symmetric, up to the rounding of sums over rows."""
    return bool(np.abs(matrix - matrix.T).max() <= _ROUNDING * np.abs(matrix).max())


# --- in a run


class StandardErrors(ModelQuery):
    """The sums of all clients from which standard errors follow."""

    kind = InformationQuestion
    name = kind.name

    @classmethod
    def of(cls, run: Run) -> "StandardErrors | None":
        """See `SiteQuery`."""
        return cls(run) if run.config.evaluation.standard_errors else None

    @property
    def share(self) -> float:
        """See `SiteQuery`."""
        return self.run.config.privacy.interval_share  # type: ignore[no-any-return]

    @cached_property
    def question(self) -> InformationQuestion:  # type: ignore[override]
        """See `ModelQuery`."""
        run = self.run
        units = Units.of(self._model, run.row_norm) if run.plan else None
        return InformationQuestion(
            (run.config.rounds,), units, run.partition.sizes, self.sigma, run.objective.d
        )

    @property
    def _model(self) -> LinearModel:
        return cast(LinearModel, self.run.objective)

    def check(self) -> None:
        """Raise SettingError for a model whose coefficients have no standard errors in the units of the columns."""
        run, d, rows = self.run, self.run.objective.d, int(self.run.partition.sizes.sum())
        if run.method.personal:
            raise SettingError(
                f"evaluation.standard-errors needs a method that fits one model to all sites; got {run.method.name}"
            )
        require(
            run.inputs.factor is not None,
            "evaluation.standard-errors needs rows that are not divided by their own norms: set data.row-scaling to "
            "all, or data.row-norm to 0",
        )
        if not (d <= MOST_PARAMETERS and d < rows):
            raise SettingError(
                f"evaluation.standard-errors needs at most {MOST_PARAMETERS} parameters, and fewer than rows; got {d} "
                f"and {rows}"
            )
        _ = self.question  # SettingError for an objective without public bounds

    def release(self, client: int) -> Release:
        """The release of a client, which all records that are protected together can move."""
        run = self.run
        assert run.plan
        replaced = run.schedule.workload(int(run.partition.sizes[client])).replaced
        return run.plan.release_of(run.plan.last, client, float(replaced))

    def sigma(self, client: int) -> float:
        """See `ModelQuery`."""
        plan = self.run.plan
        return float(plan.multipliers[client]) * self.release(client).spread if plan else 0.0

    def draws(self, client: int, round_: int) -> Draws:
        """See `ModelQuery`."""
        return seeded(self.run.config.seed, client, self.question.charged_as(round_))

    def answer(self, client: int, guard: Guard | None, site: Any = None) -> SiteAnswer | None:
        """See `ModelQuery`; None for a method whose rounds hold these sums: each answer more would add to the rows."""
        if self.run.method.sends_sums:
            return None
        return SiteAnswer(self.question, guard, self.release(client) if guard else None)

    def of_rounds(self, server: Any) -> Information | None:
        """See `ModelQuery`; some methods send these sums in every round."""
        algorithm = self.run.algorithm
        return algorithm.information(server) if algorithm.ends_early else None

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        if not self.run.method.sends_sums:  # else `check_information` is asked for the rounds themselves
            remedy = "evaluation.standard-errors = false trains without"
            check_information(self.run, site, client, "standard-error-rows", remedy)

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return {"standard-error-rows": 1}

    def arrays(self, found: Sums | None) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return found.arrays if found else {}

    # --- before the run

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        plan = self.run.plan
        assert plan
        share = float((plan.last / plan.shares).max())
        return [("intervals", f"for {share:.3g} of the budget; {self._outlook}")]

    def noise_rows(self) -> list[tuple[str, ...]]:
        """See `SiteQuery`."""
        if self.run.plan is None:
            return []
        return [noisiest(self.run, "intervals", self.run.config.rounds + 1, self.release, self.sigma)]

    def advice(self) -> list[str]:
        """A warning if the noise will probably leave no intervals."""
        if self._expected(_TYPICAL) >= LEAST_CLEAR:
            return []
        return [
            f"there will probably be no intervals: {self._outlook}: raise epsilon or privacy.interval-share, take "
            "fewer columns or narrower ranges, or set evaluation.standard-errors to false, which leaves the budget to "
            "the training"
        ]

    @property
    def _outlook(self) -> str:
        return (
            "by public reference rows at the start, the smallest eigenvalue of the information matrix is "
            f"{self._expected(_EVEN):.3g} deviations of its noise for numbers spread evenly over their ranges, and "
            f"{self._expected(_TYPICAL):.3g} for numbers whose standard deviation is a tenth of the width of their "
            f"range; at least {LEAST_CLEAR:g} are needed{self._least}. It is lower for a class, or events, in few of "
            "the rows (a fifth for 5% of them), for means far from the middle of a range, and for correlated columns"
        )

    @property
    def _least(self) -> str:
        """From which standard deviation of the numbers there are enough, as text; empty without any."""
        low, high = _EVEN / 100, _EVEN
        if self._expected(high) < LEAST_CLEAR:
            return ""
        for _ in range(_HALVINGS):
            middle = float(np.sqrt(low * high))
            low, high = (low, middle) if self._expected(middle) >= LEAST_CLEAR else (middle, high)
        return f", for which it must be {high:.2g} of the width"

    def _expected(self, spread: float) -> float:
        """`Reference.clearness` at the starting point, without noise, for rows like the reference rows, whose numbers
        have this standard deviation, as a share of the width of their range, around its middle."""
        run = self.run
        features = run.inputs.spanning()
        features[:, _numbers(run)] *= spread / _EVEN
        known, sizes = Reference.of(self._model, features), run.partition.sizes
        matrix = known.information(run.start) * sizes.sum() / len(known.rows.labels)
        noise = float(np.hypot.reduce([self.sigma(client) for client in range(len(sizes))]))
        assert self.question.units
        return known.clearness(Released(run.start, matrix, 0.0, noise * self.question.units.matrix))


_EVEN = 12**-0.5
"""Standard deviation of a number that is spread evenly over its range, as a share of the width of the range."""
_TYPICAL = 0.1
"""That of many clinical columns, such as an age with a deviation of 9 years in [20, 90]."""
_HALVINGS = 6


def _numbers(run: Run) -> list[int]:
    """The places of the features that are numbers."""
    inputs = run.inputs
    if inputs.schema is None:
        return list(range(inputs.num_features))
    names = {own.name for own in inputs.schema.columns if isinstance(own, Number)}
    return [place for place, name in enumerate(inputs.feature_names) if name in names]


def check_information(run: Any, site: Any, client: int, key: str, remedy: str) -> None:
    """Raise SettingError unless a site's policy allows exact sums over its training rows: its key of this name says of
    how many rows at least, in all and by category."""
    least: int | None = getattr(site, snake(key))
    what, d, remedy = "this site sends no information matrix", run.objective.d, f"({remedy})"
    if least is None:
        raise SettingError(f"{what}: its node config has no {key} {remedy}")
    each = site.newton_rows_per_parameter if key == "newton-rows" else _ROWS_PER_PARAMETER
    training = _counted(run.shards.rows(client))
    rows, needed = len(training.labels), max(least, math.ceil(each * d))
    if not rows >= needed:
        raise SettingError(
            f"{what} of fewer than {needed} rows, {each:g} for each of {d} parameters or its {key}; the run has "
            f"{rows} {remedy}"
        )
    if not smallest_cell(training, run.dataset.num_classes) >= least:
        raise SettingError(f"{what}: a category or class has fewer rows than its {key} {remedy}")
    if isinstance(run.objective, DiscreteCox):  # the gradient shows how many had the event in each interval
        cells = TimeGrid(tuple(run.objective.loss.ends)).counts(training.labels)
        if not cells[cells > 0].min() >= site.survival_cell:
            raise SettingError(
                f"{what} unless there are {site.survival_cell} events or none, and {site.survival_cell} censored or "
                f"none, in every interval: choose longer intervals {remedy}"
            )


def _counted(rows: Batch) -> Batch:
    """The rows with a weight above 0: others say nothing, and hide nobody."""
    if rows.row_weights is None:
        return rows
    kept = rows.row_weights > 0
    return Batch(rows.features[kept], rows.labels[kept])


def smallest_cell(rows: Batch, classes: int) -> float:
    """The smallest number of rows, above 0, in which a feature with two values has one of them, or the label is one of
    so many classes; infinity without such features and classes."""
    low, high = rows.features.min(0), rows.features.max(0)
    ends = [(rows.features == own).sum(0) for own in (low, high)]
    binary = (ends[0] + ends[1] == len(rows.features)) & (low < high)
    counts = np.bincount(rows.labels) if classes else np.empty(0)
    cells = np.concatenate([*(own[binary] for own in ends), counts])
    return float(min(cells[cells > 0], default=np.inf))
