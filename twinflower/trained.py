"""Trained models that predict: `load(run_folder)` gives one with everything that it needs, `to_sklearn` a pipeline.

    model = twinflower.load("runs/hospitals")
    model.predict_proba("new-patients.csv")

A file model.npz holds the point `x` (d,), and as a text in JSON, `description`, what turns rows into a prediction: the
objective, the schema of the tables or the scaling of the columns, the column of ones, the limit on a row's norm, the
classes, and where the model comes from. There is no pickle in it, so a file from somebody else can be opened safely.

Attributes are called as scikit-learn calls them. `coef_` and `intercept_` belong to the features that the model sees
(`get_feature_names_out`), not to the columns of a table: numbers are scaled there to [-1, 1]. Where a run limits the
norm of rows, a longer row's scores shrink with it, the intercept's part included.
"""

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from .arrays import Array
from .data.files import read_bytes
from .data.schema import Schema, Target, parse_schema
from .data.sets import appended_one, limited_norm
from .data.tables import read_features, read_rows
from .errors import DataError, TwinflowerError, cause, require
from .networks import NETWORKS, make_model
from .objectives import LOSSES, Batch, LinearModel, score_of

VERSION = 1
_PROBABLE = ("softmax", "logistic")


# ----------------------------------------------------------------------------------------- what goes in


@dataclass(frozen=True)
class Inputs:
    """From rows as users have them to the features that a model sees.

    Rows are tables by a schema; or arrays (rows, num_features), of which every column is centred and divided by its
    spread, (num_features,), and with `clipped` limited to [-1, 1]. Then come the column of ones and the limit on norms.
    """

    num_features: int
    schema: Schema | None = None
    centre: Array | None = None
    spread: Array | None = None
    clipped: bool = False
    bias: bool = True
    row_norm: float = 0.0

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns that rows have."""
        return self.schema.names if self.schema else tuple(f"x{place}" for place in range(self.num_features))

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Of the features, without the column of ones."""
        return self.schema.features if self.schema else self.names

    def features(self, rows: Any) -> Array:
        """Features (rows, num_features, and one more with bias); DataError for rows that are not what they must be."""
        plain = self._by_schema(self.schema, rows) if self.schema else self._scaled(self._matrix(rows))
        whole = appended_one(plain) if self.bias else plain
        return limited_norm(whole, self.row_norm) if self.row_norm else whole

    def _by_schema(self, schema: Schema, rows: Any) -> Array:
        if isinstance(rows, str | Path):
            return read_features(rows, schema)
        return schema.encode(self._cells(schema, rows))

    def _cells(self, schema: Schema, rows: Any) -> dict[str, Any]:
        """Cells by column, of a data frame or a mapping, or of rows whose columns are in the schema's order."""
        if hasattr(rows, "columns") or isinstance(rows, Mapping):
            absent = [name for name in schema.names if name not in rows]
            if absent:
                raise DataError(f"the rows have no column '{absent[0]}', which the model's schema names")
            return {name: _plain(rows[name]) for name in schema.names}
        table = np.asarray(rows, dtype=None if isinstance(rows, np.ndarray) else object)
        self._check_shape(table, len(schema.names))
        return {name: table[:, place] for place, name in enumerate(schema.names)}

    def _matrix(self, rows: Any) -> Array:
        if isinstance(rows, str | Path):
            raise DataError(
                "this model was trained without a schema, so it takes arrays of numbers, and no file"
            )
        try:
            table = np.asarray(rows, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise DataError(f"rows must be numbers: {cause(error)}") from None
        self._check_shape(table, self.num_features)
        if not np.isfinite(table).all():
            raise DataError("rows must be finite numbers; there is NaN or infinity")
        return table

    @staticmethod
    def _check_shape(table: NDArray[Any], columns: int) -> None:
        if table.ndim != 2 or table.shape[1] != columns:
            raise DataError(f"rows must have shape (rows, {columns}); got {table.shape}")

    def _scaled(self, table: Array) -> Array:
        if self.centre is None or self.spread is None:
            return table
        scaled = (table - self.centre) / self.spread
        return np.clip(scaled, -1.0, 1.0) if self.clipped else scaled

    def document(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        lists = {name: None if own is None else own.tolist() for name, own in self._scaling.items()}
        schema = self.schema.to_toml() if self.schema else None
        plain = {"num_features": self.num_features, "bias": self.bias, "row_norm": self.row_norm}
        return plain | lists | {"clipped": self.clipped, "schema": schema}

    @property
    def _scaling(self) -> dict[str, Array | None]:
        return {"centre": self.centre, "spread": self.spread}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "Inputs":
        """The inputs of a document; KeyError, TypeError, ValueError or DataError where it is none."""
        arrays = {
            key: None if document[key] is None else np.array(document[key], dtype=np.float64)
            for key in ("centre", "spread")
        }
        number, text = document["num_features"], document["schema"]
        if any(own is not None and own.shape != (number,) for own in arrays.values()):
            raise ValueError("centre and spread")
        return cls(
            int(number), None if text is None else parse_schema(text), **arrays, clipped=bool(document["clipped"]),
            bias=bool(document["bias"]), row_norm=float(document["row_norm"]),
        )  # fmt: skip


def _plain(column: Any) -> Any:
    return column if isinstance(column, list | tuple) else np.asarray(column)


# ---------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class TrainedModel:
    """A point x (d,) of an objective, and the way to it; see `TrainedClassifier` and `TrainedRegressor`.

    origin: where it comes from, such as algorithm, rounds, seed and privacy, for people to read.
    """

    x: Array
    objective: str
    inputs: Inputs
    hidden_units: int = 0
    classes: tuple[Any, ...] = ()
    middle: float = 0.0  # of the range of a label that is a number
    half: float = 1.0
    origin: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _model(self) -> Any:
        """The objective, which has scores(x, features)."""
        columns = self.inputs.num_features + self.inputs.bias
        settings: dict[str, Any] = {"hidden_units": self.hidden_units} if self.objective in NETWORKS else {}
        model = make_model(self.objective, columns, len(self.classes), **settings)
        require(self.x.shape == (model.d,), f"x must have shape ({model.d},); got {self.x.shape}")
        return model

    def scores(self, rows: Any) -> Array:
        """The objective's scores (rows, outputs)."""
        return self._model.scores(self.x, self.inputs.features(rows))  # type: ignore[no-any-return]

    @property
    def feature_names_in_(self) -> NDArray[Any]:
        """Names of the columns that rows have."""
        return np.array(self.inputs.names, dtype=object)

    @property
    def n_features_in_(self) -> int:
        """Number of these columns."""
        return len(self.inputs.names)

    def get_feature_names_out(self) -> NDArray[Any]:
        """Names of the features that `coef_` belongs to."""
        return np.array(self.inputs.feature_names, dtype=object)

    @property
    def _matrix(self) -> Array:
        """Weights (outputs, features, with the column of ones) as scikit-learn has them."""
        if not isinstance(self._model, LinearModel):
            raise AttributeError(
                f"a {self.objective} has no coef_ and intercept_, which are a linear model's"
            )
        return self.x.reshape(self._model.shapes[0])

    @property
    def coef_(self) -> Array:
        """Weights of the features (1 or classes, features); (features,) of a regression."""
        return self._matrix[:, : self.inputs.num_features]

    @property
    def intercept_(self) -> Array:
        """Weights of the column of ones (1 or classes,); 0 without one."""
        matrix = self._matrix
        return matrix[:, -1] if self.inputs.bias else np.zeros(len(matrix))

    def document(self) -> dict[str, Any]:
        """All but x as JSON has it."""
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
        """What model.npz holds of it."""
        return {"x": self.x, "description": np.array(json.dumps(self.document(), ensure_ascii=True))}

    def save(self, path: str | Path) -> None:
        """Write a file that `load` reads."""
        with Path(path).open("wb") as file:
            np.savez(file, **self.arrays())

    def to_sklearn(self) -> Any:
        """A scikit-learn pipeline that predicts the same; SettingError for a network."""
        from .pipeline import pipeline_of

        require(
            isinstance(self._model, LinearModel),
            f"scikit-learn has no model like a {self.objective}: use predict of this object",
        )
        return pipeline_of(self)


class TrainedClassifier(TrainedModel):
    """A model whose labels are classes."""

    @property
    def classes_(self) -> NDArray[Any]:
        """The classes, in the order of `predict_proba`'s columns."""
        return np.array(self.classes)

    @property
    def _matrix(self) -> Array:
        matrix = super()._matrix
        return matrix[1:] - matrix[:1] if len(matrix) == 2 else matrix

    def decision_function(self, rows: Any) -> Array:
        """Scores (rows, classes); of two classes (rows,), above 0 for the second."""
        scores = self.scores(rows)
        if scores.shape[1] == 1:
            return scores[:, 0]
        return scores[:, 1] - scores[:, 0] if len(self.classes) == 2 else scores

    def places(self, rows: Any) -> NDArray[Any]:
        """Places of the predicted classes among `classes` (rows,)."""
        return self._model.loss.predict(self.scores(rows))  # type: ignore[no-any-return]

    def predict(self, rows: Any) -> NDArray[Any]:
        """Classes (rows,)."""
        return self.classes_[self.places(rows)]  # type: ignore[no-any-return]

    def predict_proba(self, rows: Any) -> Array:
        """Probabilities (rows, classes); SettingError for a loss whose scores are none."""
        require(
            self.objective in (*_PROBABLE, *NETWORKS),
            f"the scores of objective {self.objective} are no probabilities: train with softmax or logistic",
        )
        scores = self.scores(rows)
        if scores.shape[1] == 1:
            return np.hstack([expit(-scores), expit(scores)])
        return softmax(scores, axis=1)  # type: ignore[no-any-return]

    def score(self, rows: Any, labels: Any = None) -> float:
        """Share of rows predicted right; the labels of a table file are in it."""
        if labels is None:
            features, places = _labelled(self, rows)
            return float(np.mean(self._model.predict(self.x, features) == places))
        return float(np.mean(self.predict(rows) == np.asarray(labels)))


class TrainedRegressor(TrainedModel):
    """A model whose labels are numbers."""

    @property
    def coef_(self) -> Array:
        """Weights of the features (features,)."""
        return super().coef_[0] * self.half

    @property
    def intercept_(self) -> Any:
        """Weight of the column of ones."""
        return super().intercept_[0] * self.half + self.middle

    def predict(self, rows: Any) -> Array:
        """Numbers (rows,)."""
        return self.middle + self.half * self.scores(rows)[:, 0]

    def score(self, rows: Any, labels: Any = None) -> float:
        """R^2; the labels of a table file are in it, and count as the run saw them, clipped to their range."""
        if labels is None:
            features, numbers = _labelled(self, rows)
            return float(self._model.score(self.x, Batch(features, numbers)))
        return float(score_of(self.predict(rows), Batch(np.empty(0), np.asarray(labels, float)), False))


def _labelled(model: TrainedModel, rows: Any) -> tuple[Array, NDArray[Any]]:
    """Features and labels of a table's file, as the objective sees them."""
    schema = model.inputs.schema
    if schema is None or not isinstance(rows, str | Path):
        raise DataError("score needs labels, or the file of a table with a label column")
    plain, labels = read_rows(rows, schema)
    whole = appended_one(plain) if model.inputs.bias else plain
    return limited_norm(whole, model.inputs.row_norm) if model.inputs.row_norm else whole, labels


# --------------------------------------------------------------------------------------------- loading


def trained(x: Array, objective: str, inputs: Inputs, **others: Any) -> TrainedClassifier | TrainedRegressor:
    """The model of a kind that suits its objective; the label's range is the schema's."""
    classifies = objective in NETWORKS or LOSSES[objective].classifies
    label = inputs.schema.label if inputs.schema else None
    if isinstance(label, Target):
        others = {"middle": label.range.middle, "half": label.range.half} | others
    return (TrainedClassifier if classifies else TrainedRegressor)(x, objective, inputs, **others)


def load(path: str | Path) -> TrainedClassifier | TrainedRegressor:
    """The model in a run folder, or in a file model.npz; DataError where there is none that can predict."""
    file = Path(path).expanduser()
    file = file / "model.npz" if file.is_dir() else file
    content = read_bytes(file)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if "description" not in arrays:
                raise DataError(f"{file} does not say how to predict: {_WITHOUT}")
            x, text = arrays["x"], str(arrays["description"])
        return _described(np.array(x, dtype=np.float64), json.loads(text))
    except (ValueError, KeyError, TypeError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        if isinstance(error, TwinflowerError) and str(error).startswith(str(file)):
            raise
        raise DataError(f"{file} is not a model of this version of Twinflower ({cause(error)})") from None


_WITHOUT = "a PyTorch module is in model.pt beside it, for torch.load; one of version 0.1 is x and no more"


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
    """Names and rows of a table of predictions: the prediction, and the probability of each class where there are."""
    names, columns = ["prediction"], [model.predict(rows).tolist()]
    if isinstance(model, TrainedClassifier) and model.objective in (*_PROBABLE, *NETWORKS):
        names += [f"probability of {name}" for name in model.classes]
        columns += model.predict_proba(rows).T.tolist()
    return names, list(zip(*columns, strict=True))
