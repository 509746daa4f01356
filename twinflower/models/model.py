"""What all trained models have in common, and what follows from them: coefficients, and scores of a table's rows.

Attributes have the names of scikit-learn. `coef_` and `intercept_` refer to the model's features
(`get_feature_names_out`), in which numbers are scaled to [-1, 1], not to the columns of a table; `coefficients()` has
the latter. If the run divides long rows by their own norms, the scores of such a row are scaled down with it, including
the intercept's contribution.
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array, Index
from ..data.tables import read_rows
from ..errors import DataError, SettingError, require
from ..known_objectives import make_model
from ..problems.losses import ClassWeighted, Poisson
from ..problems.objectives import LinearModel
from .coefficients import Coefficient, compared, spans
from .facts import UNKNOWN, Facts
from .inference import Estimates, Inference, Inverse, infer, where_unclipped
from .inference import undetermined as loose_terms
from .information import Information
from .inputs import Inputs
from .joint import JointTest, likelihood_ratio
from .private_inference import Reference, privately_inferred
from .released import Released

VERSION = 1
_SELECTED = (
    "after selection: the columns were chosen by a penalty on these rows, which the intervals and p-values do not "
    "account for"
)
_CLASS_WEIGHTS = (
    "class weights: a weighted loss is not a likelihood, so standard errors, intervals and p-values are the robust "
    "ones, and effects and intercepts are those of the population with these weights"
)

FEW_CLUSTERS = 40  # Cameron and Miller, J. Human Resources 2015: few is from less than 20 to less than 50
_LEAST_CLASS = 0.5
_WEIGHTLESS = "with weight 0"
_NO_OUTER = "the sites did not send the sums that these follow from: train with newton.robust = true"


@contextmanager
def _schema_fixed() -> Iterator[None]:
    """Replace the remedies of errors about rows, which concern the schema: that of a model cannot be changed."""
    try:
        yield
    except DataError as error:
        if not error.remedy:
            raise
        raise DataError(
            error.text, error.reason, "change the table, because the schema of a model is fixed"
        ) from None


@dataclass(frozen=True, repr=False)
class TrainedModel(ABC):
    """A trained point x (d,) with its objective and inputs; see `TrainedClassifier` and `TrainedRegressor`.

    form: the objective's settings without which its scores cannot be computed (`Penalties.form`). origin: how the model
    was trained (algorithm, data, rounds, privacy), for information only; for a run also its seed
    and digest. information: what the sites sent for standard errors, if they did. selected: the entries of x that were
    trained after a selection, the others being 0; empty for a model without one. facts: on which rows it was trained.
    """

    x: Array
    objective: str
    inputs: Inputs
    form: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[Any, ...] = ()
    middle: float = 0.0  # middle of the range of a numeric label
    half: float = 1.0
    origin: Mapping[str, Any] = field(default_factory=dict)
    information: Information | Released | None = None
    selected: tuple[int, ...] = ()
    facts: Facts = UNKNOWN

    def __repr__(self) -> str:
        classes = f", classes={list(self.classes)}" if self.classes else ""
        return f"{type(self).__name__}({self.objective} of {self.n_features_in_} columns, d={len(self.x)}{classes})"

    @cached_property
    def _model(self) -> Any:
        """The objective of the model, with a method scores(x, features)."""
        columns = self.inputs.num_features + self.inputs.bias
        model = make_model(self.objective, columns, len(self.classes), **self.form)
        if self.x.shape != (model.d,):
            raise SettingError(f"x must have shape ({model.d},); got {self.x.shape}")
        return model

    def scores(self, rows: Any) -> Array:
        """The objective's scores (rows, outputs)."""
        with _schema_fixed():
            features = self.inputs.features(rows)
        return self._model.scores(self.x, features)  # type: ignore[no-any-return]

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the input columns."""
        return np.array(self.inputs.names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of input columns."""
        return len(self.inputs.names)

    def get_feature_names_out(self) -> NDArray[Any]:
        """Names of the features that `coef_` refers to."""
        return np.array(self.inputs.feature_names, dtype=object)

    @property
    def _matrix(self) -> Array:
        """Weights (outputs, features), including the column of ones, in scikit-learn's convention."""
        if not isinstance(self._model, LinearModel):
            raise AttributeError(
                f"a {self.objective} has no coef_ and intercept_, which are a linear model's"
            )
        return self.x.reshape(self._model.shapes[0])

    @property
    def coef_(self) -> Array:
        """Weights of the features: (1 or classes, features), or (features,) for regression."""
        return self._matrix[:, : self.inputs.num_features] * (self.inputs.factor or 1.0)

    @property
    def intercept_(self) -> Array:
        """Weights of the column of ones, (1 or classes,); 0 if there is no such column."""
        matrix = self._matrix
        return matrix[:, -1] * (self.inputs.factor or 1.0) if self.inputs.bias else np.zeros(len(matrix))

    def document(self) -> dict[str, Any]:
        """Everything except x as a JSON-compatible dictionary."""
        return {
            "version": VERSION,
            "objective": self.objective,
            **self.form,
            "classes": list(self.classes),
            "middle": self.middle,
            "half": self.half,
            "inputs": self.inputs.document(),
            "origin": dict(self.origin),
            "facts": self.facts.document,
            **({"selected": list(self.selected)} if self.selected else {}),
        }

    def arrays(self) -> dict[str, Any]:
        """The arrays of the file model.npz, by name."""
        return {"x": self.x, "description": np.array(json.dumps(self.document(), ensure_ascii=True))}

    def save(self, path: str | Path) -> None:
        """Write the model, without `information`, to a file that `load` can read."""
        with Path(path).open("wb") as file:
            np.savez(file, **self.arrays())

    def coefficients(self, robust: bool = False, references: Mapping[str, str] | None = None) -> Estimates:
        """The coefficients in the units of the columns (`models.coefficients`), a list, with standard errors if sites
        have sent what they follow from; robust: with the robust form of these (`models.inference`). references: the
        category with which the others of a column are compared, by its name, in place of the first. The list's `facts`
        say on which rows it rests and how far it is from the maximum, its `tests` whether all terms of a column are 0
        (`models.joint`), and its `remarks` what all that is worth.

        SettingError for a model that is not linear in its columns: a network, or one whose rows were divided by their
        own norms; for robust errors of a model that has none; and for a reference that is not there.
        """
        return inferred(self, robust, references).estimates

    @property
    def unpenalised(self) -> Index:
        """The entries of x (n,) that a fit of the selected columns without a penalty has: those that are not 0, and of
        every score those that belong to no feature, such as intercepts and baseline hazards."""
        if not isinstance(self._model, LinearModel):
            raise SettingError(f"a {self.objective} has no columns to select")
        shape = self._model.shapes[0]
        return np.flatnonzero(
            (self.x.reshape(shape) != 0) | (np.arange(shape[1]) >= self.inputs.num_features)
        )

    @property
    def residuals(self) -> bool:
        """Whether the variance of the labels is estimated for standard errors, as for least squares."""
        return False

    @abstractmethod
    def _table(self) -> list[Coefficient]:
        """The coefficients without standard errors."""

    def to_sklearn(self) -> Any:
        """A scikit-learn pipeline with the same predictions; SettingError if scikit-learn has no such model."""
        if not isinstance(self._model, LinearModel):
            raise SettingError(
                f"scikit-learn has no model like a {self.objective}: use predict of this object"
            )
        return self._pipeline()

    @abstractmethod
    def _pipeline(self) -> Any:
        """The pipeline of a linear model."""


def inferred(
    model: TrainedModel, robust: bool = False, references: Mapping[str, str] | None = None
) -> Inference:
    """The coefficients of a model, the facts about them and remarks; see `TrainedModel.coefficients`."""
    done = _inferred(replace(model, inputs=compared(model.inputs, references or {})), robust)
    trained = {name: getattr(model.facts, name) for name in ("events", "dropped", "clipped", "clipped_rows")}
    rows = model.facts.rows if done.facts.rows is None else done.facts.rows
    if weightless := (model.facts.rows or 0) - (rows or 0):
        trained["dropped"] = {**model.facts.dropped, _WEIGHTLESS: weightless}
    facts = done.facts._replace(rows=rows, **trained)
    done = done._replace(facts=facts)
    return done if model.information is None else where_unclipped(done)


def undetermined(model: TrainedModel) -> str:
    """A sentence that names the coefficients that the rows do not determine; empty if there are none, and for a model
    without exact sums or without coefficients."""
    if not isinstance(model.information, Information) or model.inputs.factor is None:
        return ""
    kept = list(model.selected or range(len(model.x)))
    inverse = Inverse.of(model.information.at(kept).matrix, float(np.finfo(model.x.dtype).eps))
    return loose_terms(model._table(), _differentials(model)[:, kept], inverse) if inverse.empty.size else ""


def nested_test(model: TrainedModel, nested: TrainedModel, name: str) -> JointTest:
    """The likelihood-ratio test of the columns and terms that a model has and a nested one, of this name, has not.

    SettingError for models that are not nested or not at the maximum, or that were trained on other rows or with
    another likelihood, as far as their settings, label, weights, numbers, labels and seed show it.
    """
    others = set(nested.inputs.parts) - set(model.inputs.parts)
    if others or model.objective != nested.objective:
        more = ", ".join(sorted(others)) or f"objective {nested.objective}"
        raise SettingError(f"{name} is not nested in the model, which does not have {more}")
    require(
        _likelihood(model) == _likelihood(nested),
        f"{name} has another likelihood: for a likelihood-ratio test the objective's settings, the label with its "
        "range and exposure, and the weights must be the same",
    )
    whole, part = (own.origin.get("columns", {}) for own in (model, nested))
    other = [name for name in part if whole.get(name) not in (None, part[name])]
    require(
        not other,
        f"{name} is not nested in the model: other values, ranges or categories of column {', '.join(other)}",
    )
    test = likelihood_ratio(inferred(model).facts, inferred(nested).facts)
    same = [(own.origin.get("seed"), own.facts.events, own.facts.dropped) for own in (model, nested)]
    labels = {own.origin["labels"] for own in (model, nested) if "labels" in own.origin}
    require(
        same[0] == same[1] and len(labels) < 2,
        "both models of a likelihood-ratio test must be trained on the same rows; these have other seeds, labels "
        "or rows left out",
    )
    return test._replace(column=f"likelihood ratio against {name}")


def _likelihood(model: TrainedModel) -> tuple[Any, ...]:
    """By what the likelihoods of two models can differ besides their columns."""
    schema = model.inputs.schema
    label = (schema.label, schema.weight) if schema else None
    return label, model.classes, model.middle, model.half, model.origin.get("likelihood")


def _inferred(model: TrainedModel, robust: bool) -> Inference:
    coefficients, information = model._table(), model.information
    if information is None:
        return Inference(coefficients, [])
    rows = _differentials(model)
    if isinstance(information, Released):
        require(not robust, "the robust form needs exact sums, which no private run has: leave it out")
        known = Reference.of(model._model, model.inputs.spanning())
        return privately_inferred(model.x, lambda x: replace(model, x=x)._table(), rows, information, known)
    kept = list(model.selected or range(len(model.x)))
    weighted = isinstance(model._model.loss, ClassWeighted)
    unsent = bool(np.isnan(information.outer).any())
    require(not (robust and unsent), f"there are no robust standard errors: {_NO_OUTER}")
    done = infer(
        coefficients, rows[:, kept], information.at(kept), model.residuals, robust or weighted, spans(model.inputs),
        _count_curvature(model, information), model.origin.get("algorithm") == "newton",
        float(np.finfo(model.x.dtype).eps), model.inputs.factor or 1.0, _unseen(model, information),
    )  # fmt: skip
    done = done._replace(
        facts=done.facts._replace(log_likelihood=_log_likelihood(model, done.facts, weighted))
    )
    about = (
        [_SELECTED] * bool(model.selected) + [_CLASS_WEIGHTS] * weighted + _clustered(model, done.clusters)
    )
    about += [f"class weights need robust standard errors: {_NO_OUTER}"] * (weighted and unsent)
    return done._replace(remarks=[*about, *done.remarks])


def _unseen(model: TrainedModel, information: Information) -> list[str]:
    """The classes of a multinomial model to which it gives less than half a row in all: no row has them."""
    outputs, bias = model._model.outputs, model.inputs.bias
    if not (model._model.loss.classifies and outputs > 1 and bias) or model.selected:
        return []
    features = len(model.x) // outputs
    ones = np.diag(information.matrix)[features - 1 :: features] / (model.inputs.factor or 1.0) ** 2
    return [str(name) for name, rows in zip(model.classes, ones, strict=True) if rows < _LEAST_CLASS]


def _clustered(model: TrainedModel, clusters: int) -> list[str]:
    """Sentences about errors that are robust to this number of groups; none without groups."""
    group = (model.inputs.schema.group if model.inputs.schema else "") or "groups"
    if clusters == 1:
        return [f"there are no errors that are robust to clusters of {group}, of which there is only one"]
    remark = f"errors robust to clusters of {group} ({clusters:,} clusters)"
    few = f"; with fewer than {FEW_CLUSTERS} clusters such errors are too small on average"
    return [remark + few * (clusters < FEW_CLUSTERS)] * bool(clusters)


def _log_likelihood(model: TrainedModel, facts: Facts, weighted: bool) -> float | None:
    """The log likelihood of the labels in their own units; None for a weighted loss, which is none."""
    if weighted or facts.log_likelihood is None:
        return None
    return facts.log_likelihood - (facts.rows or 0) * math.log(model.half if model.residuals else 1.0)


def _count_curvature(model: TrainedModel, information: Information) -> float:
    """A bound on the curvature of the mean loss at the maximum of a Poisson model with an intercept; 0 for others.

    The information matrix is the sum of rate a a^T over rows a. At the maximum the rates add up to the counts, so its
    largest eigenvalue is at most the sum of the counts times the largest |a|^2, which is known for the columns of a
    schema. The counts follow from the sums at any point: with f in the column of ones, they add up to
    (H_bb - f g_b) / f^2, where b is that column.
    """
    inputs, bias = model.inputs, model.inputs.num_features
    if not (isinstance(model._model, LinearModel) and isinstance(model._model.loss, Poisson)):
        return 0.0
    if not (inputs.bias and inputs.schema and inputs.factor):
        return 0.0
    counts = information.matrix[bias, bias] - inputs.factor * information.gradient[bias]
    return float(inputs.schema.longest(True) ** 2 * counts / information.rows)


def _differentials(model: TrainedModel) -> Array:
    """T (terms, d), by which the estimates of the coefficients change with x."""
    points = [replace(model, x=x)._table() for x in (np.zeros_like(model.x), *np.eye(len(model.x)))]
    constant, *columns = (np.array([row.estimate for row in table_]) for table_ in points)
    return np.stack(columns, axis=1) - constant[:, None]


def scored(model: TrainedModel, rows: Any) -> tuple[Array, NDArray[Any], NDArray[Any]]:
    """The scores (rows, outputs), the predicted labels and the labels (rows,) of a table file, as the objective has
    them; DataError for a model without a schema, and for a table that does not fit it."""
    features, labels = labelled(model, rows)
    scores = model._model.scores(model.x, features)
    return scores, *model._model.loss.compared(scores, labels)


def labelled(model: TrainedModel, rows: Any) -> tuple[Array, NDArray[Any]]:
    """Features and labels of a table file, in the form that the objective receives."""
    schema = model.inputs.schema
    if schema is None or not isinstance(rows, str | Path):
        raise DataError("score needs labels, or the file of a table with a label column")
    with _schema_fixed():
        plain, labels = read_rows(rows, schema)
    return model.inputs.completed(plain), labels
