"""Trained models for prediction: `load(run_folder)` returns one, and its `to_sklearn` converts it to a pipeline.

    model = twinflower.load("runs/hospitals")
    model.predict_proba("new-patients.csv")

A file model.npz holds the point `x` (d,) and a JSON text, `description`, with everything needed to turn rows into
predictions: the objective, the schema of the tables or the scaling of the columns, whether a column of ones is added,
the limit on row norms, the classes, and the origin of the model. It contains no pickled objects, so files from others
can be opened safely.

Attributes have the names of scikit-learn. `coef_` and `intercept_` refer to the model's features
(`get_feature_names_out`), in which numbers are scaled to [-1, 1], not to the columns of a table; `coefficients()` has
the latter. If the run divides long rows by their own norms, the scores of such a row are scaled down with it, including
the intercept's contribution.
"""

import io
import json
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import special
from ..arrays import Array
from ..data.columns import Target
from ..data.files import read_bytes
from ..data.tables import read_rows
from ..errors import DataError, TwinflowerError, cause, require
from ..known_objectives import make_model
from ..problems.interfaces import Batch
from ..problems.networks import NETWORKS
from ..problems.objectives import LOSSES, LinearModel, score_of
from .coefficients import Coefficient, table
from .inputs import Inputs

VERSION = 1
_PROBABLE = ("softmax", "logistic")


# ---------------------------------------------------------------------------------------------- models


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

    origin: how the model was trained (algorithm, data, rounds, privacy), for information only; for a run also its seed
    and digest.
    """

    x: Array
    objective: str
    inputs: Inputs
    hidden_units: int = 0
    classes: tuple[Any, ...] = ()
    middle: float = 0.0  # middle of the range of a numeric label
    half: float = 1.0
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        found = f", classes={list(self.classes)}" if self.classes else ""
        return f"{type(self).__name__}({self.objective} of {self.n_features_in_} columns, d={len(self.x)}{found})"

    @cached_property
    def _model(self) -> Any:
        """The objective of the model, with a method scores(x, features)."""
        columns = self.inputs.num_features + self.inputs.bias
        settings: dict[str, Any] = {"hidden_units": self.hidden_units} if self.objective in NETWORKS else {}
        model = make_model(self.objective, columns, len(self.classes), **settings)
        require(self.x.shape == (model.d,), f"x must have shape ({model.d},); got {self.x.shape}")
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
        own = {"objective": self.objective, "hidden_units": self.hidden_units, "classes": list(self.classes)}
        target = {"middle": self.middle, "half": self.half}
        return {
            "version": VERSION,
            **own,
            **target,
            "inputs": self.inputs.document(),
            "origin": dict(self.origin),
        }

    def arrays(self) -> dict[str, Any]:
        """The arrays of the file model.npz, by name."""
        return {"x": self.x, "description": np.array(json.dumps(self.document(), ensure_ascii=True))}

    def save(self, path: str | Path) -> None:
        """Write the model to a file that `load` can read."""
        with Path(path).open("wb") as file:
            np.savez(file, **self.arrays())

    @abstractmethod
    def coefficients(self) -> list[Coefficient]:
        """The coefficients in the units of the columns (`models.coefficients`).

        SettingError for a model that is not linear in its columns: a network, or one whose rows were divided by their
        own norms.
        """

    def to_sklearn(self) -> Any:
        """A scikit-learn pipeline with the same predictions; SettingError if scikit-learn has no such model."""
        require(
            isinstance(self._model, LinearModel),
            f"scikit-learn has no model like a {self.objective}: use predict of this object",
        )
        return self._pipeline()

    @abstractmethod
    def _pipeline(self) -> Any:
        """The pipeline of a linear model."""


class TrainedClassifier(TrainedModel):
    """A trained model for classification."""

    def _pipeline(self) -> Any:
        from .pipeline import classifier  # scikit-learn is slow to import

        require(
            self.objective in _PROBABLE,
            f"scikit-learn has no model like objective {self.objective}: train with softmax or logistic",
        )
        return classifier(self.inputs, self._matrix, self.classes_)

    def coefficients(self) -> list[Coefficient]:
        """The coefficients in the units of the columns, for every class but the first."""
        require(
            self.objective in _PROBABLE,
            f"coefficients are those of objective {' or '.join(_PROBABLE)}; got {self.objective}",
        )
        matrix = self._matrix
        rows = matrix[1:] - matrix[:1] if len(matrix) > 1 else matrix
        against, *others = map(str, self.classes)
        tables = [table(self.inputs, own, name, against) for name, own in zip(others, rows, strict=True)]
        return [row for own in tables for row in own]

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes (classes,), in the order of the columns of `predict_proba`."""
        return np.array(self.classes)

    @property
    def _matrix(self) -> Array:
        matrix = super()._matrix
        return matrix[1:] - matrix[:1] if len(matrix) == 2 else matrix

    def decision_function(self, rows: Any) -> Array:
        """Scores (rows, classes); for two classes (rows,), positive for the second class."""
        scores = self.scores(rows)
        if scores.shape[1] == 1:
            return scores[:, 0]
        return scores[:, 1] - scores[:, 0] if len(self.classes) == 2 else scores

    def places(self, rows: Any) -> NDArray[Any]:
        """Indices of the predicted classes in `classes_`, (rows,)."""
        return self._model.loss.predict(self.scores(rows))  # type: ignore[no-any-return]

    def predict(self, rows: Any) -> NDArray[Any]:
        """Predicted classes (rows,)."""
        return self.classes_[self.places(rows)]  # type: ignore[no-any-return]

    def predict_proba(self, rows: Any) -> Array:
        """Class probabilities (rows, classes); SettingError for a loss that does not define probabilities."""
        require(
            self.objective in (*_PROBABLE, *NETWORKS),
            f"the scores of objective {self.objective} are no probabilities: train with softmax or logistic",
        )
        scores = self.scores(rows)
        if scores.shape[1] == 1:
            return np.hstack([special.expit(-scores), special.expit(scores)])
        return special.softmax(scores, axis=1)  # type: ignore[no-any-return]

    def score(self, rows: Any, labels: Any = None) -> float:
        """Accuracy: the fraction of rows predicted correctly. For a table file, the labels are read from the file."""
        if labels is None:
            features, places = _labelled(self, rows)
            return float(np.mean(self._model.predict(self.x, features) == places))
        return float(np.mean(self.predict(rows) == np.asarray(labels)))


class TrainedRegressor(TrainedModel):
    """A trained model for regression."""

    def _pipeline(self) -> Any:
        from .pipeline import regression  # scikit-learn is slow to import

        return regression(self.inputs, self._matrix, self.half, self.middle)

    def coefficients(self) -> list[Coefficient]:
        """The coefficients in the units of the columns and of the label."""
        found = table(self.inputs, self._matrix[0] * self.half)
        return [found[0]._replace(estimate=found[0].estimate + self.middle), *found[1:]]

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,)."""
        return super().coef_[0] * self.half

    @property
    def intercept_(self) -> Any:
        """Weight of the column of ones."""
        return super().intercept_[0] * self.half + self.middle

    def predict(self, rows: Any) -> Array:
        """Predicted values (rows,)."""
        return self.middle + self.half * self.scores(rows)[:, 0]

    def score(self, rows: Any, labels: Any = None) -> float:
        """R^2. For a table file, the labels are read from the file and clipped to their range, as in the run."""
        if labels is None:
            features, numbers = _labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, numbers)))
        return float(score_of(self.predict(rows), Batch(np.empty(0), np.asarray(labels, float)), False))


def _labelled(model: TrainedModel, rows: Any) -> tuple[Array, NDArray[Any]]:
    """Features and labels of a table file, in the form that the objective receives."""
    schema = model.inputs.schema
    if schema is None or not isinstance(rows, str | Path):
        raise DataError("score needs labels, or the file of a table with a label column")
    with _schema_fixed():
        plain, labels = read_rows(rows, schema)
    return model.inputs.completed(plain), labels


# --------------------------------------------------------------------------------------------- loading


def trained(x: Array, objective: str, inputs: Inputs, **others: Any) -> TrainedClassifier | TrainedRegressor:
    """A `TrainedClassifier` or `TrainedRegressor`, depending on the objective; the schema gives the label's range."""
    classifies = objective in NETWORKS or LOSSES[objective].classifies
    label = inputs.schema.label if inputs.schema else None
    if isinstance(label, Target):
        others = {"middle": label.range.middle, "half": label.range.half} | others
    return (TrainedClassifier if classifies else TrainedRegressor)(x, objective, inputs, **others)


def load(path: str | Path) -> TrainedClassifier | TrainedRegressor:
    """Load the model from a run folder or a file model.npz; DataError if there is none that can predict."""
    file = Path(path).expanduser()
    runs = sorted(own.parent for own in file.rglob("model.npz")) if file.is_dir() else []
    if runs and file not in runs:
        raise DataError(f"{file} holds several runs: name one of them, such as {runs[0]}")
    file = file / "model.npz" if file.is_dir() else file
    content = read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if "description" not in arrays:
                raise DataError(
                    f"{file} does not say how to predict: a PyTorch module is in model.pt beside it, for torch.load"
                )
            x, text = arrays["x"], str(arrays["description"])
        return _described(x if x.dtype == np.float32 else x.astype(np.float64), json.loads(text))
    except (ValueError, KeyError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, TwinflowerError) and str(error).startswith(str(file)):
            raise
        raise DataError(f"{file} is not a model of this version of Twinflower ({cause(error)})") from None


def _described(x: Array, document: Mapping[str, Any]) -> TrainedClassifier | TrainedRegressor:
    if document["version"] != VERSION:
        raise ValueError(f"its format is {document['version']}, and this version reads {VERSION}")
    if document["objective"] not in (*LOSSES, *NETWORKS):
        raise ValueError(f"objective {document['objective']}")
    model = trained(
        x, document["objective"], Inputs.of(document["inputs"]), hidden_units=int(document["hidden_units"]),
        classes=tuple(document["classes"]), middle=float(document["middle"]), half=float(document["half"]),
        origin=dict(document["origin"]),
    )  # fmt: skip
    if model._model.d != len(x) or not np.isfinite(x).all():
        raise ValueError("x")
    return model


def predictions(
    model: TrainedClassifier | TrainedRegressor, rows: Any
) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Column names and rows of a table of predictions, with class probabilities if the model defines them."""
    names, columns = ["prediction"], [model.predict(rows).tolist()]
    if isinstance(model, TrainedClassifier) and model.objective in (*_PROBABLE, *NETWORKS):
        names += [f"probability of {name}" for name in model.classes]
        columns += model.predict_proba(rows).T.tolist()
    return names, list(zip(*columns, strict=True))
