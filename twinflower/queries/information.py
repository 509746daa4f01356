"""The question for standard errors: after the last round, clients send sums over their training rows at the final
model.

Without privacy these are gradient, information matrix and outer products (`models.information`); with privacy gradient
and information matrix with noise (`models.released`), once in a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, cast

import numpy as np

from ..arrays import Array, Index
from ..errors import ReplyError, SettingError, require
from ..known_objectives import SURVIVAL, ObjectiveSettings
from ..models.information import MOST_PARAMETERS, Information, packed_size
from ..models.private_inference import LEAST_CLEAR, Reference
from ..models.released import Released, Units, released_size
from ..privacy.guard import Guard
from ..privacy.mechanism import Draws, seeded
from ..privacy.plan import INTERVALS, ROUND
from ..privacy.release import Release
from ..problems.discrete_cox import LINKS, CoxObjective
from ..problems.interfaces import Batch
from ..problems.losses import UNBOUNDED, BoundedLikelihood, Likelihood
from ..problems.objectives import LOSSES, LinearModel, LinearObjective
from ..settings import Setting
from ..wire import doubles, packed
from .columns import check_whole_rows
from .exact_sums import allowing, check_exact_sums
from .first import noisiest
from .model_question import ModelQuestion, Sent, SiteAnswer
from .query import FRACTION_OF_BUDGET, Answers, ModelQuery

Sums = Information | Released
_ROUNDING = 1e-9
LIKELIHOODS = [*(name for name, loss in LOSSES.items() if isinstance(loss, Likelihood)), *SURVIVAL]
_BOUNDED = [name for name, loss in LOSSES.items() if isinstance(loss, BoundedLikelihood)]


@dataclass(frozen=True)
class StandardErrorSettings:
    """Settings of [evaluation]."""

    standard_errors: Annotated[
        bool,
        Setting(
            "at the end clients send gradient and information matrix of the model, for standard errors and p-values, "
            "with noise in a private run; without penalties only"
        ),
    ] = False


@dataclass(frozen=True)
class IntervalShare:
    """Settings of [privacy]."""

    interval_share: Annotated[
        float,
        Setting(
            "part for what evaluation.standard-errors releases after the last round", *FRACTION_OF_BUDGET
        ),
    ] = 0.5


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
    if not (_is_symmetric(found.matrix) and _is_symmetric(found.outer)):
        raise ReplyError("the information matrix and the outer products must be symmetric")
    for name, count in (("groups", found.clusters), ("rows with a weight above 0", found.observations)):
        if not (0 <= count <= rows and count.is_integer()):
            raise ReplyError(f"the number of {name} must be a whole number up to {rows}; got {count:g}")
    return found


def _is_symmetric(matrix: Array) -> bool:
    """Whether a matrix (d, d) is symmetric, up to the rounding of sums over rows."""
    return bool(np.abs(matrix - matrix.T).max() <= _ROUNDING * np.abs(matrix).max())


# --- in a run


class SumsAnswers(Answers):
    """The sums of all clients, which are in a file of their own, not in a checkpoint; exact ones are not for every
    reader."""

    known_files = (f"{InformationQuestion.name}.npz",)

    def arrays(self, found: Sums | None) -> Mapping[str, Any]:
        """See `Answers`."""
        return found.arrays if found else {}


class StandardErrors(ModelQuery):
    """The sums of all clients from which standard errors follow."""

    kind = InformationQuestion
    name = kind.name
    follows, otherwise = "intervals", "set evaluation.standard-errors to false"
    reported = SumsAnswers
    asked_by = "evaluation.standard-errors"
    share_key = "privacy.interval-share"

    @classmethod
    def check_settings(cls, config: Any) -> None:
        """Raise SettingError for a run whose model has no standard errors, or whose budget cannot pay for them."""
        if config.evaluation.standard_errors:
            _check_likelihood(config.objective, config.regulariser.name, config.privacy)

    @property
    def share(self) -> float:
        """See `SiteQuery`."""
        return 0.0 if self.run.method.sends_sums else super().share

    @cached_property
    def question(self) -> InformationQuestion:  # type: ignore[override]
        """See `ModelQuery`."""
        run = self.run
        units = Units.of(self._model, run.row_norm) if run.plan else None
        if units and run.method.sends_sums:
            units = run.method.noise.units
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
        check_whole_rows(run, "evaluation.standard-errors")
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
        return run.plan.release_of(INTERVALS, client, float(replaced))

    def sigma(self, client: int) -> float:
        """See `ModelQuery`."""
        plan, method = self.run.plan, self.run.method
        if plan and method.sends_sums:
            last = plan.releases.of_kind(ROUND)[-1].weight
            return float(method.noise.sigmas[client] * self.run.partition.sizes[client] / np.sqrt(last))
        return float(plan.multipliers[client]) * self.release(client).spread if plan else 0.0

    def draws(self, client: int, round_: int) -> Draws:
        """See `ModelQuery`."""
        return seeded(self.run.config.seed, client, self.question.charged_as(round_))

    @property
    def asks_sites(self) -> bool:
        """See `SiteQuery`; not with a method whose rounds hold these sums: each answer more would add to the rows."""
        return not self.run.method.sends_sums

    def answer(self, client: int, guard: Guard | None, site: Any = None) -> SiteAnswer | None:
        """See `ModelQuery`."""
        if not self.asks_sites:
            return None
        return SiteAnswer(self.question, guard, self.release(client) if guard else None)

    def of_rounds(self, server: Any) -> Sums | None:
        """See `ModelQuery`; some methods send these sums in every round."""
        method = self.run.method
        server = self.run.own(server)
        found: Sums | None = method.information(server) if method.sends_sums else None
        if isinstance(found, Released):
            return found.of_rows(int(self.run.partition.sizes.sum()), server.base.astype(np.float64))
        return found

    def check_policy(self, site: Any, client: int) -> None:
        """See `SiteQuery`."""
        if not self.run.method.sends_sums:  # else `check_exact_sums` is asked for the rounds themselves
            remedy = "evaluation.standard-errors = false trains without"
            check_exact_sums(self.run, site, client, "standard-error-rows", remedy)

    @property
    def allowing(self) -> Mapping[str, Any]:
        """See `SiteQuery`."""
        return allowing(self.run.objective, "standard-error-rows")

    # --- before the run

    def planned(self) -> list[tuple[str, str]]:
        """See `SiteQuery`."""
        plan = self.run.plan
        assert plan
        share = plan.share(INTERVALS)
        paid = f"for {share:.3g} of the budget" if share else "from the releases of the last round"
        return [("intervals", f"{paid}; {_outlook(self._expected)}")]

    def noise_rows(self) -> list[tuple[str, ...]]:
        """See `SiteQuery`."""
        if self.run.plan is None or self.run.method.sends_sums:
            return []
        return [noisiest(self.run, "intervals", self.run.config.rounds + 1, self.release, self.sigma)]

    def advice(self) -> list[str]:
        """A warning if the noise will probably leave no intervals."""
        if self._expected(_TYPICAL) >= LEAST_CLEAR:
            return []
        share, spared = " or privacy.interval-share", ", which leaves the budget to the training"
        if self.run.method.sends_sums:
            share, spared = "", ""
        return [
            f"there will probably be no intervals: {_outlook(self._expected)}: raise epsilon{share}, take fewer "
            f"columns or narrower ranges, or set evaluation.standard-errors to false{spared}"
        ]

    def _expected(self, spread: float) -> float:
        """`Reference.clearness` at the starting point, without noise, for rows like the reference rows, whose numbers
        have this standard deviation, as a share of the width of their range, around its middle."""
        run = self.run
        known = Reference.of(self._model, run.inputs.spanning(spread / _EVEN))
        sizes = run.partition.sizes
        matrix = known.information(run.start) * sizes.sum() / len(known.rows.labels)
        noise = float(np.hypot.reduce([self.sigma(client) for client in range(len(sizes))]))
        assert self.question.units
        return known.clearness(Released(run.start, matrix, 0.0, noise * self.question.units.matrix))


Expected = Callable[[float], float]
"""By the standard deviation of numbers, as a share of the width of their range: `Reference.clearness`."""


def _outlook(expected: Expected) -> str:
    return (
        "by public reference rows at the start, the smallest eigenvalue of the information matrix is "
        f"{expected(_EVEN):.3g} deviations of its noise for numbers spread evenly over their ranges, and "
        f"{expected(_TYPICAL):.3g} for numbers whose standard deviation is a tenth of the width of their range; at "
        f"least {LEAST_CLEAR:g} are needed{_least(expected)}. It is lower for a class, or events, in few of the rows "
        "(a fifth for 5% of them), for means far from the middle of a range, and for correlated columns"
    )


def _least(expected: Expected) -> str:
    """From which standard deviation of the numbers there are enough, as text; empty without any."""
    low, high = _EVEN / 100, _EVEN
    if expected(high) < LEAST_CLEAR:
        return ""
    for _ in range(_HALVINGS):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if expected(middle) >= LEAST_CLEAR else (middle, high)
    return f", for which it must be {high:.2g} of the width"


_EVEN = 12**-0.5
"""Standard deviation of a number that is spread evenly over its range, as a share of the width of the range."""
_TYPICAL = 0.1
"""That of many clinical columns, such as an age with a deviation of 9 years in [20, 90]."""
_HALVINGS = 6


# --- settings


def _check_likelihood(objective: ObjectiveSettings, regulariser: str, privacy: Any) -> None:
    """Raise SettingError for a run whose model is no maximum of a likelihood, or whose plan has no place for it."""
    if objective.name not in LIKELIHOODS:
        raise SettingError(
            f"evaluation.standard-errors needs a likelihood: set objective.name to {', '.join(LIKELIHOODS)}; got "
            f"{objective.name}"
        )
    if privacy.mode != "none":
        _check_private(objective, regulariser, privacy)
    require(
        regulariser in ("none", "selected")
        and not (objective.l2 or objective.nonconvex or objective.clip_norm),
        "evaluation.standard-errors needs the maximum of the likelihood, which a penalty or clipping moves: set "
        "regulariser.name to none, and objective.l2, objective.nonconvex and objective.clip-norm to 0; "
        "twinflower refit trains the columns of a sparse model again without its penalty",
    )


def _check_private(objective: ObjectiveSettings, regulariser: str, privacy: Any) -> None:
    """Raise SettingError for a private run in which nothing can be released from which intervals follow."""
    require(
        not (isinstance(objective, LinearObjective) and objective.class_weights),
        "evaluation.standard-errors must be false in a private run with objective.class-weights, because a weighted "
        "loss is not a likelihood and its robust errors need exact sums: remove the weights, or train without privacy",
    )
    bounded = objective.name in _BOUNDED or (
        isinstance(objective, CoxObjective) and LINKS[objective.link].curvature_bound < float("inf")
    )
    if not bounded:
        raise SettingError(f"evaluation.standard-errors: {UNBOUNDED}; got {objective.name}")
    if privacy.mode == "as-published" or privacy.trust != "local":
        raise SettingError(
            "evaluation.standard-errors must be false with privacy.trust = sum or privacy.mode = as-published, which "
            "have no plan for what sites release after the last round; got true with privacy.trust = "
            f"{privacy.trust} and privacy.mode = {privacy.mode}"
        )
    require(
        not privacy.tune_share,
        "privacy.tune-share and evaluation.standard-errors share no budget: set one of them to 0 or false",
    )
    require(
        regulariser != "selected",
        "evaluation.standard-errors must be false in a private run of selected columns, because intervals would have "
        "to account for the selection: set regulariser.name to none",
    )
