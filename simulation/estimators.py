"""scikit-learn estimators: `FederatedClassifier` and `FederatedRegressor` train over sites in one process.

    model = twinflower.FederatedClassifier(epsilon=8, ranges=(0, 16)).fit(X, y, sites=hospital)
    model.predict(X_new)

They follow scikit-learn's conventions: parameters are checked in `fit`, and pipelines, `clone` and grid searches work.
The noise of a private fit is seeded, so anyone who knows `random_state` can remove it. Use these estimators to study
the cost of privacy on data that one person may see; for real sites, deploy the run.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, check_X_y

from twinflower.algorithms import ALGORITHMS
from twinflower.arrays import Array
from twinflower.data.columns import REFUSE
from twinflower.data.features import EACH
from twinflower.data.sets import ARRAYS, Dataset
from twinflower.errors import RunError, SettingError
from twinflower.known_objectives import COUNTING
from twinflower.models.facts import CONVERGED
from twinflower.models.inputs import Inputs
from twinflower.models.model import undetermined
from twinflower.models.trained import TrainedClassifier, TrainedRegressor, trained
from twinflower.problems.networks import NETWORKS
from twinflower.problems.objectives import LOSSES
from twinflower.settings import check_choice, settings_of

from .estimator_inputs import (
    Columns,
    array_inputs,
    by_site,
    centred,
    check_ranges,
    counted,
    dense,
    limited,
    numbered,
    plain,
    scaled_by,
    table,
    unscaled,
    validate_data,
    validated,
    weighted,
)
from .estimator_parameters import Nested, Size, check_parameters, default_algorithm, mode_of, run_config
from .report.labels import score
from .report.messages import row_line
from .runs.facts import distance, of_fit
from .runs.run import Progress, Run, origin
from .runs.setup import PreparedRun, prepare_rows
from .runtimes import cohort

_OBJECTIVES = [*(name for name in LOSSES if name != COUNTING), *NETWORKS]
_RHO = 0.1  # weight of the penalty that ties a site to the server, in units of the loss's curvature
_STEPS = {True: 2, False: 10}  # local steps with privacy and without


@dataclass(kw_only=True, eq=False, repr=False)
class Federated(Nested):  # type: ignore[misc]
    """Common base of the estimators; see `FederatedClassifier` for the parameters."""

    objectives: ClassVar[Sequence[str]] = _OBJECTIVES

    algorithm: str | None = field(default=None, kw_only=False)
    epsilon: float | None = None
    delta: float = 1e-4
    rounds: int = 30
    objective: str | None = None
    ranges: Any = None
    weight_range: Any = None
    row_norm: float | None = None
    row_scaling: str = EACH
    num_sites: int = 5
    group_size: int | None = None
    settings: Mapping[str, Any] | None = None
    random_state: Any = None
    categories: Mapping[str, Sequence[Any]] | None = None
    missing: str = REFUSE
    terms: Sequence[str] | None = None
    verbose: int = 0
    model_: Any = field(init=False)  # a trained model, after `fit`

    @property
    def _private(self) -> bool:
        return self.epsilon is not None

    def _checked(self, X: Any, y: Any, **options: Any) -> tuple[Any, NDArray[Any]]:
        """X, an array or a table, and y, after scikit-learn's validation."""
        check_parameters(self)
        check_ranges(self.ranges, self._private)
        by_column = isinstance(self.ranges, Mapping) or self.categories is not None or self.missing != REFUSE
        X = dense(X)  # before the next line, because some sparse matrices are dictionaries
        if not (by_column or self.terms or isinstance(X, Mapping)):
            return validated(self, X, y, **options)
        X = table(X)
        self.feature_names_in_ = np.array(list(X), dtype=object)
        self.n_features_in_ = len(X)
        rows = len(next(iter(X.values())))
        return X, check_X_y(np.zeros((rows, 1)), y, **options)[1]

    def _train(
        self, X: Any, y: NDArray[Any], sites: Any, groups: Any, sample_weight: Any, label: Mapping[str, Any],
        **trains: Any,
    ) -> Any:  # fmt: skip
        """Train and set the fitted attributes; RunError if the run fails.

        y: classes, signed times, or numbers, scaled so that their range is [-1, 1]. sites, groups, sample_weight: as in
        `fit`. label: the classes or the range of y, as in the file of a schema. trains: fields of the model.
        """
        rows = len(y)
        weights, public = weighted(sample_weight, rows, self.weight_range, self._private)
        inputs, seed = self._inputs(X, label), int(check_random_state(self.random_state).randint(2**31 - 1))
        y, outside = limited(y, "range" in label, sample_weight, weights, inputs.names)
        groups = numbered(groups, rows, self._private, self.group_size)
        order, sizes = by_site(sites, rows, self.num_sites, seed, groups)
        raw = unscaled(X, inputs)
        if raw and not self._private:
            inputs, raw = scaled_by(inputs, counted(raw.values)), None
        features = (raw.scaled()[0] if raw else inputs.features(X))[order]
        classes = trains.get("classes", ())
        data = Dataset(
            ARRAYS, features, y[order], features, y[order], len(classes), standardised=self.ranges is None, sites=sizes,
            unscaled=raw.taken(order) if raw else None, columns=inputs.feature_names, weight_range=public,
            row_weights=None if weights is None else weights[order], groups=None if groups is None else groups[order],
        )  # fmt: skip
        objective = self._objective(len(classes))
        check_choice("objective", objective, self.objectives)
        entries = (data.features.shape[1] + 1) * max(1, data.num_classes)
        default = default_algorithm(objective, self.settings or {}, self._private, entries)
        keys = self._keys(self.algorithm or default, objective, self._size(data), seed)
        setup = prepare_rows(run_config(keys, self.settings or {}), data)
        (result,) = cohort.train([setup], _printed(setup) if self.verbose else None)
        if result.model is None:
            raise RunError(result.failure)
        if result.setup.ranges:
            inputs = scaled_by(inputs, [own for _, own in result.setup.ranges])
        _warn(type(self).__name__, result, result.model)
        made = origin(setup.config, result.privacy())  # no seed: with it anybody could remove the noise
        self.privacy_, self.history_, self.warnings_ = result.privacy(), result.rows, result.warnings()
        self.model_ = trained(
            result.model, setup.config.objective.name, inputs, form=setup.config.objective.form, origin=made,
            information=result.information, facts=of_fit(result.setup, X, inputs, outside, weights), **trains,
        )  # fmt: skip
        self.warnings_ += [f"warning: {text}" for text in [undetermined(self.model_)] if text]
        return self

    def _inputs(self, X: Any, label: Mapping[str, Any]) -> Inputs:
        """How the rows become features; with private ranges, before these are found."""
        norms = {"row_norm": self._row_norm, "row_scaling": self.row_scaling}
        if not isinstance(X, Mapping):
            return array_inputs(X, self.ranges, norms, getattr(self, "feature_names_in_", ()))
        columns = Columns(self.ranges, self.categories or {}, self.missing, self.terms or ())
        return columns.inputs(X, label, norms)

    @property
    def _row_norm(self) -> float:
        """The largest norm of a row, 0 without a limit."""
        return float(self.row_norm if self.row_norm is not None else self._private)

    @property
    def _fitted(self) -> Any:
        """The trained model; NotFittedError before `fit`."""
        check_is_fitted(self)
        return self.model_

    def _rows(self, X: Any) -> Any:
        """The rows to predict: an array (rows, features) after scikit-learn's validation, or a table."""
        if self._fitted.inputs.schema:
            return X  # the model looks up its columns by name
        return validate_data(self, dense(X), dtype=np.float64, reset=False)  # type: ignore[no-any-return]

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
        return self._fitted.to_sklearn()

    def _objective(self, num_classes: int) -> str:
        raise NotImplementedError

    def _size(self, data: Dataset) -> Size:
        """A bound on the rows of every site, in a private fit on every single row."""
        if self._private:
            return Size((self.row_norm or 1.0) ** 2, data.weight_range.high if data.weight_range else 1.0)
        return Size.of(data)

    def _keys(self, algorithm: str, objective: str, size: Size, seed: int) -> dict[str, Any]:
        """The settings of the run; those in the parameter `settings` override them."""
        keys: dict[str, Any] = {
            "algorithm": algorithm, "rounds": self.rounds, "seed": seed, "data.name": ARRAYS,
            "data.row-norm": self._row_norm, "data.row-scaling": self.row_scaling,
            "objective.name": objective, "regulariser.name": "none",
            "evaluation.every": int(self.verbose) or self.rounds,
        }  # fmt: skip
        if self._private:
            keys |= {"privacy.epsilon": self.epsilon, "privacy.delta": self.delta}
            keys["privacy.mode"] = mode_of(algorithm)
        if self._private and self.group_size is not None:
            keys |= {"privacy.protects": "group", "privacy.group-size": self.group_size}
        if algorithm in ALGORITHMS:
            keys |= self._steps(algorithm, objective, size)
        return plain(keys)  # type: ignore[no-any-return]

    def _steps(self, algorithm: str, objective: str, size: Size) -> dict[str, Any]:
        """Step size, rho and number of local steps, from a bound on the loss's curvature.

        The bound holds for the mean loss of every site, in a private fit for every single row.
        """
        known = settings_of(ALGORITHMS[algorithm])
        curvature = size.weight * self._curvature(objective, size.squares)
        wanted = {"step-size": (0.2 if self._private else 0.9) / curvature, "rho": _RHO * curvature}
        steps = {f"{algorithm}.{key}": value for key, value in wanted.items() if key in known}
        if ALGORITHMS[algorithm].takes_local_steps:
            steps["local.max-steps"] = _STEPS[self._private]
        return steps

    def _curvature(self, objective: str, squares: float) -> float:
        """A bound on the curvature of the mean loss of rows a, given one on the eigenvalues of the mean of a a^T."""
        loss = LOSSES["softmax" if objective in NETWORKS else objective]
        return min(loss.curvature_bound, 1.0) * squares


def _printed(setup: PreparedRun) -> Progress:
    """Prints evaluated rounds."""
    return lambda row: print(row_line(row, score(setup.config)), flush=True)


def _warn(estimator: str, run: Run, x: Array) -> None:
    """Warn, as scikit-learn does, of a model that has not converged, or is no better than the start."""
    for text in run.risen:
        warnings.warn(f"{estimator}: {text}", stacklevel=4)
    if text := _unconverged(run, x):
        advice = f"{estimator} {text}, settings={{'objective.l2': 0.01}}"
        warnings.warn(advice, ConvergenceWarning, stacklevel=4)


def _unconverged(run: Run, x: Array) -> str:
    """Why the point x (d,) is not the optimum, and what to do; empty if it is, or if that is not known."""
    if run.stop:
        return f"{run.early}. A penalty gives it an optimum" if run.stop.warns else ""
    apart = distance(run.setup, x)
    if apart is None or apart <= CONVERGED:
        return ""
    return (
        f"has not converged in {run.round} rounds: its scores are up to {apart:.2g} standard errors from those at the "
        f"optimum; {CONVERGED:g} is converged. Raise rounds; else the optimum may need a penalty"
    )


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedClassifier(ClassifierMixin, Federated):  # type: ignore[misc]
    """A classifier trained over sites that do not share their rows.

    algorithm      name of an algorithm, as shown by `twinflower list`. None: "newton", which ends at the optimum, for a
                   fit without privacy of a likelihood with up to 1,000 parameters, unless `settings` has what it does
                   not, such as local steps; else the algorithm that `settings` names, or "fedpdm"
    epsilon        total privacy budget of each site, at delta; None: no privacy
    delta          delta of the guarantee, in (0, 1); used only with epsilon
    rounds         number of communication rounds; "newton" mostly ends after 4 to 8
    objective      name of a loss or a network; None: "logistic" for two classes, "softmax" for more
    ranges         (low, high) of the columns, two numbers or two arrays; values are clipped to them. "private": ranges
                   from noisy counts of all sites before round 1, for the share data.range-share of epsilon (see
                   `twinflower.data.ranges`). A dictionary has the range of every column that is not in categories, for
                   a data frame. None: the ranges of the data, which a private fit refuses
    weight_range   (low, high) of sample_weight, to which it is clipped. A row can change up to high times as much as
                   without weights, so the noise is high times as large. None: the range of the weights, which a private
                   fit refuses
    row_norm       largest Euclidean norm of a scaled row, longer rows are scaled down; None: 1 in a private fit, else
                   no limit
    row_scaling    "each": a row longer than row_norm is divided by its own norm; "all": every row is divided by the
                   largest norm that a row in the ranges can have, so that a linear model is linear in the columns
    num_sites      number of sites among which rows are divided at random if `fit` gets no sites
    group_size     how many records of one person the guarantee protects together; None: it protects single records
    settings       further settings of the run, such as {"fedpdm.rho": 0.1, "regulariser.name": "l1"}; a grid search
                   varies one of them as settings__fedpdm__rho
    random_state   seed of the division into sites, the batches and the noise
    categories     the possible values of each column of texts, {column: [value, ...]}, for a data frame
    missing        what missing values of a data frame become: "refuse", "zero" or "indicator", see
                   `twinflower.data.schema`
    terms          of a data frame's columns, such as ["age:sex", "bs(age, 4)"], see `twinflower.data.terms`
    verbose        print objective and accuracy every so many rounds; 0: print nothing

    Attributes after `fit`: `model_` (a `twinflower.models.trained.TrainedClassifier`), `coef_`, `intercept_`,
    `classes_`, `privacy_` (the privacy spent, None without privacy), `history_` (rows of metrics.csv) and `warnings_`.
    A fit without privacy warns (`sklearn.exceptions.ConvergenceWarning`) if the model is more than .1 standard errors
    from the optimum; this is measured for models with a likelihood and up to 1,000 parameters.
    A private fit treats the classes in y and the number of rows of each site as public. X may be a sparse matrix, which
    is made dense (up to 10^8 numbers).
    """

    model_: TrainedClassifier = field(init=False)

    def fit(
        self, X: Any, y: Any, sites: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> "FederatedClassifier":
        """Train on X (rows, features) with labels y (rows,); sites (rows,) holds the site of each row.

        groups (rows,) says whose record each row is: rows of one group are never at two sites, unless `sites` says
        so, or in two parts of a division; a private fit refuses a group with more than group_size rows.
        sample_weight (rows,), from 0 on, multiplies the losses of the rows. A site's mean is over its number of rows.
        """
        X, y = self._checked(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if not len(self.classes_) > 1:
            raise SettingError(
                f"there must be at least two classes; y has one class, {plain(self.classes_[0])!r}"
            )
        names, codes = self.classes_.tolist(), codes.astype(np.int64)
        label = {"classes": names}
        return self._train(X, codes, sites, groups, sample_weight, label, classes=tuple(names))  # type: ignore[no-any-return]

    def _objective(self, num_classes: int) -> str:
        return self.objective or ("logistic" if num_classes == 2 else "softmax")

    def predict(self, X: Any) -> NDArray[Any]:
        """The predicted classes (rows,)."""
        codes = self._fitted.class_indices(self._rows(X))
        return self.classes_[codes]  # type: ignore[no-any-return]

    def predict_proba(self, X: Any) -> Array:
        """The predicted probabilities (rows, classes)."""
        return self._fitted.predict_proba(self._rows(X))

    def decision_function(self, X: Any) -> Array:
        """The scores (rows, classes), or (rows,) for two classes."""
        return self._fitted.decision_function(self._rows(X))


@dataclass(kw_only=True, eq=False, repr=False)
class FederatedRegressor(RegressorMixin, Federated):  # type: ignore[misc]
    """A regressor trained over sites that do not share their rows.

    Parameters and attributes are those of `FederatedClassifier`, without `classes_`, except for:

    objective      None: "least-squares", or "huber" in a private fit
    target_range   (low, high) of y; values are clipped to it. None: the range of the data, which a private fit refuses
    """

    target_range: Any = None
    model_: TrainedRegressor = field(init=False)

    def fit(
        self, X: Any, y: Any, sites: Any = None, groups: Any = None, sample_weight: Any = None
    ) -> "FederatedRegressor":
        """Train on X (rows, features) with targets y (rows,); further arguments as in `FederatedClassifier.fit`."""
        X, y = self._checked(X, y, y_numeric=True)
        middle, half = centred(y := y.astype(np.float64), self.target_range, self._private)
        label = {"range": [middle - half, middle + half]}
        scaled = (y - middle) / half
        return self._train(X, scaled, sites, groups, sample_weight, label, middle=middle, half=half)  # type: ignore[no-any-return]

    def _objective(self, num_classes: int) -> str:
        return self.objective or ("huber" if self._private else "least-squares")

    def predict(self, X: Any) -> Array:
        """The predicted values (rows,)."""
        return self._fitted.predict(self._rows(X))
