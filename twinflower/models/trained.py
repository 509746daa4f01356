"""Trained models for prediction: `load(run_folder)` returns one, and its `to_sklearn` converts it to a pipeline.

    model = twinflower.load("runs/hospitals")
    model.predict_proba("new-patients.csv")

A file model.npz holds the point `x` (d,) and a JSON text, `description`, with everything needed to turn rows into
predictions: the objective, the schema of the tables or the scaling of the columns, whether a column of ones is added,
the limit on row norms, the classes, and the origin of the model. It contains no pickled objects, so files from others
can be opened safely. What sites sent for standard errors (`Information`) is in a file information.npz beside it, so
that whoever gets the model does not get exact sums about the sites' rows.

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
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays import Array
from ..data.columns import Target
from ..data.files import read_bytes
from ..data.tables import read_rows
from ..errors import DataError, TwinflowerError, cause, require
from ..known_objectives import COUNTING, PROBABILISTIC, make_model
from ..problems.interfaces import Batch
from ..problems.losses import probabilities
from ..problems.networks import NETWORKS
from ..problems.objectives import LOSSES, LinearModel, score_of
from .coefficients import Coefficient, table
from .inference import Inference, infer
from .information import Information
from .inputs import Inputs

VERSION = 1
_INFORMATION = "information.npz"
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
    and digest. information: what the sites sent for standard errors, if they did.
    """

    x: Array
    objective: str
    inputs: Inputs
    hidden_units: int = 0
    classes: tuple[Any, ...] = ()
    middle: float = 0.0  # middle of the range of a numeric label
    half: float = 1.0
    origin: Mapping[str, Any] = field(default_factory=dict)
    information: Information | None = None

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
        text = {"description": np.array(json.dumps(self.document(), ensure_ascii=True))}
        return {"x": self.x} | text

    def save(self, path: str | Path) -> None:
        """Write the model, without `information`, to a file that `load` can read."""
        with Path(path).open("wb") as file:
            np.savez(file, **self.arrays())

    def coefficients(self, robust: bool = False) -> list[Coefficient]:
        """The coefficients in the units of the columns (`models.coefficients`), with standard errors if sites have sent
        what they follow from; robust: with the robust form of these (`models.inference`).

        SettingError for a model that is not linear in its columns: a network, or one whose rows were divided by their
        own norms.
        """
        return inferred(self, robust).rows

    @abstractmethod
    def _table(self) -> list[Coefficient]:
        """The coefficients without standard errors."""

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

    def _table(self) -> list[Coefficient]:
        """The coefficients of every class but the first."""
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
            self.objective in PROBABILISTIC,
            f"the scores of objective {self.objective} are no probabilities: train with softmax or logistic",
        )
        return probabilities(self.scores(rows))

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

        require(
            self.objective != COUNTING,
            "scikit-learn's Poisson regression has no offset and no scaling like this model's: use predict of this "
            "object",
        )
        return regression(self.inputs, self._matrix, self.half, self.middle)

    def _table(self) -> list[Coefficient]:
        """The coefficients in units of the label, of counts the logarithms of their rates."""
        if self.objective == COUNTING:
            own = self.inputs.schema
            return table(self.inputs, self._matrix[0], own.label.column if own else "count")
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
        """Predicted values (rows,); of counts the expected ones at an exposure of 1."""
        return self.middle + self.half * self._model.loss.predict(self.scores(rows))

    def score(self, rows: Any, labels: Any = None) -> float:
        """R^2. For a table file, the labels are read from the file and clipped to their range, as in the run."""
        if labels is None:
            features, numbers = _labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, numbers)))
        return float(score_of(self.predict(rows), Batch(np.empty(0), np.asarray(labels, float)), False))


def inferred(model: TrainedModel, robust: bool = False) -> Inference:
    """The coefficients of a model and remarks on them; see `TrainedModel.coefficients`."""
    found = model._table()
    if model.information is None:
        return Inference(found, [])
    points = [replace(model, x=own)._table() for own in (np.zeros_like(model.x), *np.eye(len(model.x)))]
    constant, *columns = (np.array([row.estimate for row in own]) for own in points)
    residuals = isinstance(model, TrainedRegressor) and model.objective != COUNTING
    return infer(found, np.stack(columns, axis=1) - constant[:, None], model.information, residuals, robust)


def scored(model: TrainedModel, rows: Any) -> tuple[Array, NDArray[Any], NDArray[Any]]:
    """The scores (rows, outputs), the predicted labels and the labels (rows,) of a table file, as the objective has
    them; DataError for a model without a schema, and for a table that does not fit it."""
    features, labels = _labelled(model, rows)
    scores = model._model.scores(model.x, features)
    return scores, *model._model.loss.compared(scores, labels)


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
        known = _information(file.with_name(_INFORMATION), x)
        return _described(x if x.dtype == np.float32 else x.astype(np.float64), json.loads(text), known)
    except (ValueError, KeyError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, TwinflowerError) and str(error).startswith(str(file)):
            raise
        raise DataError(f"{file} is not a model of this version of Twinflower ({cause(error)})") from None


def _information(file: Path, x: Array) -> Information | None:
    """What the sites sent for the standard errors of the model x (d,), from this file beside the model if it is there;
    ValueError for a damaged file."""
    if not file.exists():
        return None
    with np.load(io.BytesIO(read_bytes(file)), allow_pickle=False) as arrays:
        own = np.array_equal(arrays["x"], x)
        return Information.unpacked(arrays["information"].astype(np.float64), len(x)) if own else None


def _described(
    x: Array, document: Mapping[str, Any], information: Information | None
) -> TrainedClassifier | TrainedRegressor:
    if document["version"] != VERSION:
        raise ValueError(f"its format is {document['version']}, and this version reads {VERSION}")
    if document["objective"] not in (*LOSSES, *NETWORKS):
        raise ValueError(f"objective {document['objective']}")
    model = trained(
        x, document["objective"], Inputs.of(document["inputs"]), hidden_units=int(document["hidden_units"]),
        classes=tuple(document["classes"]), middle=float(document["middle"]), half=float(document["half"]),
        origin=dict(document["origin"]), information=information,
    )  # fmt: skip
    if model._model.d != len(x) or not np.isfinite(x).all():
        raise ValueError("x")
    return model


def predictions(
    model: TrainedClassifier | TrainedRegressor, rows: Any
) -> tuple[list[str], Sequence[Sequence[Any]]]:
    """Column names and rows of a table of predictions, with class probabilities if the model defines them."""
    names, columns = ["prediction"], [model.predict(rows).tolist()]
    if isinstance(model, TrainedClassifier) and model.objective in PROBABILISTIC:
        names += [f"probability of {name}" for name in model.classes]
        columns += model.predict_proba(rows).T.tolist()
    return names, list(zip(*columns, strict=True))
