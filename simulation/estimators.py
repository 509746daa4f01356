"""scikit-learn estimators: `FederatedClassifier` and `FederatedRegressor` train over sites in one process.

    model = twinflower.FederatedClassifier(epsilon=8, ranges=(0, 16)).fit(X, y, sites=hospital)
    model.predict(X_new)

They follow scikit-learn's conventions: parameters are checked in `fit`, and pipelines, `clone` and grid searches work.
The noise of a private fit is seeded, so anyone who knows `random_state` can remove it. Use these estimators to study
the cost of privacy on data that one person may see; for real sites, deploy the run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from twinflower.algorithms import ALGORITHMS
from twinflower.arrays import Array, Index
from twinflower.data.columns import Number, Range, Target
from twinflower.data.features import EACH, ROW_SCALINGS
from twinflower.data.ranges import Bins, Unscaled
from twinflower.data.schema import PRIVATE, Schema
from twinflower.data.sets import ARRAYS, Dataset
from twinflower.errors import RunError, require
from twinflower.models.inputs import Inputs
from twinflower.models.trained import TrainedClassifier, TrainedRegressor, trained
from twinflower.problems.networks import NETWORKS, NetworkObjective
from twinflower.problems.objectives import LOSSES
from twinflower.settings import check_choice, settings_of

from .runs.setup import prepare_rows
from .runtimes import cohort
from .settings import parse

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # in scikit-learn 1.5 it is a method of the estimator

    def validate_data(estimator: Any, *arrays: Any, **options: Any) -> Any:
        """Return X, or X and y, after scikit-learn's validation."""
        return estimator._validate_data(*arrays, **options)


_RHO = 0.1  # weight of the penalty that ties a site to the server, in units of the loss's curvature
_STEPS = {True: 2, False: 10}  # local steps with privacy and without


@dataclass(kw_only=True, eq=False, repr=False)
class _Federated(BaseEstimator):  # type: ignore[misc]
    """Common base of the two estimators; see `FederatedClassifier` for the parameters."""

    algorithm: str = field(default="fedpdm", kw_only=False)
    epsilon: float | None = None
    delta: float = 1e-4
    rounds: int = 30
    objective: str | None = None
    ranges: Any = None
    row_norm: float | None = None
    row_scaling: str = EACH
    num_sites: int = 5
    group_size: int | None = None
    settings: Mapping[str, Any] | None = None
    random_state: Any = None
    model_: Any = field(init=False)  # a trained model, after `fit`

    @property
    def _private(self) -> bool:
        return self.epsilon is not None

    def _train(self, X: Array, y: NDArray[Any], sites: Any, groups: Any, **label: Any) -> Any:
        """Train and set the fitted attributes; RunError if the run fails."""
        inputs = self._inputs(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        order, sizes = _grouped(sites, len(X), self.num_sites, seed)
        self._check_groups(groups, len(X))
        features = inputs.features(X)[order]
        classes = label.get("classes", ())
        rows = Dataset(
            ARRAYS, features, y[order], features, y[order], len(classes), standardised=self.ranges is None, sites=sizes,
            unscaled=_unscaled(X[order], inputs) if inputs.centre is None else None,
        )  # fmt: skip
        objective = self._objective(len(classes))
        keys = self._keys(objective, _curvature(features, sizes), seed)
        setup = prepare_rows(parse(keys, dict(self.settings or {})), rows)
        (result,) = cohort.train([setup])
        if result.model is None:
            raise RunError(result.failure)
        if result.setup.ranges:
            inputs = _scaled_by(inputs, [own for _, own in result.setup.ranges])
        chosen = setup.config.objective
        hidden = chosen.hidden_units if isinstance(chosen, NetworkObjective) else 0
        self.model_ = trained(
            result.model, setup.config.objective.name, inputs, hidden_units=hidden, **label,
        )  # fmt: skip
        self.privacy_, self.history_, self.warnings_ = result.privacy(), result.rows, result.warnings()
        return self

    def _rows(self, X: Any) -> Array:
        """The rows (rows, features) to predict, after scikit-learn's validation."""
        check_is_fitted(self)
        return validate_data(self, X, dtype=np.float64, reset=False)  # type: ignore[no-any-return]

    @property
    def coef_(self) -> Array:
        """Weights of the scaled columns."""
        return self.model_.coef_

    @property
    def intercept_(self) -> Any:
        """The intercepts, that is, the weights of the column of ones; a single number for a regression."""
        return self.model_.intercept_

    def to_sklearn(self) -> Any:
        """A pipeline of standard scikit-learn estimators with the same predictions; SettingError for a network."""
        check_is_fitted(self)
        return self.model_.to_sklearn()

    def _inputs(self, X: Array) -> Inputs:
        """The scaling of the columns from their ranges to [-1, 1]; none if a private fit has yet to find the ranges.

        SettingError for a private fit without ranges.
        """
        require(
            self.ranges is not None or not self._private,
            "with epsilon the ranges of the columns must be public: give ranges=(low, high), two numbers or two arrays "
            'of one for each column, or "private"; those of the data are not covered by the guarantee',
        )
        require(
            not isinstance(self.ranges, str) or self.ranges == PRIVATE,
            f'ranges must be (low, high) or "{PRIVATE}"; got {self.ranges!r}',
        )
        check_choice("row_scaling", self.row_scaling, ROW_SCALINGS)
        row_norm = self.row_norm if self.row_norm is not None else float(self._private)
        plain = Inputs(X.shape[1], row_norm=row_norm, row_scaling=self.row_scaling)
        if isinstance(self.ranges, str):
            return plain if self._private else _scaled_by(plain, _counted(X))
        low, high = (X.min(0), X.max(0)) if self.ranges is None else _ranges(self.ranges, X.shape[1])
        half = np.where(high > low, high / 2 - low / 2, 1.0)
        return replace(plain, centre=low / 2 + high / 2, spread=half, clipped=self.ranges is not None)

    def _check_groups(self, groups: Any, rows: int) -> None:
        """SettingError if a group has more rows than are protected together."""
        if groups is None:
            return
        require(
            self._private and self.group_size is not None,
            "groups need a private fit with group_size, the largest number of rows of one group; got "
            f"epsilon={self.epsilon} and group_size={self.group_size}",
        )
        labels = np.asarray(groups)
        require(
            labels.shape == (rows,), f"groups must have shape ({rows},), one for each row; got {labels.shape}"
        )
        largest = int(np.unique(labels, return_counts=True)[1].max())
        require(
            largest <= (self.group_size or 0),
            f"group_size is {self.group_size}, and one group has {largest} rows: raise it, or leave rows out",
        )

    def _objective(self, num_classes: int) -> str:
        raise NotImplementedError

    def _keys(self, objective: str, spread: float, seed: int) -> dict[str, Any]:
        """The settings of the run; those in the parameter `settings` override them."""
        keys: dict[str, Any] = {
            "algorithm": self.algorithm, "rounds": self.rounds, "seed": seed, "data.name": ARRAYS,
            "data.row-norm": float(self.row_norm if self.row_norm is not None else self._private),
            "data.row-scaling": self.row_scaling, "objective.name": objective, "regulariser.name": "none",
            "evaluation.every": self.rounds,
        }  # fmt: skip
        if self._private:
            keys |= {
                "privacy.mode": "public-state",
                "privacy.epsilon": self.epsilon,
                "privacy.delta": self.delta,
            }
        if self.group_size is not None:
            keys |= {"privacy.protects": "group", "privacy.group-size": self.group_size}
        if self.algorithm in ALGORITHMS:
            keys |= self._steps(objective, spread)
        return keys

    def _steps(self, objective: str, spread: float) -> dict[str, Any]:
        """Step size, rho and number of local steps, from a bound on the loss's curvature.

        The bound holds for the mean loss of every site (spread: `_curvature`), in a private fit for every single row.
        """
        loss = LOSSES["softmax" if objective in NETWORKS else objective]
        known = settings_of(ALGORITHMS[self.algorithm])
        curvature = min(loss.curvature_bound, 1.0) * (
            (self.row_norm or 1.0) ** 2 if self._private else spread
        )
        wanted = {"step-size": (0.2 if self._private else 0.9) / curvature, "rho": _RHO * curvature}
        steps = {f"{self.algorithm}.{key}": value for key, value in wanted.items() if key in known}
        if ALGORITHMS[self.algorithm].takes_local_steps:
            steps["local.max-steps"] = _STEPS[self._private]
        return steps


def _curvature(features: Array, sizes: tuple[int, ...]) -> float:
    """The largest eigenvalue of (1/m) A^T A over all sites, where A (m, columns) holds a site's rows."""
    parts = np.split(features, np.cumsum(sizes)[:-1])
    return max(1e-12, *(float(np.linalg.norm(part, 2)) ** 2 / len(part) for part in parts))


def _counted(X: Array) -> tuple[Range, ...]:
    """The ranges that private ranges would be without noise."""
    bins = Bins.for_noise(0.0)
    return bins.find_ranges(bins.counts(X), len(X))


def _scaled_by(inputs: Inputs, ranges: Sequence[Range]) -> Inputs:
    """The inputs with their columns scaled by these ranges."""
    centre, spread = (np.array(own) for own in zip(*((r.middle, r.half) for r in ranges), strict=True))
    return replace(inputs, centre=centre, spread=spread, clipped=True)


def _unscaled(X: Array, inputs: Inputs) -> Unscaled:
    """The rows X, all of whose columns have private ranges."""
    schema = Schema(tuple(Number(name, None) for name in inputs.names), Target("y", Range(-1.0, 1.0)))
    return Unscaled(schema, X, X, inputs.features)


def _ranges(given: Any, columns: int) -> tuple[Array, Array]:
    """The lowest and the highest value of each column, both (columns,); SettingError for invalid ranges."""
    try:
        low, high = (np.broadcast_to(np.asarray(own, dtype=np.float64), columns) for own in given)
    except (ValueError, TypeError):
        low = high = np.zeros(columns)
    fine = bool(np.isfinite([low, high]).all() and (low < high).all())
    require(fine, f"ranges must be (low, high) with low < high for each of {columns} columns; got {given!r}")
    return low, high


def _grouped(sites: Any, rows: int, number: int, seed: int) -> tuple[Index, tuple[int, ...]]:
    """A permutation (rows,) that groups the rows by site, and each site's number of rows.

    Without sites the rows are assigned at random to `number` sites.
    """
    if sites is None:
        require(number >= 1, f"num_sites must be at least 1; got {number}")
        codes = np.random.default_rng(seed).permutation(rows) % min(number, rows)
    else:
        sites = np.asarray(sites)
        require(
            sites.shape == (rows,), f"sites must have shape ({rows},), one for each row; got {sites.shape}"
        )
        codes = np.unique(sites, return_inverse=True)[1]
    return np.argsort(codes, kind="stable"), tuple(map(int, np.bincount(codes)))


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier trained over sites that do not share their rows.

    algorithm      name of an algorithm, as shown by `twinflower list`
    epsilon        total privacy budget of each site, at delta; None: no privacy
    delta          delta of the guarantee, in (0, 1); used only with epsilon
    rounds         number of communication rounds
    objective      name of a loss or a network; None: "logistic" for two classes, "softmax" for more
    ranges         (low, high) of the columns, two numbers or two arrays; values are clipped to them. "private": ranges
                   from noisy counts of all sites before round 1, for the share data.range-share of epsilon (see
                   `twinflower.data.ranges`). None: the ranges of the data, which a private fit refuses
    row_norm       largest Euclidean norm of a scaled row, longer rows are scaled down; None: 1 in a private fit, else
                   no limit
    row_scaling    "each": a row longer than row_norm is divided by its own norm; "all": every row is divided by the
                   largest norm that a row in the ranges can have, so that a linear model is linear in the columns
    num_sites      number of sites among which rows are divided at random if `fit` gets no sites
    group_size     how many records of one person the guarantee protects together; None: it protects single records
    settings       further settings of the run, such as {"fedpdm.rho": 0.1, "regulariser.name": "l1"}
    random_state   seed of the division into sites, the batches and the noise

    Attributes after `fit`: `model_` (a `twinflower.models.trained.TrainedClassifier`), `coef_`, `intercept_`,
    `classes_`, `privacy_` (the privacy spent, None without privacy), `history_` (rows of metrics.csv) and `warnings_`.
    A private fit treats the classes in y and the number of rows of each site as public.
    """

    model_: TrainedClassifier

    def fit(self, X: Any, y: Any, sites: Any = None, groups: Any = None) -> "FederatedClassifier":
        """Train on X (rows, features) with labels y (rows,); sites (rows,) holds the site of each row.

        groups (rows,) says whose record each row is; a group with more than group_size rows is refused.
        """
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        require(
            len(self.classes_) > 1,
            f"there must be at least two classes; y has one class, {self.classes_[0]!r}",
        )
        self._train(X, codes.astype(np.int64), sites, groups, classes=tuple(self.classes_.tolist()))
        return self

    def _objective(self, num_classes: int) -> str:
        return self.objective or ("logistic" if num_classes == 2 else "softmax")

    def predict(self, X: Any) -> NDArray[Any]:
        """The predicted classes (rows,)."""
        rows = self._rows(X)
        return self.classes_[self.model_.places(rows)]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """The predicted probabilities (rows, classes)."""
        rows = self._rows(X)
        return self.model_.predict_proba(rows)

    def decision_function(self, X: Any) -> Array:
        """The scores (rows, classes), or (rows,) for two classes."""
        rows = self._rows(X)
        return self.model_.decision_function(rows)


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """A regressor trained over sites that do not share their rows.

    Parameters and attributes are those of `FederatedClassifier`, without `classes_`, except for:

    objective      None: "least-squares", or "huber" in a private fit
    target_range   (low, high) of y; values are clipped to it. None: the range of the data, which a private fit refuses
    """

    target_range: Any = None
    model_: TrainedRegressor = field(init=False)

    def fit(self, X: Any, y: Any, sites: Any = None, groups: Any = None) -> "FederatedRegressor":
        """Train on X (rows, features) with targets y (rows,); sites and groups as in `FederatedClassifier.fit`."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        middle, half = self._target(y)
        self._train(X, np.clip((y - middle) / half, -1.0, 1.0), sites, groups, middle=middle, half=half)
        return self

    def _target(self, y: Array) -> tuple[float, float]:
        """The midpoint and half the width of the target's range."""
        require(
            self.target_range is not None or not self._private,
            "with epsilon the range of y must be public: give target_range=(low, high)",
        )
        low, high = (
            (y.min(), y.max()) if self.target_range is None else (v[0] for v in _ranges(self.target_range, 1))
        )
        return float(low / 2 + high / 2), float(high / 2 - low / 2) or 1.0

    def _objective(self, num_classes: int) -> str:
        return self.objective or ("huber" if self._private else "least-squares")

    def predict(self, X: Any) -> Array:
        """The predicted values (rows,)."""
        rows = self._rows(X)
        return self.model_.predict(rows)
