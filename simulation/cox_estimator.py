"""A scikit-learn estimator for survival: `FederatedCoxRegressor`.

    model = twinflower.FederatedCoxRegressor(intervals="10 x 365").fit(X, y, sites=hospital)
    model.predict_survival(X_new)

The form of y is that of scikit-survival: a structured array of two fields, whether the event happened and the time.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from twinflower.arrays import Array
from twinflower.concordance import concordance
from twinflower.errors import SettingError, require
from twinflower.models.trained import TrainedSurvival
from twinflower.problems.discrete_cox import DISCRETE_COX, LINKS, CoxObjective, interval_ends
from twinflower.survival_labels import signed, unsigned

from .estimator_inputs import is_table, unused
from .estimator_parameters import Size
from .estimators import Federated

_SHORTEST = 1e-6  # time that a model distinguishes from 0, in units of the first interval


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedCoxRegressor(Federated):
    """The discrete-time Cox model (`twinflower.problems.discrete_cox`), trained over sites that do not share rows.

    Parameters and attributes are those of `twinflower.FederatedClassifier`, without `classes_`. Further ones:

    intervals      the ends of the intervals of time, such as "365, 730, 1460", or number x length, such as "12 x 30.5".
                   A trained model has them, so they must be public in a private fit
    link           "logit", whose gradients have a public bound, or "cloglog", with hazard ratios; a private fit with
                   "cloglog" needs settings={"objective.clip-norm": ...}
    """

    intervals: str = ""
    link: str = "logit"
    model_: TrainedSurvival = field(init=False)
    objectives: ClassVar[tuple[str, ...]] = (DISCRETE_COX,)

    def fit(
        self, X: Any, y: Any, sites: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> "FederatedCoxRegressor":
        """Train on X (rows, features) with y; further arguments as in `twinflower.FederatedClassifier.fit`.

        y: a structured array (rows,) of a boolean and a number, events and times; or an array (rows, 2) of these; or
        signed times (rows,), t for the event at time t > 0 and -t for censoring then. Without privacy a time of 0 is
        refused, and so are labels without an event; in a private fit an event at time 0 happens right
        after it, and a signed time of 0 is censored then.
        """
        if not isinstance(self.intervals, str):
            raise SettingError(
                f'intervals must be a text such as "365, 730, 1460" or "12 x 30.5"; got {self.intervals!r}'
            )
        CoxObjective(intervals=self.intervals, link=self.link).check()
        shortest = self._span()[0] if self._private else 0.0
        X, y = self._checked(X, signed_times(y, shortest), y_numeric=True)
        if not self._private:  # these depend on single records
            require(bool((y != 0).all()), "times must be above 0; y has a time of 0")
            require(bool((y > 0).any()), "y must have an event; everybody is censored")
            _check_unit(*unsigned(y), interval_ends(self.intervals) or [])
        event = unused(list(X) if is_table(X) else (), "event")
        label = {"times": self._span(), "event": event}
        return self._train(X, y, sites, groups, sample_weight, label)  # type: ignore[no-any-return]

    def _span(self) -> list[float]:
        """The range of times that training distinguishes, from the intervals alone."""
        ends = interval_ends(self.intervals) or [1.0]
        return [_SHORTEST * ends[0], ends[-1]]

    def _objective(self, num_classes: int) -> str:
        return self.objective or DISCRETE_COX

    def _keys(self, algorithm: str, objective: str, size: Size, seed: int) -> dict[str, Any]:
        model = {"objective.intervals": self.intervals, "objective.link": self.link}
        return super()._keys(algorithm, objective, size, seed) | model

    def _curvature(self, objective: str, squares: float) -> float:
        model = CoxObjective(intervals=self.intervals, link=self.link).build(1, 0)
        return min(LINKS[self.link].curvature_bound, 1.0) * float(model.stretch(squares))

    def predict(self, X: Any) -> Array:
        """Risk scores (rows,), higher for an earlier event; see `TrainedSurvival.predict`."""
        return self.model_.predict(self._rows(X))

    def predict_survival(self, X: Any) -> Array:
        """The probabilities (rows, T) that the event has not happened by the end of each interval."""
        return self.model_.predict_survival(self._rows(X))

    @property
    def times_(self) -> Array:
        """The ends of the intervals (T,)."""
        check_is_fitted(self)
        return self.model_.times

    def score(self, X: Any, y: Any) -> float:
        """The concordance index; y as in `fit`."""
        return concordance(self.predict(X), *unsigned(signed_times(y))).share


def signed_times(y: Any, shortest: float = 0.0) -> NDArray[np.float64]:
    """The signed times (rows,) of y, in one of the forms of `FederatedCoxRegressor.fit`; SettingError for others.

    shortest: the time to which shorter ones, 0 or more, are moved, unless y has signed times.
    """
    given = np.asarray(y)
    if given.dtype.names is None and given.dtype.kind not in "fiubO":
        raise SettingError(f"y must hold numbers, or events and times; got values of the type {given.dtype}")
    if given.dtype.names is None and given.ndim == 1:
        return _numbers(given)
    if given.dtype.names is None:
        if given.ndim != 2 or given.shape[1] != 2:
            raise SettingError(
                "y must be a structured array of events and times, two columns of these, or signed times; got shape "
                f"{given.shape}"
            )
        events, times = given.T
    else:
        if len(given.dtype.names) != 2 or given.dtype[0].kind != "b":
            raise SettingError(
                "a structured y must have two fields, a boolean for the event and a number for the time; got "
                f"{given.dtype}"
            )
        events, times = (given[name] for name in given.dtype.names)
    times = _numbers(times)
    require(
        bool(np.isin(events, [0, 1]).all()),
        "the events in y, its first column, must be true or false, or 1 or 0, and the times its second one",
    )
    moved = np.maximum(times, shortest)
    require(bool(((times >= 0) & (moved > 0)).all()), "the times in y must be numbers above 0")
    return signed(moved, events == 1)


def _check_unit(times: Array, events: NDArray[Any], ends: list[float]) -> None:
    """SettingError if no event is in an interval, or nobody's time is after the first one of several."""
    early, late = times[events > 0].min(), times.max()
    if ends and not (early <= ends[-1] and (late > ends[0] or len(ends) == 1)):
        raise SettingError(
            f"the times in y, with events from {early:g} and the last time {late:g}, do not reach the intervals, "
            f"which end at {ends[0]:g} to {ends[-1]:g}: are both in the same unit?"
        )


def _numbers(values: NDArray[Any]) -> NDArray[np.float64]:
    durations = values.dtype.kind in "mM" or any(
        isinstance(own, np.timedelta64) for own in values.ravel()[:1]
    )
    require(
        not durations,
        "the times in y are durations or dates: convert them to numbers in the unit of intervals, for example with "
        "/ np.timedelta64(1, 'D') to days",
    )
    try:
        return values.astype(np.float64)
    except (ValueError, TypeError):
        raise SettingError("the times in y must be numbers above 0; got other values") from None
